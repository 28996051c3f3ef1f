"""The exporter and a job's own code where MLflow asks who one is: each run under the account of its owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift import registry, tracking
from slicelift.models import Status
from slicelift.tracking import Mlflow, RunGone
from slicelift.tracking_account import make_account
from slicelift_hub.launcher.mlflow_server import MlflowServer

pytestmark = pytest.mark.slow

SECRET = "s" * 32


@pytest.fixture
def server(guarded: Any) -> Any:
    """In place of the folder's: the one that asks who one is."""
    return guarded


@pytest.fixture
def bob(guarded: Any) -> Iterator[Mlflow]:
    made = Mlflow(guarded.url, make_account(SECRET, "bob"))
    yield made
    made.close()


def test_a_run_is_its_owners_alone(house: Any, server: Any, bob: Mlflow) -> None:
    run = house.submit(experiment="digits 数")
    house.append(run.run_id, [{"q": 1, "t": 1.0, "k": "m", "s": 1, "m": {"loss": 0.5}}])
    house.settle()
    mlflow_run = house.tracked(run.run_id).mlflow_run_id
    info = server.mlflow.get("runs/get", run_id=mlflow_run)["run"]
    assert info["data"]["metrics"][0]["value"] == 0.5
    names = server.rows("select name from experiments where experiment_id = ?", info["info"]["experiment_id"])
    assert names == [("ann/digits 数",)]
    with pytest.raises(RunGone):
        tracking.artifact_uri(bob, mlflow_run)
    with pytest.raises(RunGone):
        tracking.set_tags(bob, mlflow_run, {"k": "v"})
    house.end(run.run_id, Status.FINISHED)
    house.settle()
    assert server.mlflow.get("runs/get", run_id=mlflow_run)["run"]["info"]["status"] == "FINISHED"


def test_a_run_that_was_deleted_is_made_again(house: Any, server: Any) -> None:
    run = house.submit()
    house.settle()
    first = house.tracked(run.run_id).mlflow_run_id
    server.mlflow.post("runs/delete", {"run_id": first})
    house.append(run.run_id, [{"q": 1, "t": 1.0, "k": "m", "s": 1, "m": {"loss": 0.5}}])
    house.settle()
    house.settle()
    assert house.tracked(run.run_id).mlflow_run_id != first


def test_versions_have_the_owners_own_word(house: Any, server: Any, bob: Mlflow, tmp_path: Path) -> None:
    run = house.submit()
    house.settle()
    model = tmp_path / "MLmodel"
    model.write_text("flavors: {}\n")
    file = registry.ModelFile(path="MLmodel", blob=model, sha256="0" * 64)
    asked = registry.VersionRequest(
        name="shared name",
        run_id=run.run_id,
        mlflow_run_id=house.tracked(run.run_id).mlflow_run_id,
        files=(file,),
    )
    view = registry.register(server.mlflow, asked)
    assert (view.name, view.version) == ("shared name", "1")
    assert registry.register(server.mlflow, asked) == view
    assert registry.set_alias(server.mlflow, "shared name", "champion", "1").aliases == ("champion",)
    assert [item.name for item in registry.list_versions(server.mlflow, "shared name")] == ["shared name"]
    assert registry.list_versions(bob, "shared name") == ()
    assert "shared name" not in {item.name for item in registry.list_versions(bob)}


@pytest.mark.filterwarnings("ignore:.*type hints:UserWarning")
def test_a_job_registers_under_its_owner(job: Any, house: Any, server: Any, client: Any) -> None:
    house.settle()

    class Same(client.pyfunc.PythonModel):  # type: ignore[misc]
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return model_input

    client.set_experiment("whatever")
    with client.start_run():
        client.log_metric("loss", 0.25, step=1)
        client.pyfunc.log_model(name="model", python_model=Same(), registered_model_name="from a job")
    job.pump()
    house.end(job.run_id, Status.FINISHED)
    house.settle()
    rows = server.rows("select name from registered_models where name like '%from a job'")
    assert rows == [("ann!from a job",)]
    tags = house.ledger.models_of("ann")
    assert [(view.name, view.version) for view in tags] == [("from a job", "1")]


def test_rights_lost_in_a_crash_come_back(tmp_path: Path) -> None:
    """A kill between MLflow's making of an experiment and its grant, or the loss of auth.db."""
    first = MlflowServer(tmp_path, secret=SECRET)
    first.start()
    assert first.wait_up(240), first.state
    login = make_account(SECRET, "ann").login
    made = httpx.post(
        f"{first.url}/api/2.0/mlflow/experiments/create", json={"name": "ann/x"}, auth=login, trust_env=False
    )
    assert made.status_code == 200
    first.stop()
    (first.folder / "auth.db").unlink()
    second = MlflowServer(tmp_path, secret=SECRET)
    second.start()
    try:
        assert second.wait_up(240), second.state
        place = f"{second.url}/api/2.0/mlflow/experiments/get-by-name"
        answers = [
            httpx.get(
                place,
                params={"experiment_name": "ann/x"},
                auth=make_account(SECRET, user).login,
                trust_env=False,
                timeout=30,
            ).status_code
            for user in ("ann", "bob")
        ]
    finally:
        second.stop()
    assert answers == [200, 403]


def test_the_exporter_uses_each_owners_account(make_house: Callable[[], Any]) -> None:
    house = make_house()
    ann, bob = (house.exporter._mlflow(owner).account.name for owner in ("ann", "bob"))
    assert (ann, bob) == ("ann", "bob")
