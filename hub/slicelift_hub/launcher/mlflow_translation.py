"""Between a job's mlflow code and MLflow: ids in both directions, and what a job may not touch. Pure.

A job knows its run and experiment by the ids of `slicelift.runtime.mlflow_ids`, which exist before MLflow has
answered once. Whatever experiment it names, it means its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from slicelift.errors import Denied, UserError
from slicelift.json_body import read_object

from slicelift_hub.launcher.bodies import depth
from slicelift_hub.launcher.mlflow_exposed import is_exposed

CHILD_TAG = "slicelift.child"
# protobuf's JSON has two spellings of each
ONE_EXPERIMENT = ("experiment_id", "experimentId")
SOME_EXPERIMENTS = ("experiment_ids", "experimentIds")
_OURS = "slicelift."
_ARTIFACT = re.compile(r"(?:api|ajax-api)/2\.0/mlflow-artifacts/(?:artifacts|mpu/\w+|presigned/\w+)/(.+)")
_ARTIFACT_LIST = re.compile(r"(?:api|ajax-api)/2\.0/mlflow-artifacts/artifacts/?")
# levels of a body; whoever looks through one calls itself at each
_DEEPEST = 100
_RAW = re.compile(r"(?:api|ajax-api)/2\.0/mlflow/upload-artifact|v1/traces")
_CLOSED = re.compile(r".*/mlflow/(experiments/(create|delete|restore|update|delete-experiment-tag)|users/.*)")
_RUN_FIELDS = (
    *("run_id", "run_uuid", "source_run_id", "run_ids"),
    *("runId", "runUuid", "sourceRunId", "runIds"),
)
# calls that change nothing though they are not GET
_READING = re.compile(
    r".*/(search|search-traces|batchGet|bulk-interval|download-uri)|.*/mlflow/traces/search"
)


@dataclass(frozen=True, kw_only=True)
class Ids:
    """Both names of a job's run and experiment: what the job says, and what MLflow says."""

    local_run: str
    run: str
    local_experiment: str
    experiment: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call as it goes to MLflow. `json` is the decoded body, None where the body is passed on as it is."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None

    @property
    def url(self) -> str:
        """Path and query, quoted."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        return f"/{quote(self.path)}{query}"

    @property
    def changes(self) -> bool:
        """Whether the call may change something."""
        return self.method != "GET" and not _READING.fullmatch(self.path)

    @property
    def is_file(self) -> bool:
        """Whether the body, of the call or of its answer, is a file's content."""
        return bool(_ARTIFACT.fullmatch(self.path))

    @property
    def names_runs(self) -> bool:
        """Whether the body is text that holds ids though it is a file's content: MLmodel names its run."""
        return self.is_file and self.path.endswith("/MLmodel")


def inward(
    method: str, raw_path: str, raw_query: str, *, headers: Mapping[str, str], body: bytes | None, ids: Ids
) -> Call:
    """What MLflow is to be asked. `body` is None for a file's content. Raises `Denied` (mlflow-call-closed), `bad-json`."""
    path = _inward_text(unquote(raw_path), ids)
    query = tuple((key, _inward_query(key, value, ids)) for key, value in parse_qsl(raw_query, True))
    call = Call(
        method=method,
        path=path,
        query=query,
        headers={key: _inward_header(key, value, ids) for key, value in headers.items()},
        json=_inward(None if is_raw(path) else decoded(body), ids),
    )
    _check(call, ids)
    return call


def outward(value: Any, ids: Ids) -> Any:
    """MLflow's answer as the job is to see it."""
    if isinstance(value, dict):
        return {key: _outward_field(key, item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [outward(item, ids) for item in value]
    return value.replace(ids.run, ids.local_run) if isinstance(value, str) else value


def named_runs(call: Call) -> set[str]:
    """The ids of all runs that a call names."""
    found = {value for key, value in call.query if key in _RUN_FIELDS}
    artifact = _ARTIFACT.fullmatch(call.path)
    parts = artifact.group(1).split("/") if artifact else []
    if len(parts) > 1 and parts[1] not in ("models", "traces"):
        found.add(parts[1])
    return (found | set(_runs_in(call.json))) - {""}


def is_raw(path: str) -> bool:
    """Whether the body of a call is a file's content, or protobuf."""
    return _RAW.fullmatch(path) is not None


def decoded(body: bytes | None) -> Any:
    """What cannot be read cannot be checked: raises `bad-json`. A string, too: MLflow would take it for JSON once more."""
    value = read_object(body) if body else None
    if depth(value, most=_DEEPEST) > _DEEPEST:
        raise UserError("bad-json", "The body is nested too deeply.", "Send a flatter one.")
    return value


def _inward_text(text: str, ids: Ids) -> str:
    return text.replace(ids.local_run, ids.run).replace(ids.local_experiment, ids.experiment)


def _inward_query(key: str, value: str, ids: Ids) -> str:
    here = key in (*ONE_EXPERIMENT, *SOME_EXPERIMENTS)
    return ids.experiment if here else _inward_text(value, ids)


def _inward_header(key: str, value: str, ids: Ids) -> str:
    return ids.experiment if key.lower() == "x-mlflow-experiment-id" else value


def _inward(value: Any, ids: Ids) -> Any:
    if isinstance(value, dict):
        return {key: _inward_field(key, item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [_inward(item, ids) for item in value if not _is_our_tag(item)]
    return _inward_text(value, ids) if isinstance(value, str) else value


def _inward_field(key: str, value: Any, ids: Ids) -> Any:
    if key in ONE_EXPERIMENT:
        return ids.experiment
    return [ids.experiment] if key in SOME_EXPERIMENTS else _inward(value, ids)


def _is_our_tag(item: Any) -> bool:
    """Tags of ours are not for jobs to set: a run is found by them."""
    key = item.get("key") if isinstance(item, dict) else None
    return isinstance(key, str) and key.startswith(_OURS) and key != CHILD_TAG


def _outward_field(key: str, value: Any, ids: Ids) -> Any:
    same = key in ONE_EXPERIMENT and value == ids.experiment
    return ids.local_experiment if same else outward(value, ids)


def _check(call: Call, ids: Ids) -> None:
    if not is_exposed(call.method, call.path) or _CLOSED.fullmatch(call.path):
        raise _closed(call, "It is not open to jobs.")
    artifact = _ARTIFACT.fullmatch(call.path)
    places = [artifact.group(1)] if artifact else []
    if _ARTIFACT_LIST.fullmatch(call.path):
        places = [value for key, value in call.query if key == "path"] or [""]
    for place in places:
        if place.split("/")[0] != ids.experiment or ".." in place.split("/"):
            raise _closed(call, "Those artifacts belong to another experiment.")
    if isinstance(call.json, dict) and call.changes and _is_our_tag(call.json):
        raise _closed(call, "Tags that begin with `slicelift.` are written by slicelift.")
    ends = call.path.endswith(("/runs/update", "/runs/delete", "/runs/restore"))
    if ends and ids.run in named_runs(call):
        raise _closed(call, "The launcher opens and ends the run of a job.")


def _closed(call: Call, why: str) -> Denied:
    message = f"{call.method} /{call.path} was asked of MLflow by a job. {why}"
    return Denied("mlflow-call-closed", message, "See docs/tracking.md for what a job may do.")


def _runs_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in _RUN_FIELDS:
                yield from [str(one) for one in item] if isinstance(item, list) else [str(item)]
            else:
                yield from _runs_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _runs_in(item)
