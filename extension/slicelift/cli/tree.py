"""The tree of commands: which there are, what each is for, and where its code lies."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click

from slicelift._version import __version__


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One command before its module is imported."""

    section: str
    summary: str
    module: str
    attribute: str


def _entry(section: str, place: str, summary: str) -> Entry:
    module, attribute = place.split(":")
    return Entry(section=section, summary=summary, module=f"slicelift.cli.{module}", attribute=attribute)


_NOTEBOOK, _RUNS, _RESULTS, _SETUP = "From a notebook", "Runs", "Results", "This machine"
COMMANDS: dict[str, Entry] = {
    "promote": _entry(_NOTEBOOK, "promoting:promote", "Run a notebook as a gang of processes."),
    "plan": _entry(_NOTEBOOK, "promoting:plan", "Show what would travel and start; submit nothing."),
    "preflight": _entry(_NOTEBOOK, "checking:preflight", "Check a notebook without running it."),
    "script": _entry(_NOTEBOOK, "checking:script", "Print the Python file that a notebook becomes."),
    "jobs": _entry(_RUNS, "runs:jobs", "List runs, newest first."),
    "status": _entry(_RUNS, "runs:status", "Show where one run stands."),
    "watch": _entry(_RUNS, "runs:watch", "Follow one run until it is over."),
    "logs": _entry(_RUNS, "logs:logs", "Print what the ranks printed."),
    "cancel": _entry(_RUNS, "runs:cancel", "End a run and all its processes."),
    "suspend": _entry(_RUNS, "runs:suspend", "End a run for now, with time to save a checkpoint."),
    "resume": _entry(_RUNS, "runs:resume", "Go on with a suspended run from its checkpoint."),
    "scale": _entry(_RUNS, "runs:scale", "Give an elastic run another number of workers."),
    "retry": _entry(_RUNS, "runs:retry", "Start an ended run once more, unchanged."),
    "outputs": _entry(_RESULTS, "results:outputs", "List or fetch the files that a run left behind."),
    "models": _entry(_RESULTS, "results:models", "List registered model versions, set an alias."),
    "secrets": _entry(_SETUP, "settings:secrets", "Keep values that jobs need and nobody should read."),
    "profiles": _entry(_SETUP, "settings:profiles", "Check the files of profiles, presets and policy."),
    "up": _entry(_SETUP, "service:up", "Start hub, launcher and MLflow; Ctrl-C stops them."),
    "down": _entry(_SETUP, "service:down", "Stop them from elsewhere."),
    "hub": _entry(_SETUP, "people:people", "Say who may sign in to the hub."),
}


class Tree(click.Group):
    """A group that knows its commands' names and summaries, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get({"show": "status"}.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}:{entry.attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Written from the table alone: listing must import nothing."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            rows = [(name, entry.summary) for name, entry in COMMANDS.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest name in the message."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib  # 5 ms, needed for a misspelt name only

            near = difflib.get_close_matches(args[0], list(COMMANDS), n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{meant}", ctx) from None


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Tree, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="slicelift", message="%(prog)s %(version)s")
def slicelift() -> None:
    """From a slice of one GPU to a gang of many, without leaving the notebook.

    RUN in a command is a run id, a promotion id, the beginning of either, or `last`.

    Exit status: 0 fine; 1 refused, or the job failed; 2 wrong use; 3 launcher or tracker away;
    130 interrupted.
    """
