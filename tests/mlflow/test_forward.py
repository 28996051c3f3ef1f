"""The way from the loopback to a launcher that is away, hangs up or refuses: a scripted one, no MLflow."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from slicelift.runtime.mlflow_forward import Call, Forward, GaveUp

PREFIX = "/api/v1/attempts/r-a-1/mlflow"
HANG_UP = object()


class Launcher:
    """Answers from a script: for each call the next entry of `script[path]`, `(status, body)` or HANG_UP."""

    def __init__(self) -> None:
        self.script: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, str, bytes]] = []
        launcher = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                assert self.headers["Authorization"] == "token secret"
                path = self.path.removeprefix(PREFIX)
                launcher.calls.append((self.command, path, body))
                answer = launcher.script[path.split("?")[0]].pop(0)
                if answer is HANG_UP:
                    self.connection.close()
                    return
                data = json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.server.shutdown()
    made.server.server_close()


def make_forward(url: Callable[[], str], patience: float = 20.0) -> Forward:
    return Forward(url, token="secret", attempt_id="r-a-1", patience_seconds=patience)


def post(path: str, body: Any) -> Call:
    data = json.dumps(body).encode()
    return Call(method="POST", path=path, body=data, size_bytes=len(data))


def test_it_waits_while_mlflow_or_the_launcher_is_away(launcher: Launcher) -> None:
    away = {"code": "tracker-away", "message": "Not now.", "hint": ""}
    launcher.script = {"/api/2.0/mlflow/x": [(503, away), (401, away), (200, {"a": 1})]}
    urls = iter(["http://127.0.0.1:9"] * 2)
    forward = make_forward(lambda: next(urls, launcher.url))
    reply = forward.send(post("/api/2.0/mlflow/x", {"q": 2}))
    assert (reply.status, reply.json()) == (200, {"a": 1})
    assert launcher.calls == [("POST", "/api/2.0/mlflow/x", b'{"q": 2}')] * 3


def test_a_file_is_sent_from_its_beginning_each_time(launcher: Launcher) -> None:
    launcher.script = {"/put": [HANG_UP, (200, {})]}
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 3_000_000)
        call = Call(method="PUT", path="/put", body=file, size_bytes=3_000_000)
        assert make_forward(lambda: launcher.url).send(call).status == 200
    assert [len(body) for _, _, body in launcher.calls] == [3_000_000, 3_000_000]


@pytest.mark.parametrize("lost", [HANG_UP, (502, {"code": "tracker-broken-off", "message": "Gone."})])
def test_a_child_run_whose_answer_was_lost_is_found_again(launcher: Launcher, lost: Any) -> None:
    made = {"info": {"run_id": "7"}}
    launcher.script = {
        "/api/2.0/mlflow/runs/create": [lost],
        "/api/2.0/mlflow/runs/search": [(503, {}), (200, {"runs": [made]})],
    }
    body = {"experiment_id": "1", "start_time": 5, "tags": [{"key": "a", "value": "b"}]}
    call = post("/api/2.0/mlflow/runs/create", body)
    reply = make_forward(lambda: launcher.url).create_child(call, parent="p" * 32)
    assert reply.json() == {"run": made}
    ((_, _, sent),) = [call for call in launcher.calls if call[1].endswith("create")]
    tags = {tag["key"]: tag["value"] for tag in json.loads(sent)["tags"]}
    assert tags == {"mlflow.parentRunId": "p" * 32, "slicelift.child": tags["slicelift.child"], "a": "b"}
    search = json.loads(launcher.calls[-1][2])
    assert search["filter"] == f"tags.`slicelift.child` = '{tags['slicelift.child']}'"


def test_a_version_whose_answer_was_lost_is_found_or_made(launcher: Launcher) -> None:
    mine, other = {"version": "2", "source": "models:/m-1"}, {"version": "1", "source": "models:/m-0"}
    path = "/api/2.0/mlflow/model-versions/create"
    launcher.script = {
        path: [HANG_UP, HANG_UP],
        "/api/2.0/mlflow/model-versions/search": [
            (200, {"model_versions": [other]}),
            (200, {"model_versions": [other, mine]}),
        ],
    }
    reply = make_forward(lambda: launcher.url).send(post(path, {"name": "it's", "source": "models:/m-1"}))
    assert reply.json() == {"model_version": mine}
    assert [call[1].split("?")[0].rsplit("/", 1)[1] for call in launcher.calls] == [
        "create",
        "search",
        "create",
        "search",
    ]


def test_errors_of_the_launcher_take_mlflow_s_form(launcher: Launcher) -> None:
    denied = {"code": "mlflow-call-closed", "message": "No.", "hint": "See docs."}
    theirs = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "What?"}
    launcher.script = {"/a": [(403, denied)], "/b": [(404, theirs)], "/c": [(400, denied)]}
    forward = make_forward(lambda: launcher.url)
    replies = [forward.send(Call(method="GET", path=path)) for path in ("/a", "/b", "/c")]
    assert [(reply.status, reply.json()) for reply in replies] == [
        (403, {"error_code": "PERMISSION_DENIED", "message": "No. See docs."}),
        (404, theirs),
        (400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "No. See docs."}),
    ]


def test_it_gives_up_after_its_patience_and_when_it_is_stopped() -> None:
    with pytest.raises(GaveUp):
        make_forward(lambda: "http://127.0.0.1:9", patience=0.3).send(Call(method="GET", path="/x"))
    forward = make_forward(lambda: "http://127.0.0.1:9", patience=1000)
    threading.Timer(0.3, forward.stop).start()
    began = time.monotonic()
    with pytest.raises(GaveUp):
        forward.send(Call(method="PUT", path="/x", body=io.BytesIO(b"abc"), size_bytes=3))
    assert time.monotonic() - began < 5
