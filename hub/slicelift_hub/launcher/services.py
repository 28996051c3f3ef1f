"""What the handlers work with: the parts of one launcher, put together once by the app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from slicelift.backends.base import Attempt, Backend, ranks_per_worker
from slicelift.errors import NotFound
from slicelift.models import JobSpec, RunView, Status, to_dict

from slicelift_hub.launcher.auth import Authenticator, make_attempt_token
from slicelift_hub.launcher.dispatch import Dispatch
from slicelift_hub.launcher.events import Announcer, Broker
from slicelift_hub.launcher.hub_tokens import HubAccess
from slicelift_hub.launcher.ingest import Ingest
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.logs import Logs
from slicelift_hub.launcher.policy import LIMITS, Policy
from slicelift_hub.launcher.series import exact
from slicelift_hub.launcher.sole import Sole
from slicelift_hub.launcher.store import Store
from slicelift_hub.launcher.tracker import Tracker
from slicelift_hub.launcher.vault import Vault
from slicelift_hub.leases import GPUS, Item

P = ParamSpec("P")
R = TypeVar("R")
_REMEMBERED = 1000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest bodies the launcher takes, in bytes."""

    json_bytes: int = 64 * 1024**2
    upload_bytes: int = 4 * 1024**3
    blob_bytes: int = 16 * 1024**3
    log_bytes: int = 16 * 1024**2
    # these are read on the event loop, several times a second per job
    events_bytes: int = 8 * 1024**2
    report_bytes: int = 2 * 1024**2


@dataclass(kw_only=True)
class Services:
    """One launcher. `stop` begins its end and returns at once; its argument is whether jobs go on.

    Backends have threads of their own: cancels that wait for processes to end must not hold up calls. `hub` is the
    hub that manages this launcher, None for one of a single user; `hosts` are names beside those of loopback that it
    may be called by. `restarts` remembers attempts that agents have called for.
    """

    version: str
    instance: str
    url: str
    key: str
    limits: Limits
    pool: ThreadPoolExecutor
    backend_pool: ThreadPoolExecutor
    plan_pool: ThreadPoolExecutor
    authenticators: Sequence[Authenticator]
    ledger: Ledger
    store: Store
    vault: Vault
    logs: Logs
    ingest: Ingest
    broker: Broker
    announcer: Announcer
    dispatch: Dispatch
    backend: Backend
    policy: Policy
    tracker: Tracker
    stop: Callable[[bool], None]
    sole: Sole
    hub: HubAccess | None = None
    hosts: frozenset[str] = frozenset()
    stopping: bool = False
    restarts: dict[str, AttemptRow] = field(default_factory=dict)
    # logs that found no room in the store: (attempt, rank, source)
    crowded: set[tuple[str, str, str]] = field(default_factory=set)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function that blocks in a thread, so that the loop goes on."""
        return await call_in(self.pool, function, *args, **kwargs)

    def complete(self, view: RunView) -> RunView:
        """A view of the ledger with what only memory knows yet."""
        tracking = {
            "tracker": self.tracker.state()["status"],
            "tracker_message": self.tracker.fault(view.run_id),
        }
        return replace(self.ingest.complete(view), **tracking)

    def shown(self, view: RunView) -> dict[str, Any]:
        """A view in JSON types, NaN and Infinity by name."""
        data: dict[str, Any] = to_dict(self.complete(view))
        data["latest"] = {key: [step, exact(value)] for key, (step, value) in data["latest"].items()}
        return data

    async def announce(self, run_id: str) -> None:
        """Send a run's view to its watchers."""
        view = await self.call(self.ledger.view, run_id)
        self.broker.publish("run", self.shown(view), owner=view.owner, run_id=run_id)

    async def attempt_of(self, submitted: AttemptRow, attempt_id: str) -> AttemptRow:
        """The attempt that an agent with the token of `submitted` calls for: that one, or a restart of its gang.

        The first call for a restart that nobody knew of begins its attempt. Raises `attempt-unknown`.
        """
        if attempt_id == submitted.attempt_id:
            return submitted
        if attempt_id not in self.restarts:
            restarts = _restarts_of(submitted, attempt_id)
            begin = self.ledger.restarted
            row, new = await self.call(begin, submitted.attempt_id, restarts, status=Status.STARTING)
            if len(self.restarts) >= _REMEMBERED:
                self.restarts.clear()
            self.restarts[attempt_id] = row
            if new:
                self.announcer.changed(row.run_id)
                self.dispatch.poke(row.submission)
        found = self.restarts[attempt_id]
        if found.submission != submitted.attempt_id:
            raise _unknown_attempt(attempt_id)
        return found

    def ranks_of(self, spec: JobSpec) -> int:
        """How many ranks a job has, or may come to have."""
        return most_workers(spec) * ranks_per_worker(spec, leased=self.backend.leased)

    def token_of(self, attempt_id: str) -> str:
        """The job token of an attempt."""
        return make_attempt_token(self.key, attempt_id)


def most_workers(spec: JobSpec) -> int:
    """How many workers a job has; of an elastic one, which may be scaled at any time, the most that are listened to."""
    return spec.workers if spec.min_workers is None else max(spec.workers, LIMITS["workers"][0])


def make_attempt(url: str, key: str, row: AttemptRow, held: Sequence[Item]) -> Attempt:
    """What the backend needs beside the spec: from the launcher's address and key, and what was leased."""
    return Attempt(
        attempt_id=row.attempt_id,
        run_id=row.run_id,
        promotion_id=row.promotion_id,
        attempt=row.attempt,
        launcher_url=url,
        token=make_attempt_token(key, row.attempt_id),
        owner=row.owner,
        slice_uuid=next((item.uuid for item in held if item.pool == row.spec.slice and item.uuid), None),
        gpus=tuple(int(item.uuid) for item in held if item.pool == GPUS),
    )


def _restarts_of(submitted: AttemptRow, attempt_id: str) -> int:
    """Which restart of what was submitted that is. Raises `attempt-unknown` when it is none."""
    run_id, _, number = attempt_id.rpartition("-")
    plain = number.isascii() and number.isdigit() and len(number) < 9 and str(int(number)) == number
    if run_id != submitted.run_id or not plain or int(number) <= submitted.attempt:
        raise _unknown_attempt(attempt_id)
    return int(number) - submitted.attempt


def _unknown_attempt(attempt_id: str) -> NotFound:
    return NotFound("attempt-unknown", f"There is no attempt {attempt_id} of yours.")


async def call_in(pool: ThreadPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a thread of `pool`."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, partial(function, *args, **kwargs))
