"""Finding and ending every process of an attempt, and proving that none is left (Linux, /proc).

A process belongs to an attempt when one of these holds: its environment carries the marker
`SLICELIFT_ATTEMPT=<id>`; it descends from the attempt's agent, which adopts orphans (subreaper); it was
seen as such a descendant earlier (`Tree.known`); it lives in a mount namespace that was made for the attempt. So a
child that called setsid, forked twice and cleared its environment is still found.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARKER = "SLICELIFT_ATTEMPT"
_PR_SET_CHILD_SUBREAPER = 36
_DEAD = ("Z", "X", "x")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One live process. `start_time` is in clock ticks since boot, so (pid, start_time) never repeats."""

    pid: int
    start_time: int
    parent: int = 0
    state: str = ""
    name: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What tells this process from a later one with the same pid."""
        return (self.pid, self.start_time)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, state {self.state})"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """How to recognise an attempt's processes. `spare` are pids that are never counted or killed.

    A session of the hub is recognised in the same way, by its own `marker` in the environment, with its id as `attempt_id`.
    With a `uid` only that user's processes count: what a user wrote into a folder of theirs must not lead to others'.
    """

    attempt_id: str
    agent: tuple[int, int] | None = None
    known: frozenset[tuple[int, int]] = frozenset()
    spare: frozenset[int] = field(default_factory=frozenset)
    uid: int | None = None
    marker: str = MARKER

    @property
    def mark(self) -> bytes:
        """What stands in the environment of all that was started with it."""
        return f"{self.marker}={self.attempt_id}".encode()


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What `end` did: how many distinct processes it found, and which it could not end."""

    found: int
    left: tuple[str, ...] = ()


def look(pid: int) -> Process | None:
    """The process with this pid, or None when there is none (or only its zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the name is in brackets and may itself hold brackets and spaces
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 20 or fields[0] in _DEAD:
        return None
    name = head.partition("(")[2]
    return Process(pid=pid, state=fields[0], parent=int(fields[1]), start_time=int(fields[19]), name=name)


def alive(key: tuple[int, int] | None) -> bool:
    """True while exactly this process lives; a zombie is dead."""
    found = look(key[0]) if key else None
    return found is not None and found.key == key


def user_of(pid: int) -> int | None:
    """The real uid of a process, None when there is none."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:")), None)


def pids() -> list[int]:
    """Of all processes that show themselves to us."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment(pid: int) -> list[bytes]:
    """`NAME=value` of what the process was started with; empty where it may not be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def boot_id() -> str:
    """Names this boot of the machine: a pid and start time from another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def mount_namespace(pid: int | str = "self") -> str:
    """The mount namespace of a process, for instance `mnt:[4026532201]`; empty when it may not be read."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def inhabitants(among: Iterable[int], name: str) -> set[int]:
    """Who of these lives in another mount namespace than we do, in which a mount names `name`: as source or in its path.

    A name stays, and is the same for what has cleared its environment. The number of a namespace would not do: the kernel
    gives it away again once its last process is gone.
    """
    ours, word = mount_namespace(), name.encode()
    elsewhere = (pid for pid in among if mount_namespace(pid) not in ("", ours))
    return {pid for pid in elsewhere if word in _mount_words(pid)}


def become_subreaper() -> None:
    """From now on orphans below this process become its children instead of init's."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(spare: Iterable[int] = ()) -> None:
    """Collect the exit status of adopted children; those in `spare` are left to who waits for them."""
    spared = set(spare)
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        # the same child comes first again until it is collected: its owner does that in a moment
        if ended is None or ended.si_pid in spared:
            return
        _collect(ended.si_pid)


def offspring(pid: int) -> set[tuple[int, int]]:
    """Descendants of a process by the kernel's own lists: cheap, but a process that just moves may be missed."""
    found: set[tuple[int, int]] = set()
    queue = [pid]
    while queue:
        for child in _listed_children(queue.pop()):
            process = look(child)
            if process and process.key not in found:
                found.add(process.key)
                queue.append(child)
    return found


def find(tree: Tree) -> list[Process]:
    """Every live process of the attempt but the spared ones and the caller."""
    everyone = _everyone()
    spare = {*tree.spare, os.getpid()}
    roots = {pid for pid, process in everyone.items() if process.key in tree.known}
    if tree.agent and tree.agent[0] in everyone and everyone[tree.agent[0]].key == tree.agent:
        roots.add(tree.agent[0])
    roots |= _marked(everyone, tree.mark) | inhabitants(everyone, tree.attempt_id)
    found = [everyone[pid] for pid in sorted(_with_descendants(everyone, roots)) if pid not in spare]
    return [process for process in found if tree.uid is None or user_of(process.pid) == tree.uid]


def end(
    search: Callable[[], list[Process]],
    *,
    grace_seconds: float,
    limit_seconds: float = 10.0,
    gently: Callable[[list[Process]], list[Process]] = lambda found: found,
) -> Ending:
    """SIGTERM and `grace_seconds` of patience for `gently(found)`, then SIGKILL until two searches find nothing.

    A stopped process gets SIGCONT with the SIGTERM so that it can act on it. What still lives after
    `limit_seconds` of killing (a process in uninterruptible sleep) is named in `left`.
    """
    seen: set[tuple[int, int]] = set()
    if grace_seconds > 0:
        until = time.monotonic() + grace_seconds
        for process in gently(_note(search(), seen)):
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)
        while time.monotonic() < until and gently(_note(search(), seen)):
            time.sleep(0.05)
    left = _kill_all(search, seen, time.monotonic() + limit_seconds)
    return Ending(found=len(seen), left=tuple(str(process) for process in left))


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process: never another one that took its pid meanwhile."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process.key):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _everyone() -> dict[int, Process]:
    found = (look(pid) for pid in pids())
    return {process.pid: process for process in found if process}


def _marked(everyone: dict[int, Process], mark: bytes) -> set[int]:
    return {pid for pid in everyone if mark in environment(pid)}


def _with_descendants(everyone: dict[int, Process], roots: set[int]) -> set[int]:
    below: dict[int, list[int]] = {}
    for process in everyone.values():
        below.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue.extend(below.get(pid, ()))
    return found


def _mount_words(pid: int) -> list[bytes]:
    """Every part of every path, and every source, of what a process sees mounted (proc(5): mountinfo)."""
    try:
        return re.split(rb"[ /\n]", Path(f"/proc/{pid}/mountinfo").read_bytes())
    except OSError:
        return []


def _note(found: list[Process], seen: set[tuple[int, int]]) -> list[Process]:
    seen.update(process.key for process in found)
    return found


def _kill_all(search: Callable[[], list[Process]], seen: set[tuple[int, int]], until: float) -> list[Process]:
    """Two empty searches in a row: a fork during the first one is caught by the second."""
    empty = 0
    while empty < 2:
        found = _note(search(), seen)
        empty = 0 if found else empty + 1
        if found and time.monotonic() > until:
            return found
        for process in found:
            send(process, signal.SIGKILL)
        time.sleep(0.02)
    return []


def _listed_children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
