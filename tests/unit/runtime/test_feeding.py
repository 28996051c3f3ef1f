"""How much of a rank's time is waiting for data: the arithmetic, and the hook on a class that stands for torch's."""

from __future__ import annotations

import copy
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from slicelift.runtime import feeding
from slicelift.runtime.feeding import KEY, Feed, Share, Timed, hook, timed


class LoaderIter:
    """As torch's iterators: the class has `__next__`, its kinds inherit it."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self._left, self._seconds = count, seconds

    def __iter__(self) -> LoaderIter:
        return self

    def __next__(self) -> int:
        time.sleep(self._seconds) if self._seconds else None
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


@pytest.fixture
def feed() -> Feed:
    """Of this thread, as if it had logged."""
    made = Feed()
    made.thread = threading.get_ident()
    return made


@pytest.fixture
def torch_like(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """The class that the hook finds where torch would be; torch itself is not looked at."""
    base = type("_BaseDataLoaderIter", (LoaderIter,), {"__next__": LoaderIter.__next__})
    module = types.ModuleType("torch.utils.data.dataloader")
    module._BaseDataLoaderIter = base  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    return type("_SingleProcessDataLoaderIter", (base,), {})


def shares(feed: Feed, moments: list[tuple[float, float]]) -> list[dict[str, float]]:
    """What is measured at each (time, seconds waited until then)."""
    share = Share(feed)
    found = []
    for now, seconds in moments:
        feed.seconds, feed.waits = seconds, feed.waits + 1
        found.append(share.measure(now))
    return found


def test_nothing_is_said_before_half_a_minute(feed: Feed) -> None:
    found = shares(feed, [(100.0 + at, at * 0.6) for at in range(36)])
    told = {at: row[KEY] for at, row in enumerate(found) if row}
    assert told == pytest.approx({30: 0.6, 35: 0.6})


def test_the_window_moves_on(feed: Feed) -> None:
    # a minute of waiting, then a minute without
    found = shares(feed, [(at, min(at, 60.0)) for at in [5.0 * step for step in range(25)]])
    told = {5 * step: row[KEY] for step, row in enumerate(found) if row}
    assert told[60] == 1.0
    assert told[75] == pytest.approx(0.5)
    assert told[90] == told[120] == 0.0


def test_a_rank_that_logs_seldom_has_longer_windows(feed: Feed) -> None:
    assert shares(feed, [(0.0, 0.0), (60.0, 30.0), (120.0, 30.0)]) == [{}, {KEY: 0.5}, {KEY: 0.0}]


def test_who_never_waits_for_data_says_nothing_of_it() -> None:
    share = Share(Feed())
    assert [share.measure(float(at)) for at in range(0, 90, 5)] == [{}] * 18


def test_the_hook_measures_iterators_that_are_there_already(torch_like: type[Any], feed: Feed) -> None:
    iterator = torch_like(4, 0.01)
    assert next(iterator) == 3
    assert feed.waits == 0
    assert hook(feed)
    assert hook(feed)
    assert list(iterator) == [2, 1, 0]
    # the end was waited for, too; hooked twice it counts once
    assert feed.waits == 4
    assert 0.04 <= feed.seconds < 1
    assert torch_like.__next__.__name__ == "__next__"


def test_without_torch_there_is_nothing_to_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.data.dataloader", raising=False)
    assert not hook(Feed())
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", types.ModuleType("half imported"))
    assert not hook(Feed())


def test_what_another_thread_loads_is_no_wait(torch_like: type[Any], feed: Feed) -> None:
    hook(feed)
    thread = threading.Thread(target=lambda: list(torch_like(3, 0.01)))
    thread.start()
    thread.join()
    assert (feed.waits, feed.seconds) == (0, 0.0)


def test_a_loader_that_reads_from_another_counts_once(torch_like: type[Any], feed: Feed) -> None:
    hook(feed)
    inner = torch_like(3, 0.02)
    outer = timed(lambda _: next(inner), feed)
    begun = time.perf_counter()
    assert outer(None) == 2
    assert feed.waits == 1
    assert 0.02 <= feed.seconds <= time.perf_counter() - begun


def test_an_error_in_the_loader_comes_through(feed: Feed) -> None:
    def broken(_: Any) -> int:
        raise ValueError("a broken file")

    with pytest.raises(ValueError, match="a broken file"):
        timed(broken, feed)(None)
    assert not feed.inside


class Cuda:
    """torch.cuda with one stream."""

    def __init__(self, *, busy: bool, initialized: bool = True) -> None:
        self.busy, self.initialized, self.asked = busy, initialized, 0

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self) -> Cuda:
        return self

    def query(self) -> bool:
        self.asked += 1
        return not self.busy


@pytest.mark.parametrize(
    ("cuda", "counts"),
    [
        (Cuda(busy=True), False),
        (Cuda(busy=False), True),
        (Cuda(busy=True, initialized=False), True),
        (types.SimpleNamespace(), True),
    ],
    ids=["the GPU was at work", "the GPU had run dry", "no GPU in use", "torch half imported"],
)
def test_a_wait_beside_a_gpu_that_works_on_is_none(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, cuda: Any, counts: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    list(iter(Timed(LoaderIter(2, 0.005), feed)))
    assert (feed.seconds > 0.01) is counts
    assert feed.waits == 3


def test_the_gpu_is_not_asked_about_short_waits(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(busy=True)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    list(Timed(LoaderIter(5), feed))
    # five waits of microseconds; a loaded machine may stretch one
    assert cuda.asked <= 1


def test_data_wraps_anything_that_is_iterated(feed: Feed) -> None:
    wrapped = Timed([1, 2, 3], feed)
    assert (list(wrapped), list(wrapped), len(wrapped)) == ([1, 2, 3], [1, 2, 3], 3)
    assert feed.waits == 8

    def numbers() -> Iterator[int]:
        yield from range(3)

    assert list(Timed(numbers(), feed)) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(Timed(numbers(), feed))
    loader = types.SimpleNamespace(sampler="the sampler")
    assert Timed(loader, feed).sampler == "the sampler"
    assert list(copy.copy(wrapped)) == [1, 2, 3]


def test_data_is_part_of_the_training_api(monkeypatch: pytest.MonkeyPatch) -> None:
    import slicelift

    assert slicelift.data is feeding.data
    monkeypatch.setattr(feeding.FEED, "thread", None)
    assert list(slicelift.data("ab")) == ["a", "b"]


# measured to be right within a factor: a loaded machine must not fail it
def test_a_batch_costs_about_a_microsecond(feed: Feed) -> None:
    rounds = 50_000

    def seconds(step: Any) -> float:
        begun = time.perf_counter()
        for _ in range(rounds):
            step(None)
        return (time.perf_counter() - begun) / rounds

    def plain(_: Any) -> None:
        return None

    cost = min(seconds(timed(plain, feed)) for _ in range(3)) - min(seconds(plain) for _ in range(3))
    assert cost < 5e-6, cost
