"""Traces of two people: what MLflow's own auth app leaves open to whoever knows an id, or sends a call of two meanings."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from slicelift_hub.launcher.mlflow_exposed import find_ambiguity, is_exposed

pytestmark = pytest.mark.slow

API = "/api/3.0/mlflow"
PLACES = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation")
Info = dict[str, Any]


@dataclass
class Person:
    """Somebody's way through the gate, and an experiment of theirs."""

    http: httpx.Client
    experiment: str

    def send_trace(self, trace: str = "", **fields: Any) -> httpx.Response:
        """Make a trace in one's experiment, or tell more of it."""
        info: Info = {
            "trace_id": trace or f"tr-{secrets.token_hex(16)}",
            "trace_location": {
                "type": "MLFLOW_EXPERIMENT",
                "mlflow_experiment": {"experiment_id": self.experiment},
            },
            "request_time": "2026-01-01T00:00:00Z",
            "state": "OK",
            **fields,
        }
        return self.http.post(f"{API}/traces", json={"trace": {"trace_info": info}})

    def send_span(self, trace: str, name: str, **attributes: str) -> httpx.Response:
        """A root span of a trace, as OTLP has it."""
        headers = {"X-Mlflow-Experiment-Id": self.experiment, "Content-Type": "application/x-protobuf"}
        return self.http.post("/v1/traces", content=make_otlp(trace, name, attributes), headers=headers)

    def trace(self, **fields: Any) -> str:
        """The id of a new trace."""
        made = self.send_trace(**fields)
        assert made.status_code == 200, made.text
        return str(made.json()["trace"]["trace_info"]["trace_id"])


def make_otlp(trace: str, name: str, attributes: dict[str, str]) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = (
        bytes.fromhex(trace.removeprefix("tr-")),
        secrets.token_bytes(8),
        name,
    )
    span.start_time_unix_nano, span.end_time_unix_nano = 1, 2
    for key, value in attributes.items():
        attribute = span.attributes.add()
        attribute.key, attribute.value.string_value = key, value
    return bytes(request.SerializeToString())


def make_assessment(trace: str, **fields: str) -> Info:
    source = {"source_type": "HUMAN", "source_id": "a"}
    return {
        "assessment_name": "good",
        "source": source,
        "feedback": {"value": "yes"},
        "trace_id": trace,
        **fields,
    }


def make_person(gate: str, name: str) -> Person:
    http = httpx.Client(
        base_url=gate, headers={"Authorization": f"Bearer t-{name}"}, timeout=60, trust_env=False
    )
    made = http.post("/api/2.0/mlflow/experiments/create", json={"name": f"traces {secrets.token_hex(4)}"})
    return Person(http, made.json()["experiment_id"])


@pytest.fixture
def people(gate: str) -> Iterator[tuple[Person, Person]]:
    """Ann and bob."""
    ann, bob = make_person(gate, "ann"), make_person(gate, "bob")
    yield ann, bob
    ann.http.close()
    bob.http.close()


def test_a_trace_stays_where_it_was_made(people: tuple[Person, Person], guarded: Any) -> None:
    ann, bob = people
    trace = ann.trace(request_preview="ann's own")
    place = "select experiment_id, request_preview from trace_info where request_id = ?"
    before = guarded.rows(place, trace)
    moved = bob.send_trace(trace, tags={"mine": "now"})
    assert moved.status_code == 403, moved.text
    assert bob.http.get(f"{API}/traces/{trace}").status_code == 403
    assert guarded.rows(place, trace) == before
    # more of her own she may tell
    assert ann.send_trace(trace, tags={"k": "v"}).status_code == 200
    assert guarded.rows("select value from trace_tags where request_id = ? and key = 'k'", trace) == [("v",)]


def test_nobody_writes_into_the_trace_of_another(people: tuple[Person, Person], guarded: Any) -> None:
    ann, bob = people
    trace = ann.trace()
    assert ann.send_span(trace, "hers").status_code == 200
    assert bob.send_span(trace, "his").status_code == 403
    assert guarded.rows("select name from spans where trace_id = ?", trace) == [("hers",)]


def test_an_assessment_stays_with_its_trace(people: tuple[Person, Person], guarded: Any) -> None:
    ann, bob = people
    hers, his = ann.trace(), bob.trace()
    made = ann.http.post(
        f"{API}/traces/{hers}/assessments", json={"assessment": make_assessment(hers)}
    ).json()
    ident = made["assessment"]["assessment_id"]
    taken = bob.send_trace(his, assessments=[make_assessment(his, assessment_id=ident)])
    assert taken.status_code == 403, taken.text
    assert guarded.rows("select trace_id from assessments where assessment_id = ?", ident) == [(hers,)]
    # an own one may come along
    assert bob.send_trace(his, assessments=[make_assessment(his)]).status_code == 200
    assert len(guarded.rows("select 1 from assessments where trace_id = ?", his)) == 1


@pytest.mark.parametrize("tag", PLACES)
def test_no_trace_says_where_mlflow_is_to_read(people: tuple[Person, Person], guarded: Any, tag: str) -> None:
    _, bob = people
    told = bob.send_trace(tags={tag: "file:///etc"})
    assert (told.status_code, told.json()["code"]) == (403, "mlflow-place-closed")
    trace = bob.trace()
    spanned = bob.send_span(trace, "s", **{f"mlflow.traceTag.{tag}": "file:///etc"})
    assert spanned.status_code == 403, spanned.text
    assert bob.send_span(trace, "s", **{"mlflow.traceTag.colour": "green"}).status_code == 200
    tags = dict(guarded.rows("select key, value from trace_tags where request_id = ?", trace))
    assert tags["colour"] == "green"
    assert "file:///etc" not in tags.values()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_arguments_come_in_one_place(people: tuple[Person, Person], method: str) -> None:
    """MLflow's auth app reads the body of a GET where its handler reads the query: each sees another experiment."""
    ann, bob = people
    made = ann.http.post(
        f"{API}/datasets/create", json={"name": "ann's set", "experiment_ids": [ann.experiment]}
    )
    assert made.status_code == 200, made.text
    mixed = bob.http.request(
        method,
        f"{API}/datasets/search",
        params={"experiment_ids": ann.experiment},
        json={"experiment_ids": [bob.experiment]},
    )
    assert (mixed.status_code, mixed.json()["code"]) == (400, "mlflow-call-ambiguous")
    assert bob.http.post(f"{API}/datasets/search", json={"experiment_ids": [bob.experiment]}).json() == {}


def test_a_body_is_json_whatever_it_is_called(people: tuple[Person, Person], guarded: Any) -> None:
    """MLflow's auth app looks into no body of another type."""
    _, bob = people
    content = f'{{"experiment_id": "{bob.experiment}", "key": "k", "value": "v"}}'
    answer = bob.http.post(
        "/api/2.0/mlflow/experiments/set-experiment-tag",
        content=content,
        headers={"Content-Type": "text/plain"},
    )
    assert answer.status_code == 200, answer.text
    tags = "select value from experiment_tags where experiment_id = ? and key = 'k'"
    assert guarded.rows(tags, bob.experiment) == [("v",)]


@pytest.mark.parametrize(
    ("method", "query", "body", "clear"),
    [
        ("POST", (), {"run_id": "1"}, True),
        ("POST", (), {}, True),
        ("GET", (("run_id", "1"),), None, True),
        ("GET", (("run_id", "1"), ("run_uuid", "1")), None, True),
        ("GET", (("run_id", "1"), ("run_uuid", "2")), None, False),
        ("GET", (), {"run_id": "1"}, False),
        ("DELETE", (("name", "a"),), {"name": "a"}, False),
        ("POST", (), {"run_id": "1", "runUuid": "2"}, False),
        ("POST", (), '{"name": "decoded once more"}', False),
        ("POST", (), ["a"], False),
        ("POST", (), 0, False),
    ],
)
def test_what_can_be_read_in_two_ways(method: str, query: Any, body: Any, clear: bool) -> None:
    found = find_ambiguity(method, "api/2.0/mlflow/runs/update", query=query, body=body)
    assert (found is None) is clear, found


@pytest.mark.parametrize(
    ("name", "open_"),
    [
        ("a b.txt", True),
        ("附件\u3000二.txt", True),
        ("👩\u200d🔬.png", True),
        ("a\nb", False),
        ("a\x7fb", False),
    ],
)
def test_names_of_files_in_all_scripts_are_open(name: str, open_: bool) -> None:
    path = f"api/2.0/mlflow-artifacts/artifacts/1/{name}"
    assert is_exposed("GET", path) is open_
