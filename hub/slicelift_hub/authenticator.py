"""How a hub of one machine lets people in: by the accounts of `slicelift hub add-user`, see `accounts`.

Guesses are slow: one at a time for each name and address, a pause after each wrong one that doubles, and a rest when
there were many.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

from jupyterhub.auth import Authenticator
from slicelift.errors import SliceliftError
from slicelift.launcher_client import default_home
from tornado.web import HTTPError
from traitlets import Bool, Float, Int, Unicode

from slicelift_hub.accounts import LONGEST_PASSWORD, Account, Accounts
from slicelift_hub.sessions import of_home

P = ParamSpec("P")
_REMEMBERED = 10_000
_WAITING = 5
# each hash takes 32 MiB
_THREADS = 2


@dataclass
class Guesses:
    """Wrong pass phrases for one name from one address."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wrong: int = 0
    last: float = 0.0
    waiting: int = 0


class LocalAccounts(Authenticator):  # type: ignore[misc]  # jupyterhub has no types
    """Users with pass phrases of their own, kept by the hub itself: no system accounts, no shared word."""

    home = Unicode(
        help="The launcher's home, whose hub/users.json has the accounts. Default: SLICELIFT_HOME, "
        "else the XDG data folder."
    ).tag(config=True)
    first_pause_seconds = Float(0.5, help="The pause after a wrong pass phrase; doubled at each more.").tag(
        config=True
    )
    longest_pause_seconds = Float(8.0, help="Where doubling ends.").tag(config=True)
    many_guesses = Int(20, help="So many wrong ones in a row, and the name rests for this address.").tag(
        config=True
    )
    rest_seconds = Float(600.0, help="How long it rests, and how long wrong ones are remembered.").tag(
        config=True
    )

    # who has an account may come in; groups and admins are as the accounts say, also while signed in
    allow_all = Bool(True, help="Everyone with an account may sign in.").tag(config=True)
    manage_groups = Bool(True, help="Groups are those of the accounts.").tag(config=True)
    delete_invalid_users = Bool(True, help="The hub forgets users whose account was removed.").tag(
        config=True
    )
    auth_refresh_age = Int(30, help="How often, in seconds, a signed-in user's account is looked at.").tag(
        config=True
    )
    refresh_pre_spawn = Bool(True, help="Look at the account before a session starts, too.").tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._root = Path(self.home) if self.home else default_home()
        self._accounts = Accounts(self._root)
        self._guesses: dict[tuple[str, str], Guesses] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="password")

    def normalize_username(self, username: str) -> str:
        """As the account writes it, so that one person is one user."""
        account = self._find(username)
        return account.name if account else unicodedata.normalize("NFC", username)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> dict[str, Any] | None:
        """The user whose pass phrase this is, or None after a pause. Raises 429 where there were many wrong ones."""
        name, password = data.get("username", ""), data.get("password", "")
        if max(len(name), len(password)) > LONGEST_PASSWORD:  # before anything is done with so much
            return None
        guesses = self._guesses_of(name, handler.request.remote_ip)
        if guesses.waiting >= _WAITING or self._rests(guesses):
            raise HTTPError(429, "Too many wrong pass phrases for this name. Try again in some minutes.")
        guesses.waiting += 1
        try:
            async with guesses.lock:
                return await self._judge(guesses, name, password)
        finally:
            guesses.waiting -= 1

    async def refresh_user(self, user: Any, handler: Any = None) -> bool | dict[str, Any]:  # noqa: ARG002 - its signature
        """False for who has no account any more: the next page asks to sign in."""
        account = self._find(user.name)
        return _model(account) if account and account.name == user.name else False

    def add_user(self, user: Any) -> None:
        """Called for every user the hub knows or is to make: who has no account is refused, and forgotten at a start.

        So their sessions end here, since nobody would know them any more. Accounts that cannot be read are no reason to
        forget anybody.
        """
        if self._accounts.exists() and self._find(user.name) is None:
            of_home(self._root).end_user(user.name)
            raise ValueError(f"{user.name} has no account: slicelift hub add-user {user.name}")
        super().add_user(user)

    async def _judge(self, guesses: Guesses, name: str, password: str) -> dict[str, Any] | None:
        loop = asyncio.get_running_loop()
        account = await loop.run_in_executor(self._pool, self._ask, self._accounts.verify, name, password)
        if account is not None:
            guesses.wrong = 0
            return _model(account)
        guesses.wrong, guesses.last = guesses.wrong + 1, time.monotonic()
        pause = self.first_pause_seconds * 2 ** min(guesses.wrong - 1, 16)
        await asyncio.sleep(min(pause, self.longest_pause_seconds))
        return None

    def _guesses_of(self, name: str, address: str) -> Guesses:
        if len(self._guesses) >= _REMEMBERED:
            self._guesses = {
                key: each for key, each in self._guesses.items() if each.waiting or self._rests(each)
            }
        key = (unicodedata.normalize("NFKC", name[:200]).casefold(), address)
        guesses = self._guesses.setdefault(key, Guesses())
        if guesses.wrong and time.monotonic() - guesses.last > self.rest_seconds:
            guesses.wrong = 0
        return guesses

    def _rests(self, guesses: Guesses) -> bool:
        recent = time.monotonic() - guesses.last < self.rest_seconds
        return bool(recent and guesses.wrong >= self.many_guesses)

    def _find(self, name: str) -> Account | None:
        return self._ask(self._accounts.find, name)

    def _ask(
        self, function: Callable[P, Account | None], *args: P.args, **kwargs: P.kwargs
    ) -> Account | None:
        """What is wrong with the file is for the log; the page says that it is not the user's fault."""
        try:
            return function(*args, **kwargs)
        except SliceliftError as error:
            self.log.error("%s", error)  # noqa: TRY400 - its words say all
            raise HTTPError(503, "The accounts cannot be read; the hub's log says why.") from error


def _model(account: Account) -> dict[str, Any]:
    return {"name": account.name, "admin": account.admin, "groups": list(account.groups)}
