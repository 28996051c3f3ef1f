"""One launcher per home: the lock it holds, the file by which it is found, and what it keeps over restarts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.errors import Conflict, SliceliftError
from slicelift.launcher_client import STATE_FILE, find, read_state
from tornado.netutil import bind_sockets

from slicelift_hub.launcher.store import write_file

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8765
ADDRESS_FILE = "public/address.json"
LOCK_SECONDS = 3.0
# another launcher's orderly end, MLflow's included
HANDOVER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a launcher keeps over restarts, so that agents and clients survive one. `port` is the last one."""

    token: str
    key: str
    port: int = 0


class Home:
    """`SLICELIFT_HOME` of one launcher, 0700. Use as a context: the lock, waited for `patience` s, is held inside."""

    def __init__(self, root: Path, *, patience: float = LOCK_SECONDS) -> None:
        self.root = root.expanduser().absolute()
        self._patience = patience
        self._lock: int | None = None

    def __enter__(self) -> Home:
        """Take the lock. Raises `launcher-running` when another launcher serves this home."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
            self._lock = os.open(self.root / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"The launcher's home {self.root} cannot be used: {error.strerror}."
            raise SliceliftError(
                "home-unusable", message, "Point SLICELIFT_HOME to a folder of yours."
            ) from error
        until = time.monotonic() + self._patience
        # one that is just ending may hold it for a moment
        while not _locked(self._lock):
            if time.monotonic() > until:
                os.close(self._lock)
                raise _make_running(self.root)
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """Let the next one in."""
        if self._lock is not None:
            os.close(self._lock)

    def identity(self) -> Identity:
        """Made once, at random, 0600."""
        try:
            known = json.loads((self.root / "identity.json").read_bytes())
            return Identity(token=known["token"], key=known["key"], port=int(known["port"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            fresh = Identity(token=secrets.token_urlsafe(32), key=secrets.token_urlsafe(32))
            self.remember(fresh)
            return fresh

    def remember(self, identity: Identity) -> None:
        """Keep it for the next start."""
        body = {"token": identity.token, "key": identity.key, "port": identity.port}
        write_file(self.root / "identity.json", json.dumps(body).encode())

    def publish(self, state: dict[str, Any]) -> None:
        """From here on the launcher is found: by its state file, and by jobs of other users in a file without the token."""
        address = self.root / ADDRESS_FILE
        address.parent.mkdir(exist_ok=True)
        address.parent.chmod(0o755)
        write_file(address, json.dumps({"url": state["url"]}).encode())
        address.chmod(0o644)
        write_file(self.root / STATE_FILE, json.dumps(state).encode())

    def withdraw(self) -> None:
        """The launcher ends: nobody should find it any more."""
        with suppress(FileNotFoundError):
            (self.root / STATE_FILE).unlink()


def ask_to_leave(root: Path) -> None:
    """Have a launcher stop that somebody started for themselves over this home; its jobs go on, for the next to adopt.

    The hub's own launcher does so: one that was started while it was away would else keep it out.
    """
    with suppress(SliceliftError), find(root, any_version=True) as client:
        client.shutdown(keep_jobs=True)


def listen(port: int, *, former: int, address: str = LOOPBACK) -> list[socket.socket]:
    """Sockets on an IPv4 address: on `port`, or for 0 on the former port, else the default one, else any free one.

    Raises `port-taken` when a port was asked for by number and somebody has it, `address-unusable` for an address
    that this machine does not have.
    """
    if port:
        return _bind(address, port)
    for wish in (former, DEFAULT_PORT):
        with suppress(Conflict):
            if wish:
                return _bind(address, wish)
    return _bind(address, 0)


def _bind(address: str, port: int) -> list[socket.socket]:
    try:
        return bind_sockets(port, address, family=socket.AF_INET)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", errno.EACCES) not in (errno.EADDRINUSE, errno.EACCES):
            message = f"The launcher cannot listen on {address}: {error}."
            hint = "c.Launcher.address is 127.0.0.1, 0.0.0.0 or an IPv4 address of this machine."
            raise SliceliftError("address-unusable", message, hint) from error
        message = f"Port {port} on {address} cannot be used: another program has it."
        hint = "Choose another with --port N; --port 0 takes any free one."
        raise Conflict("port-taken", message, hint) from error


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_running(root: Path) -> Conflict:
    state = read_state(root) or {}
    where = f" at {state['url']} (process {state['pid']})" if state else ""
    message = f"A launcher serves {root} already{where}."
    return Conflict("launcher-running", message, "Use that one, or stop it first with `slicelift down`.")
