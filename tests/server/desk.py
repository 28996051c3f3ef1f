"""A dispatch over a real ledger and a steered backend, for the moments that a whole launcher passes too quickly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift.backends.base import Attempt, Proof
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import JobSpec, JobStatus, Status
from slicelift_hub.launcher.dispatch import Dispatch, Pace
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.services import make_attempt
from slicelift_hub.leases import make_inventory

from tests.server.steered import Quiet

PACE = Pace(poll=0.01, retry=0.01, unknown=0.4, drain=0.0)


@dataclass
class Backend(Quiet):
    """Runs nothing; `said` is what `status` answers, `frees` what `discard` does."""

    said: JobStatus = field(default_factory=lambda: JobStatus(status=Status.RUNNING))
    frees: bool = True
    looks: int = 0
    submits: list[str] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    away: Unavailable | None = None
    unready: JobStatus | SliceliftError | None = None
    abandons: list[str] = field(default_factory=list)
    # whether ranks that are suspended have something to save
    saves: bool = False
    # attempts of which it has a gang, also where the submit was refused halfway, or by an earlier launcher
    gangs: set[str] = field(default_factory=set)
    refusal: SliceliftError | None = None
    # what a cancel could not end
    left: tuple[str, ...] = ()
    # handles of which it may not say or do anything
    closed: set[str] = field(default_factory=set)

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        self._answer()
        if isinstance(self.unready, SliceliftError):
            raise self.unready
        return self.unready

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        self._answer()
        self.abandons.append(attempt.attempt_id)
        return f"steered://{attempt.attempt_id}" if attempt.attempt_id in self.gangs else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        self._answer()
        self.submits.append(attempt.attempt_id)
        self.gangs.add(attempt.attempt_id)
        if self.refusal is not None:
            raise self.refusal
        return f"steered://{attempt.attempt_id}"

    def status(self, handle: str) -> JobStatus:
        self._answer(handle)
        self.looks += 1
        return self.said

    def cancel(self, handle: str, *, reason: str, grace_seconds: float = 10.0, saving: bool = False) -> Proof:
        self._answer()
        self.cancels.append(handle)
        if self.left or (saving and self.saves):
            return Proof(gone=False, left=self.left)
        self.gangs.discard(handle.removeprefix("steered://"))
        return Proof(gone=True, killed=1)

    def scale(self, handle: str, workers: int) -> None:
        """Its gangs keep their workers."""

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        return self.frees

    def _answer(self, handle: str = "") -> None:
        if self.away is not None:
            raise self.away
        if handle in self.closed:
            raise Unavailable("cluster-denied", "The launcher may not do this.")


class Desk:
    """A dispatch over a ledger of its own; `submit` puts a job into the queue."""

    def __init__(self, where: Path | str) -> None:
        self.ledger = Ledger(where)
        self.ledger.declare_inventory(make_inventory(slots=2, gpus=0, slices=[]))
        self.backend = Backend()
        self.call: Callable[..., Awaitable[Any]] = asyncio.to_thread

    def dispatch(self, pace: Pace = PACE) -> Dispatch:
        def make(row: Any, held: Any) -> Attempt:
            return make_attempt("http://127.0.0.1:1", "key", row, held)

        return Dispatch(
            self.ledger,
            self.backend,
            call=lambda *a, **k: self.call(*a, **k),
            ask=asyncio.to_thread,
            changed=lambda _: None,
            make_attempt=make,
            pace=pace,
        )

    def submit(self, promotion_id: str = "p-1") -> str:
        words = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "python3"}
        spec = JobSpec(name="job", snapshot_id="0" * 64, **words)
        run_id, _ = self.ledger.submit(
            "ann", promotion_id, spec=spec, snapshot={}, token_of=lambda name: name
        )
        return run_id

    def status(self, run_id: str) -> Status:
        found = self.ledger.attempt(f"{run_id}-1")
        assert found is not None
        return found.status


async def until(there: Callable[[], Any]) -> None:
    limit = time.monotonic() + 20
    while not there():
        assert time.monotonic() < limit, "it did not come"
        await asyncio.sleep(0.01)


async def end(dispatch: Dispatch, queue: asyncio.Task[None]) -> None:
    await dispatch.stop(keep_jobs=True)
    queue.cancel()
