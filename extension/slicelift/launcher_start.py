"""Starting the launcher as the user's own daemon, or adopting the one that runs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift import launcher_address
from slicelift.errors import SliceliftError, Unavailable
from slicelift.launcher_client import (
    LOCK_FILE,
    STATE_FILE,
    Client,
    check_version,
    default_home,
    find,
    read_state,
)

START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_TELL_SECONDS = 2.0
_LAST_BYTES = 4000

Progress = Callable[[str], None]

# children outlive their starter on purpose: kept here, they are not complained about when forgotten
_started: list[subprocess.Popen[bytes]] = []


def ensure(home: Path | None = None, *, on_progress: Progress | None = None) -> Client:
    """The launcher that serves `home`; one is started, detached, if there is none.

    Without `home`, where the environment names a launcher, it is that one and nothing is started. Two at once end
    with one launcher and two clients. `on_progress` gets sentences while it comes up. Raises what
    `find` raises for another version, what a launcher that cannot come up said, or `launcher-slow`.
    """
    if home is None and launcher_address.told() is not None:
        return find()
    root = home or default_home()
    say = on_progress or _silent
    if read_state(root) is not None:
        return _wait(root, started=None, offset=0, say=say)
    say("Starting the launcher in the background; `slicelift down` stops it.")
    log = root / "launcher.log"
    _make_home(root)
    _forget_former(root)
    offset = log.stat().st_size if log.exists() else 0
    return _wait(root, started=_start(root, log), offset=offset, say=say)


def _make_home(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"The launcher's home {root} cannot be made: {error.strerror}."
        raise SliceliftError(
            "home-unusable", message, "Point SLICELIFT_HOME to a folder of yours."
        ) from error


def _forget_former(root: Path) -> None:
    """Take away the address that a killed launcher left, before ours holds the lock and it seems good again.

    Whoever has the whole lock knows that nobody serves; a launcher that starts waits for it longer than this takes.
    """
    if not (root / STATE_FILE).exists():
        return
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (root / STATE_FILE).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _start(root: Path, log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own, which neither our end nor a Ctrl-C reaches."""
    # port 0: no user is there to be asked when the usual one is taken
    command = [sys.executable, "-m", "slicelift_hub.launcher", "--home", str(root), "--port", "0"]
    with log.open("ab") as file:
        log.chmod(0o600)
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd=root
        )
    _started.append(child)
    return child


def _wait(root: Path, *, started: subprocess.Popen[bytes] | None, offset: int, say: Progress) -> Client:
    """Until it answers; also for the one that somebody else is just starting."""
    until, told = time.monotonic() + START_SECONDS, time.monotonic()
    while time.monotonic() < until:
        state = read_state(root)
        if state is not None:
            check_version(state)
            client = _answering(root)
            if client is not None:
                _give_way(started, int(state["pid"]))
                return client
        elif started is not None and started.poll() is not None:
            _raise_said(root, offset)
            started = None
        elif started is None:
            # it went away between our look and our call
            started = _start(root, root / "launcher.log")
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            say("Still waiting for the launcher.")
        time.sleep(_POLL_SECONDS)
    message = f"The launcher of {root} did not answer within {START_SECONDS:.0f} s."
    raise Unavailable("launcher-slow", message, f"See {root / 'launcher.log'}, then try again.")


def _give_way(started: subprocess.Popen[bytes] | None, winner: int) -> None:
    """Ours came second: it must not wait for the end of the first and then begin a life of its own."""
    if started is not None and started.pid != winner:
        started.terminate()
        started.wait()


def _answering(root: Path) -> Client | None:
    client = find(root)
    try:
        client.health()
    except Unavailable:
        client.close()
        return None
    return client


def _raise_said(root: Path, offset: int) -> None:
    """Raise the error with which our launcher ended, unless it gave way to another one."""
    log = root / "launcher.log"
    with log.open("rb") as file:
        file.seek(max(offset, log.stat().st_size - _LAST_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    error = _parse(lines[-1] if lines else "")
    if error.get("code") == "launcher-running":
        return
    message = str(
        error.get("message") or f"The launcher could not start: {lines[-1] if lines else 'it said nothing'}"
    )
    hint = str(error.get("hint") or f"See {log}.")
    raise SliceliftError(str(error.get("code", "launcher-failed")), message, hint)


def _parse(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _silent(_: str) -> None:
    return None
