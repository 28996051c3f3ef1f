"""Takes in what ranks log: into the ledger first, then into the fold that answers cards, then out to watchers.

The ledger's log of batches is the truth; the fold here is a cache of it that is saved now and then
(`checkpoint`) and completed from the log at a start (`replay`). A fold in memory always stands for exactly the batches
up to `_upto`: adding a batch and folding it happen under one lock.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from slicelift.models import RunView

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_events import Batch, Checkpoint, Line, Stream
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.live import MAX_PATH, Live
from slicelift_hub.launcher.series import Fold, Point, exact

MAX_FOLDS = 4000
MAX_SERIES = 2000
_LONGEST_KEY = 250

Publish = Callable[[AttemptRow, int, list[list[Any]]], None]


@dataclass(kw_only=True)
class _Folded:
    """One attempt in memory. `changed` are the series that the ledger has an older state of."""

    folds: dict[tuple[int, str], Fold]
    live: Live
    changed: set[tuple[int, str]] = field(default_factory=set)
    live_changed: bool = False

    @property
    def clean(self) -> bool:
        return not self.changed and not self.live_changed


class Ingest:
    """All methods may be called from any thread. `publish` is told (attempt, rank, points) after they are safe."""

    def __init__(self, ledger: Ledger, *, publish: Publish, exported: bool) -> None:
        """`exported`: there is no MLflow, so batches count as exported from the start."""
        self._ledger = ledger
        self._publish = publish
        self._exported = exported
        self._lock = threading.Lock()
        self._attempts: OrderedDict[str, _Folded] = OrderedDict()
        self._upto = 0
        # a call failed whose lines the ledger may have all the same, as when an answer over a network was lost
        self._in_doubt = False

    def replay(self) -> int:
        """Fold what came in after the last checkpoint; once, at the start. The number of batches."""
        with self._lock:
            return self._catch_up()

    def accept(self, attempt: AttemptRow, streams: list[Stream]) -> list[dict[str, Any]]:
        """Take in lines once: `{rank, process, q}` per stream, acknowledged for ever. Raises `events-gap`."""
        with self._lock:
            self._settle_doubt()
            try:
                added, acks = self._ledger.append(attempt, streams, exported=self._exported)
                news = [(batch.rank, self._fold(batch)) for batch in added]
            except BaseException:
                self._in_doubt = True
                raise
        for rank, points in news:
            if points:
                self._publish(attempt, rank, points)
        return acks

    def series(
        self,
        attempt_id: str,
        *,
        keys: frozenset[str] | None = None,
        rank: int | None = None,
        first: int | None = None,
        last: int | None = None,
        points: int = 300,
    ) -> list[dict[str, Any]]:
        """The curves of one attempt, at most `points` points each, NaN and Infinity by name."""
        with self._lock:
            found = self._attempt(attempt_id).folds
            wanted = sorted(
                place
                for place in found
                if (keys is None or place[1] in keys) and (rank is None or place[0] == rank)
            )
            copies = [(place, found[place].copy()) for place in wanted]
        return [
            {
                "key": key,
                "rank": of_rank,
                "count": fold.count,
                "points": [shown(point) for point in fold.points(points, first=first, last=last)],
            }
            for (of_rank, key), fold in copies
        ]

    def complete(self, view: RunView) -> RunView:
        """The view with what came in since the last checkpoint."""
        with self._lock:
            view = replace(view, checkpoint=self._checkpoint_of(view))
            known = self._attempts.get(f"{view.run_id}-{view.attempt}")
            if known is None:
                return view
            ranks = known.live.ranks([dict(row) for row in view.ranks])
            return replace(
                view,
                latest=known.live.latest(),
                network=known.live.network(),
                ranks=ranks,
                dropped_points=known.live.dropped,
                dropped_by=dict(known.live.dropped_by),
            )

    def _checkpoint_of(self, view: RunView) -> int | None:
        """The newest one of this attempt or the one before, which has just ended; else what the ledger knows."""
        for number in (view.attempt, view.attempt - 1):
            known = self._attempts.get(f"{view.run_id}-{number}")
            step = None if known is None else known.live.checkpoint_step()
            if step is not None:
                return step
        return view.checkpoint

    def checkpoint(self) -> bool:
        """Save what changed; whether there was anything. After a failure everything is saved the next time."""
        with self._lock:
            self._settle_doubt()
            dirty = {name: folded for name, folded in self._attempts.items() if not folded.clean}
            saved = Checkpoint(
                upto=self._upto,
                folds={
                    (name, *place): folded.folds[place].to_bytes()
                    for name, folded in dirty.items()
                    for place in folded.changed
                },
                lives={name: folded.live.to_json() for name, folded in dirty.items() if folded.live_changed},
            )
            marks = {name: (folded.changed, folded.live_changed) for name, folded in dirty.items()}
            for folded in dirty.values():
                folded.changed, folded.live_changed = set(), False
        try:
            if dirty:
                self._ledger.save(saved)
        except BaseException:
            self._mark_again(marks)
            raise
        self._forget_some()
        return bool(dirty)

    def _settle_doubt(self) -> None:
        """Fold what the ledger took in although that call failed: else a later checkpoint would pass over it."""
        if self._in_doubt:
            self._catch_up()
            self._in_doubt = False

    def _catch_up(self) -> int:
        count = 0
        for batch in self._ledger.unfolded(after=self._upto):
            self._fold(batch)
            count += 1
        return count

    def _attempt(self, attempt_id: str) -> _Folded:
        known = self._attempts.get(attempt_id)
        if known is None:
            folds, live = self._ledger.load_fold(attempt_id)
            known = _Folded(
                folds={place: Fold.from_bytes(data) for place, data in folds.items()},
                live=Live.from_json(live),
            )
            self._attempts[attempt_id] = known
        self._attempts.move_to_end(attempt_id)
        return known

    def _fold(self, batch: Batch) -> list[list[Any]]:
        """Fold in one batch; its points as watchers see them."""
        into = self._attempt(batch.attempt_id)
        into.live_changed = True
        self._upto = max(self._upto, batch.batch_id)
        points: list[list[Any]] = []
        for line in batch.lines:
            try:
                _fold_line(into, batch.rank, line, points)
            except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
                # it is in the log and acknowledged; a line that means nothing must not stop those behind it
                into.live.drop("not-understood")
        return points

    def _mark_again(self, marks: dict[str, tuple[set[tuple[int, str]], bool]]) -> None:
        with self._lock:
            for name, (changed, live_changed) in marks.items():
                self._attempts[name].changed |= changed
                self._attempts[name].live_changed |= live_changed

    def _forget_some(self) -> None:
        """Drop the attempts nobody asked for longest, until the rest fits; the ledger has them."""
        with self._lock:
            total = sum(len(folded.folds) for folded in self._attempts.values())
            for name in list(self._attempts):
                if total <= MAX_FOLDS:
                    return
                if self._attempts[name].clean:
                    total -= len(self._attempts.pop(name).folds)


def shown(point: Point) -> list[Any]:
    """`[step, time, value]` as JSON can carry it."""
    return [point[0], point[1], exact(point[2])]


def _fold_line(into: _Folded, rank: int, line: Line, points: list[list[Any]]) -> None:
    kind, time = line["k"], float(line["t"])
    if not math.isfinite(time):
        raise ValueError("time")
    step = line.get("s")
    into.live.touch(rank, time=time, step=step if type(step) is int else None)
    if kind == "m":
        _fold_metrics(into, rank, line["m"], step=int(step or 0), time=time, points=points)
    elif kind in ("param", "tag"):
        into.live.set_words(kind, line["p"])
    elif kind == "checkpoint":
        into.live.checkpoint = {"step": step, "path": str(line["path"])[:MAX_PATH], "time": time}
    elif kind == "dropped":
        why = "not-understood" if line.get("why") == "not-understood" else "spool-full"
        into.live.drop(why, int(line["n"]))


def _fold_metrics(
    into: _Folded, rank: int, metrics: dict[str, Any], *, step: int, time: float, points: list[list[Any]]
) -> None:
    for key, given in metrics.items():
        value, place = float(given), (rank, key)
        if not 0 < len(key) <= _LONGEST_KEY:
            into.live.drop("name-too-long")
            continue
        if place not in into.folds and len(into.folds) >= MAX_SERIES:
            into.live.drop("too-many-names")
            continue
        fold = into.folds.get(place) or Fold()
        fold.add(step, time, value)
        into.folds[place] = fold
        into.changed.add(place)
        into.live.set_metric(rank, key, step=step, time=time, value=value)
        points.append([key, step, time, value if value - value == 0 else exact(value)])
