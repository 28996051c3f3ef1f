"""What a launcher does beside answering calls: the queue, the news, checkpoints, and tidying up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from slicelift.backends.base import Backend
from slicelift.errors import SliceliftError, Unavailable
from sqlalchemy.exc import SQLAlchemyError

from slicelift_hub.launcher.idle import judge_idle
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_runs import DELIVERING
from slicelift_hub.launcher.policy import ended_reason
from slicelift_hub.launcher.services import Services, call_in
from slicelift_hub.sessions import Sessions

CHECKPOINT_SECONDS = 2.0
# a checkpoint that takes long is made less often, so that it never costs more than this share of the time
CHECKPOINT_SHARE = 0.05
TIDY_SECONDS = 60.0
HOME_SECONDS = 5.0
SOLE_SECONDS = 5.0
OVERDUE_SECONDS = 2.0
IDLE_SECONDS = 20.0
SESSIONS_SECONDS = 2.0
_log = logging.getLogger(__name__)


def start_chores(
    services: Services, *, log_retention_seconds: float, keep_attempt_seconds: float
) -> list[asyncio.Task[None]]:
    """Tasks that run until they are cancelled; keep the list, a loop holds its tasks weakly."""
    chores = _Chores(
        services, log_retention_seconds=log_retention_seconds, keep_attempt_seconds=keep_attempt_seconds
    )
    work: dict[str, Any] = {
        "queue": services.dispatch.run(),
        "news": services.announcer.run(chores.announce),
        "checkpoint": _repeat(chores.checkpoint),
        "wall time": _repeat(chores.end_overdue),
        "idle GPUs": _repeat(chores.look_at_gpus),
        "tidy": _repeat(chores.tidy),
        "home": _repeat(chores.look_home),
        "ledger": _repeat(chores.look_at_ledger),
    }
    if services.policy.leased:  # elsewhere sessions are pods, and hold nothing of ours
        work["sessions"] = _repeat(chores.look_at_sessions)
    return [asyncio.create_task(each, name=name) for name, each in work.items()]


class _Chores:
    """Each gives the seconds until the next time."""

    def __init__(
        self, services: Services, *, log_retention_seconds: float, keep_attempt_seconds: float
    ) -> None:
        self._services = services
        self._log_retention_seconds = log_retention_seconds
        self._keep_attempt_seconds = keep_attempt_seconds
        self._sessions = Sessions(services.ledger.engine) if services.policy.leased else None

    async def announce(self, run_id: str) -> None:
        """Tell the news of a run, which may be tried again with the next."""
        try:
            await self._services.announce(run_id)
        except (SliceliftError, SQLAlchemyError) as error:
            _log.warning("The news of %s could not be told: %s", run_id, error)
        except Exception:  # noqa: BLE001 - one run that cannot be told must not silence all others
            _log.exception("The news of %s could not be told.", run_id)

    async def checkpoint(self) -> float:
        """Save the fold."""
        began = time.monotonic()
        await self._services.call(self._services.ingest.checkpoint)
        return max(CHECKPOINT_SECONDS, (time.monotonic() - began) / CHECKPOINT_SHARE)

    async def end_overdue(self) -> float:
        """End the runs whose wall time is over."""
        services = self._services
        for run in await services.call(services.ledger.overdue, time.time()):
            reason = ended_reason(run.limit)
            row = await services.call(services.ledger.cancel, run.owner, run.run_id, reason=reason)
            _log.info("%s: %s.", run.run_id, reason)
            services.announcer.changed(run.run_id)
            services.dispatch.poke(row.attempt_id)
        return OVERDUE_SECONDS

    async def look_at_gpus(self) -> float:
        """Tell the owners of gangs whose GPUs do nothing, and end those whose preset says so."""
        services = self._services
        for row, reason, minutes in await services.call(services.ledger.idle):
            limit = services.policy.idle_limit(row.spec.preset)
            found = judge_idle(limit, minutes=minutes, reason=reason) if limit else None
            if found is None:
                continue
            if found.status.terminal:
                await services.call(services.ledger.cancel, row.owner, row.run_id, reason=found.reason)
                _log.info("%s: %s.", row.run_id, found.reason)
            else:
                await services.call(services.ledger.observe, row.attempt_id, found)
            services.announcer.changed(row.run_id)
            services.dispatch.poke(row.attempt_id)
        return IDLE_SECONDS

    async def tidy(self) -> float:
        """Let go of old logs, and of what ended attempts hold."""
        services = self._services
        await services.call(services.logs.sweep, older_than_seconds=self._log_retention_seconds)
        await call_in(
            services.backend_pool,
            discard_ended,
            services.ledger,
            services.backend,
            keep_seconds=self._keep_attempt_seconds,
            longest_seconds=self._log_retention_seconds,
        )
        # of a backend that may leave things behind in a cluster
        sweep: Callable[[], list[str]] | None = getattr(services.backend, "sweep", None)
        for what in await call_in(services.backend_pool, sweep) if sweep else ():
            _log.info("Swept %s, which nobody owned any more.", what)
        return TIDY_SECONDS

    async def look_home(self) -> float:
        """Stop when the home is gone."""
        if not self._services.store.root.exists():
            _log.error("The launcher's home is gone: stopping, jobs go on.")
            self._services.stop(True)
        return HOME_SECONDS

    async def look_at_ledger(self) -> float:
        """Stop when another launcher has the ledger."""
        if not await self._services.call(self._services.sole.take):
            _log.error("Another launcher serves this ledger now: stopping, jobs go on.")
            self._services.stop(True)
        return SOLE_SECONDS

    async def look_at_sessions(self) -> float:
        """A session that ends gives back a slice in a process of its own, where nobody serves our queue."""
        services = self._services
        if self._sessions is not None:
            for holder in await services.call(self._sessions.reconcile):
                _log.info("The lease of %s is free again: nothing of it lives any more.", holder)
        if await services.call(services.ledger.queue_length):
            services.dispatch.wake()
        return SESSIONS_SECONDS


def discard_ended(ledger: Ledger, backend: Backend, *, keep_seconds: float, longest_seconds: float) -> None:
    """Have the backend free what attempts hold that ended long enough ago and have sent everything.

    One that still delivers is left alone for `longest_seconds`; what the backend cannot free is asked for again.
    """
    now = time.time()
    for row in ledger.ended_before(now - keep_seconds):
        patient = (row.ended or now) > now - longest_seconds
        try:
            freed = not row.handle or _discard(backend, row.handle, patient=patient)
        except SliceliftError as error:
            # one whose namespace is gone or closed is no reason to leave the others
            _log.warning("%s is not tidied away: %s", row.attempt_id, error)
            continue
        if freed:
            ledger.mark_discarded(row.attempt_id)


def _discard(backend: Backend, handle: str, *, patient: bool) -> bool:
    """Whether it is free; of one that delivers only when nobody is `patient` with it any more."""
    delivering = backend.status(handle).phase == DELIVERING
    return not (delivering and patient) and backend.discard(handle)


async def _repeat(step: Callable[[], Awaitable[float]]) -> None:
    """Do it again and again; each says when. Whatever goes wrong is said and tried again."""
    pause = CHECKPOINT_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            pause = await step()
        except Unavailable as error:
            _log.warning("%s This will be tried again.", error.message)
        except Exception:  # noqa: BLE001 - a chore that ends for good would be missed by nobody
            _log.exception("This will be tried again.")
