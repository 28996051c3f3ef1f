"""The first process of a session that no namespace holds: adopts what loses its parent, and ends it with the session.

    python -P -m slicelift_hub.adopter COMMAND ...

Whatever the session starts stays below this process, however it detaches itself. When COMMAND ends, by itself or by a
kill, so does all that is left. SIGTERM, SIGINT and SIGHUP are passed on; the exit status is COMMAND's own, 128 and the
signal's number where it was killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from slicelift.runtime import processes

from slicelift_hub.leftovers import MARKER

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(command: Sequence[str]) -> int:
    """Until the command and all below it are gone."""
    processes.become_subreaper()
    me = processes.look(os.getpid())
    # held back until there is somebody to pass them on to
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=former)

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    status = _wait(child)
    below = processes.Tree(
        attempt_id=os.environ.get(MARKER, "none"), marker=MARKER, agent=me.key if me else None
    )
    processes.end(lambda: processes.find(below), grace_seconds=0)
    return 128 - status if status < 0 else status


def _wait(child: int) -> int:
    """The command's exit status, negative for a signal; adopted ones that ended are collected meanwhile."""
    while True:
        # its id is kept until we are done with it: a signal passed on must reach nobody else
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_pid != child:
            processes.reap_orphans((child,))
            continue
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
