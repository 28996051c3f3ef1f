"""Who is calling: the user of this launcher, a user of the hub it serves, or one attempt of a job.

An `Authenticator` turns a token into a `Principal`; a launcher has a list of them (the hub's: `hub_tokens.py`).
Tokens of attempts are derived from the launcher's key, so that a submit that was cut off can be repeated with
the same token, while the ledger keeps a digest only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slicelift_hub.launcher.ledger_rows import AttemptRow

_REMEMBERED = 1000
# how long a token of an attempt may still be good after the attempt was tidied away
_REMEMBERED_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A caller. With `attempt` it is the agent of that attempt, who may make that attempt's calls only.

    `operator` is who runs the launcher and may stop it: the holder of the state file's token, never a hub's user.
    `groups` are those that the hub has the user in.
    """

    owner: str
    groups: tuple[str, ...] = ()
    attempt: AttemptRow | None = None
    operator: bool = False


class Authenticator(Protocol):
    """One kind of token."""

    def recall(self, token: str) -> Principal | None:
        """Like `authenticate`, from memory alone: never blocks, and None may just mean not now."""
        ...

    def authenticate(self, token: str) -> Principal | None:
        """Whose token this is; None when it is none of this kind. May block: called in a worker thread.

        Raises `Denied` for a token that is of this kind and opens nothing here, `Unavailable` when it cannot tell.
        """
        ...


class LocalToken:
    """The one token of a launcher that serves the user who runs it."""

    def __init__(self, token: str, *, owner: str) -> None:
        self._token = token.encode()
        self._principal = Principal(owner=owner, operator=True)

    def recall(self, token: str) -> Principal | None:
        """See `Authenticator`."""
        return self.authenticate(token)

    def authenticate(self, token: str) -> Principal | None:
        """See `Authenticator`. Compared in constant time."""
        return self._principal if hmac.compare_digest(token.encode(), self._token) else None


class AttemptTokens:
    """Tokens of attempts; `find` looks one up in the ledger by its digest.

    A token opens its attempt until that is over and tidied away: nobody lives then who could need it, and whoever found it
    in a log must not get at secrets with it.
    """

    def __init__(
        self, find: Callable[[str], AttemptRow | None], *, seconds: float = _REMEMBERED_SECONDS
    ) -> None:
        self._find = find
        self._seconds = seconds
        # token -> (until when it is not asked for again, whose it is)
        self._known: dict[str, tuple[float, Principal]] = {}

    def recall(self, token: str) -> Principal | None:
        """See `Authenticator`. Who a token belongs to never changes, so it is remembered for a while."""
        until, found = self._known.get(token, (0.0, None))
        return found if time.monotonic() < until else None

    def authenticate(self, token: str) -> Principal | None:
        """See `Authenticator`."""
        row = self._find(token) if token.startswith("a-") else None
        if row is None:
            return None
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        found = Principal(owner=row.owner, attempt=row)
        self._known[token] = (time.monotonic() + self._seconds, found)
        return found


def make_attempt_token(key: str, attempt_id: str) -> str:
    """The token of one attempt: always the same, and unknowable without the key."""
    return "a-" + hmac.new(key.encode(), attempt_id.encode(), hashlib.sha256).hexdigest()


def whoami() -> str:
    """The name of the system's user, who owns what a local launcher runs."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
