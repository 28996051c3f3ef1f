"""A launcher or hub as a child in the foreground: started, watched, ended by a signal, and never left half way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from slicelift.errors import Conflict, SliceliftError, from_http

STOP_SECONDS = 90.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 8000
_LAST_LINES = 40


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
    """A service process. Its output goes to `log`; a session of its own keeps the terminal's Ctrl-C off it.

    `name` is what messages call it; `logs` are where its parts write, searched for the reason when it ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        logs: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        self._starts = {each: each.stat().st_size if each.exists() else 0 for each in (log, *logs)}
        with _appending(log) as output:
            self._process = subprocess.Popen(
                list(command),
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the service."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Until it ends by itself."""
        return self._process.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """SIGTERM, and wait until it has ended what is its own; None when that takes longer than `seconds`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def fault(self) -> SliceliftError:
        """Why it could not come up or has ended: its own words, or those of one of its parts, if it left any."""
        for log in self._starts:
            lines = self._tail(log).splitlines()
            for line in reversed(lines[-_LAST_LINES:]):
                body = _parse(line)
                if "code" in body and "message" in body:
                    return from_http(409, body)
        lines = self._tail(self.log).splitlines()
        last = f" Its last line: {lines[-1]}" if lines else ""
        message = f"The {self.name} ended with exit status {self._process.poll()}.{last}"
        return SliceliftError(f"{self.name}-ended", message, f"Its log is {self.log}.")

    def _tail(self, log: Path) -> str:
        """What this start wrote, the last part of it."""
        if not log.exists():
            return ""
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._starts[log], end - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def _parse(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


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
