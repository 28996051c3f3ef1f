"""The launcher with a real MLflow beside it, whose start alone takes 15 s; one launcher serves all tests here."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from slicelift.models import SnapshotFile, Status, to_dict

from tests.promoting import digest
from tests.waiting import wait_for

WAIT_SECONDS = 90.0


def test_a_run_begun_while_mlflow_starts_is_there_exactly_once_in_the_end(launcher_with_tracker: Any) -> None:
    launcher = launcher_with_tracker
    view = launcher.running(name="tracked", experiment="shelf", tags={"team": "blue"})
    assert (view.mlflow_run_id, view.tracked) == (None, False)
    agent = launcher.agent(view)
    agent.send(agent.metrics(1, 20, loss=0.5))
    launcher.kill()
    launcher.start()
    agent.send(agent.metrics(15, 20, loss=0.25))
    body = _send_model(agent)
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, exit_code=0)
    launcher.until(view.run_id, Status.FINISHED)
    wait_for("the run in MLflow", lambda: launcher.client.job(view.run_id).tracked, seconds=WAIT_SECONDS)
    done = launcher.client.job(view.run_id)
    assert [(model.name, model.version) for model in done.models] == [(body["name"], "1")]
    assert done.models[0].run_id == view.run_id
    database = launcher.home / "mlflow" / "mlflow.db"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as rows:
        assert rows.execute("select run_uuid, status from runs").fetchall() == [
            (done.mlflow_run_id, "FINISHED")
        ]
        points = rows.execute("select step, value from metrics where key = 'loss' order by step").fetchall()
    rows.close()
    assert points == [(step, 0.5 if step <= 20 else 0.25) for step in range(1, 35)]
    assert launcher.rows("select count(*) from batches where exported = 0") == [(0,)]


def test_an_alias_moves_in_the_registry_and_is_written_down(launcher_with_tracker: Any) -> None:
    launcher = launcher_with_tracker
    wait_for("the model", launcher.client.models, seconds=WAIT_SECONDS)
    (model,) = launcher.client.models()
    moved = launcher.client.set_alias(model.name, "champion", model.version)
    assert moved.aliases == ("champion",)
    (change,) = moved.alias_changes
    assert (change.alias, change.before, change.after) == ("champion", None, "1")
    assert change.who == launcher.client.job(model.run_id).owner
    assert launcher.client.models() == [moved]
    query = "select alias, before, after from alias_changes"
    assert launcher.rows(query) == [("champion", None, "1")]


def test_a_retry_opens_the_same_run_again(launcher_with_tracker: Any) -> None:
    launcher = launcher_with_tracker
    first = launcher.running(name="again")
    launcher.steer(f"{first.run_id}-1", Status.FAILED, exit_code=1)
    launcher.until(first.run_id, Status.FAILED)
    wait_for("the run in MLflow", lambda: launcher.client.job(first.run_id).tracked, seconds=WAIT_SECONDS)
    before = launcher.client.job(first.run_id)
    launcher.client.retry(first.run_id)
    launcher.until(first.run_id, Status.RUNNING)
    assert not launcher.client.job(first.run_id).tracked
    launcher.steer(f"{first.run_id}-2", Status.FINISHED, exit_code=0)
    launcher.until(first.run_id, Status.FINISHED)
    wait_for("the run in MLflow", lambda: launcher.client.job(first.run_id).tracked, seconds=WAIT_SECONDS)
    assert launcher.client.job(first.run_id).mlflow_run_id == before.mlflow_run_id


def _send_model(agent: Any) -> dict[str, Any]:
    content = {"MLmodel": b"flavors: {}\nmodel_uuid: 0\n", "data/model.pth": os.urandom(5000)}
    files = [
        to_dict(SnapshotFile(path=path, sha256=digest(data), size_bytes=len(data)))
        for path, data in content.items()
    ]
    body = {"name": "digits", "files": files, "meta": {}}
    for data in content.values():
        agent.http.put(f"{agent.base}/blobs/{digest(data)}", content=data)
    assert agent.post("models", body).json() == {"missing": []}
    return body
