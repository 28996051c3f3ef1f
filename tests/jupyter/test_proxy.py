"""`api/`: what is passed on and what is not, streams, and a launcher that goes away."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from tornado.simple_httpclient import HTTPStreamClosedError

from tests.promoting import make_promotion_id
from tests.waiting import wait_for


class Events:
    """Reads a stream of events through the server, one at a time."""

    def __init__(self, http: httpx.Client, runs: str = "", last_id: str = "") -> None:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        self._stream = http.stream("GET", "api/events", params={"runs": runs}, headers=headers)
        self.answer = self._stream.__enter__()
        self._lines = self.answer.iter_lines()
        self.id = ""

    def lines(self) -> Iterator[str]:
        return self._lines

    def next(self, kind: str) -> Any:
        fields: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            fields[name] = value
            if not line and fields.get("event") == kind:
                self.id = fields["id"]
                return json.loads(fields["data"])
        raise AssertionError(f"the stream ended without a {kind}")

    def close(self) -> None:
        self._stream.__exit__(None, None, None)


@pytest.fixture(scope="module")
def run(desk: Any, launcher: Any) -> str:
    """A running job of the shared launcher, with a log and an output."""
    view = desk.promote(make_promotion_id(), name="run 1")[-1]["view"]
    run_id = str(view["run_id"])
    post = launcher.agent(run_id)
    ranks = [{"rank": 0, "pid": 1, "state": "running"}]
    assert post("state", {"state": "running", "message": "", "ranks": ranks}).status_code == 200
    assert post("logs?rank=0&offset=0", "ein Wort: 词\n".encode()).status_code == 200
    return run_id


def points(first: int, count: int) -> dict[str, Any]:
    """A body of `events`: steps from `first` on, loss = 1 / step."""
    steps = range(first, first + count)
    lines = [{"q": q, "t": 1000.0 + q, "k": "m", "s": q, "m": {"loss": 1 / q}} for q in steps]
    return {"streams": [{"rank": 0, "process": "1-1", "lines": lines}]}


def test_answers_are_the_launchers_own(desk: Any, launcher: Any, run: str) -> None:
    with launcher.client() as client:
        wanted = client.capacity()
    answer = desk.get("api/capacity")
    assert (answer.status_code, answer.json()) == (200, wanted)
    log = desk.get(f"api/jobs/{run}/logs?rank=0")
    assert log.text == "ein Wort: 词\n"
    assert log.headers["X-Next-Offset"] == str(len(log.content))
    assert log.headers["Content-Type"] == "text/plain; charset=UTF-8"
    unknown = desk.get("api/jobs/r-unknown")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "run-unknown")


def test_a_secret_goes_in_and_never_comes_out(desk: Any) -> None:
    with desk.http() as http:
        assert http.put("api/secrets/A_KEY", json={"value": "hidden"}).status_code == 200
        assert http.get("api/secrets").json() == {"secrets": ["A_KEY"]}
        assert http.delete("api/secrets/A_KEY").status_code == 200
        assert http.get("api/secrets").json() == {"secrets": []}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "shutdown"),
        ("POST", "blobs"),
        ("POST", "snapshots"),
        ("GET", "attempts/r-abc-1/snapshot"),
        ("GET", "attempts/r-abc-1/secrets"),
        ("GET", "mlflow/api/2.0/mlflow/experiments/search"),
        ("POST", "jobs/../shutdown"),
        ("POST", "jobs/%2e%2e/shutdown"),
        ("GET", "jobs/r-abc/outputs/1/%2E%2E/%2e%2e/x"),
        ("GET", "jobs/r-abc/outputs/1/a//b"),
        ("GET", "snapshots/" + "0" * 64 + "/files/../../capacity"),
        ("GET", "secrets/A_KEY"),
        ("DELETE", "jobs/r-abc"),
        ("GET", ""),
        ("GET", "//health"),
        ("GET", "health%2F..%2Fshutdown"),
    ],
)
def test_whatever_is_not_for_pages_is_not_there(desk: Any, tools: Any, method: str, path: str) -> None:
    # by hand: httpx would tidy the path up
    with socket.create_connection(("127.0.0.1", desk.port)) as connection:
        head = f"{method} /a%40b/slicelift/api/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        connection.sendall(f"{head}Authorization: token {tools.token}\r\nContent-Length: 0\r\n\r\n".encode())
        answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 404"), answer
    assert "no-such-call" in answer
    assert desk.get("api/health").status_code == 200


def test_events_come_at_once_and_the_stream_goes_on_where_it_was(desk: Any, launcher: Any, run: str) -> None:
    post = launcher.agent(run)
    with desk.http() as http:
        events = Events(http, runs=run)
        assert events.answer.headers["Content-Type"].startswith("text/event-stream")
        assert "Content-Length" not in events.answer.headers
        assert events.next("run")["run_id"] == run
        delays = []
        for step in range(1, 11):
            sent = time.monotonic()
            post("events", points(step, 1))
            assert events.next("points")["points"][0][:2] == ["loss", step]
            delays.append(time.monotonic() - sent)
        assert sorted(delays)[5] < 0.25
        last_id = events.id
        events.close()
        post("events", points(11, 2))
        again = Events(http, runs=run, last_id=last_id)
        assert [row[1] for row in again.next("points")["points"]] == [11, 12]
        again.close()


def test_a_page_that_goes_away_is_not_streamed_to(desk: Any, launcher: Any) -> None:
    before = launcher.connections()
    with desk.http() as http:
        streams = [Events(http) for _ in range(8)]
        for stream in streams:
            assert next(stream.lines()) == ": welcome"
        assert launcher.connections() == before + 8
        # others are served meanwhile
        assert desk.get("api/health").status_code == 200
        for stream in streams:
            stream.close()
    wait_for("the streams to end", lambda: launcher.connections() == before, seconds=5)
    assert "Traceback" not in desk.log.read_text()


def test_a_card_is_made_as_it_is_now(desk: Any, run: str) -> None:
    answer = desk.get(f"card/{run}")
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert set(data) == {"application/vnd.slicelift.run+json", "text/html", "text/plain"}
    saved = data["application/vnd.slicelift.run+json"]
    assert (saved["version"], saved["run_id"]) == (1, run)
    assert saved["view"]["run_id"] == run
    assert run in data["text/html"]
    assert desk.get("card/r-unknown").status_code == 404


def test_the_context_tells_where_the_page_is(desk: Any) -> None:
    told = desk.get("context").json()
    assert told["hub"] is False
    assert told["launcher"] == "up"
    assert told["slice"] is None
    assert told["queues"] == ["default"]
    assert told["capacity"]["slots"]["total"] == 64
    assert [(preset["name"], preset["kind"]) for preset in told["presets"]] == [
        ("torchrun", "gang"),
        ("slice", "slice"),
    ]


def test_neither_address_nor_token_reaches_the_page(desk: Any, launcher: Any, run: str) -> None:
    address = launcher.url.removeprefix("http://")
    for path in ("context", "api/health", "api/capacity", f"api/jobs/{run}", f"card/{run}"):
        answer = desk.get(path)
        told = answer.text + str(answer.headers)
        assert launcher.token not in told, path
        assert address not in told, path


def test_a_killed_launcher_ends_the_stream_and_the_next_one_is_found(
    make_desk: Callable[..., Any], own_launcher: Any
) -> None:
    """Plain JupyterLab: the new launcher has another port. 6 s: a server and two launchers."""
    desk = make_desk("--SliceliftServer.start_launcher=False", behind=own_launcher)
    with desk.http() as http:
        events = Events(http)
        assert next(events.lines()) == ": welcome"
        own_launcher.kill()
        # an orderly end, so that the page opens it again
        assert [line for line in events.lines() if line] == []
        events.close()
        away = http.get("api/jobs")
        assert (away.status_code, away.json()["code"]) == (503, "launcher-not-running")
        assert http.get("context").json()["launcher"] == "away"
        own_launcher.start()
        assert http.get("api/jobs").status_code == 200
        events = Events(http)
        assert next(events.lines()) == ": welcome"
        events.close()
        _pretend(own_launcher, version="0.0.9")
        other = http.get("api/jobs")
        assert (other.status_code, other.json()["code"]) == (503, "launcher-version")
        assert "0.0.9" in http.get("context").json()["message"]
    assert "Traceback" not in desk.log.read_text()


def _pretend(launcher: Any, **changes: Any) -> None:
    state = launcher.home / "launcher.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | changes))


class Seen(BaseHTTPRequestHandler):
    """A stand-in for a launcher, for what a real one cannot be made to do: it notes what it is told and breaks off."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.requests.append((self.path, dict(self.headers)))
        if "outputs" in self.path:
            self._half(length=None if "chunked" in self.path else 100)
        elif "attempts" in self.path:
            self._answer(401, {"code": "not-signed-in", "message": "No.", "hint": "Send a token."})
        elif self.path.endswith("/health"):
            self._answer(
                200, {"version": "9.9", "instance": "i", "tracker": {"status": "up", "url": "http://x/"}}
            )
        else:
            self._answer(200, {"jobs": [], "queues": []})

    def log_message(self, *_: Any) -> None:
        return

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Set-Cookie", "launcher=1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _half(self, length: int | None) -> None:
        """The first half of a file, then the line is cut."""
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        if length:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"x" * 50 if length else b"32\r\n" + b"x" * 50 + b"\r\n")
        self.close_connection = True


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """Where a hub's environment says the launcher is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Seen)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    Seen.requests.clear()
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-the-session")
    monkeypatch.setenv("JUPYTERHUB_USER", "小明")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_only_what_the_launcher_needs_goes_there(
    stand_in: Any, jp_fetch: Any, jp_serverapp: Any
) -> None:
    token = jp_serverapp.identity_provider.token
    headers = {"Cookie": "a=b", "Last-Event-ID": "i-7", "X-XSRFToken": "x", "Referer": "http://page"}
    params = {"token": token, "_xsrf": "y", "status": "RUNNING,词", "1764469000123": ""}
    answer = await jp_fetch("slicelift", "api", "jobs", headers=headers, params=params)
    assert json.loads(answer.body)["jobs"] == []
    assert "launcher=1" not in str(answer.headers)
    [(path, told)] = Seen.requests
    assert path == "/api/v1/jobs?status=RUNNING%2C%E8%AF%8D"
    assert told["Authorization"] == "token token-of-the-session"
    assert told["Last-Event-ID"] == "i-7"
    assert set(map(str.lower, told)) <= {
        "host", "accept", "accept-encoding", "authorization", "connection", "last-event-id", "user-agent"
    }  # fmt: skip


async def test_under_a_hub_the_environment_says_where(stand_in: Any, jp_fetch: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("SLICELIFT_SLICE", "1g.10gb")
    monkeypatch.setenv("SLICELIFT_SLICE_SIMULATED", "1")
    told = json.loads((await jp_fetch("slicelift", "context")).body)
    assert told["hub"] is True
    assert told["slice"] == {"name": "1g.10gb", "simulated": True}
    assert told["mlflow"] == "/services/launcher/mlflow/"
    # of another version, which only its answer can say
    assert told["launcher"] == "away"
    assert "9.9" in told["message"]


async def test_a_hubs_launcher_that_is_away_is_no_matter_for_the_user(
    jp_fetch: Any, monkeypatch: Any
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-the-session")
        answer = await jp_fetch("slicelift", "api", "jobs", raise_error=False)
        told = json.loads(answer.body)
        assert (answer.code, told["code"]) == (503, "launcher-away")
        assert "hub" in told["hint"]
        assert str(port) not in answer.body.decode()
        context = json.loads((await jp_fetch("slicelift", "context")).body)
        assert (context["hub"], context["launcher"], context["capacity"]) == (True, "away", None)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "")
        told = json.loads((await jp_fetch("slicelift", "api", "jobs", raise_error=False)).body)
        assert told["code"] == "launcher-token-missing"


async def test_a_token_that_is_refused_is_the_sessions_and_not_the_pages(
    stand_in: Any, jp_fetch: Any
) -> None:
    answer = await jp_fetch("slicelift", "api", "jobs", "r-abc", "attempts", raise_error=False)
    told = json.loads(answer.body)
    assert (answer.code, told["code"]) == (403, "session-refused")
    assert "Restart your server" in told["hint"]


@pytest.mark.parametrize("name", ["whole", "chunked"])
async def test_half_a_file_does_not_pass_for_a_whole_one(stand_in: Any, jp_fetch: Any, name: str) -> None:
    with pytest.raises(HTTPStreamClosedError):
        await jp_fetch("slicelift", "api", "jobs", "r-abc", "outputs", "1", name)


def test_the_server_loads_nothing_heavy() -> None:
    """Its start grows by less than 0.3 s of CPU time. 3 s: Jupyter itself is imported first."""
    program = """
import sys, time, jupyter_server.serverapp
before, start = set(sys.modules), time.process_time()
import slicelift.server
slicelift.server._jupyter_server_extension_points()
print(time.process_time() - start, *(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    seconds, *loaded = done.stdout.split()
    assert float(seconds) < 0.3
    heavy = {"mlflow", "dvc", "IPython", "nbformat", "httpx", "yaml", "rich", "slicelift.promotion"}
    assert not heavy & set(loaded)
