"""log() and history() in a notebook and in a job's processes, and what log() adds."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.runtime import pace as pacing
from slicelift.runtime import sink as sinking
from slicelift.runtime.pace import Pace, peak_memory
from slicelift.runtime.sink import Sink

ADDED = {
    "peak_gpu_memory_bytes",
    "peak_host_memory_bytes",
    "step_time_seconds",
    "throughput_samples_per_second",
    "throughput_steps_per_second",
}


def test_history_in_a_notebook_keeps_points_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    sink = Sink(None)
    sink.log(5, None, {"loss": 1.0})
    sink.log(None, None, {"loss": math.inf, "val/acc": 1})
    sink.log(2, None, {"loss": 3})
    assert _own(sink) == {"loss": [(5, 1.0), (6, math.inf), (2, 3.0)], "val/acc": [(6, 1.0)]}
    step, values = sink.latest()
    assert (step, values["loss"], values["val/acc"]) == (2, 3.0, 1.0)
    assert capfd.readouterr() == ("", "")


def test_a_call_without_metrics_measures_the_pace() -> None:
    sink = Sink(None)
    sink.log(1, None, {})
    time.sleep(0.001)
    sink.log(2, 8, {})
    assert [step for step, _ in sink.history()["throughput_samples_per_second"]] == [2]


def test_steps_are_counted_from_zero_when_left_out() -> None:
    sink = Sink(None)
    for _ in range(3):
        sink.log(None, None, {"loss": 1.0})
    assert [step for step, _ in sink.history()["loss"]] == [0, 1, 2]


@pytest.mark.parametrize("bad", [{"ok": 1.0, "loss": "x"}, {"ok": 1.0, "a//b": 1.0}])
def test_nothing_of_a_wrong_call_is_kept(bad: dict[str, Any]) -> None:
    sink = Sink(None)
    with pytest.raises(UserError):
        sink.log(3, None, bad)
    assert sink.history() == {}
    sink.log(None, None, {"ok": 1.0})
    assert sink.history()["ok"] == [(0, 1.0)]


def test_long_histories_are_thinned_but_rare_metrics_and_the_newest_point_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinking, "REMEMBERED", 100)
    monkeypatch.setattr(pacing, "MEMORY_SECONDS", 1e9)
    sink = Sink(None)
    for step in range(1001):
        sink.log(step, None, {"loss": float(step), **({"val": 1.0} if step % 200 == 0 else {})})
    history = sink.history()
    assert len(history["loss"]) <= 110
    assert history["loss"][-1] == (1000, 1000.0)
    assert history["loss"] == sorted(history["loss"])
    assert [step for step, _ in history["val"]] == [0, 200, 400, 600, 800, 1000]


def test_many_different_sets_of_names_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinking, "REMEMBERED", 50)
    monkeypatch.setattr(sinking, "SHAPES", 4)
    monkeypatch.setattr(pacing, "MEMORY_SECONDS", 1e9)
    sink = Sink(None)
    for step in range(500):
        sink.log(step, None, {f"metric {step}": 1.0})
    assert sum(len(points) for points in sink.history().values()) < 200
    assert sink.latest()[1]["metric 499"] == 1.0


def test_time_per_step_and_throughput() -> None:
    pace = Pace()
    assert set(pace.measure(10, 32)) == {"peak_host_memory_bytes"}
    time.sleep(0.05)
    assert pace.measure(10, 32) == {}, "the same step again"
    time.sleep(0.05)
    found = pace.measure(14, 32)
    assert 0.025 <= found["step_time_seconds"] <= 0.1
    elapsed = found["step_time_seconds"] * 4
    assert found["throughput_samples_per_second"] == pytest.approx(64 / elapsed)
    assert "throughput_steps_per_second" not in found
    assert pace.measure(3, None) == {}, "back to an earlier step"
    time.sleep(0.01)
    found = pace.measure(5, None)
    assert found["throughput_steps_per_second"] == pytest.approx(1 / found["step_time_seconds"])


def test_the_users_own_value_wins() -> None:
    sink = Sink(None)
    sink.log(0, None, {"step_time_seconds": 7.0})
    sink.log(1, None, {"step_time_seconds": 7.0})
    assert sink.history()["step_time_seconds"] == [(0, 7.0), (1, 7.0)]


def test_peak_memory_on_a_cpu_is_the_hosts_and_called_so() -> None:
    import torch

    assert not torch.cuda.is_initialized()
    found = peak_memory()
    assert list(found) == ["peak_host_memory_bytes"]
    assert 2e7 < found["peak_host_memory_bytes"] < 1e12


def test_peak_memory_does_not_start_at_the_starters_peak() -> None:
    """A process started by a large one must not report the large one's memory, as ru_maxrss does."""
    program = "from slicelift.runtime.pace import peak_memory; print(peak_memory()['peak_host_memory_bytes'])"
    starter = f"""
import subprocess, sys
ballast = b'x' * 300_000_000
print(subprocess.run([sys.executable, "-c", {program!r}], capture_output=True, text=True, check=True).stdout)
"""
    found = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=True).stdout
    assert float(found) < 100_000_000


def _own(sink: Sink) -> dict[str, list[tuple[int, float]]]:
    return {name: points for name, points in sink.history().items() if name not in ADDED}


def test_hot_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: the machine that runs the tests is shared (bench/ has the figure)."""
    from slicelift.runtime.spool import Spool

    sink = Sink(Spool(tmp_path, rank=0))
    metrics = {f"metric_{index}": index / 7 for index in range(20)}
    taken = []
    for step in range(2000):
        began = time.perf_counter()
        sink.log(step, None, dict(metrics))
        taken.append(time.perf_counter() - began)
    assert sink.spool
    sink.spool.close()
    median = sorted(taken)[1000]
    with capsys.disabled():
        print(
            f" log() of 20 metrics: median {median * 1e6:.0f} us, {median * 100:.2%} of 100 steps/s ", end=""
        )


def test_interpreter_is_not_needed_for_a_world_of_one(tmp_path: Path) -> None:
    """The facade in a fresh interpreter: prints nothing, writes nothing."""
    program = "import slicelift; slicelift.log(loss=0.5); slicelift.log(3, loss=0.25); print(slicelift.history()['loss'])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("[(0, 0.5), (3, 0.25)]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_handler_may_log_in_the_middle_of_log(tmp_path: Path, streams: Any) -> None:
    from slicelift.runtime.spool import Spool

    sink, fired = Sink(Spool(tmp_path, rank=0, process="p-1")), 0

    def handler(*_: Any) -> None:
        nonlocal fired
        fired += 1
        sink.log(fired, None, {"caught": 1.0} if fired % 2 else {"loss": 1.0, "acc": 2.0})

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        for step in range(3000):
            sink.log(step, None, {"loss": 1.0, "acc": 2.0})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sink.spool
    sink.spool.close()
    events = streams(tmp_path)["0-p-1"]
    assert fired > 10
    assert [event["q"] for event in events] == list(range(1, 3001 + fired))
    assert all("caught" in event["m"] or event["m"]["acc"] == 2.0 for event in events)
