"""Puts the parts of one launcher together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slicelift.backends.base import Backend
from slicelift.errors import Conflict, SliceliftError, Unavailable
from slicelift.tracking_account import make_password
from slicelift_profiles import ProfileError, presets
from slicelift_profiles.latest import Latest
from slicelift_profiles.rules import Rules

from slicelift_hub.launcher.auth import AttemptTokens, Authenticator, LocalToken, whoami
from slicelift_hub.launcher.dispatch import Call, Dispatch, Pace
from slicelift_hub.launcher.events import Announcer, Broker
from slicelift_hub.launcher.hub_tokens import HubAccess, HubTokens
from slicelift_hub.launcher.ingest import Ingest
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.logs import Logs
from slicelift_hub.launcher.policy import Policy
from slicelift_hub.launcher.services import Limits, Services, call_in, make_attempt
from slicelift_hub.launcher.sole import Sole
from slicelift_hub.launcher.store import Store
from slicelift_hub.launcher.tracker import MlflowTracker, NoTracker, Tracker
from slicelift_hub.launcher.vault import Vault
from slicelift_hub.leases import Item, Pool

_BACKEND_THREADS = 64
# what asks the backend about jobs to come: while it does not answer, cards and agents must not wait with it
_PLAN_THREADS = 16
_AGAIN_SECONDS = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one start of a launcher is told. `url` is for this machine, `public_url` for jobs."""

    version: str
    instance: str
    url: str
    public_url: str
    hosts: frozenset[str]
    token: str
    key: str
    ledger: Path | str
    ledger_patience_seconds: float
    inventory: list[Item]
    queues: tuple[str, ...]
    rules: Latest[Rules]
    tracker: str
    tracker_port: int
    snapshot_limit_bytes: int
    upload_limit_bytes: int
    pace: Pace
    hub: HubAccess | None = None
    tracker_auth: bool = False


async def assemble(
    home: Path,
    settings: Settings,
    *,
    backend: Backend,
    pool: ThreadPoolExecutor,
    stop: Callable[[bool], None],
) -> Services:
    """Every part, in order, with the ledger replayed; nothing runs yet."""
    loop = asyncio.get_running_loop()
    ledger = await _open_ledger(settings, pool)
    ledger.leased = backend.leased
    sole = await _take(settings, ledger, pool)
    pools = await call_in(pool, ledger.declare_inventory, settings.inventory)
    await call_in(pool, ledger.forget_store_full)
    store = Store(home, snapshot_limit_bytes=settings.snapshot_limit_bytes)
    await call_in(pool, store.sweep)
    broker, announcer = Broker(settings.instance), Announcer()
    changed = partial(_announce, loop, announcer)
    tracker = _make_tracker(home, settings, ledger=ledger, store=store, changed=changed)
    ingest = Ingest(ledger, publish=partial(_publish_points, loop, broker), exported=not tracker.exports)
    await call_in(pool, ingest.replay)
    backend_pool = ThreadPoolExecutor(_BACKEND_THREADS, thread_name_prefix="backend")
    dispatch = _make_dispatch(
        settings,
        ledger,
        backend,
        call=partial(call_in, pool),
        ask=partial(call_in, backend_pool),
        changed=announcer.changed,
    )
    return Services(
        version=settings.version,
        instance=settings.instance,
        url=settings.url,
        key=settings.key,
        limits=Limits(upload_bytes=settings.upload_limit_bytes),
        pool=pool,
        backend_pool=backend_pool,
        plan_pool=ThreadPoolExecutor(_PLAN_THREADS, thread_name_prefix="plan"),
        authenticators=_make_authenticators(settings, ledger),
        ledger=ledger,
        store=store,
        vault=Vault(store),
        logs=Logs(store),
        ingest=ingest,
        broker=broker,
        announcer=announcer,
        dispatch=dispatch,
        backend=backend,
        policy=_make_policy(settings, backend, pools),
        tracker=tracker,
        stop=stop,
        hub=settings.hub,
        sole=sole,
        hosts=settings.hosts,
    )


async def _open_ledger(settings: Settings, pool: ThreadPoolExecutor) -> Ledger:
    """The ledger, waited for while its database is away: launcher and database may come up together."""
    until = time.monotonic() + settings.ledger_patience_seconds
    while True:
        try:
            return await call_in(pool, Ledger, settings.ledger)
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            _log.warning("%s Waiting for it.", error.message)
            await asyncio.sleep(_AGAIN_SECONDS)


async def _take(settings: Settings, ledger: Ledger, pool: ThreadPoolExecutor) -> Sole:
    """Be the one launcher of this ledger. Raises `ledger-taken` when another one does not leave in time."""
    sole, until = Sole(ledger.engine), time.monotonic() + settings.ledger_patience_seconds
    while not await call_in(pool, sole.take):
        if time.monotonic() > until:
            message = "Another launcher serves this ledger already."
            hint = "Stop that one first, or give this one a database of its own: c.Launcher.ledger."
            raise Conflict("ledger-taken", message, hint)
        await asyncio.sleep(_AGAIN_SECONDS / 4)
    return sole


def _make_dispatch(
    settings: Settings,
    ledger: Ledger,
    backend: Backend,
    *,
    call: Call,
    ask: Call,
    changed: Callable[[str], None],
) -> Dispatch:
    make = partial(make_attempt, settings.public_url, settings.key)
    return Dispatch(
        ledger, backend, call=call, ask=ask, changed=changed, make_attempt=make, pace=settings.pace
    )


def _make_policy(settings: Settings, backend: Backend, pools: Mapping[str, Pool]) -> Policy:
    """Raises `policy-invalid` and `presets-invalid`: later a faulty edit changes nothing."""
    # of a cluster, where an admin has presets of their own
    file = getattr(backend, "presets_file", "")
    known = partial(presets.load, Path(file) if file else presets.SHIPPED)
    try:
        settings.rules.current()
        known()
    except ProfileError as error:
        raise SliceliftError(error.code, error.message, error.hint) from error
    return Policy(
        pools=pools,
        queues=settings.queues,
        leased=backend.leased,
        # of a cluster, as above
        image=getattr(backend, "image", ""),
        rules=settings.rules.current,
        presets=known,
    )


def _make_authenticators(settings: Settings, ledger: Ledger) -> tuple[Authenticator, ...]:
    """The hub last: what the others know need not be asked of it."""
    own = (LocalToken(settings.token, owner=whoami()), AttemptTokens(ledger.attempt_of_token))
    return (*own, HubTokens(settings.hub)) if settings.hub else own


def _make_tracker(
    home: Path, settings: Settings, *, ledger: Ledger, store: Store, changed: Callable[[str], None]
) -> Tracker:
    if settings.tracker == "none":
        return NoTracker()
    return MlflowTracker(
        home,
        ledger,
        port=settings.tracker_port,
        blob_path=store.blob_path,
        changed=changed,
        secret=make_password(settings.key, "tracker") if settings.tracker_auth else "",
    )


def _announce(loop: asyncio.AbstractEventLoop, announcer: Announcer, run_id: str) -> None:
    """From whatever thread changed the run to the loop that has the watchers."""
    loop.call_soon_threadsafe(announcer.changed, run_id)


def _publish_points(
    loop: asyncio.AbstractEventLoop, broker: Broker, attempt: AttemptRow, rank: int, points: list[list[Any]]
) -> None:
    """From the thread that took them in to the loop that has the watchers."""
    data = {"run_id": attempt.run_id, "attempt": attempt.attempt, "rank": rank, "points": points}
    send = partial(broker.publish, "points", data, owner=attempt.owner, run_id=attempt.run_id)
    loop.call_soon_threadsafe(send)
