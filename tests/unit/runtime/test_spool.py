"""The stream on disk: its format, its numbers, and what a bad disk does to it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.runtime import spool as spooling
from slicelift.runtime.spool import Limits, Spool, inside
from slicelift.runtime.world import start_ticks

Streams = Callable[[Path], dict[str, list[dict[str, Any]]]]


def test_format(tmp_path: Path, streams: Streams) -> None:
    spool = Spool(tmp_path / "spool", rank=3)
    before = time.time()
    assert spool.append("m", inside({"s": 40, "m": {"loss": 0.31, "损": float("nan")}}), points=2)
    assert spool.append("checkpoint", inside({"s": 40, "path": "a b/步"}))
    spool.close()
    name = f"3-{os.getpid()}-{start_ticks()}"
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [f"{name}-000001.jsonl"]
    first, second = streams(tmp_path / "spool")[name]
    assert before - 0.01 <= first.pop("t") <= time.time() + 0.01
    assert repr(first["m"].pop("损")) == "nan"
    assert first == {"q": 1, "k": "m", "s": 40, "m": {"loss": 0.31}}
    del second["t"]
    assert second == {"q": 2, "k": "checkpoint", "s": 40, "path": "a b/步"}


def test_numbers_have_no_gap_over_segments_and_threads(tmp_path: Path, streams: Streams) -> None:
    spool = Spool(tmp_path, rank=0, process="p-1", limits=Limits(segment_bytes=4096))
    writers = [threading.Thread(target=_write_many, args=(spool, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    spool.close()
    assert len(list(tmp_path.iterdir())) > 8
    events = streams(tmp_path)["0-p-1"]
    assert [event["q"] for event in events] == list(range(1, 1601))
    assert {(event["w"], event["i"]) for event in events} == {(w, i) for w in range(8) for i in range(200)}


def test_no_segment_outgrows_its_limit_by_more_than_a_line(tmp_path: Path) -> None:
    spool = Spool(tmp_path, rank=0, limits=Limits(segment_bytes=1000))
    _write_many(spool, 0)
    spool.close()
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1100


def test_what_was_appended_survives_sigkill(tmp_path: Path, streams: Streams) -> None:
    program = f"""
import os, signal
from pathlib import Path
from slicelift.runtime.spool import Spool
spool = Spool(Path({str(tmp_path)!r}), rank=0, process="p-1")
for number in range(500): spool.append("m", f'"s": {{number}}', points=1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert [event["s"] for event in streams(tmp_path)["0-p-1"]] == list(range(500))


def test_a_full_disk_cuts_no_line_and_is_told_once_there_is_room(
    tmp_path: Path, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "RETRY_SECONDS", 0.01)
    spool = Spool(tmp_path, rank=0, process="p-1")
    spool.append("m", '"s": 0', points=2)
    (path,) = tmp_path.iterdir()
    line = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # room for one more line and a half: the kernel takes a part of the next one
    resource.setrlimit(resource.RLIMIT_FSIZE, (line * 2 + line // 2, before[1]))
    try:
        kept = [spool.append("m", f'"s": {step}', points=2) for step in range(1, 4)]
        left = path.read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept == [True, False, False]
    # whole lines; their length differs by the digits of their times
    assert (left.count("\n"), left[-2:]) == (2, "}\n")
    time.sleep(0.02)
    assert spool.append("m", '"s": 4', points=2)
    events = streams(tmp_path)["0-p-1"]
    assert [(e["q"], e["k"], e.get("s"), e.get("n")) for e in events] == [
        (1, "m", 0, None),
        (2, "m", 1, None),
        (3, "dropped", None, 4),
        (4, "m", 4, None),
    ]


def test_close_tells_what_was_dropped(tmp_path: Path, streams: Streams) -> None:
    spool = Spool(tmp_path, rank=0, process="p-1")
    (tmp_path / "0-p-1-000001.jsonl").mkdir()
    assert not spool.append("m", '"s": 0', points=5)
    spool.close()
    (tmp_path / "0-p-1-000001.jsonl").rmdir()
    (event,) = streams(tmp_path)["0-p-1"]
    assert (event["k"], event["n"], event["q"]) == ("dropped", 5, 1)


def test_the_bound_thins_then_stops_and_room_ends_it(
    tmp_path: Path, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "RETRY_SECONDS", 0.0)
    bound = 64_000
    spool = Spool(tmp_path, rank=0, process="p-1", limits=Limits(segment_bytes=1000, bound_bytes=bound))
    for step in range(4000):
        spool.append("m", f'"s": {step}', points=1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < bound + 1100
    assert spool.append("param", '"p": {"lr": "1"}'), "rare events pass"
    for path in sorted(tmp_path.iterdir())[:-2]:
        path.unlink()  # as the agent does once the launcher has them
    assert spool.append("m", '"s": 5000', points=1)
    spool.close()
    events = streams(tmp_path)["0-p-1"]
    numbers = [event["q"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert events[-1]["s"] == 5000
    assert events[-1]["q"] + spool.dropped < 4010


def test_nothing_is_lost_uncounted_at_the_bound(tmp_path: Path, streams: Streams) -> None:
    spool = Spool(tmp_path, rank=0, process="p-1", limits=Limits(segment_bytes=1000, bound_bytes=20_000))
    for step in range(3000):
        spool.append("m", f'"s": {step}', points=3)
    spool.close()
    events = streams(tmp_path)["0-p-1"]
    kept = sum(3 for event in events if event["k"] == "m")
    assert kept + sum(event["n"] for event in events if event["k"] == "dropped") == 9000


def test_closed_descriptors_do_not_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "RETRY_SECONDS", 0.0)
    spool = Spool(tmp_path, rank=0)
    spool.append("m", '"s": 0', points=1)
    os.close(spool._fd)
    assert not spool.append("m", '"s": 1', points=1)
    assert spool.append("m", '"s": 2', points=1)
    spool.close()


def test_a_signal_handler_may_log_in_the_middle_of_a_call(tmp_path: Path, streams: Streams) -> None:
    spool = Spool(tmp_path, rank=0, process="p-1", limits=Limits(segment_bytes=2000))
    fired = 0

    def handler(*_: Any) -> None:
        nonlocal fired
        fired += 1
        spool.append("m", '"s": -1', points=1)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        for step in range(3000):
            spool.append("m", f'"s": {step}', points=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    spool.close()
    events = streams(tmp_path)["0-p-1"]
    assert fired > 10
    assert [event["q"] for event in events] == list(range(1, 3001 + fired))
    assert [event["s"] for event in events if event["s"] >= 0] == list(range(3000))


def test_an_exception_in_the_middle_of_a_call_leaves_no_gap_and_no_torn_line(
    tmp_path: Path, streams: Streams
) -> None:
    spool = Spool(tmp_path, rank=0, process="p-1", limits=Limits(segment_bytes=2000))
    interrupted, armed = 0, False

    def handler(_: int, frame: Any) -> None:
        nonlocal interrupted, armed
        # only inside of the spool: an exception in one of the interpreter's own callbacks is swallowed
        if armed and frame.f_code.co_filename == spooling.__file__:
            armed = False
            interrupted += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    for step in range(4000):
        with contextlib.suppress(KeyboardInterrupt):
            armed = True
            spool.append("m", f'"s": {step}', points=1)
            armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    spool.append("m", '"s": 4000', points=1)
    spool.close()
    events = streams(tmp_path)["0-p-1"]
    assert interrupted > 10
    assert [event["q"] for event in events] == list(range(1, len(events) + 1))
    assert 4001 - interrupted <= len(events) <= 4001
    assert {event["k"] for event in events} == {"m"}


def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spooling.environment_limits() == Limits(segment_bytes=4 * 2**20, bound_bytes=2**30)
    monkeypatch.setenv("SLICELIFT_SPOOL_BYTES", "5000")
    monkeypatch.setenv("SLICELIFT_SPOOL_SEGMENT_BYTES", "all")
    assert spooling.environment_limits() == Limits(bound_bytes=5000)


def _write_many(spool: Spool, number: int) -> None:
    for index in range(200):
        assert spool.append("m", json.dumps({"w": number, "i": index})[1:-1], points=1)
