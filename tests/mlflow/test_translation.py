"""What a job says and what MLflow is asked, as whole values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slicelift.errors import Denied, UserError
from slicelift_hub.launcher.mlflow_translation import Call, Ids, inward, named_runs, outward

LOCAL, REAL, OTHER = "a" * 32, "b" * 32, "c" * 32
IDS = Ids(local_run=LOCAL, run=REAL, local_experiment="9" * 18, experiment="4")


def call(method: str, path: str, query: str = "", body: Any = None, **headers: str) -> Call:
    data = None if body is None else json.dumps(body).encode()
    return inward(method, path, query, headers=headers, body=data, ids=IDS)


def _nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_ids_of_a_body_become_mlflow_s() -> None:
    body = {
        "run_id": LOCAL,
        "experiment_id": "0",
        "experiment_ids": ["1", "2"],
        "source": f"mlflow-artifacts:/{'9' * 18}/{LOCAL}/artifacts/net",
        "tags": [
            {"key": "history", "value": f'["{LOCAL}"]'},
            {"key": "slicelift.promotion_id", "value": "forged"},
        ],
        "other": [OTHER, 7, None, 0.5, True],
    }
    assert call("POST", "api/2.0/mlflow/runs/search", body=body).json == {
        "run_id": REAL,
        "experiment_id": "4",
        "experiment_ids": ["4"],
        "source": f"mlflow-artifacts:/4/{REAL}/artifacts/net",
        "tags": [{"key": "history", "value": f'["{REAL}"]'}],
        "other": [OTHER, 7, None, 0.5, True],
    }


def test_both_spellings_of_a_field_are_the_jobs_own() -> None:
    found = call("POST", "api/2.0/mlflow/runs/search", body={"experimentIds": ["1", "2"], "runIds": [OTHER]})
    assert found.json == {"experimentIds": ["4"], "runIds": [OTHER]}
    assert named_runs(found) == {OTHER}


def test_ids_of_path_query_and_headers_become_mlflow_s() -> None:
    path = f"api/2.0/mlflow-artifacts/artifacts/{'9' * 18}/{LOCAL}/artifacts/%E6%95%B0%20%23.txt"
    put = call("PUT", path)
    assert put.url == f"/api/2.0/mlflow-artifacts/artifacts/4/{REAL}/artifacts/%E6%95%B0%20%23.txt"
    get = call("GET", "api/2.0/mlflow/runs/get", f"run_id={LOCAL}&experiment_id=12&empty=")
    assert get.url == f"/api/2.0/mlflow/runs/get?run_id={REAL}&experiment_id=4&empty="
    traces = inward(
        "POST", "v1/traces", "", headers={"X-Mlflow-Experiment-Id": "0"}, body=b"\x00\xff", ids=IDS
    )
    assert (traces.headers, traces.json) == ({"X-Mlflow-Experiment-Id": "4"}, None)


def test_answers_name_what_the_job_knows() -> None:
    answer = {
        "run": {
            "info": {
                "run_id": REAL,
                "experiment_id": "4",
                "artifact_uri": f"mlflow-artifacts:/4/{REAL}/artifacts",
            }
        },
        "others": [{"run_id": OTHER, "experiment_id": "5"}],
        "step": 4,
    }
    assert outward(answer, IDS) == {
        "run": {
            "info": {
                "run_id": LOCAL,
                "experiment_id": "9" * 18,
                "artifact_uri": f"mlflow-artifacts:/4/{LOCAL}/artifacts",
            }
        },
        "others": [{"run_id": OTHER, "experiment_id": "5"}],
        "step": 4,
    }


@pytest.mark.parametrize("body", [b"name=x", b"[1]", _nested(101), _nested(600), _nested(100_000)])
def test_a_job_s_call_that_cannot_be_read_is_not_passed_on(body: bytes) -> None:
    with pytest.raises(UserError) as refusal:
        inward("POST", "api/2.0/mlflow/runs/search", "", headers={}, body=body, ids=IDS)
    assert refusal.value.code == "bad-json"


def test_what_is_nested_as_deeply_as_is_allowed_is_passed_on() -> None:
    body = _nested(100)
    found = inward("POST", "api/2.0/mlflow/runs/search", "", headers={}, body=body, ids=IDS)
    assert found.json == json.loads(body)


def test_all_runs_that_a_call_names() -> None:
    body = {"run_id": OTHER, "deep": [{"source_run_id": LOCAL}], "run_ids": ["1", "2"], "text": "3" * 32}
    assert named_runs(call("POST", "api/2.0/mlflow/runs/log-model", body=body)) == {OTHER, REAL, "1", "2"}
    assert named_runs(call("GET", "api/2.0/mlflow/runs/get", f"run_uuid={OTHER}")) == {OTHER}
    artifact = f"api/2.0/mlflow-artifacts/artifacts/4/{OTHER}/artifacts/x"
    assert named_runs(call("GET", artifact)) == {OTHER}
    assert named_runs(call("GET", "api/2.0/mlflow-artifacts/artifacts/4/models/m-1/artifacts/x")) == set()


@pytest.mark.parametrize(
    ("method", "path", "query", "body"),
    [
        ("GET", "", "", None),
        ("GET", "graphql", "", None),
        ("POST", "graphql", "", {}),
        ("GET", "api/2.0/preview/x", "", None),
        ("POST", "api/2.0/mlflow/experiments/delete", "", {"experiment_id": "1"}),
        ("POST", "api/2.0/mlflow/experiments/create", "", {"name": "x"}),
        ("POST", "api/2.0/mlflow/runs/update", "", {"run_id": LOCAL, "status": "FINISHED"}),
        ("POST", "api/2.0/mlflow/runs/delete", "", {"run_id": LOCAL}),
        ("POST", "api/2.0/mlflow/runs/update", "", {"runId": LOCAL, "status": "FINISHED"}),
        ("POST", "api/2.0/mlflow/model-versions/set-tag", "", {"key": "slicelift.run_id", "value": "x"}),
        ("GET", "api/2.0/mlflow-artifacts/artifacts", "", None),
        ("GET", "api/2.0/mlflow-artifacts/artifacts", "path=5/x", None),
        ("GET", "api/2.0/mlflow-artifacts/artifacts", "path=4/../5", None),
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/5/x", "", None),
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/4/..%2F5/x", "", None),
    ],
)
def test_what_is_closed_to_jobs(method: str, path: str, query: str, body: Any) -> None:
    with pytest.raises(Denied) as refusal:
        call(method, path, query, body)
    assert refusal.value.code == "mlflow-call-closed"
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("method", "path", "changes"),
    [
        ("GET", "api/2.0/mlflow/runs/get", False),
        ("POST", "api/2.0/mlflow/runs/search", False),
        ("POST", "api/2.0/mlflow/logged-models/search", False),
        ("POST", "api/2.0/mlflow/runs/log-batch", True),
        ("PATCH", "api/2.0/mlflow/logged-models/m-1", True),
        ("PUT", f"api/2.0/mlflow-artifacts/artifacts/4/{LOCAL}/artifacts/x", True),
    ],
)
def test_what_changes_something(method: str, path: str, changes: bool) -> None:
    assert call(method, path).changes is changes
