"""Brings every attempt from the queue to its end, and picks all of them up again after a restart.

One task per submitted attempt asks the ledger where it stands and takes the next step; every step may be repeated, so a
launcher killed between any two of them goes on with the same one. The ledger is written before a step has
consequences (STARTING before submit, CANCELLING before cancel) and after it is proved.

A backend that queues by itself gets every attempt at once, and it WAITS there. When such a one starts a gang again, the
same task goes on with the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from slicelift.backends.base import GONE, Attempt, Backend
from slicelift.errors import NotFound, SliceliftError, Unavailable
from slicelift.models import Failure, JobStatus, Status

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.ledger_runs import DELIVERING
from slicelift_hub.launcher.scaling import Scaling
from slicelift_hub.leases import Item

Call = Callable[..., Awaitable[Any]]

STOPPED = "launcher stopped"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often and how long, in seconds."""

    poll: float = 0.3
    # the same for a backend that tells its news by itself, and from where on many jobs are looked at less often
    listening: float = 5.0
    looks_per_second: float = 100.0
    # while a backend makes something ready for a gang, which it does not tell
    preparing: float = 1.0
    # how long a job that is over may still send its last points and logs before its end is told
    drain: float = 10.0
    # how long a backend may not know an attempt before it counts as lost
    unknown: float = 30.0
    retry: float = 2.0
    stop: float = 45.0


@dataclass(kw_only=True)
class _Drive:
    """One submitted attempt under way. `over_since`, `unknown_since`: when the backend first said so.

    `preparing`: what it needs is not ready. `refused`: it cannot be started, and is to end so. `seen` is what the backend
    said last, of which attempt, and where that stood then.
    """

    task: asyncio.Task[None] | None = None
    poke: asyncio.Event
    over_since: float | None = None
    unknown_since: float | None = None
    preparing: bool = False
    refused: JobStatus | None = None
    seen: tuple[JobStatus, str, Status] | None = None


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
        self.scaling = Scaling(ledger, backend, call=call, ask=ask)
        self._wake = asyncio.Event()
        self._drives: dict[str, _Drive] = {}
        self._submissions: dict[str, str] = {}
        self._granting = asyncio.Lock()
        self._stopping = False

    async def adopt(self) -> int:
        """Take up every attempt that an earlier launcher left, and listen to the backend; how many."""
        loop = asyncio.get_running_loop()
        await self._ask(self._backend.listen, lambda handle: _call_soon(loop, self._hear, handle))
        leased = self._backend.leased
        left = [
            row
            for row in await self._call(self._ledger.active)
            if row.status != Status.WAITING or (row.handle and not leased)
        ]
        for row in left:
            self._drive(row.submission)
        self.wake()
        return len(left)

    def wake(self) -> None:
        """Look at the queue: something was submitted or freed."""
        self._wake.set()

    def poke(self, attempt_id: str) -> None:
        """Look at this attempt now: it was cancelled, or its agent has news."""
        drive = self._find(attempt_id)
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
        drive = self._find(attempt_id)
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
            self.poke(row.submission)
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
            if not self._backend.leased:
                await self._submit_all()
                return
            for row in await self._call(self._ledger.grant):
                self._changed(row.run_id)
                self._drive(row.submission)
        # everyone behind has moved up
        for view in await self._call(self._ledger.waiting_runs):
            self._changed(view.run_id)

    async def _submit_all(self) -> None:
        """Whatever waits and is not under way goes to the backend. An earlier launcher may have got as far as that."""
        for row in await self._call(self._ledger.unsubmitted):
            self._drive(row.submission)

    def _drive(self, submission: str) -> None:
        """Take it up, unless it is under way: calls are answered, and the queue served, before all is adopted."""
        if submission in self._drives:
            return
        drive = self._drives[submission] = _Drive(poke=asyncio.Event())
        drive.task = asyncio.create_task(self._to_the_end(submission, drive), name=f"drive {submission}")

    def _find(self, attempt_id: str) -> _Drive | None:
        """The drive of an attempt, which may be a restart of what was submitted."""
        if attempt_id in self._drives:
            return self._drives[attempt_id]
        run = attempt_id.rpartition("-")[0]
        newest_first = reversed(self._drives.items())
        return next((drive for name, drive in newest_first if name.rpartition("-")[0] == run), None)

    def _hear(self, handle: str) -> None:
        """The backend has news."""
        drive = self._drives.get(self._submissions.get(handle, ""))
        if drive is not None:
            drive.poke.set()

    async def _to_the_end(self, submission: str, drive: _Drive) -> None:
        over = False
        while not over:
            pause = self._calm()
            try:
                over = await self._step(submission, drive)
                pause = self._pace.preparing if drive.preparing else pause
            except Unavailable as error:
                _log.warning("%s: %s", submission, error)
                pause = self._pace.retry
            except Exception:  # noqa: BLE001 - an attempt must never be left alone with its lease
                _log.exception("%s: this step failed; trying again.", submission)
                pause = self._pace.retry
            if not over:
                await _sleep(drive.poke, pause)
        self._forget(submission)
        self.wake()

    def _calm(self) -> float:
        """Seconds until the next look at a job of which there is no news."""
        if self._backend.leased:
            return self._pace.poll
        return max(self._pace.listening, len(self._drives) / self._pace.looks_per_second)

    def _forget(self, submission: str) -> None:
        self._drives.pop(submission, None)
        for handle in [handle for handle, name in self._submissions.items() if name == submission]:
            del self._submissions[handle]

    async def _step(self, submission: str, drive: _Drive) -> bool:
        """Take one step; whether the submitted attempt, and each that its gang's restarts made, is over."""
        row: AttemptRow | None = await self._call(self._ledger.current, submission)
        if row is None or row.status.terminal:
            return True
        if not row.handle:
            end = _make_killed(row) if row.cancel else drive.refused
            return await (self._submit(row, drive) if end is None else self._abandon(row, end))
        self._submissions[row.handle] = submission
        if row.cancel:
            return await self._end(row, row.handle, _make_killed(row))
        return await self._look(row, drive)

    async def _abandon(self, row: AttemptRow, end: JobStatus) -> bool:
        """Nobody wants it any more: end what is prepared for it, and a gang of it that a submit made without telling."""
        attempt = self._make_attempt(row.submitted, [])
        handle = await self._ask_about(row, self._backend.abandon, row.spec, attempt)
        if not handle:
            return await self._observe(row, end)
        over = await self._end(row, handle, end)
        if over:
            # so that what is left of it is discarded
            await self._call(self._ledger.set_handle, row.submission, handle)
        return over

    async def _submit(self, row: AttemptRow, drive: _Drive) -> bool:
        """Hand it to the backend, prepared. A refusal ends the attempt; an absent part is tried again."""
        held = await self._call(self._ledger.held, row.submission)
        drive.preparing = False
        try:
            attempt = self._make_attempt(row.submitted, held)
            unready = await self._ask_about(row, self._backend.prepare, row.spec, attempt)
            if unready is not None:
                drive.preparing = True
                return await self._observe(row, unready)
            handle = await self._ask_about(row, self._backend.submit, row.spec, attempt)
        except Unavailable:
            raise
        except SliceliftError as error:
            drive.refused = _make_refused(error.code, str(error))
            return await self._abandon(row, drive.refused)
        except Exception as error:  # noqa: BLE001 - a backend's fault ends this attempt, not the launcher
            _log.exception("%s: the backend could not start it.", row.attempt_id)
            drive.refused = _make_refused("start-failed", f"{type(error).__name__}: {error}")
            return await self._abandon(row, drive.refused)
        await self._call(self._ledger.set_handle, row.submission, handle)
        self._changed(row.run_id)
        self.poke(row.submission)
        return False

    async def _look(self, row: AttemptRow, drive: _Drive) -> bool:
        status: JobStatus = await self._ask_about(row, self._backend.status, row.handle)
        now = time.monotonic()
        if status.status == Status.UNKNOWN:
            return await self._handle_unknown(row, drive, status)
        drive.unknown_since = None
        row = await self._follow(row, status)
        await self.scaling.follow(row, status)
        status = _beside(row, status)
        seen = (status, row.attempt_id, row.status)
        # of an attempt that is over, where the agents of its successor were quicker
        late = status.restarts < row.restarts
        if not status.status.terminal and (late or seen == drive.seen):
            return False
        drive.seen = seen
        if status.status.terminal and status.phase == DELIVERING:
            drive.over_since = drive.over_since or now
            if now - drive.over_since < self._pace.drain:
                return False
        return await self._observe(row, status)

    async def _follow(self, row: AttemptRow, status: JobStatus) -> AttemptRow:
        """The attempt that the backend speaks of: a new one when it has started the gang again since."""
        if status.restarts <= row.restarts:
            return row
        try:
            found, new = await self._call(
                self._ledger.restarted,
                row.submission,
                status.restarts,
                status=Status.WAITING,
                message=status.message,
            )
        except NotFound as error:
            _log.warning("%s: the backend counts %d restarts: %s", row.submission, status.restarts, error)
            return row
        if new:
            self._changed(found.run_id)
        result: AttemptRow = found
        return result

    async def _handle_unknown(self, row: AttemptRow, drive: _Drive, status: JobStatus) -> bool:
        if status.reason == "never-started":
            return await self._submit(row, drive)
        if status.reason != GONE:
            # it may well go on: what is not understood is no end. Told once, since its agents may know more
            drive.unknown_since = None
            told = drive.seen is not None and drive.seen[:2] == (status, row.attempt_id)
            drive.seen = (status, row.attempt_id, status.status)
            return not told and await self._observe(row, status)
        drive.unknown_since = drive.unknown_since or time.monotonic()
        if time.monotonic() - drive.unknown_since < self._pace.unknown:
            return await self._observe(row, status)
        lost = JobStatus(
            status=Status.FAILED, reason="lost", message=status.message or "The backend lost it."
        )
        return await self._observe(row, lost)

    async def _end(self, row: AttemptRow, handle: str, end: JobStatus) -> bool:
        """Have it ended, and say `end` once that is proved. A job that had finished by itself before stays FINISHED."""
        how = {"reason": end.reason, "saving": row.suspending}
        proof = await self._ask_about(row, self._backend.cancel, handle, **how)
        if not proof.gone and not proof.left:
            return False
        if not proof.gone:
            message = f"Still alive: {', '.join(proof.left)}. Trying again."
            await self._observe(row, JobStatus(status=row.status, reason=end.reason, message=message))
            await asyncio.sleep(self._pace.retry)
            return False
        seen: JobStatus = await self._ask(self._backend.status, handle)
        if seen.status == Status.FINISHED:
            return await self._observe(row, seen)
        return await self._observe(row, replace(end, phase=seen.phase, exit_code=seen.exit_code))

    async def _ask_about(self, row: AttemptRow, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """Ask the backend. That a cluster is away is also told where the user looks, since it may take long."""
        try:
            return await self._ask(call, *given, **more)
        except Unavailable as error:
            if not self._backend.leased:
                await self._observe(
                    row, JobStatus(status=row.status, reason=error.code, message=error.message)
                )
            raise

    async def _observe(self, row: AttemptRow, status: JobStatus) -> bool:
        if await self._call(self._ledger.observe, row.attempt_id, status):
            self._changed(row.run_id)
        return status.status.terminal


def _beside(row: AttemptRow, status: JobStatus) -> JobStatus:
    """What the backend says of a job whose agents are further along than it can know: its words, their status."""
    knows_less = row.status == Status.RUNNING and status.status in (Status.WAITING, Status.STARTING)
    return replace(status, status=row.status) if knows_less and status.reason else status


def _make_killed(row: AttemptRow) -> JobStatus:
    return JobStatus(status=Status.KILLED, reason=row.cancel)


def _make_refused(reason: str, message: str) -> JobStatus:
    failure = Failure(message=message)
    return JobStatus(status=Status.FAILED, reason=reason, message=message, failure=failure)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], handle: str) -> None:
    """From any thread; a loop that has ended has nobody to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, handle)


async def _sleep(poke: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(poke.wait(), seconds)
    except TimeoutError:
        return
    poke.clear()
