"""`slicelift.log` and `slicelift.history`: the same in a notebook, in a rank and in the processes below it."""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
from operator import itemgetter
from typing import Any

from slicelift.runtime.metrics import LONGEST_STEP, as_float, as_samples, as_step, check_name
from slicelift.runtime.pace import Pace
from slicelift.runtime.spool import Spool, inside
from slicelift.runtime.world import world

# calls with the same metrics that history() remembers; from there on every second one is forgotten
REMEMBERED = 10_000
# sets of names that are told apart for speed and for thinning; a script seldom has more than a few
SHAPES = 256


def log(step: int | None = None, samples: float | None = None, **metrics: Any) -> None:
    """Record metrics of this rank at `step`; in a job they are on disk when the call returns.

    `step` left out counts the calls. `samples` is how many samples this rank took in since its last step: it
    turns `throughput_steps_per_second` into `throughput_samples_per_second`. A name that is no Python name
    goes in as `log(step=3, **{"val/loss": x})`. Prints nothing. Raises UserError for a wrong name, value or
    step (nothing of the call is kept then), never for a full disk: dropped points are counted and shown.
    """
    (_sink or _make()).log(step, samples, metrics)


def history() -> dict[str, list[tuple[int, float]]]:
    """What this process has logged: `{metric: [(step, value), ...]}`, oldest first.

    From 10,000 points of one metric on every second point is forgotten, again and again; never the last one.
    """
    return (_sink or _make()).history()


def latest() -> tuple[int | None, dict[str, float]]:
    """The last step of this process and the last value of each of its metrics."""
    return (_sink or _make()).latest()


def note(kind: str, **body: Any) -> bool:
    """Put a rare event (`checkpoint`, `param`, `tag`) into this process's stream; False when it was dropped."""
    return (_sink or _make()).note(kind, body)


class Shape:
    """What is kept for calls with the same metrics: so rare ones are told apart, and written by a template."""

    __slots__ = ("_last", "_templates", "names", "past")

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.past: list[tuple[int, int, dict[str, float]]] = []
        self._templates: dict[tuple[str, ...], str] = {}
        self._last: tuple[list[str], str] = ([], "")

    def body(self, step: int, metrics: dict[str, float]) -> str:
        """The event as JSON; the names in `metrics` are those of the shape and what log() has added."""
        # one load: a signal handler that logs may turn the shape to other names in the middle of this
        names, template = self._last
        # lists compare by the identity of what they hold: unlike a hash, that touches none of the names
        if list(metrics) != names:
            template = self._turn_to(tuple(metrics))
        return template % (step, *metrics.values())

    def _turn_to(self, names: tuple[str, ...]) -> str:
        template = self._templates.get(names)
        if template is None:
            template = '"s": %d, "m": {' + ", ".join(f"{json.dumps(name)}: %r" for name in names) + "}"
            if len(self._templates) < SHAPES:
                self._templates[names] = template
        self._last = (list(names), template)
        return template


class Sink:
    """The metrics of one process; `spool` is None outside a job."""

    def __init__(self, spool: Spool | None) -> None:
        self.spool = spool
        # reentrant: a signal handler that logs may interrupt a call in the same thread
        self._lock = threading.RLock()
        self._pace = Pace()
        self._step: int | None = None
        self._calls = 0
        self._shape = Shape([])
        # the one without names also takes the calls of a script with more than SHAPES different sets
        self._shapes: dict[tuple[str, ...], Shape] = {(): self._shape}

    def log(self, step: int | None, samples: float | None, metrics: dict[str, Any]) -> None:
        """See the function of the same name. Takes `metrics` over.

        Few calls and few objects: after a training step nothing is in the cache, and a call costs by what it touches.
        """
        for value in metrics.values():
            if type(value) is not float:
                metrics = {name: as_float(name, value) for name, value in metrics.items()}
                break
        shape = self._shape
        if list(metrics) != shape.names:
            shape = self._shape = self._find_shape(metrics)
        if type(step) is not int or not -LONGEST_STEP <= step <= LONGEST_STEP:
            step = None if step is None else as_step(step)
        if samples is not None:
            samples = as_samples(samples)
        with self._lock:
            if step is None:
                step = 0 if self._step is None else self._step + 1
            self._step = step
            metrics = {**self._pace.measure(step, samples), **metrics}
            self._calls += 1
            shape.past.append((self._calls, step, metrics))
            if len(shape.past) >= REMEMBERED:
                del shape.past[::2]  # the newest is at an odd place and stays
            if self.spool and metrics:
                # json writes NaN and Infinity, %r does not
                finite = math.isfinite(sum(metrics.values()))
                body = shape.body(step, metrics) if finite else inside({"s": step, "m": metrics})
                self.spool.append("m", body, points=len(metrics))

    def note(self, kind: str, body: dict[str, Any]) -> bool:
        """See the function of the same name."""
        return self.spool.append(kind, inside(body)) if self.spool else False

    def history(self) -> dict[str, list[tuple[int, float]]]:
        """See the function of the same name."""
        found: dict[str, list[tuple[int, float]]] = {}
        for _, step, metrics in self._in_order():
            for name, value in metrics.items():
                found.setdefault(name, []).append((step, value))
        return found

    def latest(self) -> tuple[int | None, dict[str, float]]:
        """See the function of the same name."""
        values: dict[str, float] = {}
        for _, _, metrics in self._in_order():
            values.update(metrics)
        return self._step, values

    def _find_shape(self, metrics: dict[str, float]) -> Shape:
        """Raises UserError when a name is wrong."""
        names = tuple(metrics)
        found = self._shapes.get(names)
        if found is None:
            for name in names:
                check_name(name)
            found = Shape(list(names)) if len(self._shapes) < SHAPES else self._shapes[()]
            self._shapes.setdefault(tuple(found.names), found)
        return found

    def _in_order(self) -> list[tuple[int, int, dict[str, float]]]:
        with self._lock:
            calls = [call for shape in list(self._shapes.values()) for call in shape.past]
        return sorted(calls, key=itemgetter(0))


_sink: Sink | None = None
_making = threading.Lock()


def _make() -> Sink:
    global _sink
    with _making:
        if _sink is None:
            here = world()
            folder = here.attempt_folder
            _sink = Sink(Spool(folder / "spool", rank=here.gang_rank) if folder else None)
        return _sink


def _close() -> None:
    if _sink and _sink.spool:
        _sink.spool.close()


def _forked() -> None:
    """A child has a stream of its own: the parent's numbers and descriptor are not for it."""
    global _sink, _making
    if _sink and _sink.spool:
        _sink.spool.abandon()
    _sink, _making = None, threading.Lock()


atexit.register(_close)
os.register_at_fork(after_in_child=_forked)
