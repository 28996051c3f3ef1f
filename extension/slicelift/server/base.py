"""The base of all handlers: `{code, message, hint}` for every error, and the parts they share."""

from __future__ import annotations

import json
import logging
from types import TracebackType
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado.web import HTTPError

from slicelift.errors import SliceliftError, UserError
from slicelift.json_body import read_object
from slicelift.server.launcher import Launcher, without_address
from slicelift.server.workers import Workers

_SIGN_IN_HINT = "Reload the page and sign in again."
_log = logging.getLogger(__name__)


class Handler(ExtensionHandlerMixin, APIHandler):
    """See the module. Handlers raise `SliceliftError`; nothing of an unexpected one but its kind is shown."""

    auth_resource = "slicelift"
    _track_activity = False

    @property
    def launcher(self) -> Launcher:
        """The launcher of this session."""
        found: Launcher = self.settings["slicelift_launcher"]
        return found

    @property
    def workers(self) -> Workers:
        """The warm worker."""
        found: Workers = self.settings["slicelift_workers"]
        return found

    def begin_launcher(self) -> None:
        """Have it start while something else is done; what is amiss with it is told by whoever needs it."""
        try:
            self.launcher.address()
        except SliceliftError as error:
            _log.debug("%s", error)

    def json_body(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one is `{}`. Raises `bad-json`."""
        return read_object(self.request.body)

    def answer(self, value: Any, status: int = 200) -> None:
        """Finish with JSON."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(value, separators=(",", ":")))

    def begin_stream(self, content_type: str) -> None:
        """Headers of an answer that comes piece by piece and must be buffered by nobody."""
        self.set_header("Content-Type", content_type)
        self.set_header("Cache-Control", "no-cache, no-transform")
        self.set_header("X-Accel-Buffering", "no")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Every error as `{code, message, hint}`; what is unexpected without its traceback."""
        info = kwargs.get("exc_info")
        error = _known_error(status_code, info[1] if info else None)
        self.clear_header("Content-Length")
        if error.http_status == 503:
            self.set_header("Retry-After", "1")
        body = error.to_dict() | {
            "message": without_address(error.message),
            "hint": without_address(error.hint),
        }
        self.answer(body, error.http_status)

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Only what is our fault, with its traceback."""
        if not isinstance(value, SliceliftError):
            super().log_exception(typ, value, tb)


def _known_error(status: int, value: BaseException | None) -> SliceliftError:
    if isinstance(value, SliceliftError):
        return value
    if status == 403 or status == 401:
        error: SliceliftError = UserError("not-allowed", _words(value, "You may not do this."), _SIGN_IN_HINT)
    elif status < 500:
        error = UserError(
            f"http-{status}", _words(value, "The call is malformed."), "See docs/architecture.md."
        )
    else:
        message = f"Something unexpected happened ({type(value).__name__})."
        error = SliceliftError("internal", message, "Try again; the server's log has the details.")
    error.http_status = status
    return error


def _words(value: BaseException | None, otherwise: str) -> str:
    """What Jupyter or tornado said, where it said something."""
    if not isinstance(value, HTTPError) or not value.log_message:
        return otherwise
    try:
        return value.log_message % value.args if value.args else value.log_message
    except TypeError:
        return value.log_message
