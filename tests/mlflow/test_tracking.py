"""Runs, points and ends in a real MLflow: tags as a whole, exactly once, idempotent."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
from slicelift import tracking
from slicelift.errors import Unavailable
from slicelift.models import JobSpec, Snapshot, Status
from slicelift.tracking import Mlflow, RunGone

from tests.mlflow.origin import DATA, MD5, SNAPSHOT, SPEC

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Run:
    promotion_id: str
    run_id: str
    owner: str
    name: str
    attempt: int
    created: float
    spec: JobSpec
    snapshot: Snapshot


def make_run(number: int, **fields: Any) -> Run:
    """A run with everything in it."""
    spec = replace(
        SPEC,
        workers=2,
        parameters={"lr": 0.1, "layers": [3, 4], "name": None},
        data=(DATA,),
        experiment=f"tracking {number}",
        tags={"team": "red", "slicelift.run_id": "forged"},
    )
    run = Run(
        promotion_id=f"p-{number}-{time.time_ns()}",
        run_id=f"r-{number}",
        owner="ann",
        name=SPEC.name,
        attempt=1,
        created=1764469000.5,
        spec=spec,
        snapshot=SNAPSHOT,
    )
    return replace(run, **fields)


def line(q: int, step: int, **metrics: float) -> dict[str, Any]:
    return {"q": q, "t": 1764469000.0 + q, "k": "m", "s": step, "m": metrics}


def test_a_run_has_everything_about_its_origin(server: Any) -> None:
    run = make_run(1)
    mlflow_run = tracking.open_run(server.mlflow, run)
    tags = dict(server.rows("select key, value from tags where run_uuid = ?", mlflow_run))
    assert tags == {
        "team": "red",
        "slicelift.promotion_id": run.promotion_id,
        "slicelift.run_id": "r-1",
        "slicelift.attempt": "1",
        "slicelift.snapshot_id": "5" * 64,
        "slicelift.notebook": "nb/训练.ipynb",
        "slicelift.owner": "ann",
        "slicelift.workers": "2",
        "slicelift.queue": "default",
        "slicelift.preset": "torchrun",
        "slicelift.data_path": "data/数字",
        "slicelift.data_md5": MD5,
        "slicelift.data_size_bytes": "1234",
        "slicelift.data_nfiles": "7",
        "slicelift.data_remote": "store",
        "slicelift.git_commit": "b" * 40,
        "slicelift.git_branch": "main",
        "slicelift.git_dirty": "true",
        "slicelift.snapshot_commit": "c" * 40,
        "mlflow.source.name": "nb/训练.ipynb",
        "mlflow.source.type": "NOTEBOOK",
        "mlflow.source.git.commit": "b" * 40,
        "mlflow.source.git.branch": "main",
        "mlflow.user": "ann",
        "mlflow.runName": "训练 one",
    }
    info = server.rows("select name, status, start_time, user_id from runs where run_uuid = ?", mlflow_run)
    assert info == [("训练 one", "RUNNING", 1764469000500, "ann")]
    params = dict(server.rows("select key, value from params where run_uuid = ?", mlflow_run))
    assert params == {"lr": "0.1", "layers": "[3, 4]", "name": "None"}


def test_the_data_set_is_an_input_of_the_run(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(2))
    tracking.open_run(server.mlflow, make_run(2))
    query = (
        "select d.name, d.digest, d.dataset_source_type, d.dataset_source, d.dataset_profile from datasets d"
        " join inputs i on i.source_id = d.dataset_uuid where i.destination_id = ?"
    )
    ((name, digest, kind, source, profile),) = server.rows(query, mlflow_run)
    assert (name, digest, kind) == ("data/数字", MD5, "dvc")
    assert json.loads(source) == {
        "path": "data/数字",
        "md5": MD5,
        "remote": "store",
        "url": "/srv/dvc store",
    }
    assert json.loads(profile) == {"size_bytes": 1234, "nfiles": 7}


def test_opening_twice_gives_one_run(server: Any) -> None:
    run = make_run(3)
    first = tracking.open_run(server.mlflow, run)
    assert tracking.open_run(server.mlflow, replace(run, attempt=2)) == first
    assert server.runs_of(run.promotion_id) == [first]
    tag = "select value from tags where run_uuid = ? and key = 'slicelift.attempt'"
    assert server.rows(tag, first) == [("2",)]


def test_a_missing_experiment_is_made_once_by_many(server: Any) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(tracking.experiment_id(server.mlflow, "made by many")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_deleted_experiment_is_restored(server: Any) -> None:
    made = tracking.experiment_id(server.mlflow, "binned")
    server.mlflow.post("experiments/delete", {"experiment_id": made})
    assert tracking.experiment_id(server.mlflow, "binned") == made
    assert server.rows("select lifecycle_stage from experiments where experiment_id = ?", int(made)) == [
        ("active",)
    ]


def test_points_are_written_once_however_often_sent(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(4))
    points = tracking.points_of([line(q, q, loss=1 / q, acc=q) for q in range(1, 1201)], rank=0)
    assert len(points) == 2400
    for _ in range(2):
        assert tracking.log_points(server.mlflow, mlflow_run, points) == []
    assert tracking.log_points(server.mlflow, mlflow_run, points[:500] + points[1900:]) == []
    count = "select key, count(*), sum(step) from metrics where run_uuid = ? group by key order by key"
    assert server.rows(count, mlflow_run) == [("acc", 1200, 720600), ("loss", 1200, 720600)]


def test_nan_and_infinity_as_mlflow_can_hold_them(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(5))
    lines = [line(1, 1, a=math.nan, b=math.inf, c=-math.inf)]
    assert tracking.log_points(server.mlflow, mlflow_run, tracking.points_of(lines, rank=0)) == []
    found = server.rows("select key, is_nan, value from metrics where run_uuid = ? order by key", mlflow_run)
    assert [(key, nan) for key, nan, _ in found] == [("a", 1), ("b", 0), ("c", 0)]
    assert found[1][2] > 1.79e308
    assert found[2][2] < -1.79e308


def test_ranks_above_zero_have_keys_of_their_own() -> None:
    (point,) = tracking.points_of([line(2, 7, loss=0.5)], rank=3)
    assert point == {"key": "rank/3/loss", "value": 0.5, "timestamp": 1764469002000, "step": 7}


def test_only_the_points_at_fault_are_left_out(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(6))
    points = tracking.points_of([line(q, q, loss=q) for q in range(1, 101)], rank=0)
    bad = [points[40] | {"key": "what is this?"}, points[70] | {"key": "x" * 251}]
    refused = tracking.log_points(server.mlflow, mlflow_run, [*points[:50], *bad, *points[50:]])
    assert sorted(refused, key=lambda point: point["step"]) == bad
    assert server.rows("select count(*) from metrics where run_uuid = ?", mlflow_run) == [(100,)]


def test_a_parameter_that_changed_is_kept_beside_the_first(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(7))
    tracking.log_params(server.mlflow, mlflow_run, {"lr": "0.2", "depth": "3"})
    params = dict(server.rows("select key, value from params where run_uuid = ?", mlflow_run))
    assert (params["lr"], params["depth"]) == ("0.1", "3")
    tag = "select value from tags where run_uuid = ? and key = 'param/lr'"
    assert server.rows(tag, mlflow_run) == [("0.2",)]


@pytest.mark.parametrize("status", [Status.FINISHED, Status.FAILED, Status.KILLED])
def test_an_end_is_told_with_its_reason_and_ends_child_runs(server: Any, status: Status) -> None:
    run = make_run(8)
    mlflow_run = tracking.open_run(server.mlflow, run)
    experiment = tracking.experiment_id(server.mlflow, "tracking 8")
    child = server.mlflow.create(
        "runs/create",
        {"experiment_id": experiment, "tags": [{"key": "mlflow.parentRunId", "value": mlflow_run}]},
    )
    for _ in range(2):
        tracking.close_run(server.mlflow, mlflow_run, status=status, reason="why not", ended=1764469099.25)
    query = "select status, end_time from runs where run_uuid = ?"
    assert server.rows(query, mlflow_run) == [(status.value, 1764469099250)]
    assert server.rows(query, child["run"]["info"]["run_id"]) == [(status.value, 1764469099250)]
    tag = "select value from tags where run_uuid = ? and key = 'slicelift.reason'"
    assert server.rows(tag, mlflow_run) == [("why not",)]


def test_a_retried_run_is_running_again(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(9))
    tracking.close_run(server.mlflow, mlflow_run, status=Status.FAILED, reason="oom", ended=1764469099.0)
    tracking.reopen_run(server.mlflow, mlflow_run, attempt=2)
    assert server.rows("select status from runs where run_uuid = ?", mlflow_run) == [("RUNNING",)]
    tags = dict(server.rows("select key, value from tags where run_uuid = ?", mlflow_run))
    assert (tags["slicelift.attempt"], tags["slicelift.reason"]) == ("2", "")


def test_a_deleted_run_is_told_apart_from_other_refusals(server: Any) -> None:
    run = make_run(10)
    mlflow_run = tracking.open_run(server.mlflow, run)
    server.mlflow.post("runs/delete", {"run_id": mlflow_run})
    points = tracking.points_of([line(1, 1, loss=1.0)], rank=0)
    for gone in (mlflow_run, "0" * 32):
        with pytest.raises(RunGone):
            tracking.log_points(server.mlflow, gone, points)
        with pytest.raises(RunGone):
            tracking.close_run(server.mlflow, gone, status=Status.FAILED, reason="", ended=1.0)
        with pytest.raises(RunGone):
            tracking.set_tags(server.mlflow, gone, {"a": "b"})
    again = tracking.open_run(server.mlflow, run)
    assert again != mlflow_run
    assert server.mlflow.get("runs/get", run_id=again)["run"]["info"]["lifecycle_stage"] == "active"


def test_a_metric_of_an_unknown_model_is_no_lost_run(server: Any) -> None:
    mlflow_run = tracking.open_run(server.mlflow, make_run(11))
    lines = [line(1, 1, loss=1.0) | {"mlflow": {"model_id": "m-" + "0" * 32}}, line(2, 2, loss=2.0)]
    tracking.log_points(server.mlflow, mlflow_run, tracking.points_of(lines, rank=0))
    steps = server.rows("select step from metrics where run_uuid = ? order by step", mlflow_run)
    assert steps in ([(1,), (2,)], [(2,)])


def test_a_server_that_is_away_says_so_at_once() -> None:
    began = time.monotonic()
    mlflow = Mlflow("http://127.0.0.1:9")
    with pytest.raises(Unavailable) as away:
        mlflow.get("experiments/get", experiment_id="0")
    mlflow.close()
    assert away.value.code == "tracker-away"
    assert time.monotonic() - began < 4
