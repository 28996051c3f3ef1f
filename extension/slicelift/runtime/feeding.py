"""How much of its time a rank waits for data: in the iterators of torch's DataLoader, and in what `slicelift.data` wraps.

Only the thread that logs is measured, since what others load in the background is no wait. On a GPU, work that was
asked for goes on meanwhile: a wait counts only when the GPU had nothing left to do at its end, so a program whose GPU is the
slow part is never told to load faster. Starting the workers of a loader is not part of it.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

KEY = "data_wait_fraction"
# at most one value in so many seconds, over at least so many
SAMPLE_SECONDS = 5.0
WINDOW_SECONDS = 30.0
# a shorter wait is not worth the question whether the GPU is idle
_ASKED_SECONDS = 0.001
_MARK = "__slicelift__"

T = TypeVar("T")


class Feed:
    """The waits of one process. `thread` is the one that logs, None until it has; `waits` counts the batches."""

    __slots__ = ("inside", "seconds", "thread", "waits")

    def __init__(self) -> None:
        self.thread: int | None = None
        self.seconds = 0.0
        self.waits = 0
        # a loader may read from another one
        self.inside = False


FEED = Feed()


class Share:
    """What of a rank's time went into waiting, over a window that moves on. Not safe for threads."""

    def __init__(self, feed: Feed = FEED) -> None:
        self._feed = feed
        # (time, seconds waited until then), the oldest first
        self._samples: deque[tuple[float, float]] = deque()

    def measure(self, now: float) -> dict[str, float]:
        """`{KEY: 0.63}` at most every 5 s, of the last 30 s at least; nothing while no data was waited for.

        `now` is `time.perf_counter()` of the thread that trains, which is the one that is measured from then on.
        """
        feed = self._feed
        feed.thread = threading.get_ident()
        hook(feed)
        samples = self._samples
        if samples and now - samples[-1][0] < SAMPLE_SECONDS:
            return {}
        samples.append((now, feed.seconds))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()
        begun, before = samples[0]
        if now - begun < WINDOW_SECONDS or not feed.waits:
            return {}
        return {KEY: min(1.0, (feed.seconds - before) / (now - begun))}


class Timed(Generic[T]):
    """What `data` gives: iterated as often as its source, and as long."""

    def __init__(self, source: Iterable[T], feed: Feed = FEED) -> None:
        self._source = source
        self._feed = feed

    def __iter__(self) -> Iterator[T]:
        return _TimedIterator(iter(self._source), self._feed)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # what a program reaches through its loader, as `sampler`; never our own before they are set, as in a copy
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)


def data(source: Iterable[T]) -> Timed[T]:
    """`for batch in slicelift.data(source)`: as `source`, with the time that is spent waiting for it measured.

    torch's DataLoader needs no wrapper. The thread that calls `slicelift.log` is the one that is measured.
    """
    return Timed(source)


def hook(feed: Feed = FEED) -> bool:
    """Measure the iterators of torch's DataLoader from now on, if it is loaded; whether they are. Never loads torch."""
    module = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(module, "_BaseDataLoaderIter", None)
    if kind is None:
        return False
    step = kind.__next__
    if not hasattr(step, _MARK):
        timed_step = timed(step, feed)
        setattr(timed_step, _MARK, True)
        kind.__next__ = timed_step
    return True


def timed(step: Callable[[Any], T], feed: Feed) -> Callable[[Any], T]:
    """`step`, an iterator's `__next__`, measured. Two looks at a clock and a few comparisons, once per batch."""
    clock, ident = time.perf_counter, threading.get_ident

    @functools.wraps(step)
    def measured(iterator: Any) -> T:
        if feed.inside or ident() != feed.thread:
            return step(iterator)
        feed.inside = True
        begun = clock()
        try:
            return step(iterator)
        finally:
            waited = clock() - begun
            feed.inside = False
            feed.waits += 1
            if waited < _ASKED_SECONDS or not _gpu_is_busy():
                feed.seconds += waited

    return measured


class _TimedIterator(Generic[T]):
    def __init__(self, inner: Iterator[T], feed: Feed) -> None:
        self._inner = inner
        self._step = timed(_next, feed)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        found: T = self._step(self._inner)
        return found


def _next(iterator: Iterator[T]) -> T:
    return next(iterator)


def _gpu_is_busy() -> bool:
    """Whether the GPU still works on what this thread has asked of it. False where there is none. Never starts CUDA."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return False
        return not cuda.current_stream().query()
    except (
        AttributeError,
        RuntimeError,
    ):  # torch half imported, or CUDA in trouble: the program will say so itself
        return False
