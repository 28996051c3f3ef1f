"""Puts the parts of one launcher together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slicelift.backends.base import Backend
from slicelift.tracking_account import make_password

from slicelift_hub.launcher.auth import AttemptTokens, Authenticator, LocalToken, whoami
from slicelift_hub.launcher.dispatch import Dispatch, Pace
from slicelift_hub.launcher.events import Announcer, Broker
from slicelift_hub.launcher.hub_tokens import HubAccess, HubTokens
from slicelift_hub.launcher.ingest import Ingest
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.logs import Logs
from slicelift_hub.launcher.policy import Policy
from slicelift_hub.launcher.services import Limits, Services, call_in, make_attempt
from slicelift_hub.launcher.store import Store
from slicelift_hub.launcher.tracker import MlflowTracker, NoTracker, Tracker
from slicelift_hub.launcher.vault import Vault
from slicelift_hub.leases import Item

_BACKEND_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one start of a launcher is told."""

    version: str
    instance: str
    url: str
    token: str
    key: str
    inventory: list[Item]
    queues: tuple[str, ...]
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
    # long: one list of parts, which reads worse in pieces
    loop = asyncio.get_running_loop()
    ledger = await call_in(pool, Ledger, home / "ledger.db")
    pools = await call_in(pool, ledger.declare_inventory, settings.inventory)
    store = Store(home, snapshot_limit_bytes=settings.snapshot_limit_bytes)
    await call_in(pool, store.sweep)
    broker = Broker(settings.instance)
    announcer = Announcer()

    def changed(run_id: str) -> None:
        loop.call_soon_threadsafe(announcer.changed, run_id)

    tracker = _make_tracker(home, settings, ledger=ledger, store=store, changed=changed)
    publish = partial(_publish_points, loop, broker)
    ingest = Ingest(ledger, publish=publish, exported=not tracker.exports)
    await call_in(pool, ingest.replay)
    backend_pool = ThreadPoolExecutor(_BACKEND_THREADS, thread_name_prefix="backend")
    dispatch = Dispatch(
        ledger,
        backend,
        call=partial(call_in, pool),
        ask=partial(call_in, backend_pool),
        changed=announcer.changed,
        make_attempt=partial(make_attempt, settings.url, settings.key),
        pace=settings.pace,
    )
    return Services(
        version=settings.version,
        instance=settings.instance,
        url=settings.url,
        key=settings.key,
        limits=Limits(upload_bytes=settings.upload_limit_bytes),
        pool=pool,
        backend_pool=backend_pool,
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
        policy=Policy(pools=pools, queues=settings.queues),
        tracker=tracker,
        stop=stop,
        hub=settings.hub,
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


def _publish_points(
    loop: asyncio.AbstractEventLoop, broker: Broker, attempt: AttemptRow, rank: int, points: list[list[Any]]
) -> None:
    """From the thread that took them in to the loop that has the watchers."""
    data = {"run_id": attempt.run_id, "attempt": attempt.attempt, "rank": rank, "points": points}
    send = partial(broker.publish, "points", data, owner=attempt.owner, run_id=attempt.run_id)
    loop.call_soon_threadsafe(send)
