"""Passes calls of a job's own mlflow code on to the launcher, and waits out whatever is away.

Only the launcher knows MLflow's address and translates the ids. A call is tried again until it is answered; one
that creates something, and that may have been carried out before its answer was lost, is looked for first.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from slicelift.runtime.link import make_connection, path_of

_CONNECT_SECONDS = 5.0
# the launcher holds a call as long as MLflow's process lives; this only notices a launcher that hangs
_ANSWER_SECONDS = 900.0
_LONGEST_PAUSE_SECONDS = 2.0
_CHILD_TAG = "slicelift.child"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request. `path` has its query; `body` is bytes, or a seekable file to be sent from its beginning."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | IO[bytes] = b""
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer, its body not yet read. `size_bytes` is None when only its end shows its length."""

    status: int
    stream: IO[bytes] | http.client.HTTPResponse
    headers: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int | None = None

    def json(self) -> Any:
        """The body, decoded; the reply is used up."""
        return json.loads(self.stream.read() or b"{}")


class GaveUp(Exception):
    """Nobody answered for as long as we were told to wait, or the job is ending."""


class _Silence(Enum):
    """Why there is no answer: the call never arrived, or it may have been carried out."""

    AWAY = 1
    LOST = 2


class Forward:
    """The way to the launcher for one attempt. Safe for threads."""

    def __init__(
        self, launcher_url: Callable[[], str], *, token: str, attempt_id: str, patience_seconds: float
    ) -> None:
        self._launcher_url = launcher_url
        self._token = token
        self._prefix = f"/api/v1/attempts/{quote(attempt_id)}/mlflow"
        self._patience_seconds = patience_seconds
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let every waiting call end with `GaveUp`."""
        self._stopping.set()

    def send(self, call: Call) -> Reply:
        """The answer; waits while launcher or MLflow is away. Raises `GaveUp`."""
        until = time.monotonic() + self._patience_seconds
        pause, lost = 0.1, False
        while not self._stopping.is_set() and time.monotonic() < until:
            outcome = self._look_for(call) if lost else None
            if outcome is None:
                outcome = self._try(call)
            if isinstance(outcome, Reply):
                return outcome
            lost = lost or outcome is _Silence.LOST
            self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        raise GaveUp

    def create_child(self, call: Call, *, parent: str) -> Reply:
        """`runs/create` as a child of `parent`; exactly one child also when an answer is lost."""
        assert isinstance(call.body, bytes)
        body = json.loads(call.body)
        mark = hashlib.sha256(call.body).hexdigest()[:32]
        tags = [{"key": "mlflow.parentRunId", "value": parent}, {"key": _CHILD_TAG, "value": mark}]
        body["tags"] = [*tags, *(tag for tag in body.get("tags", []) if tag["key"] != "mlflow.parentRunId")]
        data = json.dumps(body).encode()
        return self.send(replace(call, body=data, size_bytes=len(data)))

    def _try(self, call: Call) -> Reply | _Silence:
        url = self._launcher_url()
        connection = make_connection(url, timeout_seconds=_CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError:
            return _Silence.AWAY
        try:
            connection.sock.settimeout(_ANSWER_SECONDS)
            return _judged(self._exchange(connection, call, path_of(url)))
        except (OSError, http.client.HTTPException):
            connection.close()
            return _Silence.LOST

    def _exchange(
        self, connection: http.client.HTTPConnection, call: Call, below: str
    ) -> http.client.HTTPResponse:
        body = call.body
        if not isinstance(body, bytes):
            body.seek(0)
        headers = {**call.headers, "Authorization": f"token {self._token}"}
        if call.size_bytes or call.method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(call.size_bytes)
        path = below + self._prefix + call.path
        connection.request(call.method, path, body=body or None, headers=headers)
        return connection.getresponse()

    def _look_for(self, call: Call) -> Reply | _Silence | None:
        """What a lost call may have made: its answer, None when there is no such thing."""
        path = urlsplit(call.path).path
        if not isinstance(call.body, bytes) or not path.endswith("/create"):
            return None
        if path.endswith("/runs/create"):
            return self._look_for_run(json.loads(call.body))
        if path.endswith("/model-versions/create"):
            return self._look_for_version(json.loads(call.body))
        return None

    def _look_for_run(self, body: Mapping[str, Any]) -> Reply | _Silence | None:
        mark = next((tag["value"] for tag in body.get("tags", []) if tag["key"] == _CHILD_TAG), "")
        search = {
            "experiment_ids": [body.get("experiment_id", "")],
            "filter": f"tags.`{_CHILD_TAG}` = '{mark}'",
        }
        data = json.dumps(search).encode()
        headers = {"Content-Type": "application/json"}
        path = "/api/2.0/mlflow/runs/search"
        reply = self._try(Call(method="POST", path=path, headers=headers, body=data, size_bytes=len(data)))
        return _first(reply, "runs", lambda _: True, wrapped="run")

    def _look_for_version(self, body: Mapping[str, Any]) -> Reply | _Silence | None:
        name = str(body.get("name", ""))
        quote_mark = '"' if "'" in name else "'"
        query = urlencode({"filter": f"name = {quote_mark}{name}{quote_mark}"})
        reply = self._try(Call(method="GET", path=f"/api/2.0/mlflow/model-versions/search?{query}"))
        source = body.get("source")
        return _first(
            reply, "model_versions", lambda item: item.get("source") == source, wrapped="model_version"
        )


def make_reply(value: Any, *, status: int = 200) -> Reply:
    """An answer of ours."""
    data = json.dumps(value).encode()
    headers = {"Content-Type": "application/json"}
    return Reply(status=status, stream=io.BytesIO(data), headers=headers, size_bytes=len(data))


def _judged(response: http.client.HTTPResponse) -> Reply | _Silence:
    """Separate answers from silence. The launcher's own errors are put into MLflow's form."""
    length = response.headers.get("Content-Length")
    reply = Reply(
        status=response.status,
        stream=response,
        headers=dict(response.headers.items()),
        size_bytes=int(length) if length is not None else None,
    )
    if response.status < 400:
        return reply
    data = response.read()
    told: Any = None
    with suppress(ValueError):
        told = json.loads(data)
    if response.status in (401, 503):  # 401: another launcher has our old port
        return _Silence.AWAY
    if response.status in (502, 504):
        return _Silence.LOST
    if isinstance(told, dict) and "error_code" not in told and "message" in told:
        message = f"{told['message']} {told.get('hint', '')}".strip()
        return make_reply({"error_code": _word(response.status), "message": message}, status=response.status)
    return replace(reply, stream=io.BytesIO(data), size_bytes=len(data))


def _word(status: int) -> str:
    return {403: "PERMISSION_DENIED", 404: "RESOURCE_DOES_NOT_EXIST"}.get(status, "INVALID_PARAMETER_VALUE")


def _first(
    reply: Reply | _Silence, key: str, fits: Callable[[Mapping[str, Any]], bool], *, wrapped: str
) -> Reply | _Silence | None:
    """The first item of a search that fits, as the answer of the call that made it."""
    if not isinstance(reply, Reply):
        return _Silence.AWAY
    found = next((item for item in reply.json().get(key, []) if fits(item)), None)
    return None if found is None else make_reply({wrapped: found})
