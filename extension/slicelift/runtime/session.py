"""The calls of a session, inside a job: they do nothing there, and say so once.

A notebook that promotes itself runs its own `promote` in every rank. It must not make a job of each of them, and the
cells around it must not break either.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from slicelift.models import JobSpec, RunView, Status

_said: set[str] = set()


class NoRun(RunView):
    """What `promote` gives inside a job: fields of a run that is over without a result, and calls that do nothing."""

    def refresh(self) -> NoRun:
        """Itself."""
        return self

    def wait(self, *_: Any, **__: Any) -> NoRun:
        """Itself, at once."""
        return self

    def cancel(self) -> NoRun:
        """Itself; nothing is cancelled."""
        return self

    def suspend(self) -> NoRun:
        """Itself; nothing is suspended."""
        return self

    def retry(self) -> NoRun:
        """Itself; nothing is started."""
        return self

    def logs(self, *_: Any, **__: Any) -> str:
        """Nothing."""
        return ""

    def __repr__(self) -> str:
        return "nothing: slicelift.promote does nothing inside a job"


def promote(*_: Any, **__: Any) -> NoRun:
    """Nothing inside a job."""
    _say()
    spec = JobSpec(name="", snapshot_id="", notebook="", script="", cwd="", python="")
    return NoRun(
        promotion_id=os.environ.get("SLICELIFT_PROMOTION_ID", ""),
        run_id=os.environ.get("SLICELIFT_RUN_ID", ""),
        name="",
        owner="",
        status=Status.KILLED,
        reason="inside-a-job",
        spec=spec,
    )


def show(*_: Any, **__: Any) -> None:
    """Nothing inside a job."""
    _say()


def jobs(*_: Any, **__: Any) -> None:
    """Nothing inside a job."""
    _say()


def load_ipython_extension(_: Any) -> None:
    """Nothing inside a job."""
    _say()


def unload_ipython_extension(_: Any) -> None:
    """Nothing inside a job."""


def _say() -> None:
    """Once per process, in the log of the rank."""
    if not _said:
        _said.add("said")
        text = "slicelift: promote, show and jobs are calls of a session; inside a job they do nothing."
        print(text, file=sys.stderr, flush=True)
