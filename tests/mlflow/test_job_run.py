"""The job's run as its own mlflow code sees it: answers and spool lines, without any server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.runtime import mlflow_run
from slicelift.runtime.mlflow_ids import local_experiment_id, local_run_id
from slicelift.runtime.mlflow_run import JobRun
from slicelift.runtime.spool import Spool


@pytest.fixture
def spool_folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def run(spool_folder: Path) -> Any:
    spool = Spool(spool_folder, rank=0)
    yield JobRun("r-abc", experiment="mine", spool=spool)
    spool.close()


def spooled(folder: Path) -> list[dict[str, Any]]:
    """Kind and body of every line, in order."""
    lines = [
        json.loads(text) for path in sorted(folder.glob("0-*")) for text in path.read_text().splitlines()
    ]
    assert [line.pop("q") for line in lines] == list(range(1, len(lines) + 1))
    assert all(line.pop("t") for line in lines)
    return lines


def test_ids_are_mlflow_s_in_form_and_follow_from_the_run_id() -> None:
    assert local_run_id("r-abc") == local_run_id("r-abc") != local_run_id("r-abd")
    assert len(local_run_id("r-abc")) == 32
    assert set(local_run_id("r-abc")) <= set("0123456789abcdef")
    assert local_experiment_id("r-abc").isdecimal()
    assert len(local_experiment_id("r-abc")) == 18


def test_the_first_run_is_the_job_s_and_the_second_is_not(run: Any, spool_folder: Path) -> None:
    tags = [{"key": "team", "value": "red"}]
    first = run.begin({"start_time": 12, "user_id": "ann", "run_name": "mine", "tags": tags})
    assert first["run"]["info"] == {
        "run_id": run.id,
        "run_uuid": run.id,
        "run_name": "mine",
        "experiment_id": run.experiment_id,
        "status": "RUNNING",
        "start_time": 12,
        "user_id": "ann",
        "artifact_uri": f"mlflow-artifacts:/{run.experiment_id}/{run.id}/artifacts",
        "lifecycle_stage": "active",
    }
    assert run.begin({"start_time": 13}) is None
    assert spooled(spool_folder) == [{"k": "tag", "p": {"team": "red", "mlflow.runName": "mine"}}]


def test_a_nested_run_is_never_the_job_s(run: Any) -> None:
    assert run.begin({"tags": [{"key": "mlflow.parentRunId", "value": run.id}]}) is None
    assert run.begin({}) is not None


def test_points_go_into_lines_by_step_and_time(run: Any, spool_folder: Path) -> None:
    points = [
        {"key": "a", "value": 1.5, "timestamp": 1000, "step": 1},
        {"key": "b", "value": "NaN", "timestamp": 1000, "step": 1},
        {"key": "a", "value": 2.5, "timestamp": 1000, "step": 1},
        {"key": "a", "value": "-Infinity", "timestamp": "2000", "step": "2", "model_id": "m-1"},
        {"key": "c", "value": 7, "timestamp": 1000, "step": 1},
    ]
    run.log_batch({"metrics": points})
    found = spooled(spool_folder)
    assert str(found[0]["m"].pop("b")) == "nan"
    assert found == [
        {"k": "m", "s": 1, "m": {"a": 1.5}, "mlflow": {"timestamp": 1000}},
        {"k": "m", "s": 1, "m": {"a": 2.5, "c": 7.0}, "mlflow": {"timestamp": 1000}},
        {"k": "m", "s": 2, "m": {"a": float("-inf")}, "mlflow": {"timestamp": 2000, "model_id": "m-1"}},
    ]


def test_what_was_logged_can_be_read_back(run: Any) -> None:
    run.log_batch({"params": [{"key": "lr", "value": "0.1"}], "tags": [{"key": "colour", "value": "red"}]})
    for step, value in ((1, 5.0), (3, float("nan")), (2, 4.0)):
        run.log_metric(
            {"run_id": run.id, "key": "loss", "value": value, "timestamp": 10 + step, "step": step}
        )
    run.set_tag({"key": "colour", "value": "green"})
    run.set_tag({"key": "gone", "value": "soon"})
    run.delete_tag({"key": "gone"})
    assert run.get()["run"]["data"] == {
        "metrics": [{"key": "loss", "value": "NaN", "timestamp": 13, "step": 3}],
        "params": [{"key": "lr", "value": "0.1"}],
        "tags": [{"key": "colour", "value": "green"}],
    }
    steps = [point["step"] for point in run.history("loss")["metrics"]]
    assert steps == [1, 3, 2]
    assert run.history("unknown") == {"metrics": []}


def test_too_many_points_are_mlflow_s_to_remember(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_run, "REMEMBERED", 10)
    for step in range(11):
        run.log_metric({"key": "loss", "value": 1.0, "timestamp": 1, "step": step})
    assert run.history("loss") is None
    assert run.get()["run"]["data"]["metrics"][0]["step"] == 10


def test_ending_and_naming_the_run(run: Any, spool_folder: Path) -> None:
    info = run.update({"status": "FINISHED", "end_time": 99})["run_info"]
    assert (info["status"], info["end_time"]) == ("FINISHED", 99)
    assert spooled(spool_folder) == []
    run.update({"run_name": "better"})
    assert spooled(spool_folder) == [{"k": "tag", "p": {"mlflow.runName": "better"}}]


def test_a_parameter_may_be_repeated_but_not_changed(run: Any, spool_folder: Path) -> None:
    for _ in range(2):
        run.log_param({"key": "lr", "value": "0.1"})
    with pytest.raises(UserError, match="Changing param values is not allowed") as refusal:
        run.log_param({"key": "lr", "value": "0.2"})
    assert refusal.value.code == "INVALID_PARAMETER_VALUE"
    assert spooled(spool_folder) == [{"k": "param", "p": {"lr": "0.1"}}]


@pytest.mark.parametrize(
    "point",
    [
        {"key": "loss"},
        {"key": "loss", "value": "many"},
        {"key": "loss", "value": None},
        {"key": "loss", "value": 1.0, "step": "first"},
        {"key": "what?", "value": 1.0},
        {"key": "x" * 251, "value": 1.0},
        {"key": 7, "value": 1.0},
        {"value": 1.0},
    ],
)
def test_a_batch_with_one_bad_point_is_refused_as_a_whole(run: Any, spool_folder: Path, point: Any) -> None:
    with pytest.raises(UserError) as refusal:
        run.log_batch(
            {"metrics": [{"key": "good", "value": 1.0}, point], "tags": [{"key": "a", "value": "b"}]}
        )
    assert refusal.value.code == "INVALID_PARAMETER_VALUE"
    assert spooled(spool_folder) == []


def test_every_experiment_is_the_job_s(run: Any) -> None:
    named = run.experiment("somebody's")["experiment"]
    assert (named["name"], named["experiment_id"]) == ("somebody's", run.experiment_id)
    assert run.experiment()["experiment"] == named
