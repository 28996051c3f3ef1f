"""Real agents and gangs below a temporary home, and a small launcher that answers an agent's calls."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from slicelift.backends.base import Attempt
from slicelift.backends.local import Local
from slicelift.models import JobSpec, JobStatus
from slicelift.runtime import processes

from tests.waiting import wait_for

TOKEN = "job-token-of-the-test"


class AnswerError(Exception):
    """An HTTP answer other than 200."""

    def __init__(self, status: int, code: str, detail: Any = None) -> None:
        super().__init__(code)
        self.status, self.body = status, {"code": code, "message": code, "hint": "", "detail": detail}


@dataclass
class Launcher:
    """What the contract's agent calls do, in memory. `away` and `back` stop and start it on one port."""

    files: dict[str, bytes] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    cancel: bool = False
    gone: bool = False
    events: dict[tuple[int, str], list[dict[str, Any]]] = field(default_factory=dict)
    arrived: dict[tuple[int, str, int], float] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=list)
    refuse = AnswerError
    port: int = 0
    server: ThreadingHTTPServer | None = None

    def back(self) -> None:
        launcher = self

        class Handler(_Handler):
            stub = launcher

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def away(self) -> None:
        assert self.server is not None
        server, self.server = self.server, None
        server.shutdown()
        server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Any:
        if self.gone:
            raise AnswerError(404, "no-such-attempt")
        head, _, rest = path.partition("/")
        call: Callable[..., Any] = getattr(self, f"{method.lower()}_{head}")
        return call(rest, query, body)

    def get_secrets(self, *_: Any) -> Any:
        return self.secrets

    def get_snapshot(self, *_: Any) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for path, content in self.files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
        return stream.getvalue()

    def post_events(self, _: str, __: dict[str, str], body: bytes) -> Any:
        acked = []
        for stream in json.loads(body)["streams"]:
            key = (stream["rank"], stream["process"])
            have = self.events.setdefault(key, [])
            for line in stream["lines"]:
                if line["q"] > len(have) + 1:
                    raise AnswerError(409, "gap", {"rank": key[0], "process": key[1], "have": len(have)})
                if line["q"] == len(have) + 1:
                    have.append(line)
                    self.arrived[(*key, line["q"])] = time.time()
            acked.append({"rank": key[0], "process": key[1], "q": len(have)})
        return {"acked": acked}

    def post_logs(self, _: str, query: dict[str, str], body: bytes) -> Any:
        have, offset = self.logs.get(query["rank"], b""), int(query["offset"])
        if offset > len(have):
            raise AnswerError(409, "gap", {"next": len(have)})
        self.logs[query["rank"]] = have + body[len(have) - offset :]
        return {"next": len(self.logs[query["rank"]])}

    def put_outputs(self, path: str, query: dict[str, str], body: bytes) -> Any:
        if hashlib.sha256(body).hexdigest() != query["sha256"]:
            raise AnswerError(400, "digest")
        self.outputs[unquote(path)] = body
        return {}

    def post_models(self, _: str, __: dict[str, str], body: bytes) -> Any:
        offer = json.loads(body)
        missing = [file["sha256"] for file in offer["files"] if file["sha256"] not in self.blobs]
        if not missing and offer not in self.models:
            self.models.append(offer)
        return {"missing": missing}

    def put_blobs(self, digest: str, _: dict[str, str], body: bytes) -> Any:
        assert hashlib.sha256(body).hexdigest() == digest
        self.blobs[digest] = body
        return {}

    def post_state(self, _: str, __: dict[str, str], body: bytes) -> Any:
        self.states.append(json.loads(body))
        return {"cancel": self.cancel}

    def points(self, key: str) -> dict[int, list[float]]:
        """Per rank the values of one metric, in the order of their streams."""
        found: dict[int, list[float]] = {}
        for (rank, _), lines in sorted(self.events.items()):
            found.setdefault(rank, []).extend(
                line["m"][key] for line in lines if line["k"] == "m" and key in line["m"]
            )
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Launcher

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.stub.server is None:
            # a launcher that is away does not serve connections that are still open
            self.close_connection = True
            return
        found = re.fullmatch(r"/api/v1/attempts/[^/]+/(.*)", place.path)
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        try:
            if found is None or self.headers["Authorization"] != f"token {TOKEN}":
                raise AnswerError(401, "denied")
            status, value = 200, self.stub.answer(self.command, found[1], query, body)
        except AnswerError as answer:
            status, value = answer.status, answer.body
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET  # noqa: N815 - names that http.server looks for


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    stub = Launcher()
    stub.back()
    yield stub
    if stub.server is not None:
        stub.away()


class Bench:
    """Submits scripts to a Local of its own and cleans up behind them."""

    def __init__(self, home: Path, launcher: Launcher) -> None:
        self.home, self.launcher = home, launcher
        self.local = Local(home, patience_seconds=60)
        self.handles: list[str] = []

    def spec(self, script: str, **changes: Any) -> JobSpec:
        """A spec whose script is the launcher's snapshot; line n of it is line n of cell 3."""
        lines = script.splitlines()
        places = [{"cell": 3, "line": number, "file": None} for number in range(1, len(lines) + 1)]
        self.launcher.files[".slicelift/promoted.py"] = script.encode()
        self.launcher.files[".slicelift/promoted.map.json"] = json.dumps(places).encode()
        fields = {
            "name": "job",
            "snapshot_id": "s",
            "notebook": "笔记 本/n.ipynb",
            "script": ".slicelift/promoted.py",
            "cwd": "笔记 本",
            "python": sys.executable,
        }
        return JobSpec(**{**fields, **changes})

    def attempt(self, name: str = "r-abc", **changes: Any) -> Attempt:
        fields = {
            "attempt_id": f"{name}-1",
            "run_id": name,
            "promotion_id": "p-xyz",
            "attempt": 1,
            "launcher_url": self.launcher.url,
            "token": TOKEN,
        }
        return Attempt(**{**fields, **changes})

    def submit(self, script: str, *, name: str = "r-abc", **changes: Any) -> str:
        handle = self.local.submit(self.spec(script, **changes), self.attempt(name))
        self.handles.append(handle)
        return handle

    def wait(self, handle: str, wanted: Callable[[JobStatus], bool], seconds: float = 120.0) -> JobStatus:
        until = time.monotonic() + seconds
        while not wanted(status := self.local.status(handle)):
            assert time.monotonic() < until, (status, self.log(handle))
            time.sleep(0.02)
        return status

    def wait_ended(self, handle: str, seconds: float = 120.0) -> JobStatus:
        """Until the job is over and everything is delivered."""
        return self.wait(handle, lambda status: status.phase == "ended", seconds)

    def wait_for(self, what: str, check: Callable[[], Any]) -> Any:
        return wait_for(what, check, seconds=120, why=lambda: [self.log(handle) for handle in self.handles])

    def root(self, handle: str) -> Path:
        return self.home / "attempts" / handle.removeprefix("local://")

    def local_agent(self, handle: str) -> int:
        """The pid of the attempt's agent."""
        return int(json.loads((self.root(handle) / "agent.pid").read_text())["pid"])

    def log(self, handle: str) -> str:
        path = self.root(handle) / "agent.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def marked(self, handle: str) -> list[processes.Process]:
        return processes.find(processes.Tree(attempt_id=handle.removeprefix("local://")))


@pytest.fixture
def bench(tmp_path: Path, launcher: Launcher) -> Iterator[Bench]:
    found = Bench(tmp_path / "home 家", launcher)
    yield found
    for handle in found.handles:
        found.local.cancel(handle, reason="the test is over", grace_seconds=0)
        for process in found.marked(handle):
            processes.send(process, processes.signal.SIGKILL)
