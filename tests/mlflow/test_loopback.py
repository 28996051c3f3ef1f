"""The real mlflow client against the loopback, the launcher's route and a real MLflow server."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from slicelift.models import Status
from slicelift.runtime.mlflow_ids import local_run_id

from tests.waiting import wait_for

pytestmark = pytest.mark.slow

POINTS = "select key, step, value from metrics where run_uuid = ? and is_nan = 0 order by key, step"


@pytest.fixture
def opened(job: Any, house: Any, client: ModuleType) -> str:
    """The id of the job's run in MLflow, which knows it already."""
    house.settle()
    found: str = house.tracked(job.run_id).mlflow_run_id
    return found


def test_old_code_runs_unchanged_in_one_run(
    job: Any, house: Any, server: Any, client: Any, opened: str
) -> None:
    client.set_experiment("my old experiment")
    with client.start_run(run_name="first") as first:
        client.log_param("depth", 3)
        client.log_params({"width": 4, "kind": "mlp"})
        for step in range(5):
            client.log_metric("loss", 1 / (step + 1), step=step)
        client.log_metrics({"nan": float("nan"), "acc": 0.5}, step=4)
        client.set_tag("colour", "green")
        client.log_text("hello", "notes/你好.txt")
        (job.folder / "empty.txt").touch()
        client.log_artifact(str(job.folder / "empty.txt"))
    with client.start_run(run_name="second") as second:
        client.log_metric("late", 2.0)
    with client.start_run(run_id=first.info.run_id):
        client.log_metric("loss", 0.125, step=7)
    read = client.get_run(first.info.run_id)
    assert read.data.metrics["loss"] == 0.125
    assert read.data.params == {"depth": "3", "width": "4", "kind": "mlp"}
    assert read.info.experiment_id == client.get_experiment_by_name("another").experiment_id
    history = client.MlflowClient().get_metric_history(first.info.run_id, "loss")
    assert [point.step for point in history] == [0, 1, 2, 3, 4, 7]
    assert {item.path for item in client.MlflowClient().list_artifacts(first.info.run_id)} == {
        "empty.txt",
        "notes",
    }
    assert client.artifacts.load_text(f"runs:/{first.info.run_id}/notes/你好.txt") == "hello"
    job.pump()
    house.end(job.run_id, Status.FINISHED)
    house.settle()
    found = client.search_runs(search_all_experiments=True, output_format="list")
    assert {run.info.run_id for run in found} == {first.info.run_id, second.info.run_id}
    run = house.tracked(job.run_id)
    assert server.runs_of(run.promotion_id) == [opened]
    expected = [("acc", 4, 0.5), *(("loss", step, 1 / (step + 1)) for step in (0, 1, 2, 3, 4, 7))]
    assert server.rows(POINTS, opened) == expected
    tags = dict(server.rows("select key, value from tags where run_uuid = ?", opened))
    assert (tags["colour"], tags["mlflow.source.name"], tags["mlflow.user"]) == (
        "green",
        "nb/训练.ipynb",
        "ann",
    )
    child = "select run_uuid from tags where key = 'mlflow.parentRunId' and value = ?"
    assert server.rows(child, opened) == [(second.info.run_id,)]
    assert server.rows(POINTS, second.info.run_id) == [("late", 0, 2.0)]
    names = server.rows("select name from experiments where name in ('my old experiment', 'another')")
    assert names == []


def test_the_end_of_the_run_is_the_launcher_s_to_tell(
    job: Any, house: Any, server: Any, client: Any, opened: str
) -> None:
    client.start_run()
    client.end_run("FAILED")
    job.pump()
    house.settle()
    state = "select status from runs where run_uuid = ?"
    assert server.rows(state, opened) == [("RUNNING",)]
    house.end(job.run_id, Status.FINISHED)
    house.settle()
    assert server.rows(state, opened) == [("FINISHED",)]


def test_an_outage_stops_no_metric_and_a_child_run_waits(
    job: Any, house: Any, server: Any, client: Any
) -> None:
    """About 10 s: MLflow stands still from before the job's run is known."""
    os.kill(server.supervised.pid, signal.SIGSTOP)
    children: list[Any] = []
    try:
        wait_for("MLflow to be down", lambda: server.supervised.state.status == "down")
        began = time.monotonic()
        client.set_experiment("in the dark")
        with client.start_run():
            for step in range(20):
                client.log_metric("loss", float(step), step=step)
            client.log_param("depth", 3)
            client.set_tag("colour", "green")
        assert time.monotonic() - began < 3
        job.pump()
        start = threading.Thread(target=lambda: children.append(client.MlflowClient().create_run("0")))
        start.start()
        time.sleep(2)
        assert children == []
    finally:
        os.kill(server.supervised.pid, signal.SIGCONT)
    wait_for("MLflow to be up", lambda: server.supervised.state.status == "up")
    house.settle()
    start.join(30)
    run = house.tracked(job.run_id)
    assert server.runs_of(run.promotion_id) == [run.mlflow_run_id]
    assert server.rows(POINTS, run.mlflow_run_id) == [("loss", step, float(step)) for step in range(20)]
    child = "select run_uuid from tags where key = 'mlflow.parentRunId' and value = ?"
    assert server.rows(child, run.mlflow_run_id) == [(children[0].info.run_id,)]


def test_a_model_registered_by_the_job_is_one_version_with_our_tags(
    job: Any, house: Any, server: Any, client: Any, opened: str
) -> None:
    """About 10 s: torch and mlflow's flavour are loaded."""
    import mlflow.pytorch
    import torch

    model = torch.nn.Linear(2, 1)
    with client.start_run():
        mlflow.pytorch.log_model(
            model,
            name="net",
            registered_model_name="from the job",
            pip_requirements=["torch"],
            serialization_format="pickle",
        )
    job.pump()
    house.end(job.run_id, Status.FINISHED)
    for _ in range(2):
        house.settle()
    found = server.rows("select version, run_id from model_versions where name = 'from the job'")
    assert found == [(1, opened)]
    tags = dict(server.rows("select key, value from model_version_tags where name = 'from the job'"))
    run = house.tracked(job.run_id)
    assert tags["slicelift.run_id"] == run.run_id
    assert tags["slicelift.promotion_id"] == run.promotion_id
    assert tags["slicelift.git_commit"] == "b" * 40
    assert tags["slicelift.weights_file"] == "data/model.pth"
    assert len(tags["slicelift.weights_sha256"]) == 64
    (view,) = house.ledger.models_of("ann")
    assert (view.name, view.version, view.tags) == ("from the job", "1", tags)
    artifacts = server.supervised.folder / "artifacts"
    (card,) = [path for path in artifacts.rglob("MLmodel") if opened in path.read_text()]
    assert local_run_id(job.run_id) not in card.read_text()
    client.set_tracking_uri(server.url)
    loaded = mlflow.pytorch.load_model("models:/from the job/1")
    assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_autolog_of_sklearn(job: Any, house: Any, server: Any, client: Any, opened: str) -> None:
    """About 10 s: scikit-learn is loaded."""
    from sklearn.linear_model import LogisticRegression

    client.autolog(silent=True, log_models=False)
    LogisticRegression(max_iter=7).fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    job.pump()
    house.settle()
    params = dict(server.rows("select key, value from params where run_uuid = ?", opened))
    assert params["max_iter"] == "7"
    keys = {row[0] for row in server.rows("select key from metrics where run_uuid = ?", opened)}
    assert "training_accuracy_score" in keys


def test_a_job_is_kept_to_its_own(job: Any, house: Any, server: Any, client: Any, opened: str) -> None:
    from mlflow.exceptions import MlflowException
    from requests import HTTPError

    other = house.submit()
    house.settle()
    foreign = house.tracked(other.run_id).mlflow_run_id
    mine = client.MlflowClient()
    mine.create_registered_model("any")
    with client.start_run() as run:
        pass
    refused: list[Callable[[], Any]] = [
        lambda: mine.log_metric(foreign, "loss", 1.0),
        lambda: mine.get_run(foreign),
        lambda: mine.delete_run(foreign),
        lambda: mine.set_terminated(foreign),
        lambda: mine.delete_experiment("0"),
        lambda: client.artifacts.load_text(f"mlflow-artifacts:/1/{foreign}/artifacts/x.txt"),
        lambda: mine.set_model_version_tag("any", "1", "slicelift.run_id", "forged"),
    ]
    for call in refused:
        with pytest.raises(
            (MlflowException, HTTPError),
            match=r"slicelift|not of this job|another experiment|not open to jobs",
        ):
            call()
    mine.delete_run(run.info.run_id)
    assert server.rows("select lifecycle_stage, status from runs where run_uuid = ?", opened) == [
        ("active", "RUNNING")
    ]


def test_only_who_knows_the_address_may_call(job: Any) -> None:
    url = job.loopback.url.rsplit("/", 1)[0]
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{url}/api/2.0/mlflow/runs/get?run_id=1", timeout=5)
    assert refusal.value.code == 403
    refusal.value.close()
