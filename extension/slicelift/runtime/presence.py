"""That this process is the one agent of its attempt, and how others know it."""

from __future__ import annotations

import os
import time

from slicelift.runtime import processes
from slicelift.runtime.folder import AttemptFolder, try_lock, write_json
from slicelift.runtime.seat import Seat


def be_the_only_one(folder: AttemptFolder) -> int | None:
    """The attempt's lock, held till we end. A look at whether it is held may hold it for a moment: try again."""
    for _ in range(20):
        lock = try_lock(folder.root / "agent.lock")
        if lock is not None:
            return lock
        time.sleep(0.05)
    return None


def namespace_of(*, mounts: bool, seat: Seat | None) -> str:
    """The mount namespace in which nothing but this job's processes lives, "" when there is none."""
    if seat is not None:
        return seat.mount_namespace
    return processes.mount_namespace() if mounts else ""


def introduce(folder: AttemptFolder, *, mount_namespace: str) -> None:
    """Write agent.pid: who looks for this agent finds it by process, start and boot."""
    own = processes.look(os.getpid())
    write_json(
        folder.agent,
        {
            "pid": os.getpid(),
            "start_time": own.start_time if own else 0,
            "boot_id": processes.boot_id(),
            "mount_namespace": mount_namespace,
        },
    )
