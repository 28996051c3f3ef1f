"""Real gangs of two over torch and gloo. Each start loads torch three times, hence few starts and many checks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
    import os, pickle, sys
    from dataclasses import dataclass
    import torch
    import torch.distributed as dist
    import slicelift

    @dataclass
    class Note:
        rank: int

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        total = torch.tensor([float(rank + 41)])
        for step in range(20):
            dist.all_reduce(total)
            total /= 2
            slicelift.log(step=step, samples=8, total=total, odd=float("nan") if step % 2 else float("-inf"))
        notes = [None, None]
        dist.all_gather_object(notes, Note(rank))
        print("notes", notes, "total", total.item(), "argv", sys.argv[1:])

        import mlflow
        mlflow.set_experiment("digits") if rank else None
        with mlflow.start_run() if rank else open(os.devnull):
            if rank:
                mlflow.log_metric("own", 3.5)
                mlflow.log_text("hello", "notes/hello.txt")
        print("tracker", os.environ["MLFLOW_TRACKING_URI"], os.environ.get("MLFLOW_RUN_ID"))
        dist.barrier()
        dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def trained(shared_attempt: Any) -> Any:
    """One gang that ran to its end."""
    tracker = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_RUN_ID": "0" * 32}
    code = shared_attempt.run(TRAINING, nproc=2, arguments=("a b", "数"), **tracker)
    assert code == 0, (shared_attempt.root / "agent.log").read_text() + shared_attempt.log(1)
    return shared_attempt


def test_both_ranks_reduced_and_pickled(trained: Any) -> None:
    assert trained.outcome == {"exit_code": 0, "failures": []}
    for rank in (0, 1):
        assert "notes [Note(rank=0), Note(rank=1)] total 41.5 argv ['a b', '数']" in trained.log(rank)


def test_both_ranks_have_streams_of_their_own(trained: Any) -> None:
    for rank in (0, 1):
        events = trained.events(rank)
        assert [event["q"] for event in events] == list(range(1, 21))
        assert [event["s"] for event in events] == list(range(20))
        assert {event["m"]["total"] for event in events} == {41.5}
        assert [repr(event["m"]["odd"]) for event in events[:2]] == ["-inf", "nan"]
        assert events[0]["m"].keys() == {"total", "odd", "peak_host_memory_bytes"}
        assert events[1]["m"].keys() >= {"step_time_seconds", "throughput_samples_per_second"}


def test_rank_0_keeps_its_tracker_and_the_other_writes_into_scratch(trained: Any) -> None:
    assert f"tracker http://127.0.0.1:9 {'0' * 32}" in trained.log(0)
    scratch = trained.root / "scratch" / "rank-1"
    assert f"tracker sqlite:///{scratch}/mlflow.db None" in trained.log(1)
    with sqlite3.connect(scratch / "mlflow.db") as database:
        assert database.execute("select key, value from metrics").fetchall() == [("own", 3.5)]
    database.close()
    assert [path.read_text() for path in scratch.glob("artifacts/*/*/artifacts/notes/hello.txt")] == ["hello"]
    assert sorted(path.name for path in trained.work.iterdir() if path.name != "__pycache__") == [
        "promoted.py"
    ]


def test_both_ranks_registered(trained: Any) -> None:
    found = [json.loads((trained.root / "ranks" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [item["rank"] for item in found] == [0, 1]
    assert len({item["pid"] for item in found}) == 2


COLLECTIVE = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(10_000):
        dist.all_reduce(torch.ones(1))
        if step == 5 and rank == 1:
            HERE
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("act", "code", "exception", "message"),
    [
        ('raise ValueError("rank 1 is bad")', 1, "ValueError", "rank 1 is bad"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", "was ended by SIGKILL"),
    ],
)
def test_one_failed_rank_ends_the_gang_and_is_named_first(
    attempt: Any, act: str, code: int, exception: str, message: str
) -> None:
    shell_code = attempt.run(COLLECTIVE.replace("HERE", act), nproc=2)
    assert shell_code == (code if code > 0 else 128 - code)
    outcome = attempt.outcome
    assert outcome["exit_code"] == code
    first, *others = outcome["failures"]
    assert (first["rank"], first["exit_code"], first["exception"], first["message"]) == (
        1,
        code,
        exception,
        message,
    )
    assert [failure["rank"] for failure in others] == [0]
    for rank in (0, 1):
        pid = json.loads((attempt.root / "ranks" / f"{rank}.json").read_text())["pid"]
        assert not os.path.exists(f"/proc/{pid}")


def test_a_gang_of_two_without_torch_says_what_to_install(attempt: Any) -> None:
    hidden = attempt.work / "torch.py"
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    assert attempt.run("print(1)", nproc=2, PYTHONPATH=str(attempt.work)) == 1
    (failure,) = attempt.outcome["failures"]
    assert failure["rank"] is None
    assert "Install torch" in failure["message"]


def test_a_world_of_one_may_use_a_process_group(attempt: Any) -> None:
    source = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    t = torch.ones(1); dist.all_reduce(t); print("one", t.item()); dist.destroy_process_group()
    """
    assert attempt.run(source) == 0, attempt.log()
    assert attempt.log() == "one 1.0\n"
