"""The people of a hub: who may sign in, and with which pass phrase. One file, `SLICELIFT_HOME/hub/users.json`, 0600.

    python -m slicelift_hub.accounts [--home HOME] list | first | add | password | remove  --name=NAME

is how the command line changes it: the answer is one JSON object on stdout, an error too, with exit status 1. A pass
phrase is kept as its scrypt hash only, and is told once, when it is made. Nobody has one by default.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import secrets
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slicelift.errors import Conflict, NotFound, SliceliftError, UserError
from slicelift.launcher_client import default_home
from slicelift.runtime.folder import locked

from slicelift_hub.launcher.store import write_file

FILE = "users.json"
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 1000
LONGEST_NAME = 64
# 32 MiB and about a tenth of a second (RFC 7914); written beside each hash, so that it may grow
_COST = {"n": 2**15, "r": 8, "p": 1}
_MEMORY_BYTES = 128 * 1024**2
# without what is taken for another: 5 groups of 4 from 32 letters are 100 bits
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, kw_only=True)
class Account:
    """One person; `secret` is {salt, hash, n, r, p} in hexadecimal and numbers."""

    name: str
    admin: bool
    groups: tuple[str, ...]
    secret: Mapping[str, Any]
    since: float


class Accounts:
    """The file of accounts of one home. Read anew at every call; changes are locked and made by rename."""

    def __init__(self, home: Path) -> None:
        self._file = home / "hub" / FILE

    def all(self) -> list[Account]:
        """Sorted by name. Raises `accounts-unreadable`."""
        return sorted(self._read().values(), key=lambda account: account.name)

    def exists(self) -> bool:
        """Whether anybody has one, in a file that can be read."""
        try:
            return bool(self._read())
        except SliceliftError:
            return False

    def find(self, name: str) -> Account | None:
        """By name, whatever its case and composition."""
        return self._read().get(_key(name))

    def verify(self, name: str, password: str) -> Account | None:
        """The account, when the pass phrase is right. Takes as long for a name that nobody has (about 0.1 s)."""
        account = self.find(name)
        secret = account.secret if account else _NOBODY
        right = hmac.compare_digest(_hash(password, secret), bytes.fromhex(str(secret["hash"])))
        return account if right else None

    def add(
        self, name: str, *, password: str | None = None, admin: bool = False, groups: Sequence[str] = ()
    ) -> tuple[Account, str]:
        """A new account and its pass phrase, generated unless given. Raises `user-exists`, `bad-user-name`."""
        name, chosen = check_name(name), check_password(password) if password is not None else generate()
        secret = _make_secret(chosen)
        for group in groups:
            check_name(group, what="group")
        with self._changed() as accounts:
            known = accounts.get(_key(name))
            if known is not None:
                hint = f"`slicelift hub set-password {known.name}` gives a new pass phrase."
                raise Conflict("user-exists", f"There is a user {known.name!r} already.", hint)
            account = Account(name=name, admin=admin, groups=tuple(groups), secret=secret, since=time.time())
            accounts[_key(name)] = account
        return account, chosen

    def set_password(self, name: str, password: str | None = None) -> tuple[Account, str]:
        """The account and its new pass phrase. Raises `user-unknown`."""
        chosen = check_password(password) if password is not None else generate()
        secret = _make_secret(chosen)
        with self._changed() as accounts:
            account = replace(_known(accounts, name), secret=secret)
            accounts[_key(name)] = account
        return account, chosen

    def remove(self, name: str) -> Account:
        """The account that was. Raises `user-unknown`."""
        with self._changed() as accounts:
            account = _known(accounts, name)
            del accounts[_key(name)]
        return account

    def _read(self) -> dict[str, Account]:
        try:
            body = json.loads(self._file.read_bytes())
            return {_key(name): _account(name, entry) for name, entry in body["users"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"The accounts in {self._file} cannot be read: {error}."
            raise SliceliftError(
                "accounts-unreadable", message, "Mend the file, or put a copy back."
            ) from error

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Account]]:
        """The accounts under a lock, written when the block ends well."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._file.with_suffix(".lock")):
                accounts = self._read()
                yield accounts
                users = {account.name: _entry(account) for account in accounts.values()}
                body = json.dumps({"version": 1, "users": users}, ensure_ascii=False, indent=1)
                write_file(self._file, body.encode())
        except OSError as error:
            message = f"{self._file} cannot be written: {error.strerror}. Nothing was changed."
            hint = "Look at the disk (df -h), or point SLICELIFT_HOME to a folder of yours."
            raise SliceliftError("accounts-unwritable", message, hint) from error


def check_name(name: str, *, what: str = "user") -> str:
    """The name as it is kept (NFC). Letters of any script, digits, `.`, `_`, `-` and `@`. Raises `bad-user-name`."""
    name = unicodedata.normalize("NFC", name)
    plain = all(char.isalnum() or char in "._-@" for char in name)
    if not plain or not name[:1].isalnum() or len(name) > LONGEST_NAME:
        message = f"{name[:80]!r} cannot be the name of a {what}."
        hint = f"Use 1 to {LONGEST_NAME} letters, digits, '.', '_', '-' or '@', a letter or digit first."
        raise UserError(f"bad-{what}-name", message, hint)
    return name


def check_password(password: str) -> str:
    """Raises `password-short`, `password-long`."""
    if len(password) < SHORTEST_PASSWORD:
        message = f"The pass phrase has {len(password)} characters."
        hint = f"Use {SHORTEST_PASSWORD} or more, or leave --password-stdin out to get one made."
        raise UserError("password-short", message, hint)
    if len(password) > LONGEST_PASSWORD:
        message = f"The pass phrase has {len(password):,} characters."
        raise UserError("password-long", message, f"Use {LONGEST_PASSWORD:,} at most.")
    return password


def generate() -> str:
    """A pass phrase of 100 random bits that can be read out: `k7qf-2mzp-...`."""
    groups = ("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(5))
    return "-".join(groups)


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    options = _parse(arguments)
    try:
        accounts = Accounts(options.home)
        print(json.dumps(_COMMANDS[options.what](accounts, options), ensure_ascii=True))
    except SliceliftError as error:
        print(json.dumps(error.to_dict()))
        return 1
    return 0


def _list(accounts: Accounts, _: argparse.Namespace) -> dict[str, Any]:
    return {"users": [_shown(account) for account in accounts.all()]}


def _first(accounts: Accounts, options: argparse.Namespace) -> dict[str, Any]:
    """An admin's account for who runs the hub, where there is none at all yet; `password` is null otherwise.

    Named as the launcher names them, so that the command line and the browser show the same runs.
    """
    from slicelift_hub.launcher.auth import whoami  # loads the ledger's library: half a second for one start

    known = accounts.all()
    if known:
        admin = next((account for account in known if account.admin), known[0])
        return _shown(admin) | {"password": None}
    try:
        name = check_name(options.name or whoami())
    except UserError:  # a system's name may hold what a URL cannot
        name = "admin"
    account, password = accounts.add(name, admin=True)
    return _shown(account) | {"password": password}


def _add(accounts: Accounts, options: argparse.Namespace) -> dict[str, Any]:
    account, password = accounts.add(
        options.name, password=_given(options), admin=options.admin, groups=options.group
    )
    return _shown(account) | {"password": None if options.password_stdin else password}


def _password(accounts: Accounts, options: argparse.Namespace) -> dict[str, Any]:
    account, password = accounts.set_password(options.name, _given(options))
    return _shown(account) | {"password": None if options.password_stdin else password}


def _remove(accounts: Accounts, options: argparse.Namespace) -> dict[str, Any]:
    return _shown(accounts.remove(options.name))


_COMMANDS = {"list": _list, "first": _first, "add": _add, "password": _password, "remove": _remove}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slicelift_hub.accounts")
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("what", choices=_COMMANDS)
    parser.add_argument("--name", default="")
    parser.add_argument("--admin", action="store_true")
    parser.add_argument("--group", action="append", default=[])
    parser.add_argument("--password-stdin", action="store_true")
    return parser.parse_args(arguments)


def _given(options: argparse.Namespace) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if options.password_stdin else None


def _shown(account: Account) -> dict[str, Any]:
    body = {"name": account.name, "admin": account.admin, "groups": list(account.groups)}
    return body | {"since": account.since}


def _known(accounts: Mapping[str, Account], name: str) -> Account:
    account = accounts.get(_key(name))
    if account is None:
        raise NotFound(
            "user-unknown", f"There is no user {name[:80]!r}.", "`slicelift hub users` lists them."
        )
    return account


def _key(name: str) -> str:
    """Two names that look alike are one person's."""
    return unicodedata.normalize("NFKC", name).casefold()


def _make_secret(password: str) -> dict[str, Any]:
    secret: dict[str, Any] = {"salt": secrets.token_hex(16), **_COST}
    return secret | {"hash": _hash(password, secret).hex()}


def _hash(password: str, secret: Mapping[str, Any]) -> bytes:
    salt, words = bytes.fromhex(str(secret["salt"])), unicodedata.normalize("NFKC", password)
    cost = {name: int(secret[name]) for name in _COST}
    # a lone surrogate cannot be encoded, and nobody's pass phrase has one
    data = words.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, maxmem=_MEMORY_BYTES, dklen=32, **cost)


def _account(name: str, entry: Mapping[str, Any]) -> Account:
    return Account(
        name=name,
        admin=bool(entry["admin"]),
        groups=tuple(map(str, entry["groups"])),
        secret=dict(entry["secret"]),
        since=float(entry["since"]),
    )


def _entry(account: Account) -> dict[str, Any]:
    return {
        "admin": account.admin,
        "groups": list(account.groups),
        "since": account.since,
        "secret": dict(account.secret),
    }


# what a name is compared with that nobody has: as costly as a real one, and never right
_NOBODY: Mapping[str, Any] = {"salt": "00" * 16, "hash": "00" * 32, **_COST}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
