"""What a launcher does beside answering calls: the queue, the news, checkpoints, and tidying up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from slicelift.backends.base import Backend
from slicelift.errors import SliceliftError
from sqlalchemy.exc import SQLAlchemyError

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_runs import DELIVERING
from slicelift_hub.launcher.services import Services, call_in
from slicelift_hub.sessions import Sessions

CHECKPOINT_SECONDS = 2.0
# a checkpoint that takes long is made less often, so that it never costs more than this share of the time
CHECKPOINT_SHARE = 0.05
TIDY_SECONDS = 60.0
HOME_SECONDS = 5.0
SESSIONS_SECONDS = 2.0
_log = logging.getLogger(__name__)


def start_chores(
    services: Services, *, log_retention_seconds: float, keep_attempt_seconds: float
) -> list[asyncio.Task[None]]:
    """Tasks that run until they are cancelled; keep the list, a loop holds its tasks weakly."""

    async def tidy() -> float:
        await services.call(services.logs.sweep, older_than_seconds=log_retention_seconds)
        await call_in(
            services.backend_pool,
            discard_ended,
            services.ledger,
            services.backend,
            keep_seconds=keep_attempt_seconds,
            longest_seconds=log_retention_seconds,
        )
        return TIDY_SECONDS

    async def checkpoint() -> float:
        began = time.monotonic()
        await services.call(services.ingest.checkpoint)
        return max(CHECKPOINT_SECONDS, (time.monotonic() - began) / CHECKPOINT_SHARE)

    async def announce(run_id: str) -> None:
        try:
            await services.announce(run_id)
        except (SliceliftError, SQLAlchemyError):
            _log.exception("The news of %s could not be told.", run_id)

    async def look_home() -> float:
        if not services.store.root.exists():
            _log.error("The launcher's home is gone: stopping, jobs go on.")
            services.stop(True)
        return HOME_SECONDS

    sessions = Sessions(services.ledger.engine)

    async def look_at_sessions() -> float:
        # a session that ends gives back a slice in a process of its own, where nobody serves our queue
        for holder in await services.call(sessions.reconcile):
            _log.info("The lease of %s is free again: nothing of it lives any more.", holder)
        if await services.call(services.ledger.queue_length):
            services.dispatch.wake()
        return SESSIONS_SECONDS

    work: dict[str, Any] = {
        "queue": services.dispatch.run(),
        "news": services.announcer.run(announce),
        "checkpoint": _repeat(checkpoint),
        "tidy": _repeat(tidy),
        "home": _repeat(look_home),
        "sessions": _repeat(look_at_sessions),
    }
    return [asyncio.create_task(each, name=name) for name, each in work.items()]


def discard_ended(ledger: Ledger, backend: Backend, *, keep_seconds: float, longest_seconds: float) -> None:
    """Have the backend free what attempts hold that ended long enough ago and have sent everything.

    One that still delivers is left alone for `longest_seconds`; what the backend cannot free is asked for again.
    """
    now = time.time()
    for row in ledger.ended_before(now - keep_seconds):
        status = backend.status(row.handle) if row.handle else None
        delivering = status is not None and status.phase == DELIVERING
        if delivering and (row.ended or now) > now - longest_seconds:
            continue
        if not row.handle or backend.discard(row.handle):
            ledger.mark_discarded(row.attempt_id)


async def _repeat(step: Callable[[], Awaitable[float]]) -> None:
    """Do it again and again; each says when. A full disk is said and tried again."""
    pause = CHECKPOINT_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            pause = await step()
        except (SliceliftError, SQLAlchemyError, OSError):
            _log.exception("This will be tried again.")
