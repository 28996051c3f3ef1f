"""The launcher's way to MLflow: runs opened exactly once, points written idempotently, ends told.

MLflow's REST interface over httpx rather than its Python client: `import mlflow` costs the launcher 5-8 s of
CPU and its interpreter lock, and the client hides time-outs and retries in process-wide environment variables,
while here a stopped server must never hold up anything but the export.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol
from urllib.parse import quote

import httpx

from slicelift.errors import NotFound, SliceliftError, Unavailable, UserError
from slicelift.models import DataRef, JobSpec, Snapshot, Status
from slicelift.tracking_account import NO_ACCOUNT, Account

Point = dict[str, Any]

PROMOTION_TAG = "slicelift.promotion_id"
POINTS_PER_CALL = 1000
_PAIRS_PER_CALL = 100
_TAG_CHARACTERS = 8000
_PARAM_CHARACTERS = 6000
_DIGEST_CHARACTERS = 36
# MLflow refuses longer ones, and finding the guilty in a refused batch takes many calls
_KEY_CHARACTERS = 250
_API = "/api/2.0/mlflow/"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_SECONDS = httpx.Timeout(5.0, connect=2.0)
# No read limit for a create: giving up on one that the server still carries out would double it. A server that
# dies breaks the connection; keep-alive notices a dead host.
_PATIENT = httpx.Timeout(None, connect=2.0)
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
]
_STATUS = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.KILLED: "KILLED"}


class TrackedRun(Protocol):
    """What is told of a run. `snapshot` needs no files; times are Unix seconds."""

    @property
    def promotion_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created(self) -> float: ...
    @property
    def spec(self) -> JobSpec: ...
    @property
    def snapshot(self) -> Snapshot: ...


class RunGone(NotFound):
    """The run was deleted in MLflow, or MLflow's database is another one."""


class Mlflow:
    """One MLflow server by its URL, for one account; safe for threads.

    Raises `Unavailable` (tracker-away) when it is away.
    """

    def __init__(self, url: str, account: Account = NO_ACCOUNT) -> None:
        self.account = account
        transport = httpx.HTTPTransport(socket_options=_KEEPALIVE, retries=0)
        # trust_env off: a proxy of the environment must not see calls on loopback
        self._http = httpx.Client(
            base_url=url, transport=transport, timeout=_SECONDS, trust_env=False, auth=account.login
        )

    def close(self) -> None:
        """Drop all connections; a call in progress fails with `Unavailable`."""
        self._http.close()

    def get(self, call: str, **query: str) -> dict[str, Any]:
        """`GET` one call of the API, named as in MLflow's REST documentation (`runs/get`)."""
        return self._json(self._build("GET", _API + call, params=query))

    def post(self, call: str, body: Mapping[str, Any], *, method: str = "POST") -> dict[str, Any]:
        """`POST` (or another method) one idempotent call; 5 s at most."""
        return self._json(self._build(method, _API + call, json=body))

    def create(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """`POST` a call that must not happen twice: waits for the answer as long as the server holds on."""
        return self._json(self._build("POST", _API + call, json=body, timeout=_PATIENT))

    def put_artifact(self, path: str, content: IO[bytes], *, size_bytes: int) -> None:
        """Write one artifact below the server's artifact root, streamed. Idempotent."""
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        url = f"{_ARTIFACTS}/{quote(path)}"
        self._send(self._build("PUT", url, content=_chunks(content), headers=headers))

    def list_artifacts(self, path: str) -> list[dict[str, Any]]:
        """`{path, is_dir, file_size}` of what lies in one folder; `path` there is the name alone."""
        answer = self._json(self._build("GET", _ARTIFACTS, params={"path": path}))
        return list(answer.get("files", []))

    def read_artifact(self, path: str) -> Iterator[bytes]:
        """The bytes of one artifact, streamed."""
        try:
            with self._http.stream("GET", f"{_ARTIFACTS}/{quote(path)}") as response:
                if response.status_code >= 400:
                    response.read()
                    _raise_for(response)
                yield from response.iter_bytes()
        except (httpx.TransportError, RuntimeError) as error:
            raise _away(error) from error

    def _build(self, method: str, path: str, **parts: Any) -> httpx.Request:
        """What no request can carry (an address too long, half a surrogate pair) counts as refused by MLflow."""
        try:
            return self._http.build_request(method, path, **parts)
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError("tracker-refused", f"MLflow cannot be sent {path}: {error}.") from error

    def _json(self, request: httpx.Request) -> dict[str, Any]:
        body = self._send(request).json()
        return body if isinstance(body, dict) else {}

    def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            response = self._http.send(request)
        except (httpx.TransportError, RuntimeError) as error:  # RuntimeError: closed by another thread
            raise _away(error) from error
        if response.status_code >= 400:
            _raise_for(response)
        return response


def open_run(mlflow: Mlflow, tracked: TrackedRun) -> str:
    """The MLflow run of a promotion: found by its tag, else created with its tags in the same call.

    Parameters and data set are written each time, which changes nothing the second time. So the whole is safe to
    repeat after a crash at any line.
    """
    experiment = experiment_id(mlflow, experiment_name(tracked.spec))
    run = find_run(mlflow, experiment, tracked.promotion_id) or _create_run(mlflow, experiment, tracked)
    set_tags(mlflow, run, {"slicelift.attempt": str(tracked.attempt)})
    log_params(mlflow, run, {key: str(value) for key, value in tracked.spec.parameters.items()})
    if tracked.spec.data:
        datasets = [_dataset(ref) for ref in tracked.spec.data]
        mlflow.post("runs/log-inputs", {"run_id": run, "datasets": datasets})
    return run


def experiment_name(spec: JobSpec) -> str:
    """Where a run goes: the experiment asked for, else one named like the job."""
    return spec.experiment or spec.name or "slicelift"


def experiment_id(mlflow: Mlflow, name: str) -> str:
    """The id of an experiment of the account, made if missing and restored if deleted. Safe with two at once."""
    found = _find_experiment(mlflow, name)
    if found is None:
        try:
            body = {"name": mlflow.account.experiment(name)}
            return str(mlflow.create("experiments/create", body)["experiment_id"])
        except UserError as refusal:
            if not _is(refusal, "RESOURCE_ALREADY_EXISTS"):
                raise
        return experiment_id(mlflow, name)
    if found.get("lifecycle_stage") == "deleted":
        mlflow.post("experiments/restore", {"experiment_id": found["experiment_id"]})
    return str(found["experiment_id"])


def find_run(mlflow: Mlflow, experiment: str, promotion_id: str) -> str | None:
    """The id of the run with this promotion's tag that is not deleted, the oldest if there are several."""
    body = {
        "experiment_ids": [experiment],
        "filter": f"tags.`{PROMOTION_TAG}` = '{promotion_id}'",
        "run_view_type": "ACTIVE_ONLY",
        "order_by": ["attributes.start_time ASC"],
        "max_results": 1,
    }
    runs = mlflow.post("runs/search", body).get("runs", [])
    return str(runs[0]["info"]["run_id"]) if runs else None


def run_tags(tracked: TrackedRun) -> dict[str, str]:
    """All tags of a new run. Pure. Several data sets: md5, size and so on as comma-separated lists."""
    data, spec = tracked.spec.data, tracked.spec
    tags = {
        PROMOTION_TAG: tracked.promotion_id,
        "slicelift.run_id": tracked.run_id,
        "slicelift.attempt": str(tracked.attempt),
        "slicelift.snapshot_id": spec.snapshot_id,
        "slicelift.notebook": spec.notebook,
        "slicelift.owner": tracked.owner,
        "slicelift.workers": str(spec.workers),
        "slicelift.slice": spec.slice or "",
        "slicelift.queue": spec.queue,
        "slicelift.preset": spec.preset,
        "slicelift.data_path": ",".join(ref.path for ref in data),
        "slicelift.data_md5": ",".join(ref.md5 for ref in data),
        "slicelift.data_size_bytes": ",".join(str(ref.size_bytes) for ref in data),
        "slicelift.data_nfiles": ",".join(str(ref.nfiles) for ref in data),
        "slicelift.data_remote": ",".join(ref.remote for ref in data),
        "mlflow.source.name": spec.notebook,
        "mlflow.source.type": "NOTEBOOK",
        "mlflow.user": tracked.owner,
    }
    tags |= _git_tags(tracked.snapshot)
    return {key: value[:_TAG_CHARACTERS] for key, value in {**spec.tags, **tags}.items() if value}


def points_of(lines: Iterable[Mapping[str, Any]], *, rank: int) -> list[Point]:
    """Metric lines of the spool as MLflow's points. Pure; the same line always gives the same points.

    Ranks above 0 get keys `rank/<r>/<key>`. NaN and ±Infinity go as the words of protobuf's JSON.
    """
    return [
        {
            "key": key if rank == 0 else f"rank/{rank}/{key}",
            "value": _number(value),
            "timestamp": round(line["t"] * 1000),
            "step": line["s"],
            **line.get("mlflow", {}),
        }
        for line in lines
        if line["k"] == "m"
        for key, value in line["m"].items()
    ]


def log_points(
    mlflow: Mlflow, run: str, points: Sequence[Point], *, skip_faults: bool = False
) -> list[Point]:
    """Write points, at most 1,000 a call; those that MLflow refuses are left out and returned.

    Idempotent: MLflow keeps one row per (key, timestamp, step, value). `skip_faults` leaves out, too, what makes
    the server fail, so that one point cannot hold up all others for ever. Raises `RunGone`.
    """
    refused = [point for point in points if len(point["key"]) > _KEY_CHARACTERS]
    points = [point for point in points if len(point["key"]) <= _KEY_CHARACTERS]
    for start in range(0, len(points), POINTS_PER_CALL):
        refused += _log_metrics(mlflow, run, points[start : start + POINTS_PER_CALL], skip_faults=skip_faults)
    return refused


def log_params(mlflow: Mlflow, run: str, params: Mapping[str, str]) -> None:
    """Write parameters. One that is there with another value stays; the new one becomes a tag `param/<key>`."""
    pairs = [{"key": key, "value": value[:_PARAM_CHARACTERS]} for key, value in params.items()]
    for chunk in _chunked(pairs, _PAIRS_PER_CALL):
        try:
            mlflow.post("runs/log-batch", {"run_id": run, "params": chunk})
        except UserError as refusal:
            _raise_if_gone(refusal, run)
            for pair in chunk:
                _log_param(mlflow, run, pair)


def set_tags(mlflow: Mlflow, run: str, tags: Mapping[str, str]) -> None:
    """Write tags; the last value of a key stays. A tag that MLflow refuses is left out."""
    pairs = [{"key": key, "value": value[:_TAG_CHARACTERS]} for key, value in tags.items()]
    for chunk in _chunked(pairs, _PAIRS_PER_CALL):
        try:
            mlflow.post("runs/log-batch", {"run_id": run, "tags": chunk})
        except UserError as refusal:
            _raise_if_gone(refusal, run)
            for pair in chunk if len(chunk) > 1 else []:
                set_tags(mlflow, run, {pair["key"]: pair["value"]})


def close_run(mlflow: Mlflow, run: str, *, status: Status, reason: str, ended: float) -> None:
    """Tell the end of a run: FINISHED, FAILED or KILLED, with the reason as tag. Idempotent. Raises `RunGone`.

    Child runs that the job's own code left open end the same way.
    """
    if reason:
        set_tags(mlflow, run, {"slicelift.reason": reason})
    end = {"status": _STATUS[status], "end_time": round(ended * 1000)}
    _update_run(mlflow, run, end)
    for child, word in child_runs(mlflow, run).items():
        if word in ("RUNNING", "SCHEDULED"):
            _update_run(mlflow, child, end)


def reopen_run(mlflow: Mlflow, run: str, *, attempt: int) -> None:
    """A further attempt of the run has begun: RUNNING again. Idempotent. Raises `RunGone`."""
    set_tags(mlflow, run, {"slicelift.attempt": str(attempt), "slicelift.reason": ""})
    _update_run(mlflow, run, {"status": "RUNNING"})


def artifact_uri(mlflow: Mlflow, run: str) -> str:
    """Where a run's artifacts lie. Raises `RunGone`, also when the run is in MLflow's bin."""
    try:
        info = mlflow.get("runs/get", run_id=run)["run"]["info"]
    except UserError as refusal:
        _raise_if_gone(refusal, run)
        raise
    if info.get("lifecycle_stage") == "deleted":
        raise _gone(run)
    return str(info["artifact_uri"])


def child_runs(mlflow: Mlflow, run: str) -> dict[str, str]:
    """The runs that a job's own code started below its run: {id: status}."""
    experiment = mlflow.get("runs/get", run_id=run)["run"]["info"]["experiment_id"]
    body = {
        "experiment_ids": [experiment],
        "filter": f"tags.`mlflow.parentRunId` = '{run}'",
        "max_results": 1000,
    }
    infos = [item["info"] for item in mlflow.post("runs/search", body).get("runs", [])]
    return {info["run_id"]: info["status"] for info in infos}


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(1 << 20):
        yield block


def _away(error: Exception) -> Unavailable:
    message = f"MLflow does not answer ({type(error).__name__}: {error})."
    return Unavailable("tracker-away", message, "It is tried again by itself; jobs go on meanwhile.")


def _raise_for(response: httpx.Response) -> None:
    """4xx is the call's own fault; 5xx may be over the next time."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    code = str(body.get("error_code", f"HTTP_{response.status_code}"))
    message = f"MLflow refused {response.request.url.path}: {body.get('message', response.text[:300])}"
    if response.status_code >= 500 or response.status_code == 429:
        raise Unavailable("tracker-fault", message, "It is tried again by itself.", detail=code)
    kind = NotFound if response.status_code == 404 else UserError
    raise kind("tracker-refused", message, detail=code)


def _is(refusal: SliceliftError, code: str) -> bool:
    return bool(refusal.detail == code)


def _raise_if_gone(refusal: UserError, run: str) -> None:
    """MLflow has no word of its own for a deleted run; its message says which state it wants.

    The run is named in both: what else does not exist (a logged model of a metric) is no reason. Where MLflow asks
    who one is, it says 403 of a run that is not there: the owner may do everything with one that is.
    """
    missing = _is(refusal, "RESOURCE_DOES_NOT_EXIST") or "must be in the 'active' state" in refusal.message
    if (missing and run in refusal.message) or _is(refusal, "HTTP_403"):
        raise _gone(run) from refusal


def _gone(run: str) -> RunGone:
    return RunGone("tracker-run-gone", f"MLflow no longer has the run {run}.", "It is made again by itself.")


def _find_experiment(mlflow: Mlflow, name: str) -> dict[str, Any] | None:
    full = mlflow.account.experiment(name)
    try:
        found: dict[str, Any] = mlflow.get("experiments/get-by-name", experiment_name=full)["experiment"]
    except NotFound:
        return None
    return found


def _create_run(mlflow: Mlflow, experiment: str, tracked: TrackedRun) -> str:
    body = {
        "experiment_id": experiment,
        "run_name": tracked.name,
        "user_id": tracked.owner,
        "start_time": round(tracked.created * 1000),
        "tags": [{"key": key, "value": value} for key, value in run_tags(tracked).items()],
    }
    return str(mlflow.create("runs/create", body)["run"]["info"]["run_id"])


def _git_tags(snapshot: Snapshot) -> dict[str, str]:
    """`git_commit` is the user's HEAD, `snapshot_commit` the one that holds exactly what ran."""
    return {
        "slicelift.git_commit": snapshot.base_commit,
        "slicelift.git_branch": snapshot.branch,
        "slicelift.git_dirty": str(snapshot.dirty).lower(),
        "slicelift.snapshot_commit": snapshot.commit,
        "mlflow.source.git.commit": snapshot.base_commit,
        "mlflow.source.git.branch": snapshot.branch,
    }


def _dataset(ref: DataRef) -> dict[str, Any]:
    """A data set of MLflow. Its digest holds 36 characters, just enough for an md5 with `.dir`."""
    source = {"path": ref.path, "md5": ref.md5, "remote": ref.remote, "url": ref.remote_config.get("url", "")}
    dataset = {
        "name": ref.path[-500:],
        "digest": ref.md5[:_DIGEST_CHARACTERS],
        "source_type": "dvc",
        "source": json.dumps(source, ensure_ascii=False),
        "profile": json.dumps({"size_bytes": ref.size_bytes, "nfiles": ref.nfiles}),
    }
    return {"dataset": dataset, "tags": [{"key": "mlflow.data.context", "value": "training"}]}


def _number(value: float) -> float | str:
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _log_metrics(mlflow: Mlflow, run: str, points: Sequence[Point], *, skip_faults: bool) -> list[Point]:
    """One call, halved while it is refused, until only the points at fault are left."""
    try:
        mlflow.post("runs/log-batch", {"run_id": run, "metrics": points})
    except UserError as refusal:
        _raise_if_gone(refusal, run)
    except Unavailable as fault:
        if not skip_faults or fault.code != "tracker-fault":
            raise
    else:
        return []
    if len(points) == 1:
        return list(points)
    halves = (points[: len(points) // 2], points[len(points) // 2 :])
    return [point for half in halves for point in _log_metrics(mlflow, run, half, skip_faults=skip_faults)]


def _log_param(mlflow: Mlflow, run: str, pair: Mapping[str, str]) -> None:
    try:
        mlflow.post("runs/log-batch", {"run_id": run, "params": [pair]})
    except UserError:
        set_tags(mlflow, run, {f"param/{pair['key']}": pair["value"]})


def _chunked(items: list[dict[str, str]], size: int) -> Iterator[list[dict[str, str]]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _update_run(mlflow: Mlflow, run: str, values: Mapping[str, Any]) -> None:
    try:
        mlflow.post("runs/update", {"run_id": run, **values})
    except UserError as refusal:
        _raise_if_gone(refusal, run)
        raise
