"""Reading the spool: streams of events in order, what was acknowledged forgotten, holes filled and counted.

The format is in docs/architecture.md. A stream is (rank, process); its lines are numbered by `q` without
gaps over its segments. The launcher refuses a gap, so a line that the disk lost is replaced by one that says
that a point was dropped: one bad sector must not hold back all that follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_LONGEST_LINE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Line:
    """One event, as it is on disk. The stream's position behind it is `segment`, `end`."""

    q: int
    raw: bytes
    points: int
    segment: int
    end: int


class Stream:
    """One rank process's events. `take` looks ahead, `acknowledge` moves on and deletes whole segments.

    `aside` is set for good on a stream that the launcher refuses whatever it says: its files stay where they are.
    """

    def __init__(self, folder: Path, rank: int, process: str) -> None:
        self.rank = rank
        self.process = process
        self.aside = False
        self._folder = folder
        self._segments: list[int] = []
        self._position = (0, 0)
        self._next_q: int | None = None
        self._sent: list[Line] = []

    def add_segment(self, number: int) -> None:
        """A file that was seen on disk; they are read in the order of their numbers."""
        if number not in self._segments:
            self._segments = sorted([*self._segments, number])
            if len(self._segments) == 1:
                self._position = (number, 0)

    def take(self, points: int) -> list[Line]:
        """The next lines, about `points` points of them and at least one if there is any. Repeatable."""
        self._sent = []
        taken = 0
        for line in self._numbered():
            self._sent.append(line)
            taken += line.points
            if taken >= points:
                break
        return self._sent

    def acknowledge(self, q: int) -> None:
        """The launcher has everything up to `q`."""
        for line in self._sent:
            if line.q <= q:
                self._position = (line.segment, line.end)
        self._next_q = max(q + 1, self._next_q or 0)
        self._sent = [line for line in self._sent if line.q > q]
        self._forget()

    def rewind(self, have: int) -> None:
        """The launcher has less than we thought: start over behind `have` with what is still on disk."""
        self._next_q = have + 1
        if self._segments:
            self._position = (self._segments[0], 0)

    def remove(self) -> None:
        """Delete the last segment, once the process is dead and all is acknowledged."""
        for number in self._segments:
            self._path(number).unlink(missing_ok=True)

    def _numbered(self) -> Iterator[Line]:
        """Lines from the position on, each with the next number, fillers where numbers are missing."""
        wanted = self._next_q
        for line in self._lines():
            if wanted is not None and line.q < wanted:
                continue
            for missing in range(line.q if wanted is None else wanted, line.q):
                # the position of a filler is where the line before it ended
                yield Line(missing, _lost(missing, 1), 1, *self._position)
            yield line
            wanted = line.q + 1

    def _lines(self) -> Iterator[Line]:
        first, offset = self._position
        for number in self._segments:
            if number < first:
                continue
            for raw, end in _whole_lines(self._path(number), offset if number == first else 0):
                found = _parse(raw)
                if found is not None:
                    yield Line(found[0], raw, found[1], number, end)

    def _forget(self) -> None:
        """Delete the segments before the position, and those at it that are read and closed."""
        current, offset = self._position
        while len(self._segments) > 1:
            oldest = self._segments[0]
            if oldest == current and any(True for _ in _whole_lines(self._path(oldest), offset)):
                return
            if oldest > current:
                return
            # a later segment exists, so its writer has closed this one
            self._path(oldest).unlink(missing_ok=True)
            self._segments.pop(0)
            if oldest == current:
                self._position = current, offset = (self._segments[0], 0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self.rank}-{self.process}-{number:06d}.jsonl"


Batch = list[tuple[Stream, list[Line]]]


class Spool:
    """All streams of an attempt."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[tuple[int, str], Stream] = {}
        self._turn = 0

    def batch(self, points: int) -> Batch:
        """About `points` points over all streams that have any; every stream gets its turn to be first."""
        self._look()
        order = [stream for stream in self._streams.values() if not stream.aside]
        self._turn = (self._turn + 1) % max(1, len(order))
        found, left = [], points
        for stream in order[self._turn :] + order[: self._turn]:
            lines = stream.take(left) if left > 0 else []
            left -= sum(line.points for line in lines)
            if lines:
                found.append((stream, lines))
        return found

    def stream(self, rank: int, process: str) -> Stream | None:
        """The stream of that name, if it is known."""
        return self._streams.get((rank, process))

    def remove(self) -> None:
        """Delete what is left, all of it acknowledged; only once no process of the attempt lives."""
        for stream in self._streams.values():
            if not stream.aside:
                stream.remove()

    def _look(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            rank, _, rest = path.stem.partition("-")
            process, _, segment = rest.rpartition("-")
            with suppress(ValueError):
                key = (int(rank), process)
                stream = self._streams.setdefault(key, Stream(self._folder, *key))
                stream.add_segment(int(segment))


def has_points(folder: Path) -> bool:
    """Whether any rank has logged a metric, of a spool that nobody has removed yet."""
    for path in folder.glob("*.jsonl"):
        # what was before a later segment is at the launcher, and gone
        if not path.stem.endswith("-000000") or any(b'"k": "m"' in raw for raw, _ in _whole_lines(path, 0)):
            return True
    return False


def halve(batch: Batch) -> list[Batch]:
    """The batch in two, by streams and then by lines; nothing when it is a single line."""
    if len(batch) > 1:
        middle = len(batch) // 2
        return [batch[:middle], batch[middle:]]
    stream, lines = batch[0]
    middle = len(lines) // 2
    return [[(stream, lines[:middle])], [(stream, lines[middle:])]] if middle else []


def note_of_loss(line: Line) -> Line:
    """What goes to the launcher in place of a line that it refuses."""
    return replace(line, raw=_lost(line.q, line.points))


def encode(batch: Batch) -> bytes:
    """The body of POST events. Lines go as they are on disk: NaN stays NaN, no digit changes."""
    parts = []
    for stream, lines in batch:
        head = json.dumps({"rank": stream.rank, "process": stream.process})[:-1].encode()
        parts.append(head + b', "lines": [' + b", ".join(line.raw for line in lines) + b"]}")
    return b'{"streams": [' + b", ".join(parts) + b"]}"


def _whole_lines(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Each line behind `offset` that has its newline, with the offset behind it."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            # a torn line longer than that is no line of ours
            while raw := stream.readline(_LONGEST_LINE_BYTES):
                offset += len(raw)
                if not raw.endswith(b"\n"):
                    return
                yield raw[:-1], offset
    except FileNotFoundError:
        return


def _parse(raw: bytes) -> tuple[int, int] | None:
    """(q, points) of a line; None for one that is no event."""
    try:
        found: Any = json.loads(raw)
        return int(found["q"]), len(found["m"]) if found.get("k") == "m" else 1
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _lost(q: int, points: int) -> bytes:
    return json.dumps({"q": q, "t": 0.0, "k": "dropped", "n": points, "why": "not-understood"}).encode()
