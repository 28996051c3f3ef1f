"""Where this process stands: its rank in the gang, or a world of one in a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# set by a rank as it starts and inherited by all that it starts, which may have other numbers in RANK
GANG_RANK = "SLICELIFT_RANK"
# how long a rank has after SIGTERM to save a checkpoint; where it is not set, SIGTERM ends a rank at once
GRACE = "SLICELIFT_GRACE_SECONDS"
# set where a gang may go on, within one attempt, with other ranks than before
ELASTIC = "SLICELIFT_ELASTIC"


@dataclass(frozen=True, kw_only=True)
class World:
    """Read from the environment. `attempt_folder` is None outside a job; `attempt` is then 0.

    `rank` and `size` are what torch's variables say, also in a process that a rank has started with a RANK of its
    own; `gang_rank` is then still the number of that rank, which alone the launcher knows.
    """

    rank: int
    gang_rank: int
    size: int
    attempt: int
    attempt_folder: Path | None

    @property
    def in_job(self) -> bool:
        """True in a rank that Slicelift started, and in the processes below it."""
        return self.attempt_folder is not None


def world() -> World:
    """One look at the environment that torchrun and the agent set; never raises."""
    folder = os.environ.get("SLICELIFT_ATTEMPT_DIR", "")
    rank = _number("RANK", 0)
    return World(
        rank=rank,
        gang_rank=_number(GANG_RANK, rank),
        size=max(1, _number("WORLD_SIZE", 1)),
        attempt=_attempt_number() if folder else 0,
        attempt_folder=Path(folder) if folder else None,
    )


def start_ticks(pid: int | str = "self") -> int:
    """When a process started, in clock ticks since boot: with the pid it names a process for good.

    0 where /proc does not tell.
    """
    try:
        stat = Path("/proc", str(pid), "stat").read_bytes()
    except OSError:
        return 0
    # the command's name may hold spaces and brackets: count the fields behind its last bracket
    return int(stat.rpartition(b")")[2].split()[19])


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def _attempt_number() -> int:
    tail = os.environ.get("SLICELIFT_ATTEMPT", "").rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else 1
