"""Where the launcher is, and calls to it. Its address and token stay in this process.

Under a hub the session's environment names it; else it is the user's own daemon, found by its state file at every
call (a restarted one has another port) and started in the background when there is none.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from slicelift import launcher_address
from slicelift.errors import Denied, SliceliftError, Unavailable, from_http
from slicelift.launcher_client import CONNECT_SECONDS, READ_SECONDS, check_version, default_home, read_state

if TYPE_CHECKING:
    import httpx

STARTING = "launcher-starting"
_ADDRESS = re.compile(r",? (at |\()?https?://(127\.0\.0\.1|localhost|\[::1\]):\d+\)?")
_POLL_SECONDS = 0.1
_FAILURE_SECONDS = 5.0
_STARTING_HINT = "It takes a few seconds, and what you asked for goes on by itself."
_AWAY_HINT = "It is looked for again at the next try; jobs go on meanwhile."


class Launcher:
    """The launcher of this session. Methods raise `slicelift.errors`; `Unavailable` when it is away."""

    def __init__(self, *, start: bool = True) -> None:
        self._start = start
        self._http: httpx.AsyncClient | None = None
        self._starter: threading.Thread | None = None
        self._failure: tuple[float, SliceliftError] | None = None

    def address(self) -> launcher_address.Address:
        """Where it is. Raises `launcher-starting` while one comes up, `launcher-version`, or why there is none."""
        told = launcher_address.told()
        if told is not None:
            return told
        state = read_state(default_home())
        if state is None:
            raise self._absent()
        _check(state)
        return launcher_address.Address(url=str(state["url"]), token=str(state["token"]))

    @asynccontextmanager
    async def opened(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        read_seconds: float = READ_SECONDS,
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body is still to come. `path` is percent-encoded already, below `/api/v1`."""
        import httpx

        address = self.address()
        url = httpx.URL(f"{address.url}/api/v1/{path}", query=query.encode() or None)
        told = {"Authorization": f"token {address.token}", "Accept-Encoding": "identity", **(headers or {})}
        timeout = httpx.Timeout(read_seconds, connect=CONNECT_SECONDS)
        client = self._client()
        request = client.build_request(method, url, headers=told, content=content or None, timeout=timeout)
        try:
            response = await client.send(request, stream=True)
        except httpx.TransportError as error:
            raise _away(error) from error
        try:
            yield response
        finally:
            await response.aclose()

    async def get(self, path: str, *, query: str = "", read_seconds: float = READ_SECONDS) -> Any:
        """The JSON of one call. Raises what the launcher answered."""
        import httpx

        async with self.opened("GET", path, query=query, read_seconds=read_seconds) as response:
            try:
                await response.aread()
            except httpx.TransportError as error:
                raise _away(error) from error
            if response.is_error:
                raise make_error(response)
            return response.json()

    async def settled(self, seconds: float) -> None:
        """Wait while it is starting, at most so long; raises nothing."""
        import asyncio

        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.address()
            except SliceliftError as error:
                if error.code == STARTING:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
            return

    async def close(self) -> None:
        """Drop all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx.AsyncClient:
        """One for all calls. No connection is kept: on loopback a new one costs nothing, an old one may be dead."""
        import httpx

        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            # trust_env off: a proxy of the environment must not see calls on loopback
            self._http = httpx.AsyncClient(limits=limits, trust_env=False)
        return self._http

    def _absent(self) -> SliceliftError:
        """What to say when no launcher serves; begins to start one."""
        if not self._start:
            message = f"No launcher serves {default_home()}, and this server is set not to start one."
            return Unavailable("launcher-not-running", message, "Start it: `slicelift up`.")
        if self._failure is not None and time.monotonic() - self._failure[0] < _FAILURE_SECONDS:
            return self._failure[1]
        if self._starter is None or not self._starter.is_alive():
            # a daemon: the end of this server does not wait for it
            self._starter = threading.Thread(target=self._bring_up, name="launcher-start", daemon=True)
            self._starter.start()
        return Unavailable(STARTING, "The launcher is starting.", _STARTING_HINT)

    def _bring_up(self) -> None:
        from slicelift.launcher_client import ensure

        try:
            ensure().close()
        except SliceliftError as error:
            self._failure = (time.monotonic(), error)
        except Exception as error:  # noqa: BLE001 - told to the page: nobody else hears of this thread
            message = f"The launcher could not be started: {type(error).__name__}: {error}."
            fault = SliceliftError("launcher-failed", message, f"See launcher.log in {default_home()}.")
            self._failure = (time.monotonic(), fault)


def without_address(text: str) -> str:
    """A sentence that names the launcher by its address as a page may have it."""
    return _ADDRESS.sub("", text)


def make_error(response: httpx.Response) -> SliceliftError:
    """The error in a launcher's answer that was read. A refused token is none that the person at the page gave."""
    try:
        body = response.json()
    except ValueError:
        body = None
    error = from_http(response.status_code, body)
    if response.status_code != 401:
        error.http_status = response.status_code
        return error
    message = "The launcher does not accept the token of this session."
    hint = "Restart your server (File > Hub Control Panel), or JupyterLab where there is no hub."
    return Denied("session-refused", message, hint)


def _check(state: Mapping[str, Any]) -> None:
    try:
        check_version(state)
    except SliceliftError as error:
        error.http_status = Unavailable.http_status
        raise


def _away(error: Exception) -> Unavailable:
    hint = launcher_address.AWAY_HINT if launcher_address.told() else _AWAY_HINT
    return Unavailable("launcher-away", f"The launcher does not answer ({type(error).__name__}).", hint)
