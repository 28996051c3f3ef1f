"""A fault of ours in a notebook: a message and a way on, not forty lines of traceback.

Only faults that the calls of this room raise are shown so: one that `slicelift.log` raises in the middle of a training
loop keeps its traceback, since there the user's own line is what matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from slicelift.errors import Refused, SliceliftError
from slicelift.findings import finding_lines


@contextmanager
def told_briefly() -> Iterator[None]:
    """Inside, a `SliceliftError` passes as it is, but IPython shows `fault_lines` in place of its traceback."""
    try:
        yield
    except SliceliftError as error:
        # IPython asks the instance (InteractiveShell.showtraceback); elsewhere nobody does
        error._render_traceback_ = partial(fault_lines, error)  # type: ignore[attr-defined]
        raise


def fault_lines(error: SliceliftError) -> list[str]:
    """Message and code, a refusal's findings one by one, the hint."""
    return [f"{error.message}  [{error.code}]", *_findings(error), *([error.hint] if error.hint else [])]


def _findings(error: SliceliftError) -> list[str]:
    detail = error.detail if isinstance(error, Refused) else None
    found = detail.get("findings") if isinstance(detail, dict) else None
    return finding_lines(found) if found else []
