"""What may go wrong, said the same way everywhere: code, message, hint.

`SliceliftError` is the one base. The `code` is stable and meant for programs; the `message`
says what was asked and what was found; the `hint` names a way on and lists allowed values.
A subclass fixes the HTTP status and the exit code of the command line, nothing else.

- SliceliftError
  - UserError (4xx): the caller can mend it
    - Refused: the preflight or the data proof said no
    - NotFound
    - Conflict
    - Denied
  - Unavailable (503): a part is away for now; trying again may help
"""

from __future__ import annotations

from typing import Any


class SliceliftError(Exception):
    """A fault with a stable `code`, a `message` for a person and a `hint` that names a way on."""

    http_status = 500
    exit_code = 1

    def __init__(self, code: str, message: str, hint: str = "", *, detail: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def to_dict(self) -> dict[str, Any]:
        """The body that crosses HTTP and `--json`: `{code, message, hint}` (+ `detail` if any)."""
        body: dict[str, Any] = {"code": self.code, "message": self.message, "hint": self.hint}
        if self.detail is not None:
            body["detail"] = self.detail
        return body


class UserError(SliceliftError):
    """The caller can mend it."""

    http_status = 400
    exit_code = 2


class Refused(UserError):
    """Checked and found wanting: nothing was submitted, nothing was changed."""

    http_status = 422
    exit_code = 1


class NotFound(UserError):
    """No such thing, or not the caller's."""

    http_status = 404


class Conflict(UserError):
    """The thing exists already and differs, or is in a state that forbids the call."""

    http_status = 409


class Denied(UserError):
    """Not signed in (401) or not allowed (403)."""

    http_status = 403


class Unavailable(SliceliftError):
    """A part is away for now (launcher, tracker, remote); the same call may work later."""

    http_status = 503
    exit_code = 3


_AWAY = ("launcher-", "http-")


def is_launcher_away(error: SliceliftError) -> bool:
    """Whether the launcher is away for a moment, so that the same call to it may soon work."""
    return isinstance(error, Unavailable) and error.code.startswith(_AWAY)


_BY_STATUS: dict[int, type[SliceliftError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    422: Refused,
    503: Unavailable,
}


def from_http(status: int, body: object) -> SliceliftError:
    """Rebuild the error that a launcher put into an HTTP answer.

    `body` is the decoded JSON (anything else counts as an unknown answer). Statuses without a
    class of their own become `UserError` (4xx) or `SliceliftError` (5xx).
    """
    known = body if isinstance(body, dict) else {}
    kind = _BY_STATUS.get(status, UserError if 400 <= status < 500 else SliceliftError)
    return kind(
        str(known.get("code", f"http-{status}")),
        str(known.get("message", f"The launcher answered HTTP {status}.")),
        str(known.get("hint", "")),
        detail=known.get("detail"),
    )
