"""Every route that MLflow has: not exposed, or closed to who is not the owner. Through the gate and at MLflow's own port.

Each exposed call is made by bob about ann's things, by id and by name, and then by ann herself: that hers succeeds
proves that his was well formed. A route of a new MLflow that is not in `CALLS` makes the first test fail.
"""

from __future__ import annotations

import json
import re
import secrets
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from slicelift.tracking_account import make_account
from slicelift_hub.launcher.mlflow_exposed import is_exposed

pytestmark = pytest.mark.slow

SECRET = "s" * 32
WORD = "zq7word"
CONTENT = "zq7content"
Call = tuple[str, str, dict[str, Any]]

# by `METHOD rule`, without the api's prefix, which may be api or ajax-api; {x} stands for what ann has. In the order of
# the calls: what deletes comes last.
CALLS: dict[str, dict[str, Any]] = {
    "GET 2.0/mlflow/experiments/get": {"experiment_id": "{experiment}"},
    "GET 2.0/mlflow/experiments/get-by-name": {"experiment_name": "{experiment_name}"},
    "GET 2.0/mlflow/experiments/search": {"max_results": 1000},
    "POST 2.0/mlflow/experiments/search": {"max_results": 1000},
    "POST 2.0/mlflow/experiments/search-datasets": {"experiment_ids": ["{experiment}"]},
    "POST 2.0/mlflow/experiments/create": {"name": "{new}"},
    "POST 2.0/mlflow/experiments/update": {"experiment_id": "{experiment}", "new_name": "{experiment_name}"},
    "POST 2.0/mlflow/experiments/set-experiment-tag": {"experiment_id": "{experiment}", "key": "k", "value": "v"},
    "POST 2.0/mlflow/experiments/delete-experiment-tag": {"experiment_id": "{experiment}", "key": "k"},
    "POST 2.0/mlflow/runs/create": {"experiment_id": "{experiment}", "run_name": "r"},
    "GET 2.0/mlflow/runs/get": {"run_id": "{run}"},
    "POST 2.0/mlflow/runs/search": {"experiment_ids": ["{experiment}"]},
    "POST 2.0/mlflow/runs/update": {"run_id": "{run}", "run_name": "other"},
    "POST 2.0/mlflow/runs/set-tag": {"run_id": "{run}", "key": "k", "value": "v"},
    "POST 2.0/mlflow/runs/delete-tag": {"run_id": "{run}", "key": "k"},
    "POST 2.0/mlflow/runs/log-metric": {"run_id": "{run}", "key": "m", "value": 1, "timestamp": 1, "step": 1},
    "POST 2.0/mlflow/runs/log-parameter": {"run_id": "{run}", "key": "p2", "value": "v"},
    "POST 2.0/mlflow/runs/log-batch": {"run_id": "{run}", "tags": [{"key": "k", "value": "v"}]},
    "POST 2.0/mlflow/runs/log-model": {"run_id": "{run}", "model_json": "{model_json}"},
    "POST 2.0/mlflow/runs/log-inputs": {"run_id": "{run}", "models": [{"model_id": "{logged_model}"}]},
    "POST 2.0/mlflow/runs/outputs": {"run_id": "{run}", "models": [{"model_id": "{logged_model}", "step": 0}]},
    "GET 2.0/mlflow/metrics/get-history": {"run_id": "{run}", "metric_key": "{word}"},
    "GET 2.0/mlflow/metrics/get-history-bulk": {"run_id": ["{run}"], "metric_key": "{word}"},
    "GET 2.0/mlflow/metrics/get-history-bulk-interval": {
        "run_ids": ["{run}"], "metric_key": "{word}", "start_step": 0, "end_step": 9, "max_results": 9,
    },
    "GET 2.0/mlflow/artifacts/list": {"run_id": "{run}"},
    "POST 2.0/mlflow/upload-artifact": {"?run_uuid": "{run}", "?path": "up.txt"},
    "POST 2.0/mlflow/logged-models": {"experiment_id": "{experiment}", "name": "lm"},
    "GET 2.0/mlflow/logged-models/<model_id>": {},
    "PATCH 2.0/mlflow/logged-models/<model_id>": {"model_id": "{logged_model}", "status": "LOGGED_MODEL_READY"},
    "GET 2.0/mlflow/logged-models/<model_id>/artifacts/directories": {},
    "GET 2.0/mlflow/logged-models/<model_id>/artifacts/files": {"artifact_file_path": "MLmodel"},
    "POST 2.0/mlflow/logged-models/<model_id>/params": {
        "model_id": "{logged_model}", "params": [{"key": "a", "value": "b"}],
    },
    "PATCH 2.0/mlflow/logged-models/<model_id>/tags": {"tags": [{"key": "k", "value": "v"}]},
    "DELETE 2.0/mlflow/logged-models/<model_id>/tags/<tag_key>": {},
    "POST 2.0/mlflow/logged-models/search": {"experiment_ids": ["{experiment}"]},
    "POST 2.0/mlflow/registered-models/create": {"name": "{new}"},
    "GET 2.0/mlflow/registered-models/get": {"name": "{model}"},
    "GET 2.0/mlflow/registered-models/search": {"max_results": 100},
    "GET 2.0/mlflow/registered-models/get-latest-versions": {"name": "{model}"},
    "POST 2.0/mlflow/registered-models/get-latest-versions": {"name": "{model}"},
    "PATCH 2.0/mlflow/registered-models/update": {"name": "{model}", "description": "d"},
    "POST 2.0/mlflow/registered-models/set-tag": {"name": "{model}", "key": "k", "value": "v"},
    "DELETE 2.0/mlflow/registered-models/delete-tag": {"name": "{model}", "key": "k"},
    "POST 2.0/mlflow/registered-models/alias": {"name": "{model}", "alias": "b", "version": "1"},
    "GET 2.0/mlflow/registered-models/alias": {"name": "{model}", "alias": "champion"},
    "DELETE 2.0/mlflow/registered-models/alias": {"name": "{model}", "alias": "b"},
    "POST 2.0/mlflow/model-versions/create": {"name": "{model}", "source": "{source}", "run_id": "{run}"},
    "GET 2.0/mlflow/model-versions/get": {"name": "{model}", "version": "1"},
    "GET 2.0/mlflow/model-versions/search": {"filter": "name = '{model}'"},
    "GET 2.0/mlflow/model-versions/get-download-uri": {"name": "{model}", "version": "1"},
    "PATCH 2.0/mlflow/model-versions/update": {"name": "{model}", "version": "1", "description": "d"},
    "POST 2.0/mlflow/model-versions/set-tag": {"name": "{model}", "version": "1", "key": "k", "value": "v"},
    "DELETE 2.0/mlflow/model-versions/delete-tag": {"name": "{model}", "version": "1", "key": "k"},
    "POST 2.0/mlflow/model-versions/transition-stage": {
        "name": "{model}", "version": "1", "stage": "Staging", "archive_existing_versions": False,
    },
    "GET model-versions/get-artifact": {"name": "{model}", "version": "1", "path": "a.txt"},
    "GET get-artifact": {"run_id": "{run}", "path": "a.txt"},
    "GET 2.0/mlflow-artifacts/artifacts": {"path": "{experiment}/{run}/artifacts"},
    "GET 2.0/mlflow-artifacts/artifacts/<path:artifact_path>": {},
    "PUT 2.0/mlflow-artifacts/artifacts/<path:artifact_path>": {},
    "POST 3.0/mlflow/traces": {"trace": {"trace_info": "{trace_info}"}},
    "POST 2.0/mlflow/traces": {
        "experiment_id": "{experiment}", "timestamp_ms": 1, "request_metadata": [], "tags": [],
    },
    "PATCH 2.0/mlflow/traces/<request_id>": {
        "timestamp_ms": 2, "status": "OK", "request_metadata": [], "tags": [],
    },
    "GET 2.0/mlflow/traces": {"experiment_ids": ["{experiment}"]},
    "GET 2.0/mlflow/traces/<request_id>/info": {},
    "GET 3.0/mlflow/traces/<trace_id>": {},
    "GET 3.0/mlflow/traces/get": {"trace_id": "{trace}"},
    "GET 3.0/mlflow/traces/batchGet": {"trace_ids": ["{trace}"]},
    "POST 3.0/mlflow/traces/batchGetInfos": {"trace_ids": ["{trace}"]},
    "POST 3.0/mlflow/traces/search": {
        "locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "{experiment}"}}],
    },
    "GET 2.0/mlflow/get-trace-artifact": {"request_id": "{trace}"},
    "GET 3.0/mlflow/get-trace-artifact": {"request_id": "{trace}"},
    "PATCH 2.0/mlflow/traces/<request_id>/tags": {"key": "k", "value": "v"},
    "PATCH 3.0/mlflow/traces/<trace_id>/tags": {"key": "k3", "value": "v"},
    "DELETE 2.0/mlflow/traces/<request_id>/tags": {"key": "k"},
    "DELETE 3.0/mlflow/traces/<trace_id>/tags": {"key": "k3"},
    "POST 3.0/mlflow/traces/<trace_id>/assessments": {"assessment": "{assessment}"},
    "GET 3.0/mlflow/traces/<trace_id>/assessments/<assessment_id>": {},
    "PATCH 3.0/mlflow/traces/<trace_id>/assessments/<assessment_id>": {
        "assessment": "{assessment}", "update_mask": "feedback",
    },
    "POST 3.0/mlflow/traces/metrics": {
        "experiment_ids": ["{experiment}"], "view_type": "TRACES", "metric_name": "trace_count",
        "aggregations": [{"aggregation_type": "COUNT"}],
    },
    "POST 3.0/mlflow/traces/calculate-filter-correlation": {
        "experiment_ids": ["{experiment}"], "filter_string1": "status = 'OK'", "filter_string2": "status = 'OK'",
    },
    "POST 2.0/mlflow/traces/link-to-run": {"trace_ids": ["{trace}"], "run_id": "{run}"},
    "POST 2.0/mlflow/traces/link-prompts": {
        "trace_id": "{trace}", "prompt_versions": [{"name": "{prompt}", "version": "1"}],
    },
    "POST v1/traces": {},
    "POST 3.0/mlflow/datasets/create": {"name": "{new}", "experiment_ids": ["{experiment}"]},
    "GET 3.0/mlflow/datasets/search": {"experiment_ids": ["{experiment}"]},
    "POST 3.0/mlflow/datasets/search": {"experiment_ids": ["{experiment}"]},
    "GET 3.0/mlflow/datasets/<dataset_id>": {},
    "GET 3.0/mlflow/datasets/<dataset_id>/experiment-ids": {},
    "POST 3.0/mlflow/datasets/<dataset_id>/add-experiments": {"experiment_ids": ["{experiment}"]},
    "POST 3.0/mlflow/datasets/<dataset_id>/records": {"records": "{records}"},
    "GET 3.0/mlflow/datasets/<dataset_id>/records": {},
    "PATCH 3.0/mlflow/datasets/<dataset_id>/tags": {"tags": "{{\"k\": \"v\"}}"},
    "DELETE 3.0/mlflow/datasets/<dataset_id>/tags/<key>": {},
    "POST 3.0/mlflow/datasets/<dataset_id>/remove-experiments": {"experiment_ids": ["{other}"]},
    "POST graphql": {
        "query": "query($run: MlflowGetRunInput!, $runs: MlflowSearchRunsInput!, $one: MlflowGetExperimentInput!)"
        "{mlflowGetRun(input: $run){run{info{runId} data{params{key value}}}}"
        " mlflowSearchRuns(input: $runs){runs{info{runId}}} mlflowGetExperiment(input: $one){experiment{name}}}",
        "variables": {
            "run": {"runId": "{run}"}, "runs": {"experimentIds": ["{experiment}"]},
            "one": {"experimentId": "{experiment}"},
        },
    },
    "GET 2.0/mlflow/users/current": {},
    "GET 3.0/mlflow/server-info": {},
    "GET version": {},
    "GET health": {},
    "GET ": {},
    "GET static-files/<path:path>": {},
    "DELETE 3.0/mlflow/traces/<trace_id>/assessments/<assessment_id>": {},
    "DELETE 3.0/mlflow/datasets/<dataset_id>/records": {"dataset_record_ids": ["none"]},
    "DELETE 3.0/mlflow/datasets/<dataset_id>": {},
    "POST 2.0/mlflow/traces/delete-traces": {"experiment_id": "{experiment}", "request_ids": ["{trace}"]},
    "POST 3.0/mlflow/traces/delete-traces": {"experiment_id": "{experiment}", "request_ids": ["{trace}"]},
    "DELETE 2.0/mlflow-artifacts/artifacts/<path:artifact_path>": {},
    "DELETE 2.0/mlflow/logged-models/<model_id>": {},
    "DELETE 2.0/mlflow/model-versions/delete": {"name": "{model}", "version": "1"},
    "POST 2.0/mlflow/registered-models/rename": {"name": "{model}", "new_name": "{new}2"},
    "DELETE 2.0/mlflow/registered-models/delete": {"name": "{prompt}"},
    "POST 2.0/mlflow/runs/delete": {"run_id": "{run}"},
    "POST 2.0/mlflow/runs/restore": {"run_id": "{run}"},
    "POST 2.0/mlflow/experiments/delete": {"experiment_id": "{experiment}"},
    "POST 2.0/mlflow/experiments/restore": {"experiment_id": "{experiment}"},
}  # fmt: skip
# nothing of anybody's is in these
PUBLIC = ("GET version", "GET health", "GET ", "GET static-files", "GET 3.0/mlflow/server-info")


@dataclass(frozen=True)
class Things:
    """What ann has: ids and names that stand in `CALLS`."""

    values: dict[str, Any]

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, str) and value.strip("{}") in self.values and value.startswith("{"):
            return self.values[value.strip("{}")]
        if isinstance(value, str) and "{" in value and not value.startswith("query"):
            return value.format(**self.values)
        return value

    def path(self, rule: str) -> str:
        of = {"model_id": "logged_model", "tag_key": "k", "request_id": "trace", "trace_id": "trace",
              "assessment_id": "assessment_id", "dataset_id": "dataset", "key": "k"}  # fmt: skip
        file = "{experiment}/{run}/artifacts/a.txt".format(**self.values)
        rule = rule.replace("<path:artifact_path>", file).replace("<path:path>", "none.js")
        return re.sub(r"<(\w+)>", lambda found: str(self.values.get(of[found[1]], of[found[1]])), rule)


@pytest.fixture(scope="module")
def routes() -> list[tuple[str, str]]:
    """(method, rule) of MLflow's own tables, with its auth app in place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.server import app
        from mlflow.server.auth import routes as of_auth
        from mlflow.server.fastapi_app import app as fast

    found = {(method, str(rule.rule)) for rule in app.url_map.iter_rules() for method in rule.methods or ()}
    native: list[tuple[str, Any]] = []
    for part in fast.routes:  # a router keeps its routes to itself; the last part is flask's application
        router = getattr(part, "original_router", None)
        native += [(part.include_context.prefix, route) for route in router.routes] if router else []
    assert len(native) > 30
    found |= {(method, prefix + route.path) for prefix, route in native for method in route.methods}
    # the auth app adds its own when it starts
    added = {value for value in vars(of_auth).values() if isinstance(value, str) and value.startswith("/")}
    known = {rule for _, rule in found}
    found |= {(method, path) for path in added - known for method in _methods(path)}
    plain = {(m, re.sub(r"{(\w+):path}", r"<path:\1>", rule)) for m, rule in found}
    return sorted((m, re.sub(r"{(\w+)}", r"<\1>", rule)) for m, rule in plain if m not in ("HEAD", "OPTIONS"))


def _methods(path: str) -> tuple[str, ...]:
    return ("GET",) if path.endswith("/users/current") else ("GET", "POST", "PATCH", "DELETE")


def short(method: str, rule: str) -> str:
    """A row's key in `CALLS`."""
    rule = re.sub(r"^/(?:ajax-)?(?:api/)?", "", rule)
    return f"{method} {rule}"


def exposed(routes: list[tuple[str, str]], *, pages: bool = True) -> list[tuple[str, str]]:
    filled = [(m, rule, re.sub(r"<[^>]*>", "x", rule).lstrip("/")) for m, rule in routes]
    return [(m, rule) for m, rule, path in filled if is_exposed(m, path, pages=pages)]


def place(route: tuple[str, str]) -> int:
    """Where in the order of `CALLS` a route comes."""
    return list(CALLS).index(short(*route))


def test_every_route_that_is_open_is_walked(routes: list[tuple[str, str]]) -> None:
    missing = {short(*route) for route in exposed(routes)} - set(CALLS)
    assert not missing
    assert len(routes) > 300
    gone = set(CALLS) - {short(*route) for route in exposed(routes)}
    assert not gone


@pytest.mark.parametrize(
    "word",
    ["gateway", "webhooks", "users/list", "users/permissions", "roles", "workspaces", "jobs", "demo", "assistant",
     "prompt-optimization", "scorer", "mcp", "promptlab", "genai", "presigned", "mpu", "signup", "ui-telemetry"],
)  # fmt: skip
def test_what_belongs_to_the_whole_server_is_not_open(routes: list[tuple[str, str]], word: str) -> None:
    matching = {rule for _, rule in routes if word in rule}
    assert matching, word
    assert not matching & {rule for _, rule in exposed(routes)}


@pytest.fixture(params=["gate", "port"])
def way(request: pytest.FixtureRequest, gate: str, guarded: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Ways of ann and bob to the same MLflow, and how names are written there."""
    if request.param == "gate":
        ann = httpx.Client(
            base_url=gate, headers={"Authorization": "Bearer t-ann"}, timeout=60, trust_env=False
        )
        bob = httpx.Client(
            base_url=gate, headers={"Authorization": "Bearer t-bob"}, timeout=60, trust_env=False
        )
    else:  # as if bob had found out his password: MLflow itself holds, too
        login = make_account(SECRET, "ann").login
        ann = httpx.Client(base_url=guarded.url, auth=login, timeout=60, trust_env=False)
        login = make_account(SECRET, "bob").login
        bob = httpx.Client(base_url=guarded.url, auth=login, timeout=60, trust_env=False)
    with ann, bob:
        bob.get("/api/2.0/mlflow/experiments/search", params={"max_results": 1})  # makes bob's account
        yield request.param, ann, bob, guarded


def furnish(ann: httpx.Client, kind: str) -> Things:
    """One of each thing, with `WORD` in its names and `CONTENT` in what it holds."""
    mark = secrets.token_hex(3)
    named = f"{WORD}-{mark}"
    model, experiment = (f"ann!{named}", f"ann/{named}") if kind == "port" else (named, named)
    number = post(ann, "2.0/mlflow/experiments/create", {"name": experiment})["experiment_id"]
    other = post(ann, "2.0/mlflow/experiments/create", {"name": f"{experiment}-2"})["experiment_id"]
    things = {
        "word": WORD,
        "new": f"{model}-new" if kind == "port" else f"new-{mark}",
        "experiment": number,
        "other": other,
        "experiment_name": experiment,
        "model": model,
        "prompt": f"{model}-p",
    }
    things |= furnish_run(ann, number, named)
    furnish_registry(ann, things)
    things |= furnish_trace(ann, number)
    dataset = post(ann, "3.0/mlflow/datasets/create", {"name": named, "experiment_ids": [number]})["dataset"]
    records = json.dumps([{"inputs": {"q": CONTENT}}])
    post(ann, f"3.0/mlflow/datasets/{dataset['dataset_id']}/records", {"records": records})
    return Things({**things, "dataset": dataset["dataset_id"], "records": records})


def furnish_run(ann: httpx.Client, number: str, named: str) -> dict[str, Any]:
    """A run with files, and a logged model."""
    run = post(ann, "2.0/mlflow/runs/create", {"experiment_id": number, "run_name": named})["run"]["info"]
    param = [{"key": "p", "value": CONTENT}]
    metric = [{"key": WORD, "value": 0.1234567, "timestamp": 1, "step": 1}]
    post(ann, "2.0/mlflow/runs/log-batch", {"run_id": run["run_id"], "params": param, "metrics": metric})
    for file in ("a.txt", "MLmodel"):
        put_artifact(ann, f"{number}/{run['run_id']}/artifacts/{file}")
    logged = post(ann, "2.0/mlflow/logged-models", {"experiment_id": number, "name": named})["model"]["info"]
    put_artifact(ann, f"{number}/models/{logged['model_id']}/artifacts/MLmodel")
    made = "2026-01-01 00:00:00"
    model = {"run_id": run["run_id"], "artifact_path": "m", "flavors": {}, "utc_time_created": made}
    return {
        "run": run["run_id"],
        "source": run["artifact_uri"],
        "logged_model": logged["model_id"],
        "model_json": json.dumps(model),
    }


def furnish_registry(ann: httpx.Client, things: dict[str, Any]) -> None:
    """A registered model with a version and an alias, and a prompt."""
    model, prompt = things["model"], things["prompt"]
    post(ann, "2.0/mlflow/registered-models/create", {"name": model, "description": CONTENT})
    version = {"name": model, "source": things["source"], "run_id": things["run"]}
    post(ann, "2.0/mlflow/model-versions/create", version)
    post(ann, "2.0/mlflow/registered-models/alias", {"name": model, "alias": "champion", "version": "1"})
    is_prompt = [{"key": "mlflow.prompt.is_prompt", "value": "true"}]
    post(ann, "2.0/mlflow/registered-models/create", {"name": prompt, "tags": is_prompt})
    text = [*is_prompt, {"key": "mlflow.prompt.text", "value": CONTENT}]
    post(ann, "2.0/mlflow/model-versions/create", {"name": prompt, "source": "prompt-template", "tags": text})


def furnish_trace(ann: httpx.Client, number: str) -> dict[str, Any]:
    """A trace with a span and an assessment."""
    info = make_trace_info(number)
    trace = post(ann, "3.0/mlflow/traces", {"trace": {"trace_info": info}})["trace"]["trace_info"]["trace_id"]
    headers = {"X-Mlflow-Experiment-Id": number, "Content-Type": "application/x-protobuf"}
    sent = ann.post("/v1/traces", content=make_otlp(trace), headers=headers)
    assert sent.status_code == 200, sent.text
    assessment = {
        "assessment_name": "good",
        "source": {"source_type": "HUMAN", "source_id": "a"},
        "feedback": {"value": CONTENT},
        "trace_id": trace,
    }
    made = post(ann, f"3.0/mlflow/traces/{trace}/assessments", {"assessment": assessment})["assessment"]
    return {
        "trace": trace,
        "trace_info": make_trace_info(number),
        "assessment": assessment,
        "assessment_id": made["assessment_id"],
    }


def post(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def make_trace_info(experiment: str) -> dict[str, Any]:
    return {
        "trace_id": f"tr-{secrets.token_hex(16)}",
        "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}},
        "request_time": "2026-01-01T00:00:00Z",
        "state": "OK",
        "request_preview": CONTENT,
        "tags": {WORD: CONTENT},
    }


def put_artifact(http: httpx.Client, path: str, content: bytes = CONTENT.encode()) -> None:
    answer = http.put(f"/api/2.0/mlflow-artifacts/artifacts/{path}", content=content)
    assert answer.status_code == 200, answer.text


def ask(http: httpx.Client, method: str, rule: str, things: Things) -> httpx.Response:
    """The call of `CALLS` for a route."""
    body = things.fill(CALLS[short(method, rule)])
    query = {key.lstrip("?"): value for key, value in body.items() if method == "GET" or key.startswith("?")}
    headers = {"X-Mlflow-Experiment-Id": str(things.values["experiment"])}
    if method == "PUT" or (query and method == "POST"):
        return http.request(method, things.path(rule), params=query, content=b"bob was here")
    if rule.endswith("v1/traces"):
        headers["Content-Type"] = "application/x-protobuf"
        return http.post("/v1/traces", content=make_otlp(), headers=headers)
    return http.request(
        method, things.path(rule), params=query, json=None if method == "GET" else body, headers=headers
    )


def make_otlp(trace: str = "") -> bytes:
    """A span, of the given trace."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id = bytes.fromhex(trace.removeprefix("tr-")) if trace else secrets.token_bytes(16)
    span.span_id, span.name = secrets.token_bytes(8), CONTENT
    span.start_time_unix_nano, span.end_time_unix_nano = 1, 2
    return bytes(request.SerializeToString())


def everything(guarded: Any) -> dict[str, set[tuple[Any, ...]]]:
    """All rows of MLflow's database."""
    names = guarded.rows("select name from sqlite_master where type = 'table'")
    return {name: set(guarded.rows(f'select * from "{name}"')) for (name,) in names}


def test_what_is_anns_is_closed_to_bob_by_every_route(way: Any, routes: list[tuple[str, str]]) -> None:
    kind, ann, bob, guarded = way
    things = furnish(ann, kind)
    files = {p: p.read_bytes() for p in (guarded.supervised.folder / "artifacts").rglob("*") if p.is_file()}
    before = everything(guarded)
    mine = sorted(exposed(routes, pages=kind == "port"), key=place)
    for method, rule in mine:
        answer = ask(bob, method, rule, things)
        where = f"{short(method, rule)}: {answer.status_code} {answer.text[:300]}"
        assert CONTENT not in answer.text, where
        assert answer.status_code < 400 or answer.status_code in (400, 401, 403, 404), where
        if answer.status_code < 300 and not short(method, rule).startswith(PUBLIC):
            assert WORD not in answer.text or "/create" in rule, where
            for name in ("run", "logged_model", "trace", "dataset", "assessment_id"):
                assert things.values[name] not in answer.text, where
    after = everything(guarded)
    for table, rows in before.items():
        assert rows <= after[table], table
    assert {p: p.read_bytes() for p in files} == files


def test_bobs_calls_were_well_formed(way: Any, routes: list[tuple[str, str]]) -> None:
    """The same calls by ann herself succeed: else the test above would prove nothing."""
    kind, ann, _, _ = way
    things = furnish(ann, kind)
    mine = sorted(exposed(routes, pages=kind == "port"), key=place)
    faults = []
    done: set[str] = set()
    for method, rule in mine:
        key = short(method, rule)
        if key in done and (method != "GET"):  # once by api or ajax-api: the second time it is done already
            continue
        done.add(key)
        answer = ask(ann, method, rule, things)
        if answer.status_code >= 300 and not key.startswith("GET static-files"):
            faults.append(f"{key}: {answer.status_code} {answer.text[:200]}")
    assert not faults, "\n".join(faults)
