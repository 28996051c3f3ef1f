"""What rank 0's own mlflow code talks to: a small HTTP server inside the agent, on loopback.

Metrics, parameters and tags of the job's run go into the spool and are acknowledged once on disk; what is
known of that run is answered at once, MLflow or not. Everything else is passed on to the launcher and waits for
MLflow. Every experiment is the job's, the first run is the job's, any further run becomes its child.
"""

from __future__ import annotations

import json
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from slicelift.errors import SliceliftError
from slicelift.runtime.mlflow_forward import Call, Forward, GaveUp, Reply, make_reply
from slicelift.runtime.mlflow_run import Answer, Body, JobRun
from slicelift.runtime.spool import Spool

# longer than any outage: the mlflow client would else give up and end the training
PATIENCE_SECONDS = 24 * 3600.0
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1 << 20
_PASSED_HEADERS = (
    "content-type",
    "accept",
    "x-mlflow-experiment-id",
    "x-mlflow-workspace",
    "content-encoding",
)
_KEPT_HEADERS = ("content-type", "content-disposition", "x-content-type-options")


class Loopback:
    """One per attempt. `start` and `stop` once each."""

    def __init__(
        self,
        spool_dir: Path,
        launcher_url: Callable[[], str],
        token: str,
        attempt_id: str,
        run_id: str,
        *,
        experiment: str = "slicelift",
        patience_seconds: float = PATIENCE_SECONDS,
        listener: socket.socket | None = None,
    ) -> None:
        """`launcher_url` is asked before each call, since a restarted launcher may listen elsewhere.

        `listener` listens already, perhaps on another loopback than ours; without it we open our own.
        """
        self._spool = Spool(spool_dir, rank=0)
        self._run = JobRun(run_id, experiment=experiment, spool=self._spool)
        self._forward = Forward(
            launcher_url, token=token, attempt_id=attempt_id, patience_seconds=patience_seconds
        )
        # other users of the machine can reach the port, but not guess this
        self._prefix = f"/{secrets.token_urlsafe(12)}"
        self._listener = listener
        self._server: _Server | None = None

    def start(self) -> str:
        """Listen on a free port; the address to put into MLFLOW_TRACKING_URI."""
        self._server = _Server(self._prefix, Desk(self._run, self._forward), self._listener)
        threading.Thread(target=self._server.serve_forever, name="mlflow-loopback", daemon=True).start()
        return self.url

    @property
    def url(self) -> str:
        """The address; "" before `start`."""
        return f"http://127.0.0.1:{self._server.server_port}{self._prefix}" if self._server else ""

    def environment(self) -> dict[str, str]:
        """What rank 0 needs in its environment: the address, and a client that waits instead of giving up."""
        return {
            "MLFLOW_TRACKING_URI": self.url,
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(round(PATIENCE_SECONDS)),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def stop(self) -> None:
        """Take no more calls and end the waiting ones; what was acknowledged is in the spool. Safe to repeat."""
        self._forward.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._spool.close()


class Desk:
    """Decides for each call who answers it: the job's run as known here, or the launcher."""

    def __init__(self, run: JobRun, forward: Forward) -> None:
        self._run = run
        self._forward = forward
        self._own: dict[str, Callable[[Body], Answer]] = {
            "runs/get": lambda _: run.get(),
            "runs/update": run.update,
            "runs/log-metric": run.log_metric,
            "runs/log-batch": run.log_batch,
            "runs/log-parameter": run.log_param,
            "runs/set-tag": run.set_tag,
            "runs/delete-tag": run.delete_tag,
            # the job's run stays: the launcher opens and ends it
            "runs/delete": lambda _: {},
            "runs/restore": lambda _: {},
        }

    def answer(self, call: Call) -> Reply:
        """The reply to one call. Raises `GaveUp` when the launcher stays away."""
        parts = urlsplit(call.path)
        name = _name_of(parts.path)
        body = _body_of(call, parts.query) if name else {}
        try:
            known = self._answer_here(name, body)
        except SliceliftError as refusal:
            return make_reply(
                {"error_code": refusal.code, "message": str(refusal)}, status=refusal.http_status
            )
        if known is not None:
            return make_reply(known)
        if name == "runs/create":
            return self._forward.create_child(call, parent=str(_parent_of(body) or self._run.id))
        return self._forward.send(call)

    def _answer_here(self, name: str, body: Body) -> Answer | None:
        if name in ("experiments/get", "experiments/get-by-name"):
            return self._run.experiment(str(body.get("experiment_name", "")))
        if name == "experiments/create":
            found = self._run.experiment(str(body.get("name", "")))
            return {"experiment_id": found["experiment"]["experiment_id"]}
        if name == "experiments/search":
            return {"experiments": [self._run.experiment()["experiment"]]}
        if name == "runs/create":
            return self._run.begin(body)
        if self._run.id not in (body.get("run_id"), body.get("run_uuid")):
            return None
        if name == "metrics/get-history":
            return self._run.history(str(body.get("metric_key", "")))
        own = self._own.get(name)
        return own(body) if own else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # the client opens a connection per call, and several threads may log at once
    request_queue_size = 128

    def __init__(self, prefix: str, desk: Desk, listener: socket.socket | None) -> None:
        self.prefix = prefix
        self.desk = desk
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = listener
            self.server_address = listener.getsockname()
            self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news; the agent's log is for the user."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # head and body go out in two writes: Nagle would hold the second one for 40 ms
    disable_nagle_algorithm = True
    server: _Server

    def handle_call(self) -> None:
        """One request of any method."""
        if not self.path.startswith(self.server.prefix + "/"):
            self._reply(
                make_reply({"error_code": "PERMISSION_DENIED", "message": "Not for you."}, status=403)
            )
            return
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as file:
            try:
                reply = self.server.desk.answer(self._read_call(file))
            except GaveUp:
                message = "The launcher or MLflow did not answer in time."
                reply = make_reply({"error_code": "TEMPORARILY_UNAVAILABLE", "message": message}, status=503)
            self._reply(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_call  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: a line per call would drown the agent's log."""

    def _read_call(self, file: IO[bytes]) -> Call:
        size = self._copy_body(file)
        body: bytes | IO[bytes] = file
        if size <= _IN_MEMORY_BYTES:
            file.seek(0)
            body = file.read()
        headers = {key: value for key, value in self.headers.items() if key.lower() in _PASSED_HEADERS}
        path = self.path.removeprefix(self.server.prefix)
        return Call(method=self.command, path=path, headers=headers, body=body, size_bytes=size)

    def _copy_body(self, file: IO[bytes]) -> int:
        """Read the request's body into `file`; its size. `requests` sends an empty file in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                _copy(self.rfile, file, size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            _copy(self.rfile, file, int(self.headers.get("Content-Length") or 0))
        return file.tell()

    def _reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for key, value in reply.headers.items():
            if key.lower() in _KEPT_HEADERS:
                self.send_header(key, value)
        if reply.size_bytes is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(reply.size_bytes))
        self.end_headers()
        while chunk := reply.stream.read(_CHUNK_BYTES):
            self.wfile.write(chunk)


def _name_of(path: str) -> str:
    """`runs/create` of `/api/2.0/mlflow/runs/create`, "" for anything else."""
    parts = path.split("/", 4)
    if len(parts) == 5 and parts[1] in ("api", "ajax-api") and parts[3] == "mlflow":
        return parts[4]
    return ""


def _body_of(call: Call, query: str) -> Mapping[str, Any]:
    """Query and JSON body of a call as one mapping; {} of what is neither."""
    values: dict[str, Any] = {key: items[-1] for key, items in parse_qs(query).items()}
    try:
        decoded = json.loads(call.body) if isinstance(call.body, bytes) and call.body else {}
    except ValueError:
        decoded = {}
    return values | (decoded if isinstance(decoded, dict) else {})


def _parent_of(body: Body) -> str | None:
    return next((tag["value"] for tag in body.get("tags", []) if tag["key"] == "mlflow.parentRunId"), None)


def _copy(source: Any, target: IO[bytes], size: int) -> None:
    while size > 0:
        chunk = source.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise ConnectionError("The client hung up in the middle of a request.")
        target.write(chunk)
        size -= len(chunk)
