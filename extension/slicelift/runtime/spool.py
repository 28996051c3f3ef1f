"""A process's own stream of events on disk: one JSON object per line, one `os.write` per call.

The format is in docs/architecture.md. What `append` has returned from survives a kill of the process; nothing
that happens to the disk ever raises into training: what cannot be kept is counted, and a `dropped` line
says so as soon as there is room again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.runtime.world import start_ticks

SEGMENT_BYTES = 4 * 2**20
BOUND_BYTES = 2**30
# between 15/16 of the bound and the bound one call of so many is kept, above it none
THIN = 16
# how long a stream that met a full disk or the bound waits before it looks again
RETRY_SECONDS = 0.5

# kind, inside of the JSON object, points
_Event = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a segment grows, and how much all streams of the attempt may hold unacknowledged."""

    segment_bytes: int = SEGMENT_BYTES
    bound_bytes: int = BOUND_BYTES


class Spool:
    """One stream. Safe to use from threads and signal handlers; a forked child needs a stream of its own."""

    def __init__(
        self, folder: Path, *, rank: int, process: str | None = None, limits: Limits | None = None
    ) -> None:
        """Open nothing yet. `process` defaults to this process: `<pid>-<start time in clock ticks>`."""
        self._folder = folder
        self._stem = f"{rank}-{process or f'{os.getpid()}-{start_ticks()}'}"
        self._limits = limits or environment_limits()
        # reentrant: a signal handler that logs may interrupt a call in the same thread
        self._lock = threading.RLock()
        self._waiting: deque[_Event] = deque()
        self._busy = False
        # an open segment, nothing dropped, nothing in flight, no strain: the next call takes the short way
        self._calm = False
        self._fd = -1
        self._segment = 0
        self._size = 0
        self._written = 0
        self._in_flight: tuple[int, int] | None = None
        self._dropped = 0
        self._calls = 0
        self._keep_one_of = 1
        self._blocked_until = 0.0
        self._look_at = 0.0

    @property
    def dropped(self) -> int:
        """Points lost so far that no `dropped` line tells of yet."""
        return self._dropped

    def append(self, kind: str, body: str, *, points: int = 0) -> bool:
        """Write one event; False when it was dropped, which counts for `points`. Never raises OSError.

        `body` is the inside of a JSON object (see `inside`): its caller knows a faster way to write numbers.
        Only events with points are thinned at the bound; the rare others pass while the disk takes them.
        """
        with self._lock:
            if self._busy:  # we are in a signal handler: the call it interrupted writes this event, too
                self._waiting.append((kind, body, points))
                return True
            self._busy = True
            try:
                kept = (self._calm and self._append_calmly(kind, body)) or self._put((kind, body, points))
                while self._waiting:
                    self._put(self._waiting.popleft())
            finally:
                self._busy = False
        return kept

    def close(self) -> None:
        """Tell of what was dropped, if the disk allows, and close. Safe to repeat."""
        with self._lock:
            if self._dropped:
                self._blocked_until = 0.0
                self._put(None)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without a word: for a forked child, whose parent owns the stream."""
        self._calm = False
        if self._fd >= 0:
            # in this order: an exception from a signal handler may come between the two
            handle, self._fd = self._fd, -1
            os.close(handle)

    def _append_calmly(self, kind: str, body: str) -> bool:
        """All of an undisturbed write in one frame, since after a training step no code is in the cache.

        False when the disk took nothing: then `_put` tries, and knows what to do.
        """
        number = self._written + 1
        data = f'{{"q": {number}, "t": {time.time():.3f}, "k": "{kind}", {body}}}\n'.encode()
        size = len(data)
        self._calm, self._in_flight = False, (size, 1)
        try:
            whole = os.write(self._fd, data) == size
        except OSError:
            return False
        if whole:
            self._in_flight = None
            self._written = number
            self._size += size
            self._calm = self._size < self._limits.segment_bytes
        return whole

    def _put(self, event: _Event | None) -> bool:
        self._calm = False
        points = event[2] if event else 0
        if (self._blocked_until or self._keep_one_of != 1) and not self._admits(points):
            self._dropped += points
            return False
        try:
            if self._in_flight:
                self._settle()
            if self._size >= self._limits.segment_bytes:
                self.abandon()
            self._write(self._lines(event))
        except OSError as error:
            if error.errno == errno.EBADF:  # the script closed descriptors that are not its own
                self._fd = -1
            self._dropped += points
            self._blocked_until = time.monotonic() + RETRY_SECONDS
            return False
        self._calm = self._keep_one_of == 1 and self._size < self._limits.segment_bytes
        return True

    def _admits(self, points: int) -> bool:
        """Whether to try to write although the disk was full or the bound is near."""
        now = time.monotonic()
        if now < self._blocked_until:
            return False
        self._blocked_until = 0.0
        if self._keep_one_of != 1 and now >= self._look_at:
            self._look_at_bound()
        if not points or self._keep_one_of == 1:
            return True
        self._calls += 1
        return self._keep_one_of > 0 and self._calls % self._keep_one_of == 0

    def _lines(self, event: _Event | None) -> list[str]:
        now, number, lines = round(time.time(), 3), self._written + 1, []
        if self._dropped:
            lines.append(f'{{"q": {number}, "t": {now}, "k": "dropped", "n": {self._dropped}}}\n')
            number += 1
        if event:
            lines.append(f'{{"q": {number}, "t": {now}, "k": "{event[0]}", {event[1]}}}\n')
        return lines

    def _write(self, lines: list[str]) -> None:
        """All lines or none. Raises OSError with the segment as it was."""
        if self._fd < 0:
            self._open_next()
        data = "".join(lines).encode()
        self._in_flight = (len(data), len(lines))
        if os.write(self._fd, data) != len(data):
            self._settle()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._count(len(data), len(lines))

    def _count(self, size: int, lines: int) -> None:
        self._in_flight = None
        self._size += size
        self._written += lines
        # a `dropped` line, if there was any, went with this write
        self._dropped = 0

    def _settle(self) -> None:
        """After a write that disk or exception cut short: count it if it is whole, else cut it back."""
        size, lines = self._in_flight or (0, 0)
        found = os.fstat(self._fd).st_size if self._fd >= 0 else 0
        if found == self._size + size:
            self._count(size, lines)
            return
        self._in_flight = None
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self.abandon()  # the torn line ends a closed segment, where a reader skips it

    def _open_next(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._segment += 1
        self._size = 0
        path = self._folder / f"{self._stem}-{self._segment:06d}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._look_at_bound()

    def _look_at_bound(self) -> None:
        """Decide how much to keep by what lies unacknowledged, in all streams of the attempt together."""
        held, bound = _folder_bytes(self._folder), self._limits.bound_bytes
        if held >= bound:
            self._keep_one_of = 0
        else:
            self._keep_one_of = 1 if held < bound - bound // THIN else THIN
        self._look_at = time.monotonic() + RETRY_SECONDS


def inside(body: Mapping[str, Any]) -> str:
    """The JSON of `body` without its braces, as `Spool.append` wants it. Raises TypeError as json does."""
    return json.dumps(body)[1:-1]


def environment_limits() -> Limits:
    """The limits the agent may lower by SLICELIFT_SPOOL_BYTES and SLICELIFT_SPOOL_SEGMENT_BYTES."""
    return Limits(
        segment_bytes=_bytes_of("SLICELIFT_SPOOL_SEGMENT_BYTES", SEGMENT_BYTES),
        bound_bytes=_bytes_of("SLICELIFT_SPOOL_BYTES", BOUND_BYTES),
    )


def _bytes_of(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return (int(text) if text.isascii() and text.isdigit() else 0) or default


def _folder_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            # the agent deletes acknowledged segments while we look
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total
