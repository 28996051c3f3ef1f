"""A run as a value of a notebook: all fields of a RunView, and its card when the cell shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicelift.errors import NotFound, SliceliftError, UserError, is_launcher_away
from slicelift.models import RunView
from slicelift.widgets.bundle import make_bundle
from slicelift.widgets.faults import told_briefly

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

LAST = "last"
AWAY_SECONDS = 300.0
_POLL_SECONDS = 0.5
_POINTS = 100


class ShownRun(RunView):
    """A run as it was when it was asked for; equal to a `RunView` of the same fields.

    Nothing of it changes by itself, and nothing of the run depends on it: `refresh` and the others return a new one. Only
    the card under the cell is always of today.
    """

    _home: Path | None = None

    @classmethod
    def of(cls, view: RunView, *, home: Path | None = None) -> ShownRun:
        """`view`, whose launcher serves `home` (None: the usual one)."""
        run = cls(**{field.name: getattr(view, field.name) for field in fields(RunView)})
        object.__setattr__(run, "_home", home)
        return run

    def refresh(self) -> ShownRun:
        """The same run as it stands now. Raises `launcher-away` and the like."""
        with told_briefly(), self._client() as client:
            return self._now(client.job(self.run_id))

    def wait(self, timeout_seconds: float | None = None) -> ShownRun:
        """Block until the run is over, however it ends, and return it so.

        Interrupting the kernel ends the waiting, never the run. A launcher that is away for less than `AWAY_SECONDS` is
        waited for. After `timeout_seconds` raises `still-running`.
        """
        with told_briefly():
            return self._waited(timeout_seconds)

    def cancel(self) -> ShownRun:
        """End the run and all its processes; returns once they are proved gone. Safe to repeat."""
        with told_briefly(), self._client() as client:
            return self._now(client.cancel(self.run_id))

    def suspend(self) -> ShownRun:
        """End the run with time to save a checkpoint; `retry` goes on from there. Its GPUs are free meanwhile."""
        with told_briefly(), self._client() as client:
            return self._now(client.suspend(self.run_id))

    def retry(self) -> ShownRun:
        """Start a run that is over once more, unchanged: attempt + 1 of the same run."""
        with told_briefly(), self._client() as client:
            return self._now(client.retry(self.run_id))

    def logs(self, rank: int | str = 0, *, attempt: int | None = None) -> str:
        """What a rank has printed so far, of the last attempt or the one named; rank "agent" is the agent's own."""
        with told_briefly(), self._client() as client:
            return _whole_log(client, self.run_id, rank=rank, attempt=attempt)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunView):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(RunView))

    __hash__ = None  # type: ignore[assignment]  # as of any run: it holds dicts

    def __repr__(self) -> str:
        return str(make_bundle(self)["text/plain"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The card, of the run as it stands now, or as it was known where no launcher answers."""
        with suppress(SliceliftError), self._client() as client:
            return bundle_of(client, client.job(self.run_id))
        return make_bundle(self)

    def _client(self) -> Client:
        from slicelift.launcher_client import find  # httpx takes a quarter of a second

        return find(self._home)

    def _now(self, view: RunView) -> ShownRun:
        return ShownRun.of(view, home=self._home)

    def _waited(self, timeout_seconds: float | None) -> ShownRun:
        run, begun, answered = self, time.monotonic(), time.monotonic()
        while not run.status.terminal:
            if timeout_seconds is not None and time.monotonic() - begun > timeout_seconds:
                raise _still_running(run, timeout_seconds)
            time.sleep(_POLL_SECONDS)
            try:
                run, answered = self.refresh(), time.monotonic()
            except SliceliftError as error:
                if not is_launcher_away(error) or time.monotonic() - answered > AWAY_SECONDS:
                    raise
        return run


def find_run(run: str | RunView, *, home: Path | None = None) -> RunView:
    """A run as it stands now, by run id, promotion id, `last`, or as a value. Raises `run-unknown`."""
    from slicelift.launcher_client import find  # httpx takes a quarter of a second

    ident = run.run_id if isinstance(run, RunView) else run
    with find(home) as client:
        if ident != LAST:
            return client.job(ident)
        newest: Sequence[RunView] = client.jobs(limit=1)
    if not newest:
        raise NotFound("run-unknown", "There is no run yet.", "Start one: %promote NOTEBOOK.ipynb")
    return newest[0]


def bundle_of(client: Client, view: RunView) -> dict[str, Any]:
    """The output of a run with its curves; without them where the launcher has none to give."""
    series: list[dict[str, Any]] = []
    with suppress(SliceliftError):
        series = client.series(view.run_id, attempt="all", rank=0, points=_POINTS)
    return make_bundle(view, series)


def _whole_log(client: Client, run_id: str, *, rank: int | str, attempt: int | None) -> str:
    parts: list[bytes] = []
    offset = 0
    while True:
        part, following = client.logs(run_id, rank=rank, attempt=attempt, offset=offset)
        if not part or following <= offset:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
        offset = following


def _still_running(run: RunView, seconds: float) -> UserError:
    message = f"{run.name} ({run.run_id}) is not over after {seconds:g} s."
    return UserError("still-running", message, "It goes on; wait again, or end it: run.cancel()")
