"""That this process is the one agent of its attempt, and how others know it."""

from __future__ import annotations

import os
import time

from slicelift.runtime import processes
from slicelift.runtime.folder import AttemptFolder, try_lock, write_json


def be_the_only_one(folder: AttemptFolder) -> int | None:
    """The attempt's lock, held till we end. A look at whether it is held may hold it for a moment: try again."""
    for _ in range(20):
        lock = try_lock(folder.agent_lock)
        if lock is not None:
            return lock
        time.sleep(0.05)
    return None


def introduce(folder: AttemptFolder) -> None:
    """Write agent.pid: who looks for this agent finds it by process, start and boot."""
    own = processes.look(os.getpid())
    write_json(
        folder.agent,
        {
            "pid": os.getpid(),
            "start_time": own.start_time if own else 0,
            "boot_id": processes.boot_id(),
        },
    )
