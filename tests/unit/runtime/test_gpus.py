"""GPUs that do nothing: counted from looks, without a GPU. What NVML says is read where there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from slicelift.runtime import gpus
from slicelift.runtime.gpus import GpuWatch, Idleness, make_reader


def test_minutes_count_while_every_look_finds_every_gpu_at_rest() -> None:
    now, shares = [0.0], [[0, 0]]
    idle = Idleness(lambda: shares[0], clock=lambda: now[0])
    found = []
    for moment in (0, 59, 61, 1799, 1800):
        now[0] = float(moment)
        found.append(idle.minutes())
    assert found == [0, 0, 1, 29, 30]
    # one that works is enough, and the count begins anew
    now[0], shares[0] = 1805.0, [0, 3]
    assert idle.minutes() == 0
    now[0], shares[0] = 1866.0, [0, 0]
    assert idle.minutes() == 1


@pytest.mark.parametrize("shares", [None, []], ids=["does not tell", "none"])
def test_without_evidence_nothing_is_said_and_nothing_counted(shares: list[int] | None) -> None:
    now, told = [0.0], [[0]]
    idle = Idleness(lambda: told[0], clock=lambda: now[0])
    assert idle.minutes() == 0
    now[0], told[0] = 600.0, shares  # type: ignore[call-overload]
    assert idle.minutes() is None
    now[0], told[0] = 660.0, [0]
    assert idle.minutes() == 0


def test_where_there_is_no_nvml_there_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_LIBRARY", "libno-such-library.so.1")
    assert make_reader()() is None
    # a library that is another one
    monkeypatch.setattr(gpus, "_LIBRARY", "libc.so.6")
    assert make_reader()() is None


def test_a_driver_that_hangs_holds_up_nobody_and_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "SAMPLE_SECONDS", 0.001)
    opened, hangs, now = threading.Event(), threading.Event(), [0.0]

    def read() -> list[int]:
        # two looks that find nothing, 40 minutes apart, and one that does not come back
        if now[0]:
            now[0] += 2400.0
        if now[0] > 2500.0:
            hangs.wait()
        now[0] = now[0] or 1.0
        return [0]

    def make() -> Callable[[], list[int]]:
        opened.wait()
        return read

    watch = GpuWatch(make, clock=lambda: now[0])
    watch.start()
    assert watch.minutes() is None
    opened.set()
    until = time.monotonic() + 5
    while now[0] < 2500.0 and time.monotonic() < until:
        time.sleep(0.001)
    assert watch._last == (2401.0, 40)
    assert watch.minutes() is None
