"""Brings every attempt from the queue to its end, and picks all of them up again after a restart.

One task per attempt asks the ledger where it stands and takes the next step; every step may be repeated, so a
launcher killed between any two of them goes on with the same one. The ledger is written before a step has
consequences (STARTING before submit, CANCELLING before cancel) and after it is proved.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from slicelift.backends.base import Attempt, Backend
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import Failure, JobStatus, Status

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.ledger_runs import DELIVERING
from slicelift_hub.leases import Item

Call = Callable[..., Awaitable[Any]]

STOPPED = "launcher stopped"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often and how long, in seconds."""

    poll: float = 0.3
    # how long a job that is over may still send its last points and logs before its end is told
    drain: float = 10.0
    # how long a backend may not know an attempt before it counts as lost
    unknown: float = 30.0
    retry: float = 2.0
    stop: float = 45.0


@dataclass(kw_only=True)
class _Drive:
    """One attempt under way. `over_since`, `unknown_since`: when the backend first said so; `seen`: what it said last."""

    task: asyncio.Task[None] | None = None
    poke: asyncio.Event
    over_since: float | None = None
    unknown_since: float | None = None
    seen: JobStatus | None = None


class Dispatch:
    """Used on the event loop. `call` runs functions of the ledger in a thread, `ask` those of the backend.

    `changed` is told the ids of runs whose view changed.
    """

    def __init__(
        self,
        ledger: Ledger,
        backend: Backend,
        *,
        call: Call,
        ask: Call,
        changed: Callable[[str], None],
        make_attempt: Callable[[AttemptRow, list[Item]], Attempt],
        pace: Pace,
    ) -> None:
        self._ledger = ledger
        self._backend = backend
        self._call = call
        self._ask = ask
        self._changed = changed
        self._make_attempt = make_attempt
        self._pace = pace
        self._wake = asyncio.Event()
        self._drives: dict[str, _Drive] = {}
        # attempts that the backend may have although no handle says so: they need a proof to be over
        self._maybe_submitted: set[str] = set()
        self._granting = asyncio.Lock()
        self._stopping = False

    async def adopt(self) -> int:
        """Take up every attempt that an earlier launcher left; how many."""
        left = [row for row in await self._call(self._ledger.active) if row.status != Status.WAITING]
        for row in left:
            self._maybe_submitted.add(row.attempt_id)
            self._drive(row.attempt_id)
        self.wake()
        return len(left)

    def wake(self) -> None:
        """Look at the queue: something was submitted or freed."""
        self._wake.set()

    def poke(self, attempt_id: str) -> None:
        """Look at this attempt now: it was cancelled, or its agent has news."""
        drive = self._drives.get(attempt_id)
        if drive is not None:
            drive.poke.set()

    async def run(self) -> None:
        """Serve the queue for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._serve_queue()
            except Exception:  # noqa: BLE001 - the queue must be served again, whatever a disk or backend threw
                _log.exception("The queue could not be served; trying again.")
                await asyncio.sleep(self._pace.retry)
                self.wake()

    async def wait_over(self, attempt_id: str, *, timeout_seconds: float) -> None:
        """Return when the attempt is over, or when that takes too long."""
        drive = self._drives.get(attempt_id)
        if drive is not None and drive.task is not None:
            await asyncio.wait({drive.task}, timeout=timeout_seconds)

    async def stop(self, *, keep_jobs: bool) -> int:
        """Start nothing any more; unless `keep_jobs`, end what runs, provably. The number of jobs ended."""
        self._stopping = True
        # what is just being granted gets its task first, so that its end is awaited with all others
        async with self._granting:
            pass
        ended = [] if keep_jobs else await self._call(self._ledger.cancel_started, reason=STOPPED)
        for row in ended:
            self._changed(row.run_id)
            self.poke(row.attempt_id)
        tasks = {drive.task for drive in self._drives.values() if drive.task is not None}
        if ended and tasks:
            await asyncio.wait(tasks, timeout=self._pace.stop)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(ended)

    async def _serve_queue(self) -> None:
        async with self._granting:
            if self._stopping:
                return
            for row in await self._call(self._ledger.grant):
                self._changed(row.run_id)
                self._drive(row.attempt_id)
        # everyone behind has moved up
        for view in await self._call(self._ledger.waiting_runs):
            self._changed(view.run_id)

    def _drive(self, attempt_id: str) -> None:
        drive = self._drives[attempt_id] = _Drive(poke=asyncio.Event())
        drive.task = asyncio.create_task(self._to_the_end(attempt_id, drive), name=f"drive {attempt_id}")

    async def _to_the_end(self, attempt_id: str, drive: _Drive) -> None:
        over = False
        while not over:
            pause = self._pace.poll
            try:
                over = await self._step(attempt_id, drive)
            except Unavailable as error:
                _log.warning("%s: %s", attempt_id, error)
                pause = self._pace.retry
            except Exception:  # noqa: BLE001 - an attempt must never be left alone with its lease
                _log.exception("%s: this step failed; trying again.", attempt_id)
                pause = self._pace.retry
            if not over:
                await _sleep(drive.poke, pause)
        self._drives.pop(attempt_id, None)
        self._maybe_submitted.discard(attempt_id)
        self.wake()

    async def _step(self, attempt_id: str, drive: _Drive) -> bool:
        """Take one step; whether the attempt is over."""
        row: AttemptRow | None = await self._call(self._ledger.attempt, attempt_id)
        if row is None or row.status.terminal:
            return True
        if not row.handle:
            if row.cancel and attempt_id not in self._maybe_submitted:
                return await self._observe(row, JobStatus(status=Status.KILLED, reason=row.cancel))
            return await self._submit(row)
        if row.cancel:
            return await self._cancel(row)
        return await self._look(row, drive)

    async def _submit(self, row: AttemptRow) -> bool:
        """Hand it to the backend. A refusal ends the attempt; an absent part is tried again."""
        held = await self._call(self._ledger.held, row.attempt_id)
        self._maybe_submitted.add(row.attempt_id)
        try:
            handle = await self._ask(self._backend.submit, row.spec, self._make_attempt(row, held))
        except Unavailable:
            raise
        except SliceliftError as error:
            return await self._observe(row, _make_refused(error.code, str(error)))
        except Exception as error:  # noqa: BLE001 - a backend's fault ends this attempt, not the launcher
            _log.exception("%s: the backend could not start it.", row.attempt_id)
            return await self._observe(row, _make_refused("start-failed", f"{type(error).__name__}: {error}"))
        await self._call(self._ledger.set_handle, row.attempt_id, handle)
        self._changed(row.run_id)
        self.poke(row.attempt_id)
        return False

    async def _look(self, row: AttemptRow, drive: _Drive) -> bool:
        status: JobStatus = await self._ask(self._backend.status, row.handle)
        now = time.monotonic()
        if status.status == Status.UNKNOWN:
            return await self._handle_unknown(row, drive, status)
        drive.unknown_since = None
        if status == drive.seen and status.status == row.status:
            return False
        drive.seen = status
        if status.status.terminal and status.phase == DELIVERING:
            drive.over_since = drive.over_since or now
            if now - drive.over_since < self._pace.drain:
                return False
        return await self._observe(row, status)

    async def _handle_unknown(self, row: AttemptRow, drive: _Drive, status: JobStatus) -> bool:
        if status.reason == "never-started":
            return await self._submit(row)
        drive.unknown_since = drive.unknown_since or time.monotonic()
        if time.monotonic() - drive.unknown_since < self._pace.unknown:
            return await self._observe(row, status)
        lost = JobStatus(
            status=Status.FAILED, reason="lost", message=status.message or "The backend lost it."
        )
        return await self._observe(row, lost)

    async def _cancel(self, row: AttemptRow) -> bool:
        """End it and believe only the proof. A job that had finished by itself before stays FINISHED."""
        proof = await self._ask(self._backend.cancel, row.handle, reason=row.cancel)
        if not proof.gone:
            message = f"Still alive: {', '.join(proof.left)}. Trying again."
            await self._observe(row, JobStatus(status=Status.CANCELLING, reason=row.cancel, message=message))
            await asyncio.sleep(self._pace.retry)
            return False
        seen: JobStatus = await self._ask(self._backend.status, row.handle)
        if seen.status == Status.FINISHED:
            return await self._observe(row, seen)
        killed = JobStatus(
            status=Status.KILLED, phase=seen.phase, reason=row.cancel, exit_code=seen.exit_code
        )
        return await self._observe(row, killed)

    async def _observe(self, row: AttemptRow, status: JobStatus) -> bool:
        if await self._call(self._ledger.observe, row.attempt_id, status):
            self._changed(row.run_id)
        return status.status.terminal


def _make_refused(reason: str, message: str) -> JobStatus:
    failure = Failure(message=message)
    return JobStatus(status=Status.FAILED, reason=reason, message=message, failure=failure)


async def _sleep(poke: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(poke.wait(), seconds)
    except TimeoutError:
        return
    poke.clear()
