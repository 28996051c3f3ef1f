"""SIGTERM in a pod: the next checkpoint is the last, and it is whole. Real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

SCRIPT = """
import os, pathlib, sys, time
import slicelift
slicelift.resume()
print("begun", flush=True)
if os.environ.get("FORK"):
    if os.fork() == 0:
        print("forked", flush=True)
        time.sleep(60)
        os._exit(9)
for step in range(40 if os.environ.get("NEVER") else 400):
    time.sleep(0.05)
    if not os.environ.get("NEVER"):
        slicelift.checkpoint({"step": step}, step=step)
sys.exit(7)
"""


def start(tmp_path: Path, *, rank: int = 0, **variables: str) -> subprocess.Popen[str]:
    """A rank of an attempt, that has reached its first checkpoint or could have."""
    environment = os.environ | {
        "SLICELIFT_ATTEMPT": "r-abc-1",
        "SLICELIFT_ATTEMPT_DIR": str(tmp_path / "attempt"),
        "SLICELIFT_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment | variables, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def saved(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp_path / "checkpoints").glob("*/state.pkl"))


def test_a_rank_saves_once_more_and_ends(tmp_path: Path) -> None:
    with start(tmp_path, SLICELIFT_GRACE_SECONDS="20") as process:
        while not saved(tmp_path):
            time.sleep(0.02)
        told, before = time.time(), saved(tmp_path)[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    last = saved(tmp_path)[-1]
    assert last > before
    assert (tmp_path / "checkpoints" / last).stat().st_mtime >= told - 0.1


def test_a_rank_that_does_not_write_waits_for_the_one_that_does(tmp_path: Path) -> None:
    with start(tmp_path, rank=1, SLICELIFT_GRACE_SECONDS="20") as waiting:
        waiting.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert waiting.poll() is None
        with start(tmp_path, SLICELIFT_GRACE_SECONDS="20") as writing:
            assert waiting.wait(20) == 143
            writing.send_signal(signal.SIGTERM)
            assert writing.wait(20) == 143


def test_it_waits_no_longer_than_the_time_it_has(tmp_path: Path) -> None:
    with start(tmp_path, rank=1, SLICELIFT_GRACE_SECONDS="0.3") as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "variables", [{}, {"SLICELIFT_GRACE_SECONDS": "20", "NEVER": "1"}], ids=["no pod", "no checkpoint"]
)
def test_elsewhere_the_signal_does_what_it_always_did(tmp_path: Path, variables: dict[str, Any]) -> None:
    """Outside a pod it ends the rank. In one it is only noted: the grace, which the agent keeps, is the limit."""
    with start(tmp_path, **variables) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == (7 if variables else -signal.SIGTERM)


def test_a_forked_child_has_nothing_to_save(tmp_path: Path) -> None:
    with start(tmp_path, SLICELIFT_GRACE_SECONDS="20", FORK="1") as process:
        # a signal before Python has set up the child would be lost: it forgets what came until then
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        child = int(children.read_text().split()[0])
        os.kill(child, signal.SIGTERM)
        stat = Path(f"/proc/{child}/stat")
        wait_for("the child to end", lambda: "Z" in stat.read_text().rpartition(")")[2], seconds=10)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143


@pytest.mark.parametrize("wish", [{"saving_seconds": 20.0}, {}], ids=["suspended", "cancelled"])
def test_on_one_machine_a_suspended_run_leaves_at_its_next_checkpoint(
    tmp_path: Path, wish: dict[str, Any]
) -> None:
    """No signal comes: a rank that saves looks whether its run is suspended. A cancel is the agent's own to carry out."""
    with start(tmp_path) as process:
        while not saved(tmp_path):
            time.sleep(0.02)
        told = time.time()
        (tmp_path / "attempt").mkdir(exist_ok=True)
        part = tmp_path / "attempt" / "cancel.part"
        part.write_text(json.dumps({"reason": "r", "grace_seconds": 10.0, "time": told, **wish}))
        part.rename(tmp_path / "attempt" / "cancel.json")
        if not wish:
            time.sleep(0.5)
            assert process.poll() is None
            process.terminate()
        assert process.wait(20) == (143 if wish else -signal.SIGTERM)
