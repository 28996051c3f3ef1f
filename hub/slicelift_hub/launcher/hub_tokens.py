"""Tokens of a hub's users: the hub says whose one is, and whether it opens this launcher.

A token is remembered for half a minute, so that the hub is not asked at every call. While the hub is away, as in a
restart, remembered ones go on for some minutes; no job's agent depends on it at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from slicelift.errors import Denied, SliceliftError, Unavailable

from slicelift_hub.launcher.auth import Principal

FRESH_SECONDS = 30.0
STALE_SECONDS = 300.0
REFUSED_SECONDS = 5.0
# after a failure the hub is not asked for that long, so that calls do not queue up behind time-outs
AWAY_SECONDS = 2.0
_TIMEOUT = httpx.Timeout(5.0, connect=2.0)
_REMEMBERED = 5000
_ATTEMPT = "a-"


@dataclass(frozen=True, kw_only=True)
class HubAccess:
    """What the hub told its service: addresses, the service's name and the token that is the service's own.

    `prefix` begins and ends with a slash. `variables` are all of the hub's variables, for who signs in browsers.
    """

    api_url: str
    api_token: str
    name: str
    prefix: str
    variables: Mapping[str, str]

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> HubAccess:
        """Raises `hub-unknown` when no hub started this process."""
        variables = {name: value for name, value in environment.items() if name.startswith("JUPYTERHUB_")}
        missing = [name for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN") if not variables.get(name)]
        if missing:
            message = f"The launcher was told to serve a hub, but {' and '.join(missing)} is not set."
            hint = (
                "`slicelift up` starts it as a service of the hub; leave --hub out to serve yourself alone."
            )
            raise SliceliftError("hub-unknown", message, hint)
        name = variables.get("JUPYTERHUB_SERVICE_NAME", "launcher")
        prefix = variables.get("JUPYTERHUB_SERVICE_PREFIX", f"/services/{name}/")
        return cls(
            api_url=variables["JUPYTERHUB_API_URL"].rstrip("/"),
            api_token=variables["JUPYTERHUB_API_TOKEN"],
            name=name,
            prefix=f"/{prefix.strip('/')}/",
            variables=variables,
        )

    @property
    def scope(self) -> str:
        """What a token must carry to open this service."""
        return f"access:services!service={self.name}"


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What the hub said of a token and when: a principal, or why not."""

    principal: Principal | None
    refusal: Denied | None
    at: float


class HubTokens:
    """Asks the hub whose token one is. Safe to use from many threads."""

    def __init__(self, hub: HubAccess, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub, self._clock = hub, clock
        self._http = httpx.Client(timeout=_TIMEOUT, trust_env=False)
        self._known: dict[str, _Known] = {}
        self._asking: set[str] = set()
        self._lock = threading.Lock()
        self._away_until = 0.0

    def close(self) -> None:
        """Drop the connections to the hub."""
        self._http.close()

    def recall(self, token: str) -> Principal | None:
        """See `auth.Authenticator`."""
        known = self._known.get(token)
        return known.principal if known and self._age(known) < FRESH_SECONDS else None

    def authenticate(self, token: str) -> Principal | None:
        """See `auth.Authenticator`. Raises `token-lacks-scope`, or `hub-away` for a token that is not remembered."""
        if not _may_be_ours(token):
            return None
        known = self._known.get(token)
        limit = FRESH_SECONDS if known and known.principal else REFUSED_SECONDS
        if known is None or self._age(known) >= limit:
            known = self._ask_once(token, known)
        if known.refusal is not None:
            raise known.refusal
        return known.principal

    def _ask_once(self, token: str, known: _Known | None) -> _Known:
        """The hub's word; what is remembered, if not too old, while it is away or being asked the same already."""
        usable = known if known and known.principal and self._age(known) < STALE_SECONDS else None
        with self._lock:
            asked = token in self._asking
            if not asked:
                self._asking.add(token)
        if asked and usable:
            return usable
        try:
            return self._remember(token, self._ask(token))
        except Unavailable:
            if usable is None:
                raise
            return usable
        finally:
            with self._lock:
                self._asking.discard(token)

    def _ask(self, token: str) -> _Known:
        if self._clock() < self._away_until:
            raise _make_away("it gave no answer a moment ago")
        try:
            answer = self._http.get(f"{self._hub.api_url}/user", headers={"Authorization": f"token {token}"})
            if answer.status_code >= 500:
                raise _make_away(f"it answered HTTP {answer.status_code}")
            body = answer.json() if answer.status_code == 200 else None
        except (httpx.TransportError, ValueError) as error:
            self._away_until = self._clock() + AWAY_SECONDS
            raise _make_away(type(error).__name__) from error
        return self._judge(body)

    def _judge(self, body: Any) -> _Known:
        at = self._clock()
        if not isinstance(body, dict):
            return _Known(principal=None, refusal=None, at=at)
        if body.get("kind") != "user" or not body.get("name"):
            message = f"The token is of the hub's service {body.get('name')!r}; jobs belong to users."
            hint = "Use the token of a user's session."
            return _Known(principal=None, refusal=Denied("not-a-user", message, hint), at=at)
        if not {self._hub.scope, "access:services"} & set(body.get("scopes", ())):
            return _Known(principal=None, refusal=_make_lacking(self._hub, body), at=at)
        groups = tuple(sorted(str(name) for name in body.get("groups") or ()))
        return _Known(principal=Principal(owner=str(body["name"]), groups=groups), refusal=None, at=at)

    def _remember(self, token: str, known: _Known) -> _Known:
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[token] = known
        return known

    def _age(self, known: _Known) -> float:
        return self._clock() - known.at


def _may_be_ours(token: str) -> bool:
    """Attempt tokens are not: a hub that is away must not make an unknown one of them wait for it."""
    return bool(token) and token.isascii() and token.isprintable() and not token.startswith(_ATTEMPT)


def _make_lacking(hub: HubAccess, body: Mapping[str, Any]) -> Denied:
    message = f"The token of {body['name']} lacks the scope {hub.scope}, so it does not open the launcher."
    hint = "Use the session's own token, or ask for one with that scope; admins: load_roles in jupyterhub_config.py."
    return Denied("token-lacks-scope", message, hint)


def _make_away(why: str) -> Unavailable:
    message = f"The hub cannot be asked whose token this is: {why}."
    return Unavailable("hub-away", message, "Jobs go on meanwhile. Try again in a moment.")
