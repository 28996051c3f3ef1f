"""A launcher as a child in the foreground: started, watched, ended by a signal, and never left half way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from slicelift.errors import Conflict, SliceliftError, from_http

STOP_SECONDS = 90.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 8000


class Stopped(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal: the services are to end."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, the first such signal raises `Stopped`; later ones are answered but change nothing."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, _patience)
        raise Stopped(signal.Signals(number).name)

    former = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def free_port(port: int, option: str) -> None:
    """Raise `port-taken`, with the option that changes it, when another program listens there."""
    with socket.socket() as probe:
        # as servers do, so that a port whose last connections are just fading counts as free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            way = "make up PORT=N, or " if option == "--port" else ""
            hint = f"Choose another: {way}slicelift up {option} N."
            raise Conflict(
                "port-taken", f"Port {port} on 127.0.0.1 cannot be used: {error.strerror}.", hint
            ) from error


class Child:
    """The launcher process. Its output goes to `log`; a session of its own keeps the terminal's Ctrl-C off it."""

    def __init__(self, options: Sequence[str], *, log: Path) -> None:
        self.log = log
        with _appending(log) as output:
            self._start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slicelift_hub.launcher", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the launcher."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Until it ends by itself."""
        return self._process.wait()

    def stop(self) -> int | None:
        """SIGTERM, and wait until it has ended jobs and MLflow; None when that takes longer than `STOP_SECONDS`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def fault(self) -> SliceliftError:
        """Why it could not come up or has ended: its own words if it left any."""
        lines = self._tail().splitlines()
        try:
            body = json.loads(lines[-1]) if lines else None
        except ValueError:
            body = None
        if isinstance(body, dict) and "code" in body:
            return from_http(409, body)
        status = self._process.poll()
        last = f" Its last line: {lines[-1]}" if lines else ""
        message = f"The launcher ended with exit status {status}.{last}"
        return SliceliftError("launcher-ended", message, f"Its log is {self.log}.")

    def _tail(self) -> str:
        """What this start wrote, the last part of it."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, end - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def _appending(log: Path) -> IO[bytes]:
    """At the end of the log, for its owner alone. Raises `home-unusable`."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        message = f"The launcher's home {log.parent} cannot be used: {error.strerror}."
        raise SliceliftError(
            "home-unusable", message, "Point SLICELIFT_HOME to a folder of yours."
        ) from error
    file = os.fdopen(descriptor, "ab")
    file.seek(0, os.SEEK_END)
    return file


def _patience(_: int, __: FrameType | None) -> None:
    print("Still stopping: jobs are being ended.", file=sys.stderr, flush=True)
