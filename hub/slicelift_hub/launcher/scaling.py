"""How many workers an elastic gang has: the ledger's number, which the backend is made to follow.

A call that is given up on may have been carried out, and a launcher may be killed between ledger and cluster. So whoever
drives a run compares the two at every look; of one run there is one change at a time, in the order of the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

from slicelift.backends.base import Backend
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import JobStatus, RunView

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow

_log = logging.getLogger(__name__)


class Scaling:
    """Used on the event loop. `call` runs functions of the ledger in a thread, `ask` those of the backend."""

    def __init__(
        self,
        ledger: Ledger,
        backend: Backend,
        *,
        call: Callable[..., Awaitable[Any]],
        ask: Callable[..., Awaitable[Any]],
    ) -> None:
        self._ledger = ledger
        self._backend = backend
        self._call = call
        self._ask = ask
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def scale(self, run_id: str, workers: int, *, decide: Callable[[], RunView], who: str) -> None:
        """Another number of workers. `decide` writes it into the ledger, or raises, and returns the run as it was before.

        What the backend refuses is taken back, and raised. While it is away the number stands: it gets it as soon as it is back.
        """
        async with self._turn(run_id):
            before: RunView = await self._call(decide)
            change = {"before": before.spec.workers}
            try:
                await self._ask(self._backend.scale, before.handle, workers)
            except Unavailable as error:
                _log.warning("%s: not known to have %d workers yet: %s", run_id, workers, error)
            except SliceliftError:
                await self._call(self._ledger.unscale, before.owner, run_id, workers, **change)
                raise
            if workers != before.spec.workers:
                await self._call(self._ledger.scaled, before.owner, run_id, workers, **change, who=who)

    async def follow(self, row: AttemptRow, status: JobStatus) -> None:
        """Have a gang of which the backend says another number than the ledger follow it, or try at the next look.

        Where the backend refuses, the ledger gets the number that is true.
        """
        if status.status.terminal or status.workers in (None, row.spec.workers):
            return
        async with self._turn(row.run_id):
            now: AttemptRow | None = await self._call(self._ledger.attempt, row.attempt_id)
            if now is None or now.cancel or status.workers == now.spec.workers:
                return
            try:
                await self._ask(self._backend.scale, now.handle, now.spec.workers)
            except Unavailable as error:
                _log.warning(
                    "%s: still not known to have %d workers: %s", row.run_id, now.spec.workers, error
                )
            except SliceliftError as error:
                _log.warning("%s goes on with %s workers: %s", row.run_id, status.workers, error)
                await self._call(
                    self._ledger.unscale, row.owner, row.run_id, now.spec.workers, before=status.workers
                )

    def _turn(self, run_id: str) -> asyncio.Lock:
        return self._turns.setdefault(run_id, asyncio.Lock())
