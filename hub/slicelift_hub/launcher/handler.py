"""The base of all handlers: who calls, how much may come, and errors as `{code, message, hint}`, once for all.

A handler is closed to everyone but users unless it says otherwise. Bodies are streamed: into memory by default, into
`self.sink` where a subclass sets one in `open_body`. A fault of the body is kept until all of it has come, since
a connection cut in the middle would hide the answer.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from slicelift.errors import Denied, NotFound, SliceliftError, Unavailable, UserError
from slicelift.json_body import read_object
from sqlalchemy.exc import OperationalError
from tornado.web import HTTPError, RequestHandler, stream_request_body

from slicelift_hub.launcher.auth import Principal
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.services import Services
from slicelift_hub.launcher.store import TooLarge, make_store_full

if TYPE_CHECKING:
    from tornado.http1connection import HTTP1Connection

ANYONE, USER, AGENT = "anyone", "user", "agent"
_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")
# what a refused body may still send before the connection is cut: the answer must be read first
_DRAINED_BYTES = 1 << 50
# when to try again what an absent part refused
_AGAIN_SECONDS = 2
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes a body piece by piece, in a thread."""

    def feed(self, chunk: bytes) -> None:
        """The next piece."""
        ...

    def abort(self) -> None:
        """The body does not come to its end. Safe to repeat."""
        ...


@stream_request_body
class Handler(RequestHandler):
    """See the module. `who` may call, and `body_limit` (a field of Limits) is how much may come."""

    who: ClassVar[str] = USER
    body_limit: ClassVar[str] = "json_bytes"

    def initialize(self) -> None:
        self.principal = Principal(owner="")
        self.sink: Sink | None = None
        self._chunks: list[bytes] = []
        self._received = 0
        self._prepared = False
        self._fault: BaseException | None = None

    @property
    def services(self) -> Services:
        """The launcher."""
        found: Services = self.application.settings["services"]
        return found

    @property
    def attempt(self) -> AttemptRow:
        """The attempt whose agent calls."""
        assert self.principal.attempt is not None
        return self.principal.attempt

    async def prepare(self) -> None:
        """Who calls, and from where: raised at once. What is wrong with the body is kept for `check_body`."""
        name = self.request.host_name
        if name not in _HOSTS and name not in self.services.hosts and not self._came_through_the_hub():
            message = f"The launcher does not answer to the host name {name[:100]!r}."
            known = " or ".join(sorted(self.services.hosts)) or "127.0.0.1 or localhost"
            raise Denied("bad-host", message, f"Call it by {known}. Admins: c.Launcher.hosts.")
        if self.who != ANYONE:
            await self._authenticate()
        cast("HTTP1Connection", self.request.connection).set_max_body_size(_DRAINED_BYTES)
        length = self.request.headers.get("Content-Length", "0")
        try:
            await self.open_body()
            self._check_size(int(length) if length.isdecimal() else 0)
        except SliceliftError as error:
            self._fault = error
            await self._abort_sink()
        self._prepared = True

    async def open_body(self) -> None:
        """Set `self.sink` here to take the body piece by piece."""

    async def data_received(self, chunk: bytes) -> None:
        """One piece of the body."""
        if self._fault is not None:
            return
        self._received += len(chunk)
        try:
            self._check_size(self._received)
            if self.sink is None:
                self._chunks.append(chunk)
            else:
                await self.services.call(self.sink.feed, chunk)
        except Exception as error:  # noqa: BLE001 - told by `check_body`, when the whole body has come
            self._fault = error
            await self._abort_sink()

    def check_body(self) -> None:
        """Raises what is wrong with the body or came up while it came in; first in every method that has one."""
        if self._fault is not None:
            raise self._fault

    def body(self) -> bytes:
        """The body, when there is no sink."""
        self.check_body()
        return b"".join(self._chunks)

    def json_body(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one is `{}`. Raises `bad-json`."""
        return read_object(self.body())

    def answer(self, value: Any, status: int = 200) -> None:
        """Finish with JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def number(self, name: str, default: int | None = None, *, low: int, high: int = 2**62) -> int | None:
        """An integer of the query. Raises `bad-argument`."""
        text = self.get_query_argument(name, "")
        if not text and default is not None:
            return default
        if not text:
            return None
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            message = f"{name}={text[:40]} is not a whole number from {low} to {high}."
            raise UserError("bad-argument", message, "Correct it, or leave it out.")
        return value

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Every error as `{code, message, hint}`; what is unexpected without its traceback."""
        error = _known_error(status_code, kwargs.get("exc_info"))
        if not self._prepared:
            # tornado closes a connection whose request was answered before it was read, and does not say so
            self.set_header("Connection", "close")
        self.set_status(_status(error, status_code))
        if isinstance(error, Unavailable):
            self.set_header("Retry-After", str(_AGAIN_SECONDS))
        self.answer(error.to_dict(), self.get_status())

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Only what is our fault, with its traceback."""
        if typ is None or value is None:
            return
        if not isinstance(value, SliceliftError | HTTPError) or getattr(value, "http_status", 400) == 500:
            where = f"{self.request.method} {self.request.path}"
            _log.error("%s failed.", where, exc_info=(typ, value, tb))

    def on_connection_close(self) -> None:
        """The caller went away in the middle."""
        if self.sink is not None:
            self.services.pool.submit(self.sink.abort)

    async def _abort_sink(self) -> None:
        if self.sink is not None:
            await self.services.call(self.sink.abort)

    def _check_size(self, size: int) -> None:
        limit: int = getattr(self.services.limits, self.body_limit)
        if size > limit:
            message = f"The body has {size:,} bytes or more; {limit:,} are allowed here."
            raise TooLarge("body-too-large", message, "Send less at once.")

    def _came_through_the_hub(self) -> bool:
        """Below the service's prefix: the proxy passes on the name that the browser knows the hub by."""
        hub = self.services.hub
        return hub is not None and self.request.path.startswith(hub.prefix)

    async def _authenticate(self) -> None:
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        found = None
        if kind.lower() in ("token", "bearer"):
            found = self._recall(token.strip()) or await self.services.call(self._look_up, token.strip())
        if found is None:
            raise make_not_signed_in()
        self.principal = found
        if (self.who == AGENT) != (found.attempt is not None):
            message = f"{self.request.method} {self.request.path} is not open to this token."
            raise Denied(
                "not-allowed", message, "Agents may make their attempt's calls only, users all others."
            )
        if found.attempt is not None:
            attempt = await self.services.attempt_of(found.attempt, self.path_args[0])
            self.principal = replace(found, attempt=attempt)

    def _recall(self, token: str) -> Principal | None:
        return next(filter(None, (each.recall(token) for each in self.services.authenticators)), None)

    def _look_up(self, token: str) -> Principal | None:
        return next(filter(None, (each.authenticate(token) for each in self.services.authenticators)), None)


class UnknownHandler(Handler):
    """Every path that is none of ours."""

    async def prepare(self) -> None:
        """404 for those who are signed in, 401 for all others."""
        await super().prepare()
        self._prepared = False
        hint = "See docs/architecture.md for the calls there are."
        raise NotFound("no-such-call", f"There is no {self.request.method} {self.request.path[:200]}.", hint)


def make_not_signed_in() -> Denied:
    """The error of a call without a valid token."""
    hint = "Send `Authorization: token ...` with the token of the launcher's state file."
    error = Denied("not-signed-in", "The call has no valid token.", hint)
    error.http_status = 401
    return error


def _known_error(status: int, info: Any) -> SliceliftError:
    value = info[1] if info else None
    if isinstance(value, SliceliftError):
        return value
    if isinstance(value, OperationalError) and "full" in str(value.orig):
        return make_store_full()
    if isinstance(value, HTTPError) or status < 500:
        reason = getattr(value, "log_message", None) or "The call is malformed."
        return UserError(f"http-{status}", str(reason), "See docs/architecture.md for the calls there are.")
    message = "The launcher met an unexpected error; its log has the details."
    return SliceliftError("internal", message, "Try again, and report it if it stays.")


def _status(error: SliceliftError, status: int) -> int:
    return status if error.code.startswith("http-") else error.http_status
