"""Checkpoints: whole or not there, the newest two, found again by the next attempt of the run."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from slicelift.errors import UserError
from slicelift.runtime import checkpoint as checkpointing
from slicelift.runtime.checkpoint import checkpoint, resume


@pytest.fixture(autouse=True)
def _notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process in a notebook's folder, as far as checkpoints go."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "SLICELIFT_ATTEMPT_DIR",
        "SLICELIFT_ATTEMPT",
        "SLICELIFT_CHECKPOINT_DIR",
        "RANK",
        "WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    _as_new_process()


def _as_new_process() -> None:
    checkpointing._turns.pid = 0
    checkpointing._turns.made = 0


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Become a rank of an attempt of one run."""

    def become(attempt: int, *, rank: int = 0, size: int = 1) -> None:
        monkeypatch.setenv("SLICELIFT_ATTEMPT", f"r-abc-{attempt}")
        monkeypatch.setenv("SLICELIFT_ATTEMPT_DIR", str(tmp_path / f"attempt {attempt}"))
        monkeypatch.setenv("SLICELIFT_CHECKPOINT_DIR", str(tmp_path / "run 检查"))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        _as_new_process()

    return become


def test_round_trip_in_a_notebook(tmp_path: Path) -> None:
    assert resume() is None
    state = {"model": torch.nn.Linear(2, 1).state_dict(), "epoch": 3, "rng": torch.get_rng_state()}
    path = checkpoint(state, step=30)
    assert path == tmp_path / "outputs" / "checkpoints" / "0000-000001-step30" / "state.pt"
    found = resume()
    assert found
    assert found[1] == 30
    assert torch.equal(found[0]["model"]["weight"], state["model"]["weight"])
    assert (tmp_path / "outputs" / "checkpoints" / ".gitignore").read_text() == "*\n"


def test_the_newest_two_stay_whatever_their_steps(tmp_path: Path) -> None:
    for step in (100, 200, 1, 2):
        checkpoint({"at": step}, step=step)
    _as_new_process()
    checkpoint({"at": 3}, step=3)
    names = sorted(path.name for path in (tmp_path / "outputs" / "checkpoints").glob("0*"))
    assert names == ["0000-000004-step2", "0000-000005-step3"]
    assert resume() == ({"at": 3}, 3)


def test_the_next_attempt_goes_on_and_a_gang_agrees_on_where(job: Any) -> None:
    job(1)
    assert resume() is None
    checkpoint({"at": 10}, step=10)
    assert resume() == ({"at": 10}, 10), "what this process saved counts for itself"
    job(2, rank=0, size=2)
    assert resume() == ({"at": 10}, 10)
    checkpoint({"at": 11}, step=11)
    job(2, rank=1, size=2)
    assert resume() == ({"at": 10}, 10), "rank 1 asks later and must not get rank 0's new one"
    assert checkpoint({"at": 11}, step=11) is None
    job(3)
    assert resume() == ({"at": 11}, 11)


def test_per_rank_counts_once_every_rank_has_written(job: Any) -> None:
    for rank in (0, 1):
        job(1, rank=rank, size=2)
        checkpoint({"rank": rank}, step=5, per_rank=True)
    job(1, rank=0, size=2)
    checkpoint({"rank": 0}, step=5, per_rank=True)
    checkpointing._turns.made = 1
    checkpoint({"rank": 0}, step=6, per_rank=True)  # rank 1 dies before its own
    for rank in (0, 1):
        job(2, rank=rank, size=2)
        assert resume() == ({"rank": rank}, 5)
    job(2, rank=0, size=4)
    with pytest.raises(UserError, match="are of 2 ranks, and this gang has 4") as caught:
        resume()
    assert caught.value.code == "checkpoint-world"


def test_a_damaged_one_is_passed_over_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint({"at": 1}, step=1)
    path = checkpoint({"at": 2}, step=2)
    assert path
    path.write_bytes(path.read_bytes()[:40])
    assert resume() == ({"at": 1}, 1)
    assert "damaged" in capsys.readouterr().err


def test_a_state_that_cannot_be_saved_leaves_nothing() -> None:
    checkpoint({"at": 1}, step=1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        checkpoint({"f": lambda: 0}, step=2)
    assert resume() == ({"at": 1}, 1)


def test_without_torch_it_is_a_pickle_and_the_event_names_it(attempt: Any) -> None:
    source = """
    import slicelift
    print(slicelift.resume(), slicelift.checkpoint({"at": 4}, step=4).name)
    """
    assert attempt.run(source) == 0, attempt.log()
    assert attempt.log() == "None state.pkl\n"
    (event,) = attempt.events()
    path = attempt.root / "checkpoints" / "0001-000001-step4" / "state.pkl"
    assert (event["k"], event["s"], event["path"]) == ("checkpoint", 4, str(path))
    assert pickle.loads(path.read_bytes()) == {"at": 4}


def test_sigkill_at_any_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    program = """
import slicelift
state = {"bytes": b"x" * 3_000_000}
for step in range(10_000):
    slicelift.checkpoint(state, step=step)
"""
    home = tmp_path / "outputs" / "checkpoints"
    for delay in (0.0, 0.003, 0.007, 0.012, 0.018):
        seen = set(home.glob("*/state.pkl"))
        process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
        until = time.monotonic() + 30
        while not set(home.glob("*/state.pkl")) - seen:
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        _as_new_process()
        found = resume()
        assert found
        assert found[0] == {"bytes": b"x" * 3_000_000}


def test_an_elastic_gang_goes_on_within_its_attempt(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks start again after a lost peer: what they saved before counts, and the order of saves goes on."""
    monkeypatch.setenv("SLICELIFT_ELASTIC", "1")
    job(1)
    for step in (11, 12):
        checkpoint({"step": step}, step=step)
    job(1)
    assert resume() == ({"step": 12}, 12)
    saved = checkpoint({"step": 13}, step=13)
    assert saved is not None
    assert saved.parent.name == "0001-000003-step13"
    job(1)
    assert resume() == ({"step": 13}, 13)


def test_a_checkpoint_since_a_moment(job: Any, tmp_path: Path) -> None:
    job(1)
    checkpoint({"step": 1}, step=1)
    home = tmp_path / "run 检查"
    assert checkpointing.saved_since(home, time.time() - 60)
    assert not checkpointing.saved_since(home, time.time() + 60)
    assert not checkpointing.saved_since(tmp_path / "nowhere", 0.0)
