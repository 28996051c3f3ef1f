"""A gang's process from its start to the end of the last process it left behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift.models import JobSpec
from slicelift.runtime import processes
from slicelift.runtime.folder import AttemptFolder, read_object, write_json
from slicelift.runtime.launch import gang_command
from slicelift.runtime.nodes import Place
from slicelift.runtime.processes import Ending, Process, Tree
from slicelift.runtime.seat import Seat

POLL_SECONDS = 0.05
_NOTE_SECONDS = 1.0
# what a job that ended by itself leaves behind gets this long to end by itself, too
LEFTOVER_SECONDS = 2.0


class Gang:
    """Starts torch.distributed.run (or the one rank) below this process, and ends all that descends from it.

    In `seat`, if there is one, else where this process itself stands. `saving` ranks may save a checkpoint when they are
    ended: until they are done nothing else of theirs, such as their loaders of data, is touched.
    """

    def __init__(
        self,
        folder: AttemptFolder,
        attempt_id: str,
        *,
        place: Place | None = None,
        seat: Seat | None = None,
        saving: bool = False,
    ) -> None:
        self._folder = folder
        self._place = place
        self._saving = saving
        self._tree = Tree(attempt_id=attempt_id, agent=_own_key())
        self._seat = seat
        self._child: subprocess.Popen[bytes] | Seat | None = None
        self._noted = 0.0
        self._seen: set[tuple[int, int]] = set()

    def start(self, spec: JobSpec, environment: dict[str, str]) -> None:
        """Start it; its own output goes where the agent's goes. Raises OSError when that is impossible."""
        command = gang_command(spec, self._folder, self._place)
        folder = self._folder.workspace / spec.cwd
        if self._seat is not None:
            self._seat.start(command, folder=folder, environment=environment)
            self._child = self._seat
            return
        self._child = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)

    def wait(self, *, interrupted: Callable[[], bool], note: Callable[[], None]) -> int | None:
        """The exit code once it ended by itself, None as soon as `interrupted`. Calls `note` about once a second."""
        child = self._started()
        while not interrupted():
            code = child.poll()
            if code is not None:
                return code
            processes.reap_orphans(spare=(child.pid,))
            if time.monotonic() - self._noted > _NOTE_SECONDS:
                self._noted = time.monotonic()
                self._write_seen()
                note()
            time.sleep(POLL_SECONDS)
        return None

    def end(self, grace_seconds: float) -> Ending:
        """SIGTERM, patience, SIGKILL, until no process of the attempt but this one is left."""
        gently = self._only_ranks if self._saving else self._but_torchrun
        ending = processes.end(self._search, grace_seconds=grace_seconds, gently=gently)
        processes.reap_orphans(spare=(self._child.pid,) if self._child else ())
        return ending

    def ranks(self) -> list[dict[str, Any]]:
        """`{rank, pid, state}` of every rank that has started."""
        return [
            {"rank": rank, "pid": key[0], "state": "running" if processes.alive(key) else "ended"}
            for rank, key in self._registered()
        ]

    def _registered(self) -> list[tuple[int, tuple[int, int]]]:
        told = [read_object(path) for path in sorted((self._folder.root / "ranks").glob("*.json"))]
        return [
            (int(row["rank"]), (int(row["pid"]), int(row.get("start_time", 0))))
            for row in told
            if "pid" in row
        ]

    def _started(self) -> subprocess.Popen[bytes] | Seat:
        if self._child is None:
            raise RuntimeError("start() comes first")
        return self._child

    def _search(self) -> list[Process]:
        found = processes.find(self._tree)
        processes.reap_orphans(spare=(self._child.pid,) if self._child else ())
        return found

    def _but_torchrun(self, found: list[Process]) -> list[Process]:
        """Whose end is worth waiting for. torchrun's is not: it would signal its ranks a second time, and
        takes seconds to tell of their end."""
        pid = self._child.pid if self._child else -1
        return [process for process in found if process.pid != pid]

    def _only_ranks(self, found: list[Process]) -> list[Process]:
        ranks = {key for _, key in self._registered()}
        return [process for process in found if process.key in ranks]

    def _write_seen(self) -> None:
        """Note who descends from us: if we are killed, those that hide are still found."""
        seen = processes.offspring(os.getpid())
        if seen != self._seen:
            self._seen = seen
            # a full disk costs this note, never the job
            with suppress(OSError):
                write_json(self._folder.seen, sorted(seen))


def free_bytes(path: Path) -> int:
    """What a user may still write on the disk of `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _own_key() -> tuple[int, int]:
    own = processes.look(os.getpid())
    return own.key if own else (os.getpid(), 0)
