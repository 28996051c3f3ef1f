"""The end of a rank that may save first: it leaves at its next checkpoint.

In a pod SIGTERM says so, where the environment tells how long that may take: an eviction must not cost the work since the
last checkpoint. On one machine SIGTERM ends a rank at once, and it is cancel.json that says so, for a job that is
suspended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from slicelift.runtime.folder import AttemptFolder, read_object
from slicelift.runtime.world import GRACE, world

# as a shell tells of a process that SIGTERM ended
EXIT_CODE = 128 + signal.SIGTERM
_POLL_SECONDS = 0.1

# pid -> until when that process, which was told to end, may wait; the pid, because a forked child inherits what its parent
# was told
_asked: dict[int, float] = {}
_waiting: set[int] = set()


def wait_for_the_next_checkpoint() -> None:
    """From now on SIGTERM waits for `leave`. Does nothing outside a pod, or where the script handles SIGTERM itself."""
    pid = os.getpid()
    if pid in _waiting or not os.environ.get(GRACE):
        return
    _waiting.add(pid)
    # only the main thread may; a script that saves in another one ends by the signal, as without us
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _note)


def asked() -> bool:
    """Whether this process was told to end."""
    pid = os.getpid()
    until = None if pid in _asked else _suspended_until()
    if until is not None:
        _asked[pid] = until
    return pid in _asked


def leave(complete: Callable[[], bool]) -> NoReturn:
    """End this rank as soon as `complete`, the checkpoint of all ranks, or when the time for it is over.

    torchrun would end the ranks that still write when the first one is gone.
    """
    until = _asked[os.getpid()]
    while not complete() and time.time() < until:
        time.sleep(_POLL_SECONDS)
    raise SystemExit(EXIT_CODE)


def _note(number: int, _frame: FrameType | None) -> None:
    pid = os.getpid()
    if pid not in _waiting:
        # a child that the script forked, a loader of data: it has nothing to save
        signal.signal(number, signal.SIG_DFL)
        os.kill(pid, number)
        return
    _asked.setdefault(pid, time.time() + float(os.environ.get(GRACE, "0")))


def _suspended_until() -> float | None:
    """Until when (Unix seconds) a job that is suspended may save, None for one that is not."""
    folder = world().attempt_folder
    wish = {} if folder is None else read_object(AttemptFolder(folder).cancel)
    if "saving_seconds" not in wish:
        return None
    return float(wish["time"]) + float(wish["saving_seconds"])
