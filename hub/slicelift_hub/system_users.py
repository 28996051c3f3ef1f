"""The system's users behind the Hub's: one each, made on demand, without a password or a shell (root on Linux only)."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from slicelift.errors import SliceliftError
from slicelift.runtime.folder import locked, read_object, write_json

from slicelift_hub.homes import HOMES, slug

_FILE = "accounts.json"
_PREFIX = "sl-"
# useradd takes 32 characters at most
_WORD = 16


@dataclass(frozen=True, kw_only=True)
class SystemUser:
    """A user of the system, by name and by number; `gid` is a group of its own."""

    name: str
    uid: int
    gid: int


def account_name(home: Path, user: str) -> str:
    """How the system's user of `user` is called: another one for every user and every launcher's home. Pure."""
    word = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:_WORD].strip("-") or "user"
    digest = hashlib.sha256(f"{os.path.realpath(home)}\0{user}".encode()).hexdigest()
    return f"{_PREFIX}{word}-{digest[:10]}"


def system_user(home: Path, user: str) -> SystemUser:
    """The system's user of `user`, made if there is none yet. Safe to repeat, at the same time too.

    The number is kept in `home/hub/accounts.json`, so that it never becomes somebody else's: an account that
    was removed comes back with the number that its files have. Raises `account-failed` and `account-changed`.
    """
    folder = home / "hub"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder / "accounts.lock"):
            return _known_or_made(home, user)
    except OSError as error:
        message = f"The system's users cannot be kept in {folder}: {error.strerror or error}."
        raise SliceliftError(
            "account-failed", message, "Look at the disk and the rights of that folder."
        ) from error


def known_user(home: Path, user: str) -> SystemUser | None:
    """The system's user of `user` if one was made and is still the same; makes none."""
    name, uid = read_object(home / "hub" / _FILE).get(user, ("", None))
    found = _look(str(name)) if name else None
    return found if found is not None and found.uid == uid else None


def give(account: SystemUser, path: Path) -> None:
    """Make this folder and all below it the account's, and the folder closed to others.

    The folder itself goes last: whoever owns it has had it given whole, and it is left alone. Links are not followed.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.lstat().st_uid == account.uid:
        return
    for _, folders, files, handle in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, account.uid, account.gid, dir_fd=handle, follow_symlinks=False)
    path.chmod(0o700)
    os.chown(path, account.uid, account.gid, follow_symlinks=False)


def remove_all(home: Path) -> list[str]:
    """Remove the system's users that were made for this home, and no file of theirs. For an uninstallation.

    What userdel said of those that stay, one text each: a user whose process lives cannot be removed.
    """
    names = [str(name) for name, _ in read_object(home / "hub" / _FILE).values()]
    told = [_tool("userdel", name) for name in names if _look(name)]
    return [words for words in told if words]


def _known_or_made(home: Path, user: str) -> SystemUser:
    file = home / "hub" / _FILE
    known = read_object(file)
    name, uid = known.get(user, (account_name(home, user), None))
    found = _look(name)
    if found is None:
        _make(name, uid, home / HOMES / slug(user))
        found = _look(name)
    if found is None or (uid is not None and found.uid != uid) or found.uid == 0:
        message = f"The system's user {name} is not the one that was made for {user} (its number was {uid})."
        hint = f"An admin gives it that number again, or removes it from {file} and what it owns."
        raise SliceliftError("account-changed", message, hint)
    if uid is None:
        write_json(file, {**known, user: [found.name, found.uid]})
    return found


def _look(name: str) -> SystemUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return SystemUser(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def _make(name: str, uid: int | None, folder: Path) -> None:
    """A locked password and no shell are useradd's own defaults without --password and with --shell nologin."""
    command = ["useradd", "--user-group", "--no-create-home", "--home-dir", str(folder)]
    command += ["--shell", "/usr/sbin/nologin", *(["--uid", str(uid)] if uid is not None else []), name]
    failure = _tool(*command)
    if failure:
        message = f"The system's user {name} cannot be made: {failure}"
        raise SliceliftError("account-failed", message, "An admin looks at useradd and /etc/login.defs.")


def _tool(*command: str) -> str:
    """Run a tool of the system's; "" or what it complained of."""
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-300:] or f"exit status {done.returncode}" if done.returncode else ""
