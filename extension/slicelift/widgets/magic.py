"""`%promote`: the command line's own options, on a line of a cell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from slicelift.errors import UserError
from slicelift.options import gang_options
from slicelift.widgets.faults import told_briefly
from slicelift.widgets.place import own_notebook
from slicelift.widgets.promoting import submitted
from slicelift.widgets.shown import ShownRun

NAME = "promote"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext slicelift`: make `%promote` known. Safe to repeat."""
    shell.register_magic_function(promote_line, magic_kind="line", magic_name=NAME)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext slicelift`."""
    shell.magics_manager.magics["line"].pop(NAME, None)


def promote_line(line: str) -> ShownRun | None:
    """Run a notebook as a gang: %promote [NOTEBOOK] [--workers N] [-p NAME=VALUE] ...

    NOTEBOOK left out is the one that this kernel belongs to, as it is saved. `%promote --help` lists the options, which
    are those of `slicelift promote`.
    """
    with told_briefly():
        given = _parse(line)
        if given is None:
            return None
        from slicelift.promotion import Request  # preflight and snapshot: 0.2 s

        notebook: Path | None = given.pop("notebook")
        request = Request(notebook=own_notebook() if notebook is None else notebook, **given)
        return submitted(request)


@click.command(NAME)
@click.argument("notebook", metavar="[NOTEBOOK]", required=False, type=click.Path(path_type=Path))
@gang_options
def _options(**given: Any) -> dict[str, Any]:
    """Run a notebook as a gang of processes: check, snapshot, prove the data, submit.

    NOTEBOOK left out is the one that this kernel belongs to, as it is saved on disk.
    """
    return given


def _parse(line: str) -> dict[str, Any] | None:
    """The options of one line; None when only help was asked for. Raises `usage`."""
    try:
        words = shlex.split(line)
        given = _options.main(args=words, prog_name=f"%{NAME}", standalone_mode=False)
    except (ValueError, click.ClickException) as error:
        told = error.format_message() if isinstance(error, click.ClickException) else f"{error}."
        message = f"%{NAME} {line.strip()}".strip() + f" cannot be read: {told}"
        raise UserError("usage", message, f"`%{NAME} --help` lists the options.") from error
    return given if isinstance(given, dict) else None
