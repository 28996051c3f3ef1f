"""`slicelift.log` and `slicelift.history`: the same in a notebook, in a rank and in the processes below it."""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
from operator import itemgetter
from typing import Any

from slicelift.runtime.metrics import as_float, as_samples, as_step, check_name
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


class Sink:
    """The metrics of one process; `spool` is None outside a job."""

    def __init__(self, spool: Spool | None) -> None:
        self.spool = spool
        # reentrant: a signal handler that logs may interrupt a call in the same thread
        self._lock = threading.RLock()
        self._pace = Pace()
        self._known: set[str] = set()
        # by the names of a call: how it is written
        self._templates: dict[tuple[str, ...], str] = {}
        self._step: int | None = None
        self._calls = 0
        # by the names of a call, so that thinning the frequent ones leaves the rare ones alone
        self._past: dict[tuple[str, ...], list[tuple[int, int, dict[str, float]]]] = {}

    def log(self, step: int | None, samples: float | None, metrics: dict[str, Any]) -> None:
        """See the function of the same name. Takes `metrics` over."""
        for name, value in metrics.items():
            if type(value) is not float:
                metrics[name] = as_float(name, value)
        if not metrics.keys() <= self._known:
            for name in metrics:
                check_name(name)
            self._known.update(metrics)
        given = None if step is None else as_step(step)
        count = None if samples is None else as_samples(samples)
        with self._lock:
            number = self._advance(given)
            for name, value in self._pace.measure(number, count).items():
                metrics.setdefault(name, value)
            names = tuple(metrics)
            self._remember(names, number, metrics)
            if self.spool and metrics:
                self.spool.append("m", self._body(names, number, metrics), points=len(names))

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

    def _advance(self, given: int | None) -> int:
        if given is None:
            given = 0 if self._step is None else self._step + 1
        self._step = given
        return given

    def _body(self, names: tuple[str, ...], step: int, metrics: dict[str, float]) -> str:
        """The event as JSON, by a template per set of names: most of the time of a log() call is spent here."""
        if not math.isfinite(sum(metrics.values())):
            return inside({"s": step, "m": metrics})  # json writes NaN and Infinity, %r does not
        template = self._templates.get(names)
        if template is None:
            template = '"s": %d, "m": {' + ", ".join(f"{json.dumps(name)}: %r" for name in names) + "}"
            if len(self._templates) < SHAPES:
                self._templates[names] = template
        return template % (step, *metrics.values())

    def _remember(self, names: tuple[str, ...], step: int, metrics: dict[str, float]) -> None:
        """Keep the call as it is: the hot path pays for one tuple, not for one list per metric."""
        self._calls += 1
        shape = names if len(self._past) < SHAPES or names in self._past else ()
        past = self._past.setdefault(shape, [])
        past.append((self._calls, step, metrics))
        if len(past) >= REMEMBERED:
            del past[::2]  # the newest is at an odd place and stays

    def _in_order(self) -> list[tuple[int, int, dict[str, float]]]:
        with self._lock:
            calls = [call for past in self._past.values() for call in past]
        return sorted(calls, key=itemgetter(0))


_sink: Sink | None = None
_making = threading.Lock()


def _make() -> Sink:
    global _sink
    with _making:
        if _sink is None:
            here = world()
            folder = here.attempt_folder
            _sink = Sink(Spool(folder / "spool", rank=here.rank) if folder else None)
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
