"""What a job's own mlflow code sees of the job's run: answered from here, written to the spool, never waiting.

Bodies and answers are those of MLflow's REST interface as plain JSON types.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from slicelift.errors import UserError
from slicelift.runtime.mlflow_ids import local_experiment_id, local_run_id
from slicelift.runtime.spool import Spool, inside

Body = Mapping[str, Any]
Answer = dict[str, Any]
# step, (timestamp and what else MLflow keeps beside a point), values
_Line = tuple[int, tuple[tuple[str, Any], ...], dict[str, float]]

# points kept in memory, so that a script can read back what MLflow does not have yet
REMEMBERED = 100_000
_NAME = re.compile(r"[/\w.\- :]{1,250}")
_BAD = "INVALID_PARAMETER_VALUE"
_EXTRAS = ("model_id", "dataset_name", "dataset_digest")


class JobRun:
    """The one run of a job. Safe for threads; every change is on disk when its method returns."""

    def __init__(self, run_id: str, *, experiment: str, spool: Spool) -> None:
        self.id = local_run_id(run_id)
        self.experiment_id = local_experiment_id(run_id)
        self._experiment = experiment
        self._spool = spool
        self._lock = threading.Lock()
        self._begun = False
        self._info: Answer = {
            "run_name": run_id,
            "status": "RUNNING",
            "start_time": round(time.time() * 1000),
        }
        self._latest: dict[str, Answer] = {}
        self._history: dict[str, list[Answer]] = {}
        self._remembered = 0
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}

    def experiment(self, name: str = "") -> Answer:
        """The job's experiment, under the name that was asked for: every name and id means this one."""
        with self._lock:
            self._experiment = name or self._experiment
            found = {
                "experiment_id": self.experiment_id,
                "name": self._experiment,
                "artifact_location": f"mlflow-artifacts:/{self.experiment_id}",
                "lifecycle_stage": "active",
            }
        return {"experiment": found}

    def begin(self, body: Body) -> Answer | None:
        """The first top-level `runs/create` is this run; None for any other, which is to be a child run."""
        tags = {tag["key"]: str(tag.get("value", "")) for tag in body.get("tags", [])}
        with self._lock:
            if self._begun or "mlflow.parentRunId" in tags:
                return None
            self._begun = True
            known = {key: body[key] for key in ("start_time", "user_id", "run_name") if body.get(key)}
            self._info |= known
        if body.get("run_name"):
            tags["mlflow.runName"] = str(body["run_name"])
        self._set_tags(tags)
        return self.get()

    def get(self) -> Answer:
        """`runs/get`: all that is known here. Metrics show the newest point of the highest step, as MLflow does."""
        with self._lock:
            info = {
                **self._info,
                "run_id": self.id,
                "run_uuid": self.id,
                "experiment_id": self.experiment_id,
                "artifact_uri": f"mlflow-artifacts:/{self.experiment_id}/{self.id}/artifacts",
                "lifecycle_stage": "active",
            }
            data = {
                "metrics": list(self._latest.values()),
                "params": _pairs(self._params),
                "tags": _pairs(self._tags),
            }
        return {"run": {"info": info, "data": data, "inputs": {}, "outputs": {}}}

    def update(self, body: Body) -> Answer:
        """`runs/update`: a name is kept; a status is only repeated back, since the launcher ends runs."""
        with self._lock:
            self._info |= {key: body[key] for key in ("status", "end_time", "run_name") if body.get(key)}
        if body.get("run_name"):
            self._set_tags({"mlflow.runName": str(body["run_name"])})
        return {"run_info": self.get()["run"]["info"]}

    def log_metric(self, body: Body) -> Answer:
        """`runs/log-metric`."""
        return self.log_batch({"metrics": [body]})

    def log_param(self, body: Body) -> Answer:
        """`runs/log-parameter`."""
        return self.log_batch({"params": [body]})

    def set_tag(self, body: Body) -> Answer:
        """`runs/set-tag`."""
        return self.log_batch({"tags": [body]})

    def delete_tag(self, body: Body) -> Answer:
        """`runs/delete-tag`: the spool only adds, so MLflow gets an empty value."""
        self._set_tags({str(body["key"]): ""})
        with self._lock:
            self._tags.pop(str(body["key"]), None)
        return {}

    def log_batch(self, body: Body) -> Answer:
        """`runs/log-batch`: checked as a whole, then written. Raises `UserError` with MLflow's own codes."""
        points = [_point(item) for item in body.get("metrics", [])]
        params = {_name(item): str(item.get("value", "")) for item in body.get("params", [])}
        tags = {_name(item): str(item.get("value", "")) for item in body.get("tags", [])}
        self._set_params(params)
        self._set_tags(tags)
        self._add_points(points)
        return {}

    def history(self, key: str) -> Answer | None:
        """`metrics/get-history`, or None once too many points have gone by to have them all here."""
        with self._lock:
            if self._remembered > REMEMBERED:
                return None
            return {"metrics": list(self._history.get(key, []))}

    def _set_params(self, params: Mapping[str, str]) -> None:
        with self._lock:
            for key, value in params.items():
                _check_unchanged(key, old=self._params.get(key, value), new=value, run=self.id)
            fresh = {key: value for key, value in params.items() if key not in self._params}
            self._params |= fresh
        if fresh:
            self._spool.append("param", inside({"p": fresh}))

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        with self._lock:
            self._tags |= tags
        if tags:
            self._spool.append("tag", inside({"p": dict(tags)}))

    def _add_points(self, points: list[Answer]) -> None:
        for step, extras, metrics in _grouped(points):
            body = {"s": step, "m": metrics, "mlflow": dict(extras)}
            self._spool.append("m", inside(body), points=len(metrics))
        with self._lock:
            for point in points:
                self._remember(point)

    def _remember(self, point: Answer) -> None:
        shown = {**point, "value": _word(point["value"])}
        known = self._latest.get(point["key"])
        if known is None or (point["step"], point["timestamp"]) >= (known["step"], known["timestamp"]):
            self._latest[point["key"]] = shown
        self._remembered += 1
        if self._remembered <= REMEMBERED:
            self._history.setdefault(point["key"], []).append(shown)
        elif self._history:
            self._history = {}


def _pairs(values: Mapping[str, str]) -> list[Answer]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _name(item: Body) -> str:
    key = item.get("key")
    if not isinstance(key, str) or not _NAME.fullmatch(key):
        allowed = "letters, digits, _ - . space : /, at most 250 of them"
        raise UserError(_BAD, f"Invalid name {key!r} of a metric, param or tag.", f"Allowed are {allowed}.")
    return key


def _point(item: Body) -> Answer:
    """A metric of a call with its defaults filled in. Numbers may come as text, as protobuf's JSON has them."""
    try:
        point = {
            "key": _name(item),
            "value": float(item["value"]),
            "timestamp": int(item.get("timestamp") or time.time() * 1000),
            "step": int(item.get("step") or 0),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(_BAD, f"Invalid metric {dict(item)!r}: {error!r}.") from error
    return point | {key: item[key] for key in _EXTRAS if item.get(key)}


def _grouped(points: Iterable[Answer]) -> list[_Line]:
    """Points that share step, time and origin go into one line. A key that comes twice begins another."""
    lines: list[_Line] = []
    last: dict[tuple[int, tuple[tuple[str, Any], ...]], dict[str, float]] = {}
    for point in points:
        extras = tuple((key, point[key]) for key in ("timestamp", *_EXTRAS) if key in point)
        place = (point["step"], extras)
        if point["key"] in last.setdefault(place, {}) or not last[place]:
            last[place] = {}
            lines.append((*place, last[place]))
        last[place][point["key"]] = point["value"]
    return lines


def _check_unchanged(key: str, *, old: str, new: str, run: str) -> None:
    if old != new:
        message = (
            f"Changing param values is not allowed. Param with key='{key}' was already logged with "
            f"value='{old}' for run ID='{run}'. Attempted logging new value '{new}'."
        )
        raise UserError(_BAD, message)


def _word(value: float) -> float | str:
    """JSON has no NaN and no Infinity; protobuf's JSON spells them out."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
