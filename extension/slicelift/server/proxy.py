"""`api/<path>`: the launcher's calls of a user, passed on piece by piece.

The launcher's address and token stay here, and of the page's request only what the launcher needs goes there: never a
cookie, nor Jupyter's own token, which may be in the query.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, unquote, urlencode

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from slicelift.errors import NotFound
from slicelift.launcher_client import READ_SECONDS, STREAM_SECONDS
from slicelift.server.base import Handler
from slicelift.server.launcher import make_error

if TYPE_CHECKING:
    import httpx
    from tornado.http1connection import HTTP1Connection

_RUN, _NAME = r"[rp]-[a-z0-9]{1,40}", r"[^/]+"
# all that a page may ask of the launcher; whatever else it answers is not for pages
_CALLS = tuple(
    (frozenset(methods.split()), re.compile(pattern))
    for methods, pattern in (
        ("GET", r"health|capacity|events|models|secrets"),
        ("GET POST", r"jobs"),
        ("GET", rf"jobs/{_RUN}(/(series|logs|attempts|outputs))?"),
        ("GET", rf"jobs/{_RUN}/outputs/[0-9]{{1,6}}/.+"),
        ("POST", rf"jobs/{_RUN}/(cancel|suspend|scale|retry)"),
        ("POST", rf"models/{_NAME}/aliases/{_NAME}"),
        ("GET", r"snapshots/[0-9a-f]{64}(/files/.+)?"),
        ("PUT DELETE", rf"secrets/{_NAME}"),
    )
)
_ASKED = ("Accept", "Content-Type", "Last-Event-ID")
_ANSWERED = (
    "Content-Type",
    "Content-Length",
    "Content-Disposition",
    "X-Content-Type-Options",
    "X-Next-Offset",
    "Retry-After",
)
# Jupyter's, not the launcher's; a bare time stamp against caches has no value and falls away
_OWN_ARGUMENTS = ("token", "_xsrf", "no_track_activity")
_EVENTS = "text/event-stream"


class ProxyHandler(Handler):
    """See the module."""

    _passing: asyncio.Task[None] | None = None

    # one decorated method each: the decorator keeps the action of the first method that it was called for
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Passed on; ended there when the page goes away."""
        await self._pass_on()

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Passed on."""
        await self._pass_on()

    @web.authenticated
    @authorized
    async def put(self) -> None:
        """Passed on."""
        await self._pass_on()

    @web.authenticated
    @authorized
    async def delete(self) -> None:
        """Passed on."""
        await self._pass_on()

    def on_connection_close(self) -> None:
        """The page went away: the launcher must not go on for nobody. What changes something is let finish."""
        if self._passing is not None and self.request.method == "GET":
            self._passing.cancel()

    async def _pass_on(self) -> None:
        path = self._asked_path()
        # a task of its own: to cancel the handler's would be an error in tornado's eyes
        self._passing = asyncio.create_task(self._exchange(path))
        await asyncio.wait({self._passing})
        if not self._passing.cancelled():
            await self._passing

    def _asked_path(self) -> str:
        """Still percent-encoded, below the launcher's base. Raises `no-such-call`."""
        path = self.request.path[len(f"{self.base_url}slicelift/api/") :]
        dots = any(unquote(part) in ("", ".", "..") for part in path.split("/"))
        for methods, pattern in _CALLS:
            if self.request.method in methods and not dots and pattern.fullmatch(path):
                return path
        message = f"There is no {self.request.method} {path[:200]!r} for pages."
        raise NotFound("no-such-call", message, "docs/architecture.md lists the calls there are.")

    async def _exchange(self, path: str) -> None:
        headers = {name: self.request.headers[name] for name in _ASKED if name in self.request.headers}
        pairs = parse_qsl(self.request.query)
        query = urlencode([(name, value) for name, value in pairs if name not in _OWN_ARGUMENTS])
        opened = self.launcher.opened(
            str(self.request.method),
            path,
            query=query,
            headers=headers,
            content=self.request.body,
            read_seconds=STREAM_SECONDS if path == "events" else READ_SECONDS,
        )
        async with opened as response:
            if response.status_code == 401:
                await response.aread()
                raise make_error(response)
            await self._relay(response)

    async def _relay(self, response: httpx.Response) -> None:
        import httpx

        content_type = response.headers.get("Content-Type", "application/json")
        self.set_status(response.status_code)
        self.begin_stream(content_type)
        for name in _ANSWERED:
            if name in response.headers:
                self.set_header(name, response.headers[name])
        with suppress(StreamClosedError):
            try:
                async for piece in response.aiter_raw():
                    self.write(piece)
                    await self.flush()
            except httpx.TransportError:
                # events may end anywhere, and the page asks again; half a file must not pass for a whole
                if not content_type.startswith(_EVENTS):
                    cast("HTTP1Connection", self.request.connection).stream.close()
                    return
            await self.finish(set_content_type=content_type)
