"""A metric's history in bounded space: 512 buckets, however many points.

A bucket covers `2 ** shift` steps and keeps four real points of them (first, last, lowest, highest finite value) and
a count; when a 513th bucket is needed, neighbours merge and the width doubles. NaN and ±Infinity never
enter lowest and highest: each kind is counted by bucket and its first point kept. Steps may come in any order; a
bucket's first and last are by (step, time), so the fold of the same points does not depend on their order but for ties.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Iterator

MAX_BUCKETS = 512
MIN_POINTS = 16
STEP_LIMIT = 2**62

Point = tuple[int, float, float]

# columns of a bucket: ints = count, finite, then the steps of first, last, lowest, highest;
# floats = (time, value) of first, last, lowest, highest
_INTS = 6
_FLOATS = 8
_FIRST, _LAST, _LOW, _HIGH = range(4)


class Fold:
    """One series. `add` is the hot path, written out in full: about a microsecond a point."""

    __slots__ = ("count", "floats", "ints", "rows", "shift", "specials")

    def __init__(self) -> None:
        self.shift = 0
        self.count = 0
        self.rows: dict[int, int] = {}
        self.ints = array("q")
        self.floats = array("d")
        self.specials: dict[int, dict[str, list[float]]] = {}

    def add(self, step: int, time: float, value: float) -> None:
        """Fold in one point. Raises OverflowError for a step beyond ±2**62."""
        if not -STEP_LIMIT < step < STEP_LIMIT:
            raise OverflowError(step)
        self.count += 1
        finite = value - value == 0
        if not finite:
            self._add_special(step, time, value)
        row = self.rows.get(step >> self.shift)
        if row is None:
            self._open_row(step, time, value)
            return
        ints, at = self.ints, row * _INTS
        floats, here = self.floats, row * _FLOATS
        ints[at] += 1
        first, last = ints[at + 2], ints[at + 3]
        if step > last or (step == last and time >= floats[here + 2]):
            ints[at + 3], floats[here + 2], floats[here + 3] = step, time, value
        if step < first or (step == first and time < floats[here]):
            ints[at + 2], floats[here], floats[here + 1] = step, time, value
        if finite:
            if not ints[at + 1] or value < floats[here + 5]:
                ints[at + 4], floats[here + 4], floats[here + 5] = step, time, value
            if not ints[at + 1] or value > floats[here + 7]:
                ints[at + 5], floats[here + 6], floats[here + 7] = step, time, value
            ints[at + 1] += 1

    def points(self, limit: int = 300, *, first: int | None = None, last: int | None = None) -> list[Point]:
        """At most `limit` (>= 16) real points with `first <= step <= last`, by step: the finest that fit.

        Without a range they always hold the first, last, lowest and highest finite point of the whole series, and
        of every bucket one of each kind of NaN and Infinity it had. With one, a bucket across its border
        shows only what of it lies inside.
        """
        fold = self._between(first, last)
        while True:
            for lean in (False, True):
                found = [point for point in fold._drawn(lean=lean) if _inside(point, first, last)]
                if len(found) <= limit or len(fold.rows) <= 2:
                    return sorted(found, key=lambda point: point[:2])[:limit]
            fold._coarsen()

    def to_bytes(self) -> bytes:
        """For the ledger; `from_bytes` is exact."""
        head = {
            "shift": self.shift,
            "count": self.count,
            "buckets": list(self.rows),
            "specials": list(self.specials.items()),
            "order": sys.byteorder,
        }
        return json.dumps(head).encode() + b"\n" + self.ints.tobytes() + self.floats.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Fold:
        """The fold that `to_bytes` wrote."""
        head_bytes, _, body = data.partition(b"\n")
        head = json.loads(head_bytes)
        fold = cls()
        fold.shift, fold.count = head["shift"], head["count"]
        fold.rows = {bucket: row for row, bucket in enumerate(head["buckets"])}
        fold.specials = dict(head["specials"])
        cut = len(fold.rows) * _INTS * fold.ints.itemsize
        fold.ints.frombytes(body[:cut])
        fold.floats.frombytes(body[cut:])
        if head["order"] != sys.byteorder:
            fold.ints.byteswap()
            fold.floats.byteswap()
        return fold

    def copy(self) -> Fold:
        """One that later points do not change."""
        fold = Fold()
        fold.shift, fold.count = self.shift, self.count
        fold.rows, fold.ints, fold.floats = dict(self.rows), self.ints[:], self.floats[:]
        fold.specials = {
            bucket: {k: list(v) for k, v in kinds.items()} for bucket, kinds in self.specials.items()
        }
        return fold

    def _open_row(self, step: int, time: float, value: float) -> None:
        """A bucket for the first point of its steps; neighbours merge first if there are too many."""
        while len(self.rows) >= MAX_BUCKETS and step >> self.shift not in self.rows:
            self._coarsen()
        single = Fold()
        single.ints.extend((1, int(value - value == 0), step, step, step, step))
        single.floats.extend((time, value) * 4)
        self._absorb(single, 0, step >> self.shift)

    def _put(self, row: int, which: int, point: Point) -> None:
        self.ints[row * _INTS + 2 + which] = point[0]
        here = row * _FLOATS + 2 * which
        self.floats[here], self.floats[here + 1] = point[1], point[2]

    def _get(self, row: int, which: int) -> Point:
        here = row * _FLOATS + 2 * which
        return self.ints[row * _INTS + 2 + which], self.floats[here], self.floats[here + 1]

    def _add_special(self, step: int, time: float, value: float) -> None:
        kinds = self.specials.setdefault(step >> self.shift, {})
        seen = kinds.setdefault(_kind(value), [0, step, time])
        seen[0] += 1
        if (step, time) < (seen[1], seen[2]):
            seen[1:] = [step, time]

    def _coarsen(self) -> None:
        """Double the width: neighbours become one."""
        old = self.copy()
        self.shift += 1
        self.rows, self.ints, self.floats, self.specials = {}, array("q"), array("d"), {}
        for bucket, row in sorted(old.rows.items()):
            self._absorb(old, row, bucket >> 1)
        for bucket, kinds in old.specials.items():
            self._absorb_specials(bucket >> 1, kinds)

    def _absorb(self, other: Fold, row: int, bucket: int) -> None:
        ints = other.ints[row * _INTS : (row + 1) * _INTS]
        if bucket not in self.rows:
            self.rows[bucket] = len(self.rows)
            self.ints.extend(ints)
            self.floats.extend(other.floats[row * _FLOATS : (row + 1) * _FLOATS])
            return
        mine = self.rows[bucket]
        self._put(mine, _FIRST, min(self._get(mine, _FIRST), other._get(row, _FIRST), key=_when))
        self._put(mine, _LAST, max(other._get(row, _LAST), self._get(mine, _LAST), key=_when))
        finite = self.ints[mine * _INTS + 1]
        if ints[1]:
            low, high = other._get(row, _LOW), other._get(row, _HIGH)
            self._put(mine, _LOW, min(self._get(mine, _LOW), low, key=_what) if finite else low)
            self._put(mine, _HIGH, max(self._get(mine, _HIGH), high, key=_what) if finite else high)
        self.ints[mine * _INTS] += ints[0]
        self.ints[mine * _INTS + 1] += ints[1]

    def _absorb_specials(self, bucket: int, kinds: dict[str, list[float]]) -> None:
        mine = self.specials.setdefault(bucket, {})
        for kind, (count, step, time) in kinds.items():
            seen = mine.setdefault(kind, [0, step, time])
            seen[0] += count
            seen[1:] = min(seen[1:], [step, time])

    def _between(self, first: int | None, last: int | None) -> Fold:
        """A copy with only the buckets that touch the range."""
        fold = self.copy()
        low = -math.inf if first is None else first >> self.shift
        high = math.inf if last is None else last >> self.shift
        fold.rows = {bucket: row for bucket, row in fold.rows.items() if low <= bucket <= high}
        fold.specials = {bucket: kinds for bucket, kinds in fold.specials.items() if low <= bucket <= high}
        return fold

    def _drawn(self, *, lean: bool) -> list[Point]:
        """The points to draw; `lean` leaves out each bucket's first and last but for the two ends."""
        ordered = sorted(self.rows.items())
        points = list(self._special_points())
        for place, (_, row) in enumerate(ordered):
            wanted = [_LOW, _HIGH] if self.ints[row * _INTS + 1] else []
            if not lean or place == 0:
                wanted.append(_FIRST)
            if not lean or place == len(ordered) - 1:
                wanted.append(_LAST)
            points += [self._get(row, which) for which in wanted]
        # by text, since NaN differs from itself
        return list({(step, time, repr(value)): (step, time, value) for step, time, value in points}.values())

    def _special_points(self) -> Iterator[Point]:
        for kinds in self.specials.values():
            for kind, (_, step, time) in kinds.items():
                yield int(step), time, float(kind)


def exact(value: float) -> float | str:
    """A number as JSON can carry it: NaN and ±Infinity by name."""
    return value if math.isfinite(value) else _kind(value)


def _kind(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _when(point: Point) -> tuple[int, float]:
    return point[:2]


def _what(point: Point) -> float:
    return point[2]


def _inside(point: Point, first: int | None, last: int | None) -> bool:
    return (first is None or point[0] >= first) and (last is None or point[0] <= last)
