"""The calls of the page, below `<base_url>slicelift/`.

Every one needs a signed-in, authorized user; XSRF is checked by Jupyter; none counts as activity, since an open page
asks all the time and must not keep an idle slice.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from slicelift.errors import SliceliftError, UserError
from slicelift.server.base import Handler
from slicelift.server.context import make_context
from slicelift.server.paths import notebook_path
from slicelift.server.proxy import ProxyHandler

# a cold launcher takes so long; a plan without one would lack manifest and position
_LAUNCHER_SECONDS = 15.0
_QUIET_SECONDS = 15.0
_PROMOTION_ID = re.compile(r"p-[a-z0-9]{1,40}")


class ContextHandler(Handler):
    """Where the page is."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(await make_context(self.launcher))


class CheckHandler(Handler):
    """The preflight of a notebook as it is on disk."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.json_body()
        path = notebook_path(self.contents_manager, body.get("path"))
        self.begin_launcher()
        arguments = {"path": path, "parameters": _mapping(body, "parameters")}
        self.answer(await self.workers.call("check", arguments))


class PlanHandler(Handler):
    """What would travel and what would start; submits nothing."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.json_body()
        path = notebook_path(self.contents_manager, body.get("path"))
        await self.launcher.settled(_LAUNCHER_SECONDS)
        self.answer(await self.workers.call("plan", {"path": path, "request": _mapping(body, "request")}))


class PromoteHandler(Handler):
    """One promotion, told step by step, a JSON object a line; it goes on when the page goes away."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.json_body()
        path = notebook_path(self.contents_manager, body.get("path"))
        arguments = {"path": path, "request": _mapping(body, "request"), "promotion_id": _promotion_id(body)}
        told: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        promotion = asyncio.create_task(self.workers.call("promote", arguments, on_step=told.put_nowait))
        promotion.add_done_callback(lambda done: _end(done, told))
        self.begin_stream("application/x-ndjson")
        with suppress(StreamClosedError):
            await self.flush()
            await self._tell(told)
            self._write_line(await _outcome(promotion))
            await self.finish(set_content_type="application/x-ndjson")

    async def _tell(self, told: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        while True:
            try:
                step = await asyncio.wait_for(told.get(), _QUIET_SECONDS)
            except TimeoutError:
                # a proxy gives up what is silent for long, and readers skip empty lines
                self.write("\n")
            else:
                if step is None:
                    return
                self._write_line({"step": step})
            await self.flush()

    def _write_line(self, line: Mapping[str, Any]) -> None:
        self.write(json.dumps(line) + "\n")


class CardHandler(Handler):
    """The output of a run as it should be saved in a notebook now."""

    @web.authenticated
    @authorized
    async def get(self, run: str) -> None:
        # the standard library only, yet not at the server's start
        from slicelift.widgets.bundle import make_bundle

        view, found = await asyncio.gather(
            self.launcher.get(f"jobs/{run}"),
            self.launcher.get(f"jobs/{run}/series", query="attempt=all&rank=0&points=100"),
        )
        self.answer({"data": make_bundle(view, found["series"])})


HANDLERS: list[tuple[str, type[Handler]]] = [
    (r"/slicelift/context", ContextHandler),
    (r"/slicelift/check", CheckHandler),
    (r"/slicelift/plan", PlanHandler),
    (r"/slicelift/promote", PromoteHandler),
    (r"/slicelift/card/(r-[a-z0-9]{1,40})", CardHandler),
    (r"/slicelift/api/.*", ProxyHandler),
]


def _end(promotion: asyncio.Task[Any], told: asyncio.Queue[Mapping[str, Any] | None]) -> None:
    """Nothing more comes. How it went counts as seen: the page may be gone by then."""
    if not promotion.cancelled():
        promotion.exception()
    told.put_nowait(None)


async def _outcome(promotion: asyncio.Task[Any]) -> dict[str, Any]:
    try:
        return {"view": await promotion}
    except SliceliftError as error:
        return {"error": error.to_dict()}


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise UserError("bad-argument", f"{name} is a {type(value).__name__}.", f"Send {name} as an object.")
    return value


def _promotion_id(body: Mapping[str, Any]) -> str:
    """Asked for by name: a page that repeats a call without one would make a second job."""
    value = body.get("promotion_id")
    if isinstance(value, str) and _PROMOTION_ID.fullmatch(value):
        return value
    hint = "Mint one per intent: p- and 20 characters of a-z and 2-7."
    raise UserError("promotion-id-invalid", "The promotion has no valid promotion_id.", hint)
