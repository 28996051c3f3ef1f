"""How a command reaches the launcher and finds the run that the user means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slicelift.errors import NotFound, UserError
from slicelift.models import RunView

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

F = TypeVar("F", bound=Callable[..., Any])
LAST = "last"
_PAGE = 200
_WHOLE = re.compile(r"r-[a-z2-7]{12}|p-[a-z2-7]{20}")


def json_option(function: F) -> F:
    """`--json`, the same on every command."""
    text = "Print one JSON object as the last line."
    return click.option("--json", "as_json", is_flag=True, help=text)(function)


def run_argument(function: F) -> F:
    """RUN, the same on every command."""
    return click.argument("run", metavar="RUN")(function)


def connect() -> Client:
    """The running launcher, until the command ends. Reading commands never start one.

    Raises `launcher-not-running`.
    """
    from slicelift.launcher_client import find  # httpx takes a quarter of a second

    client = find()
    click.get_current_context().call_on_close(client.close)
    return client


def find_run(client: Client, name: str) -> RunView:
    """A run by run id, promotion id, the beginning of either, or `last`.

    Raises `NotFound` (`run-unknown`) or `UserError` (`run-ambiguous`, which lists what fits).
    """
    if name == LAST:
        newest = client.jobs(limit=1)
        if not newest:
            raise NotFound("run-unknown", "There is no run yet.", "Start one: slicelift promote NOTEBOOK.")
        return newest[0]
    if _WHOLE.fullmatch(name):
        return client.job(name)
    return _only([view for view in every_run(client) if _fits(view, name)], name)


def every_run(client: Client, statuses: tuple[str, ...] = ()) -> Iterator[RunView]:
    """All runs of the caller, newest first, page by page."""
    before: str | None = None
    while True:
        page = client.jobs(status=statuses, limit=_PAGE, before=before)
        yield from page
        if len(page) < _PAGE:
            return
        before = page[-1].run_id


def _fits(view: RunView, name: str) -> bool:
    """The `r-` may be left out, since nobody remembers it."""
    return view.run_id.startswith((name, f"r-{name}")) or view.promotion_id.startswith((name, f"p-{name}"))


def _only(found: list[RunView], name: str) -> RunView:
    if not found:
        hint = "`slicelift jobs --all` lists yours; `last` is the newest."
        raise NotFound("run-unknown", f"No run begins with {name!r}.", hint)
    if len(found) > 1:
        some = ", ".join(f"{view.run_id} ({view.name})" for view in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        message = f"{len(found)} runs begin with {name!r}: {some}{more}."
        raise UserError("run-ambiguous", message, "Write more of the id.")
    return found[0]
