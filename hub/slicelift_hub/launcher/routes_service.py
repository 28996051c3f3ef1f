"""The launcher itself: health, capacity, models, secrets, the stream of events, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from slicelift.errors import Denied
from slicelift.models import RunView, to_dict
from tornado.iostream import StreamClosedError

from slicelift_hub.launcher.bodies import text_field
from slicelift_hub.launcher.events import Watcher
from slicelift_hub.launcher.handler import ANYONE, Handler
from slicelift_hub.launcher.names import check_alias
from slicelift_hub.launcher.routes_jobs import find_run, tell_capacity

if TYPE_CHECKING:
    from tornado.http1connection import HTTP1Connection

QUIET_SECONDS = 15.0


class HealthHandler(Handler):
    """Who I am; open to everyone on this machine."""

    who = ANYONE

    async def get(self) -> None:
        services = self.services
        self.answer(
            {"version": services.version, "instance": services.instance, "tracker": services.tracker.state()}
        )


class CapacityHandler(Handler):
    """What the machine or the cluster has and what of it is free."""

    async def get(self) -> None:
        services = self.services
        waiting = await services.call(services.ledger.queue_length)
        self.answer(await services.call(tell_capacity, services, waiting=waiting))


class EventsHandler(Handler):
    """One stream of server-sent events for any number of runs (`runs=a,b`; none named: all of the caller's).

    It begins with the view of every run asked for, unless `Last-Event-ID` lets it go on without a gap. `reset`
    says that points may have been missed.
    """

    watcher: Watcher | None = None

    async def get(self) -> None:
        idents = [ident for ident in self.get_query_argument("runs", "").split(",") if ident]
        views = [await find_run(self, ident) for ident in idents]
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        runs = frozenset(view.run_id for view in views) if idents else None
        last_id = self.request.headers.get("Last-Event-ID", "")
        watcher = self.watcher = Watcher(self.principal.owner, runs, drop=self._cut)
        whole = self.services.broker.subscribe(watcher, last_id=last_id)
        try:
            if not whole:
                await self._begin(views, was_here=bool(last_id))
            self.write(b": welcome\n\n")
            await self.flush()
            await self._stream(watcher)
        except StreamClosedError:
            return
        finally:
            self.services.broker.unsubscribe(watcher)

    def _cut(self) -> None:
        """Close the connection of a watcher that does not read: its own task hangs in a write."""
        connection = cast("HTTP1Connection", self.request.connection)
        connection.close()

    async def _begin(self, views: list[RunView], *, was_here: bool) -> None:
        make_first = self.services.broker.make_first
        if was_here:
            self.write(make_first("reset", {}))
        for view in views:
            # read again: it may have changed between the look-up and the subscription
            newest = await self.services.call(self.services.ledger.view, view.run_id)
            self.write(make_first("run", self.services.shown(newest)))

    async def _stream(self, watcher: Watcher) -> None:
        while not watcher.dropped and not self.services.stopping:
            self.write(await watcher.take(QUIET_SECONDS) or b": still here\n\n")
            await self.flush()

    def on_connection_close(self) -> None:
        """Wake the stream, which then notices."""
        if self.watcher is not None:
            self.watcher.put(b"")


class ModelsHandler(Handler):
    """All registered versions of the caller's runs."""

    async def get(self) -> None:
        found = await self.services.call(self.services.ledger.models_of, self.principal.owner)
        self.answer({"models": to_dict(found)})


class AliasHandler(Handler):
    """Let an alias name a version: in the registry first, then in the ledger with who and when."""

    async def post(self, name: str, alias: str) -> None:
        version = text_field(self.json_body(), "version")
        check_alias(alias)
        services, owner = self.services, self.principal.owner
        await services.call(services.ledger.find_version, owner, name, version)
        await services.call(services.tracker.set_alias, owner, name, alias=alias, version=version)
        note = services.ledger.set_alias
        before = await services.call(note, owner, name, alias=alias, version=version, by=owner)
        view = await services.call(services.ledger.find_version, owner, name, version)
        services.announcer.changed(view.run_id)
        if before is not None and before != version:  # the card it has left must not go on showing it
            left = await services.call(services.ledger.find_version, owner, name, before)
            services.announcer.changed(left.run_id)
        self.answer(to_dict(view))


class SecretsHandler(Handler):
    """The names of the caller's secrets."""

    async def get(self) -> None:
        self.answer({"secrets": await self.services.call(self.services.vault.names, self.principal.owner)})


class SecretHandler(Handler):
    """One secret: set it (`{value}`) or remove it."""

    async def put(self, name: str) -> None:
        value = text_field(self.json_body(), "value")
        await self.services.call(self.services.vault.put, self.principal.owner, name, value)
        self.answer({"name": name})

    async def delete(self, name: str) -> None:
        await self.services.call(self.services.vault.remove, self.principal.owner, name)
        self.answer({"name": name})


class ShutdownHandler(Handler):
    """Stop the launcher; `{keep_jobs: true}` lets jobs go on. For whoever runs it alone: it serves all users of a hub."""

    async def post(self) -> None:
        if not self.principal.operator:
            hint = "Ask whoever runs it: `slicelift down` stops it there."
            raise Denied(
                "not-operator", "This launcher serves more users than you, so you cannot stop it.", hint
            )
        keep_jobs = bool(self.json_body().get("keep_jobs", False))
        self.answer({"stopping": True, "keep_jobs": keep_jobs})
        self.services.stop(keep_jobs)
