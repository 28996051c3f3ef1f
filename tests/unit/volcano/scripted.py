"""An API server that answers as a test has written, for faults that a real one does not show on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slicelift_hub.launcher.backends.volcano.feeds import Feed

from tests.waiting import wait_for


class Script:
    """What the server answers: `answers[(method, path)]` is a list of (status, body); the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""
        # of Authorization; None: whoever comes
        self.tokens: set[str] | None = None

    def say(self, method: str, path: str, *answers: tuple[int, Any]) -> None:
        self.answers[method, path] = list(answers)

    def next(self, method: str, path: str) -> tuple[int, Any]:
        rows = self.answers.get((method, path), [(404, {"message": f"{path} not found", "code": 404})])
        return rows.pop(0) if len(rows) > 1 else rows[0]

    def queries(self, path: str) -> list[dict[str, str]]:
        return [query for _, where, query, _ in self.calls if where == path]


@contextmanager
def serving() -> Iterator[Script]:
    """At an address of its own, for the time of the block."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            script.calls.append((self.command, url.path, query, json.loads(body) if body else None))
            key = f"{url.path}?watch" if "watch" in query else url.path
            status, answer = 401, {"message": "Unauthorized", "code": 401}
            if script.tokens is None or self.headers.get("Authorization") in script.tokens:
                status, answer = script.next(self.command, key)
            if isinstance(answer, list):
                self._stream(answer)
                return
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_DELETE = do_GET  # noqa: N815 - the names are the module's

        def _stream(self, lines: list[Any]) -> None:
            """Lines of a watch; a number is a pause, None ends the connection without a word."""
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in lines:
                if line is None:
                    self.close_connection = True
                    return
                if isinstance(line, int | float):
                    time.sleep(line)
                    continue
                raw = json.dumps(line).encode() + b"\n"
                self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    script.url = f"http://127.0.0.1:{made.server_address[1]}"
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def item(name: str, version: int, **more: Any) -> dict[str, Any]:
    """An object as the server gives it."""
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, **more}


def until(check: Callable[[], bool]) -> None:
    """Looks often: some of what is scripted holds for a moment only."""
    wait_for("what the script says", check, seconds=10, every=0.01)


def names(feed: Feed) -> set[str]:
    """What a feed holds now."""
    return {each["name"] for each in feed.values()}
