"""Keeps a process of the hub: gone with the hub, back within a second when it dies.

    python -m slicelift_hub.keeper tie  [--parent PID] -- COMMAND ...               becomes COMMAND, which ends with
                                                                                    the process that started it
    python -m slicelift_hub.keeper keep [--parent PID] [--log FILE] -- COMMAND ...  starts COMMAND again whenever
                                                                                    it dies

The hub itself looks at its services every 30 s only, and leaves them, and its proxy, behind when it is killed.
Standard library only, since it starts beside everything else.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
# one that lived that long died of something new, so that it comes back at once
SETTLED_SECONDS = 30.0
# an ordered stop is the beginning of the hub's own: it is followed by our SIGTERM, else by a new start
AFTER_STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Exit status of the command where it fails at its first start; 0 after SIGTERM."""
    options = _parse(arguments)
    tie_to_parent(options.parent)
    if options.way == "tie":
        os.execvp(options.command[0], options.command)  # noqa: S606 - no shell is wanted
    return Keeper(options.command, log=options.log).run()


def tie_to_parent(parent: int | None = None) -> None:
    """SIGTERM for this process when the one that started it dies; the tie holds over an exec. On Linux only.

    `parent` is who it should be: where it died before the tie was made, this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0 and parent not in (
        None,
        os.getppid(),
    ):
        os.kill(os.getpid(), signal.SIGTERM)


class Keeper:
    """One command that is kept. SIGTERM and SIGINT are passed on and end it for good."""

    def __init__(self, command: Sequence[str], *, log: Path | None) -> None:
        self._command, self._log = list(command), log
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False

    def run(self) -> int:
        """Until a signal, or until the command cannot even start for the first time."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        pause, first = FIRST_PAUSE_SECONDS, True
        while not self._ending:
            begun = time.monotonic()
            status = self._once()
            lived = time.monotonic() - begun
            if first and status > 0 and lived < SETTLED_SECONDS and not self._ending:
                return status  # a faulty setting, say: whoever waits for the first start is told at once
            if lived > SETTLED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._rest(AFTER_STOP_SECONDS if status == 0 else pause, status)
            pause, first = min(pause * 2, LONGEST_PAUSE_SECONDS), False
        return 0

    def _once(self) -> int:
        me = os.getpid()
        with _output(self._log) as output:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: tie_to_parent(me),
            )
        if self._ending:  # the signal came before there was a child to pass it on to
            self._child.terminate()
        return self._child.wait()

    def _rest(self, seconds: float, status: int) -> None:
        until = time.monotonic() + seconds
        if not self._ending:
            what = "was stopped" if status == 0 else f"ended with status {status}"
            sys.stderr.write(
                f"{' '.join(self._command[:3])} {what}; it is started again in {seconds:.1f} s.\n"
            )
        while not self._ending and time.monotonic() < until:
            time.sleep(min(0.1, seconds))

    def _end(self, _: int, __: FrameType | None) -> None:
        self._ending = True
        if self._child is not None and self._child.poll() is None:
            with suppress(ProcessLookupError):
                self._child.terminate()


def _output(log: Path | None) -> IO[bytes]:
    """At the end of the log, for its owner alone; without one, where our own output goes."""
    if log is None:
        return os.fdopen(os.dup(sys.stderr.fileno()), "ab", buffering=0)
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m slicelift_hub.keeper", usage="%(prog)s WAY -- COMMAND ..."
    )
    parser.add_argument("way", choices=("tie", "keep"))
    parser.add_argument(
        "--parent", type=int, help="who it must be; where that one is gone already, so are we"
    )
    parser.add_argument("--log", type=Path)
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    options.command = list(arguments[at + 1 :])
    if not options.command:
        parser.error("there is no COMMAND")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
