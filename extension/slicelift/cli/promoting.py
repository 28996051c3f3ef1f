"""From a notebook to a job: `promote`, and `plan`, which shows the same and submits nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicelift.cli.access import connect, json_option
from slicelift.cli.outcomes import FINE
from slicelift.cli.plans import plan_json, plan_lines
from slicelift.cli.printing import dim, print_json, remark
from slicelift.figures import duration, plural
from slicelift.models import size_text
from slicelift.options import gang_options, notebook_argument
from slicelift.promotion import Request, Step

if TYPE_CHECKING:
    from slicelift.snapshot import Candidate

_LISTED = 20


@click.command()
@notebook_argument
@gang_options
@click.option(
    "--wait/--no-wait", default=False, help="Follow the run until it is over; exit status by its end."
)
@click.option(
    "--init-git", is_flag=True, help="Make a git repository with a first commit where there is none."
)
@click.option(
    "--yes",
    is_flag=True,
    help="With --init-git: do not ask, and commit files that look like credentials too.",
)
@click.option(
    "--promotion-id", metavar="ID", help="Repeat a promotion under its id: at most one job comes of it."
)
@json_option
def promote(
    notebook: Path,
    wait: bool,
    init_git: bool,
    yes: bool,
    promotion_id: str | None,
    as_json: bool,
    **gang: Any,
) -> int:
    """Run a notebook as a gang of processes: check, snapshot, prove the data, submit.

    Without --wait the command returns once the job is accepted and prints how to follow it; the job does not
    need this terminal. With --wait, Ctrl-C stops the following and leaves the job running.
    """
    from slicelift.cli.runs import Interrupted, follow_to_end, tell_submitted
    from slicelift.promotion import mint_id, submit

    request = _request(notebook, gang)
    if init_git:
        _make_project(notebook, yes=yes, ask=not (yes or as_json or not sys.stdin.isatty()))
    identity = promotion_id or mint_id()
    try:
        view = submit(request, promotion_id=identity, on_progress=_teller(as_json=as_json))
    except KeyboardInterrupt:
        raise Interrupted(
            "Interrupted before the launcher's answer.",
            f"Whether a job came of it: slicelift status {identity}",
            detail={"promotion_id": identity},
        ) from None
    if wait:
        return follow_to_end(connect(), view, as_json=as_json)
    tell_submitted(view, as_json=as_json)
    return FINE


@click.command()
@notebook_argument
@gang_options
@json_option
def plan(notebook: Path, as_json: bool, **gang: Any) -> int:
    """Show what would travel and what would start; submit nothing.

    The snapshot is made (a commit on a side ref of the repository), the data is proved, and the launcher is
    asked for position and manifest if one runs; none is started for it.
    """
    from slicelift.promotion import plan as make_plan

    made = make_plan(_request(notebook, gang), on_progress=_teller(as_json=as_json))
    if as_json:
        print_json(plan_json(made))
    else:
        print("\n".join(plan_lines(made)))
    return FINE


def _request(notebook: Path, gang: dict[str, Any]) -> Request:
    known = {each.name for each in fields(Request)}
    return Request(notebook=notebook, **{name: value for name, value in gang.items() if name in known})


def _teller(*, as_json: bool) -> Any:
    """Progress as one line per step; with --json on stderr, so that stdout holds the object alone."""
    stream = sys.stderr if as_json else sys.stdout

    def tell(step: Step) -> None:
        took = f"  {dim(duration(step.seconds))}" if step.seconds >= 0.05 else ""
        print(f"✓ {step.text}{took}", file=stream, flush=True)

    return tell


def _make_project(notebook: Path, *, yes: bool, ask: bool) -> None:
    """`--init-git`: a repository around the notebook, after a look at what its first commit would hold."""
    from slicelift.promotion import read_notebook
    from slicelift.snapshot import init_project, refuse_credentials

    read_notebook(notebook)
    root = notebook.absolute().parent

    def confirm(held: Sequence[Candidate]) -> bool:
        _show(held)
        if not yes:
            refuse_credentials(held)
        return not ask or click.confirm("Make it?", default=True, err=True)

    init_project(root, confirm=confirm)


def _show(held: Sequence[Candidate]) -> None:
    """The list goes to stderr, also where nobody is asked: it can be read afterwards in a log."""
    total = size_text(sum(each.size_bytes for each in held))
    remark(f"The first commit holds {plural(len(held), 'file')}, {total}; the largest first:")
    for each in held[:_LISTED]:
        remark(f"  {size_text(each.size_bytes):>8}  {each.path}")
    if len(held) > _LISTED:
        remark(f"  and {len(held) - _LISTED} more")
