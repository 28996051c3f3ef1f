"""Runs: listed, looked at, followed, ended, suspended, started again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from slicelift.cli.access import connect, every_run, find_run, json_option, run_argument
from slicelift.cli.follow import follow, settle
from slicelift.cli.metrics import rank_table
from slicelift.cli.outcomes import FAILED, FINE, conclude, log_tail, summary
from slicelift.cli.printing import ago, complain, dim, print_json, table
from slicelift.cli.screens import open_screen
from slicelift.cli.sentences import next_step
from slicelift.errors import Conflict, SliceliftError
from slicelift.figures import duration, plural
from slicelift.models import SUSPENDED, RunView, Status, to_dict
from slicelift.sentences import elapsed, failure_lines, remarks, sentence

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

_NEWEST = 20
_BEHIND = "MLflow has not caught up yet; the run's last points and models follow by themselves."


@click.command()
@click.option("--all", "everything", is_flag=True, help=f"All runs, not only the newest {_NEWEST}.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in Status], case_sensitive=False),
    help="Only runs that stand there; may be repeated.",
)
@json_option
def jobs(everything: bool, statuses: tuple[str, ...], as_json: bool) -> None:
    """List runs, newest first."""
    client = connect()
    wanted = tuple(status.upper() for status in statuses)
    found = list(every_run(client, wanted)) if everything else client.jobs(status=wanted, limit=_NEWEST)
    if as_json:
        print_json({"jobs": [to_dict(view) for view in found]})
    elif found:
        print(table(["run", "name", "status", "submitted", ""], [_row(view) for view in found]))
    elif wanted:
        print(f"No run stands at {' or '.join(wanted)}. All of them: slicelift jobs")
    else:
        print("No runs yet. Start one: slicelift promote NOTEBOOK")


@click.command()
@run_argument
@json_option
def status(run: str, as_json: bool) -> None:
    """Show where one run stands. Exit status 0 whatever it is; `watch` tells how a run ended."""
    view = find_run(connect(), run)
    if as_json:
        print_json(to_dict(view))
    else:
        print("\n".join(_described(view)))


@click.command()
@run_argument
@json_option
def watch(run: str, as_json: bool) -> int:
    """Follow one run until it is over. Ctrl-C leaves it running."""
    client = connect()
    return follow_to_end(client, find_run(client, run), as_json=as_json)


@click.command()
@run_argument
@json_option
def cancel(run: str, as_json: bool) -> int:
    """End a run and all its processes, and say so once they are proved gone."""
    client = connect()
    view = client.cancel(find_run(client, run).run_id)
    if as_json:
        print_json(to_dict(view))
    else:
        print(f"{view.name} ({view.run_id}): {sentence(view)}")
    return FINE if view.status.terminal else FAILED


@click.command()
@run_argument
@json_option
def suspend(run: str, as_json: bool) -> int:
    """End a run for now, with time to save a checkpoint; its GPUs and its quota are free meanwhile."""
    client = connect()
    view = client.suspend(find_run(client, run).run_id)
    if as_json:
        print_json(to_dict(view))
    else:
        print(f"{view.name} ({view.run_id}): {sentence(view)}")
        print(dim(f"next: {next_step(view)}"))
    # to save may take longer than the launcher lets a caller wait
    return FINE if view.reason.startswith(SUSPENDED) else FAILED


@click.command()
@run_argument
@click.option("--wait/--no-wait", default=False, help="Follow the run until it is over.")
@json_option
def resume(run: str, wait: bool, as_json: bool) -> int:
    """Go on with a suspended run from its checkpoint: same code, same data, attempt + 1."""
    client = connect()
    view = find_run(client, run)
    if not view.suspended:
        raise Conflict(
            "not-suspended",
            f"{view.name} ({view.run_id}) is not suspended: {sentence(view)}.",
            f"Start a run that is over once more: slicelift retry {view.run_id}",
        )
    return _start_again(client, view, wait=wait, as_json=as_json)


@click.command()
@run_argument
@click.argument("workers", type=click.IntRange(min=1))
@json_option
def scale(run: str, workers: int, as_json: bool) -> int:
    """Give an elastic run another number of workers, from its min_workers to its preset's max_workers."""
    client = connect()
    view = client.scale(find_run(client, run).run_id, workers)
    if as_json:
        print_json(to_dict(view))
    else:
        print(f"{view.name} ({view.run_id}) has {plural(view.spec.workers, 'worker')} from now on.")
    return FINE


@click.command()
@run_argument
@click.option("--wait/--no-wait", default=False, help="Follow the new attempt until it is over.")
@json_option
def retry(run: str, wait: bool, as_json: bool) -> int:
    """Start an ended run once more: same code, same data, attempt + 1."""
    client = connect()
    return _start_again(client, find_run(client, run), wait=wait, as_json=as_json)


def follow_to_end(client: Client, view: RunView, *, as_json: bool) -> int:
    """Show a run until MLflow has it too, tell its end, and return the exit status."""
    # with --json stdout holds the object alone
    try:
        with open_screen(sys.stderr if as_json else sys.stdout) as screen:
            view = follow(client, view, screen)
            view, caught_up = settle(client, view, screen)
            screen.show(view)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped following; {view.name} goes on ({sentence(view)}).",
            f"Follow it: slicelift watch {view.run_id}   End it: slicelift cancel {view.run_id}",
            detail={"run_id": view.run_id},
        ) from None
    if not as_json:
        for line in log_tail(client, view):
            print(line)
    if not caught_up:
        complain(_BEHIND, f"Look again with `slicelift status {view.run_id}`.")
    return conclude(view, as_json=as_json, behind=not caught_up)


def tell_submitted(view: RunView, *, as_json: bool) -> None:
    """A run that nobody waits for: where it stands, and how to follow it."""
    if as_json:
        print_json(summary(view))
        return
    print(f"{view.name} is run {view.run_id} (promotion {view.promotion_id}). {sentence(view)}")
    print(dim(f"next: {next_step(view)}"))


def _start_again(client: Client, view: RunView, *, wait: bool, as_json: bool) -> int:
    view = client.retry(view.run_id)
    if wait:
        return follow_to_end(client, view, as_json=as_json)
    tell_submitted(view, as_json=as_json)
    return FINE


class Interrupted(SliceliftError):
    """Ctrl-C: the command ends, a job does not."""

    exit_code = 130

    def __init__(self, message: str, hint: str, *, detail: Any) -> None:
        super().__init__("interrupted", message, hint, detail=detail)


def _row(view: RunView) -> list[str]:
    return [view.run_id, view.name, view.status.value, ago(view.created), sentence(view)]


def _described(view: RunView) -> list[str]:
    """The whole picture for a reader."""
    spec = view.spec
    size = plural(spec.workers, "worker") + (f" × {spec.gpus_per_worker} GPU" if spec.gpus_per_worker else "")
    lines = [
        f"{view.name}  {sentence(view)}",
        "",
        f"run        {view.run_id}, attempt {view.attempt}, promotion {view.promotion_id}",
        f"gang       {size}{f' on slice {spec.slice}' if spec.slice else ''}, queue {spec.queue}",
        f"notebook   {spec.notebook}, snapshot {spec.snapshot_id[:12]}",
        f"took       {duration(elapsed(view))}, submitted {ago(view.created)}",
        f"MLflow     {view.mlflow_run_id or 'has not answered yet'}",
    ]
    if view.suspended and view.ended:
        lines.append(f"suspended  {ago(view.ended)}")
    lines += [f"data       {ref.path} at {ref.md5}, {plural(ref.nfiles, 'file')}" for ref in spec.data]
    lines += [f"parameter  {name} = {value!r}" for name, value in spec.parameters.items()]
    lines += [f"model      {model.name} version {model.version}" for model in view.models]
    lines += [f"note       {remark}" for remark in remarks(view)]
    if view.latest:
        lines += ["", table(*rank_table(view))]
    if view.failure:
        lines += ["", *failure_lines(view.failure)[1:]]
    return [*lines, "", dim(f"next: {next_step(view)}")]
