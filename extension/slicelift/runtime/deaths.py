"""When each rank died: torchrun tells whole seconds, and several ranks die within one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from slicelift.runtime.failures import Exit
from slicelift.runtime.folder import read_object
from slicelift.runtime.world import start_ticks

_POLL_SECONDS = 0.1
# a SIGKILL this long after the first death is torchrun's, for a rank that ignored its SIGTERM
_PATIENCE_SECONDS = 5.0


class Deaths(threading.Thread):
    """Watches the ranks that have registered in ranks/ and notes the time at which each ended.

    There are `count` of them; with `again` they may be started anew, also as other ranks.
    """

    def __init__(self, folder: Path, count: int, *, again: bool = False) -> None:
        super().__init__(name="slicelift-deaths", daemon=True)
        self._folder = folder / "ranks"
        self._count = count
        self._again = again
        self._over = threading.Event()
        self._poll = select.poll()
        self._watched: dict[int, tuple[int, tuple[int, int]]] = {}
        # rank -> (pid, start time) of the process that it is, or was last
        self._known: dict[int, tuple[int, int]] = {}
        self._times: dict[int, float] = {}

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.is_set():
            if self._again or len(self._known) < self._count:
                self._find()
            if self._watched:
                self._wait()
            else:
                self._over.wait(_POLL_SECONDS)

    def stop(self) -> None:
        """End the watch. Safe to repeat."""
        self._over.set()
        self.join()
        for handle in self._watched:
            os.close(handle)
        self._watched.clear()

    def exits(self, codes: Mapping[int, int]) -> list[Exit]:
        """The ends of failed ranks, told apart from those that torchrun ended because of them.

        A rank that nobody saw die counts as dead from the start of the watch: it never got as far as registering.
        """
        times = {
            rank: self._times.get(rank, 0.0 if rank not in self._known else time.time()) for rank in codes
        }
        first = min(times.values(), default=0.0)
        return [
            Exit(
                rank=rank,
                exit_code=code,
                time=times[rank] or time.time(),
                ended_by_us=_late(code, times[rank] - first),
            )
            for rank, code in codes.items()
        ]

    def _find(self) -> None:
        for path in self._folder.glob("*.json"):
            found = read_object(path)
            if found and path.stem.isdecimal():
                rank, key = int(path.stem), (int(found["pid"]), int(found["start_time"]))
                if self._known.get(rank) != key:
                    self._known[rank] = key
                    self._watch(rank, *key)

    def _watch(self, rank: int, pid: int, started: int) -> None:
        self._times.pop(rank, None)
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # gone already, or a kernel without pidfd
            self._times[rank] = time.time()
            return
        if start_ticks(pid) != started:
            os.close(handle)
            self._times[rank] = time.time()
            return
        self._watched[handle] = (rank, self._known[rank])
        self._poll.register(handle, select.POLLIN)

    def _wait(self) -> None:
        for handle, _ in self._poll.poll(_POLL_SECONDS * 1000):
            rank, key = self._watched.pop(handle)
            if self._known[rank] == key:
                self._times[rank] = time.time()
            self._poll.unregister(handle)
            with contextlib.suppress(OSError):
                os.close(handle)


def _late(code: int, seconds_after_first: float) -> bool:
    if code == -signal.SIGTERM:
        return seconds_after_first > 0
    return code == -signal.SIGKILL and seconds_after_first > _PATIENCE_SECONDS
