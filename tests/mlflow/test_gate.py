"""The real mlflow client of two people through the launcher's gate, to a real MLflow that asks who one is."""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift.tracking_account import make_account

pytestmark = pytest.mark.slow

API = "api/2.0/mlflow"
Client = Callable[[str], Any]


@pytest.fixture
def as_user(gate: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    """`mlflow` as the kernel of a user finds it: an address and a token, nothing else. Loading it takes 5-8 s once."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)

    def become(user: str) -> Any:
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", f"t-{user}")
        mlflow.set_tracking_uri(gate)
        mlflow.tracking.fluent._active_experiment_id = None
        return mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield become
        while mlflow.active_run():
            mlflow.end_run()


@pytest.fixture
def bob(gate: str) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=gate, headers={"Authorization": "Bearer t-bob"}, timeout=60, trust_env=False
    ) as http:
        yield http


def test_old_code_without_an_experiment_works(as_user: Client, guarded: Any) -> None:
    mlflow = as_user("bob")
    mlflow.log_metric("loss", 0.5, step=3)
    run = mlflow.active_run().info
    mlflow.end_run()
    assert guarded.rows("select name from experiments where experiment_id = ?", run.experiment_id) == [
        ("bob/Default",)
    ]
    assert mlflow.get_experiment(run.experiment_id).name == "Default"
    assert list(mlflow.search_runs()["metrics.loss"]) == [0.5]


def test_everyday_work_goes_through(as_user: Client) -> None:
    mlflow = as_user("bob")
    mlflow.set_experiment("我的 digits")
    with mlflow.start_run(run_name="一") as run:
        mlflow.log_params({"lr": 0.1})
        for step in range(3):
            mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"nan": float("nan"), "inf": float("inf")})
        mlflow.log_text("你好", "notes/a b.txt")
        mlflow.log_dict({"a": 1}, "conf.json")
        mlflow.set_tag("colour", "green")
    found = mlflow.search_runs(experiment_names=["我的 digits"], filter_string="tags.colour = 'green'")
    assert list(found["run_id"]) == [run.info.run_id]
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/notes/a b.txt") == "你好"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    names = [one.name for one in mlflow.search_experiments(filter_string="name LIKE '%digits'")]
    assert names == ["我的 digits"]


@pytest.mark.filterwarnings("ignore:.*type hints:UserWarning")
def test_models_are_logged_registered_and_loaded(as_user: Client, guarded: Any) -> None:
    mlflow = as_user("bob")
    mlflow.set_experiment("models")

    class Twice(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return [2 * value for value in model_input]

    with mlflow.start_run():
        mlflow.pyfunc.log_model(name="model", python_model=Twice(), registered_model_name="twice")
    assert mlflow.pyfunc.load_model("models:/twice/1").predict([2, 3]) == [4, 6]
    client = mlflow.MlflowClient()
    client.set_registered_model_alias("twice", "champion", "1")
    assert mlflow.pyfunc.load_model("models:/twice@champion").predict([1]) == [2]
    assert [one.version for one in client.search_model_versions("name = 'twice'")] == ["1"]
    assert [one.name for one in client.search_registered_models("name LIKE 'tw%'")] == ["twice"]
    copied = client.copy_model_version("models:/twice/1", "again")
    assert (copied.name, copied.version) == ("again", "1")
    assert guarded.rows("select name from registered_models where name like '%twice'") == [("bob!twice",)]


def test_two_people_use_the_same_names(as_user: Client, guarded: Any) -> None:
    ids = []
    for user in ("ann", "bob", "chen"):
        mlflow = as_user(user)
        ids.append(mlflow.set_experiment("same name").experiment_id)
        client = mlflow.MlflowClient()
        client.create_registered_model("same-model")
        assert [one.name for one in client.search_registered_models("name = 'same-model'")] == ["same-model"]
        assert [one.name for one in mlflow.search_experiments(filter_string="name = 'same name'")] == [
            "same name"
        ]
    assert len(set(ids)) == 3
    rows = guarded.rows("select name from experiments where name like '%same name' order by name")
    assert rows == [("%E9%99%88/same name",), ("ann/same name",), ("bob/same name",)]


def test_nobody_can_take_a_name_of_another(as_user: Client, guarded: Any) -> None:
    mlflow = as_user("bob")
    mlflow.set_experiment("ann/early")
    mlflow.MlflowClient().create_registered_model("ann!early")
    assert as_user("ann").get_experiment_by_name("early") is None
    assert guarded.rows("select name from experiments where name like '%early'") == [("bob/ann/early",)]
    assert as_user("ann").set_experiment("early").name == "early"


def test_traces_go_through(as_user: Client) -> None:
    mlflow = as_user("bob")
    mlflow.set_experiment("traced")

    @mlflow.trace  # type: ignore[untyped-decorator]
    def add(one: int, two: int) -> int:
        return one + two

    assert add(1, 2) == 3
    mlflow.flush_trace_async_logging()
    (trace,) = mlflow.search_traces(return_type="list")
    assert trace.data.spans[0].outputs == 3


def test_large_files_stream_both_ways(bob: httpx.Client) -> None:
    body = {"name": "large"}
    experiment = bob.post(f"/{API}/experiments/create", json=body).json()["experiment_id"]
    place = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/large.bin"
    content = os.urandom(1 << 20) * 40
    assert bob.put(place, content=content).status_code == 200
    answer = bob.get(place)
    assert answer.content == content
    assert answer.headers["Content-Length"] == str(len(content))


def test_an_upload_that_is_cut_off_leaves_no_file(bob: httpx.Client, gate: str) -> None:
    body = {"name": "cut"}
    experiment = bob.post(f"/{API}/experiments/create", json=body).json()["experiment_id"]
    place = f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/cut.bin"

    def cut() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        bob.put(place, content=cut(), headers={"Content-Length": "10000000"})
    assert bob.get(place).status_code in (404, 500)


def test_mlflow_itself_is_closed_to_who_has_no_account(guarded: Any) -> None:
    for path in ("/", "/api/2.0/mlflow/experiments/search?max_results=5", "/graphql", "/get-artifact"):
        assert httpx.get(guarded.url + path, trust_env=False).status_code == 401
    wrong = [
        ("bob", "x" * 64),
        ("ann", make_account("other", "ann").password),
        ("", ""),
        ("slicelift!operator", ""),
    ]
    for login in wrong:
        answer = httpx.get(f"{guarded.url}/{API}/experiments/search", auth=login, trust_env=False)
        assert answer.status_code == 401, login
    for path in ("api/2.0/mlflow-artifacts/artifacts/1/a", "v1/traces"):
        answer = httpx.request("GET" if "art" in path else "POST", f"{guarded.url}/{path}", trust_env=False)
        assert answer.status_code == 401, path


@pytest.mark.parametrize("token", ["", "t-eve", "a-r-none-1"])
def test_the_gate_is_closed_without_a_token(gate: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{gate}/version", headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (401, "not-signed-in")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("experiments/create", {"name": "place 1", "artifact_location": "mlflow-artifacts:/1"}),
        ("experiments/create", {"name": "place 2", "artifact_location": "file:///etc"}),
        ("experiments/create", {"name": "place 3", "artifactLocation": "mlflow-artifacts:/1"}),
        ("model-versions/create", {"name": "m", "source": "http://127.0.0.1:8081/hub/api"}),
        ("model-versions/create", {"name": "m", "source": "s3://somewhere"}),
        ("model-versions/create", {"name": "m", "source": "file:///etc"}),
        ("traces/tr-1/tags", {"key": "mlflow.artifactLocation", "value": "mlflow-artifacts:/1"}),
    ],
)
def test_no_call_sends_mlflow_to_another_place(bob: httpx.Client, path: str, body: dict[str, str]) -> None:
    method = "PATCH" if path.startswith("traces") else "POST"
    answer = bob.request(method, f"/{API}/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "mlflow-place-closed")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(b'{"name": "ann/x"}'), {"Content-Encoding": "gzip"}),
        (b'"{\\"name\\": \\"ann/twice encoded\\"}"', {}),
        (b'[{"name": "ann/x"}]', {}),
        (rb'{"name": "\ud800"}', {}),
        (b'{"name": "ann/x", "tags": ' + b'{"a":' * 100 + b"1" + b"}" * 101, {}),
        (b"name=ann/x", {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    bob: httpx.Client, body: bytes, headers: dict[str, str]
) -> None:
    answer = bob.post(f"/{API}/experiments/create", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-json")


def test_both_spellings_of_a_name_are_ones_own(bob: httpx.Client, guarded: Any) -> None:
    body = {"name": "spelling"}
    experiment = bob.post(f"/{API}/experiments/create", json=body).json()["experiment_id"]
    bob.post(f"/{API}/experiments/update", json={"experiment_id": experiment, "newName": "ann/spelling"})
    bob.post(f"/{API}/registered-models/create", json=body)
    bob.post(f"/{API}/registered-models/rename", json={"name": "spelling", "newName": "ann!spelling"})
    for table in ("experiments", "registered_models"):
        names = {name for (name,) in guarded.rows(f"select name from {table} where name like '%spelling'")}
        assert names
        assert all(name.startswith("bob") for name in names), names


def test_a_call_that_names_two_runs_is_refused(bob: httpx.Client, as_user: Client) -> None:
    """MLflow's auth app looks at `run_id`, and its upload writes to `run_uuid`."""
    mlflow = as_user("ann")
    mlflow.set_experiment("victim")
    with mlflow.start_run() as victim:
        pass
    body = {"name": "confused"}
    experiment = bob.post(f"/{API}/experiments/create", json=body).json()["experiment_id"]
    mine = bob.post(f"/{API}/runs/create", json={"experiment_id": experiment}).json()["run"]["info"]["run_id"]
    query = {"run_id": mine, "run_uuid": victim.info.run_id, "path": "planted.txt"}
    answer = bob.post("/ajax-api/2.0/mlflow/upload-artifact", params=query, content=b"planted")
    assert (answer.status_code, answer.json()["code"]) == (400, "mlflow-call-ambiguous")
    assert not mlflow.artifacts.list_artifacts(run_id=victim.info.run_id)


@pytest.mark.parametrize(
    "path",
    [
        "/api/2.0/mlflow/users/list",
        "/api/2.0/mlflow/experiments/../users/list",
        "/api/2.0/mlflow/traces/%2e%2e/users/list",
        "/api/2.0/mlflow/traces/..%2fusers",
        "//api/2.0/mlflow/experiments/search",
        "/graphql",
        "/",
    ],
)
def test_what_is_not_in_the_list_does_not_exist(gate: str, path: str) -> None:
    import http.client
    from urllib.parse import urlsplit

    place = urlsplit(gate)
    connection = http.client.HTTPConnection(place.netloc, timeout=30)  # sends the path as it is
    connection.request("GET", place.path + path, headers={"Authorization": "Bearer t-bob"})
    assert connection.getresponse().status in (404, 400)
    connection.close()
