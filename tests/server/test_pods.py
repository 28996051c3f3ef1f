"""Gangs of several nodes without a cluster: real agents, torchrun and ranks, a folder per pod, two addresses of loopback.

Every test starts torch in four processes or more, some twice: on a busy machine one takes a minute.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import RunView, Status

from tests.waiting import wait_for

# its pods have PID namespaces of their own
pytestmark = pytest.mark.needs_root

TRAINING = """
import os, pathlib, sys, time
import slicelift
import torch, torch.distributed as dist

GATES = {5: "go", 8: "back"}
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
here = pathlib.Path(os.environ["FLAGS"])
found = slicelift.resume()
first = 0 if found is None else found[1] + 1
print("rank", rank, "of", world, "begins at", first, flush=True)
for step in range(first, 12):
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    slicelift.log(step=step, total=total.item())
    slicelift.checkpoint({"step": step}, step=step)
    (here / f"{rank}-{step}").touch()
    while step in GATES and not (here / GATES[step]).exists():
        time.sleep(0.05)
        slicelift.checkpoint({"step": step}, step=step)
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/by.txt").write_text(f"rank {rank}")
dist.destroy_process_group()
"""


class Bench:
    """A launcher over pods, and what a test does with one gang."""

    def __init__(self, launcher: Any, flags: Path) -> None:
        self.launcher = launcher
        self.flags = flags
        flags.mkdir()
        (flags / "back").touch()

    def submit(self, script: str, **changes: Any) -> RunView:
        snapshot = self.launcher.snapshot(**{"promoted.py": script.encode()})
        self.launcher.client.set_secret("FLAGS", str(self.flags))
        view: RunView = self.launcher.submit(snapshot_id=snapshot.id, secrets=("FLAGS",), **changes)
        return view

    def told(self, view: RunView) -> dict[str, Any]:
        path = self.launcher.home / "pods" / f"{view.run_id}-1.json"
        return json.loads(path.read_text()) if path.exists() else {"pods": [], "codes": []}

    def log(self, view: RunView, rank: str, attempt: int | None = None) -> str:
        text: bytes = self.launcher.client.logs(view.run_id, rank=rank, attempt=attempt)[0]
        return text.decode()

    def attempts(self, view: RunView) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.launcher.client.attempts(view.run_id)
        return found

    def steps(self, view: RunView, rank: int, attempt: int) -> list[int]:
        found = self.launcher.client.series(view.run_id, attempt=attempt, rank=rank, keys=["total"])
        return [point[0] for item in found for point in item["points"]]

    def containers(self, view: RunView) -> str:
        roots = (self.launcher.home / "pods" / f"{view.run_id}-1").glob("*/container.log")
        return "\n".join(f"--- {path.parent.name}\n{path.read_text()}" for path in sorted(roots))

    def wait_for(self, view: RunView, what: str, check: Callable[[], Any], *, seconds: float = 60) -> None:
        wait_for(what, check, seconds=seconds, why=lambda: self.containers(view))


@pytest.fixture(scope="module")
def pods(make_launcher: Any) -> Iterator[Any]:
    made = make_launcher("--backend", "pods.Pods").start()
    yield made
    made.close()
    # what a failed test left
    for path in (made.home / "pods").glob("r-*.json"):
        for pod in json.loads(path.read_text())["pods"]:
            with suppress(OSError):
                if pod["root"].encode() in Path(f"/proc/{pod['pid']}/environ").read_bytes():
                    os.kill(pod["pid"], signal.SIGKILL)


@pytest.fixture
def bench(pods: Any, tmp_path: Path) -> Bench:
    return Bench(pods, tmp_path / "flags")


def test_two_nodes_train_as_one_gang(bench: Bench) -> None:
    (bench.flags / "go").touch()
    view = bench.submit(TRAINING, workers=2)
    done = bench.launcher.until(view.run_id, Status.FINISHED, 180)
    assert (done.attempt, done.exit_code) == (1, None), bench.containers(view)
    assert [(row["rank"], row["step"]) for row in done.ranks] == [(0, 11), (1, 11)]
    for rank in (0, 1):
        assert bench.steps(view, rank, 1) == list(range(12))
        assert f"rank {rank} of 2 begins at 0" in bench.log(view, str(rank))
        assert done.latest["total" if rank == 0 else "rank/1/total"] == (11, 3.0)
    assert "node 0 on this-machine" in bench.log(view, "agent")
    assert "node 1 on this-machine" in bench.log(view, "agent-1")
    # what the agent says is also what `kubectl logs` shows
    assert "node 1 on this-machine" in bench.containers(view)
    outputs = {item.path for item in bench.launcher.client.outputs(view.run_id)}
    assert outputs == {"by.txt", "worker-1/by.txt"}
    assert bench.told(view)["codes"] == [[0, 0]]
    (attempt,) = bench.attempts(view)
    assert [(row["node"], row["state"], row["exit"]["status"]) for row in attempt["nodes"]] == [
        (0, "ended", "FINISHED"),
        (1, "ended", "FINISHED"),
    ]


def test_a_lost_node_ends_the_gang_and_the_next_attempt_resumes(bench: Bench) -> None:
    view = bench.submit(TRAINING, workers=2)
    bench.wait_for(view, "step 5", (bench.flags / "1-5").exists, seconds=180)
    wait_for("step 5 in the ledger", lambda: 5 in bench.steps(view, 0, 1))
    os.kill(bench.told(view)["pods"][1]["pid"], signal.SIGKILL)
    wait_for("both to end", lambda: len(bench.told(view)["codes"]) == 2)
    (bench.flags / "go").touch()
    done = bench.launcher.until(view.run_id, Status.FINISHED, 240)
    assert (done.run_id, done.attempt) == (view.run_id, 2)
    first, second = bench.attempts(view)
    assert (first["status"], first["reason"]) == ("FAILED", "worker-lost"), first
    assert first["message"].startswith("Worker 1 ended without a word")
    assert (second["status"], second["submission"]) == ("FINISHED", f"{view.run_id}-1")
    assert bench.steps(view, 0, 2) == list(range(6, 12))
    assert "rank 1 of 2 begins at 6" in bench.log(view, "1", 2)
    assert "begins at 0" in bench.log(view, "1", 1)
    assert bench.told(view)["codes"][1:] == [[0, 0]]
    steps = dict.fromkeys(change.status for change in done.history if change.attempt == 2)
    assert list(steps)[-3:] == [Status.STARTING, Status.RUNNING, Status.FINISHED]


def test_an_eviction_saves_first(bench: Bench) -> None:
    """SIGTERM to both pods in the middle of a step: each rank ends at its next checkpoint, which is complete."""
    view = bench.submit(TRAINING, workers=2)
    bench.wait_for(view, "step 5", (bench.flags / "1-5").exists, seconds=180)
    for pod in bench.told(view)["pods"]:
        os.kill(pod["pid"], signal.SIGTERM)
    bench.wait_for(view, "both to end", lambda: len(bench.told(view)["codes"]) == 2)
    assert bench.told(view)["codes"][0] == [143, 143], bench.containers(view)
    (bench.flags / "go").touch()
    done = bench.launcher.until(view.run_id, Status.FINISHED, 180)
    assert done.attempt == 2
    assert "begins at 6" in bench.log(view, "0", 2)
    assert [row["exit"]["saved"] for row in bench.attempts(view)[0]["nodes"]] == [True, True]


def test_a_fault_of_the_program_is_not_tried_again(bench: Bench) -> None:
    view = bench.submit("import no_such_module\n", workers=1)
    done = bench.launcher.until(view.run_id, Status.FAILED, 60)
    assert bench.told(view)["codes"] == [[78]]
    assert (done.attempt, done.reason, done.exit_code) == (1, "rank-failed", 1)
    assert done.failure is not None
    assert done.failure.exception == "ModuleNotFoundError"


def test_a_cancel_ends_all_pods_and_starts_none(bench: Bench) -> None:
    view = bench.submit("import time\ntime.sleep(600)\n", workers=1)
    bench.launcher.until(view.run_id, Status.RUNNING, 60)
    bench.launcher.client.cancel(view.run_id)
    done = bench.launcher.until(view.run_id, Status.KILLED, 60)
    assert done.attempt == 1
    (pod,) = bench.told(view)["pods"]
    wait_for("the pod to end", lambda: not Path(f"/proc/{pod['pid']}").exists())


def test_the_pods_python_need_not_have_slicelift(bench: Bench) -> None:
    """The script prints where its slicelift is from: the pod's own folder."""
    view = bench.submit("import slicelift\nprint(slicelift.__file__)\n", workers=1, python=sys.executable)
    bench.launcher.until(view.run_id, Status.FINISHED, 60)
    (pod,) = bench.told(view)["pods"]
    assert f"{pod['root']}/attempt/runtime/slicelift/__init__.py" in bench.log(view, "0")


def test_an_elastic_gang_shrinks_and_takes_a_returned_node_in(bench: Bench) -> None:
    """torchrun gives a lost peer 15 s to show itself and 30 s more to a late one, and torch is loaded six times."""
    (bench.flags / "back").unlink()
    view = bench.submit(TRAINING, workers=2, min_workers=1)
    bench.wait_for(view, "step 5", (bench.flags / "1-5").exists, seconds=180)
    hold = bench.launcher.home / "pods" / "hold"
    hold.touch()
    os.kill(bench.told(view)["pods"][1]["pid"], signal.SIGKILL)
    (bench.flags / "go").touch()
    bench.wait_for(view, "step 8", (bench.flags / "0-8").exists, seconds=240)
    bench.wait_for(view, "the smaller gang", lambda: "rank 0 of 1 begins at 6" in bench.log(view, "0"))
    hold.unlink()
    bench.wait_for(view, "the whole gang", lambda: "of 2 begins at 9" in bench.log(view, "0"), seconds=240)
    done = bench.launcher.until(view.run_id, Status.FINISHED, 180)
    # no step done is lost, and none is done twice: one attempt, one series
    assert (done.attempt, bench.told(view)["restarts"]) == (1, 1)
    assert bench.steps(view, 0, 1) == list(range(12))
    assert bench.log(view, "agent-1").count("node 1 on this-machine") == 2
    assert [(row["node"], row["state"]) for row in bench.attempts(view)[0]["nodes"]] == [
        (0, "ended"),
        (1, "ended"),
    ]
