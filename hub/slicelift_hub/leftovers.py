"""What is left of a session: every process of it, found and ended.

A process belongs to a session when one of these holds: its environment carries `SLICELIFT_SESSION=<session id>`; it
descends from the session's first process, which adopts orphans where nothing else would hold them
(`slicelift_hub.adopter`); it lives in the session's view of the machine; it runs as the session's user of the
system while that user has no other session and no job. So a child that called setsid, forked twice and cleared its
environment is still found. What is not: docs/isolation.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from slicelift.runtime import processes
from slicelift.runtime.processes import Process, Tree

MARKER = "SLICELIFT_SESSION"
KILL_SECONDS = 5.0
SETTLE_SECONDS = 0.2

# whether anything else lives of the same user
Others = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Traces:
    """How to know a session's processes. Without a `uid`, which must not be root's, mark and descent alone count."""

    session_id: str
    first: tuple[int, int] | None = None
    uid: int | None = None


def end(traces: Traces, others: Others) -> tuple[str, ...]:
    """End every process of the session at once; those that would not die. Blocks, for some 0.3 s at least."""
    ending = partial(processes.end, grace_seconds=0, limit_seconds=KILL_SECONDS)
    # as long as the first one lives, what loses its parent becomes its child: it goes last
    if processes.alive(traces.first):
        ending(lambda: find(traces, others, spare_first=True))
    left = ending(lambda: find(traces, others)).left
    # a process shows no environment while it is being exec'ed: what was just starting is found now
    time.sleep(SETTLE_SECONDS)
    return left or ending(lambda: find(traces, others)).left


def find(traces: Traces, others: Others, *, spare_first: bool = False) -> list[Process]:
    """Every live process of the session but the caller."""
    spare = frozenset((traces.first[0],)) if traces.first and spare_first else frozenset()
    tree = Tree(
        attempt_id=traces.session_id,
        marker=MARKER,
        agent=traces.first,
        known=frozenset(process.key for process in _of_user(traces, others)),
        spare=spare,
    )
    return processes.find(tree)


def _of_user(traces: Traces, others: Others) -> list[Process]:
    if not traces.uid:
        return []
    found = (processes.look(pid) for pid in processes.pids() if processes.user_of(pid) == traces.uid)
    theirs = [process for process in found if process]
    # asked after the look: whatever was there had been written down before it started
    return [] if theirs and others() else theirs
