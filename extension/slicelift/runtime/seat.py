"""A seat: a process below the agent that already stands where the ranks are to run, and becomes the gang when told.

An enclosed agent is an ordinary user and cannot give its ranks a network or a read-only view: whoever started it, as root,
made a process that has both, and has the same user's rights since. Until it is told what to run, it only waits.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import MutableMapping, Sequence
from pathlib import Path

VARIABLE = "SLICELIFT_SEAT"


class Seat:
    """The one of this agent. `listener` is a socket on the seat's own loopback, for the agent to serve."""

    def __init__(self, told: str) -> None:
        """`told` is the JSON object `{pid, socket, listener}`; takes over both descriptors."""
        words = json.loads(told)
        self.pid = int(words["pid"])
        self.listener = socket.socket(fileno=int(words["listener"]))
        self._line = socket.socket(fileno=int(words["socket"]))
        self._code: int | None = None
        for handle in (self.listener, self._line):
            handle.set_inheritable(False)

    def start(self, command: Sequence[str], *, folder: Path, environment: dict[str, str]) -> None:
        """Become the gang. Raises OSError when the seat is gone."""
        wish = {"command": list(command), "folder": str(folder), "environment": environment}
        with self._line:
            self._line.sendall(json.dumps(wish).encode() + b"\n")

    def poll(self) -> int | None:
        """Its exit code (negative for a signal), None while it lives. Exit code 127: the command could not be run."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._code = 1
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def take(environment: MutableMapping[str, str]) -> Seat | None:
    """The seat that this process was started with, if it was; nothing that it starts learns of it."""
    told = environment.pop(VARIABLE, "")
    return Seat(told) if told else None
