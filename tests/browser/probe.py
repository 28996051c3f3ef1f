"""What a kernel can reach of another user: run as a cell of a notebook, so it needs the standard library only."""

import http.client
import json
import os
import pathlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

Call = tuple[str, Any]


class Stay(urllib.request.HTTPRedirectHandler):
    """A way to a login page is no answer."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))


def reached(calls: list[Call], marks: list[str]) -> list[str]:
    """The paths that brought a mark to light, on any listening port with any credential of this kernel."""
    tried = ((port, credential) for port in ports() for credential in credentials())
    return sorted({path for port, credential in tried for path in opened(port, credential, calls, marks)})


def ports() -> list[int]:
    files = [
        file for file in (pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")) if file.exists()
    ]
    rows = [line.split() for file in files for line in file.read_text().splitlines()[1:]]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})


def credentials() -> list[str]:
    """None at all, those of the environment, and those that Jupyter keeps beside its kernels."""
    named = {value for name, value in os.environ.items() if re.search("TOKEN|KEY|SECRET|PASS", name)}
    files = pathlib.Path.home().glob(".local/share/jupyter/runtime/jpserver-*.json")
    return sorted({"", *named, *(json.loads(file.read_text()).get("token", "") for file in files)})


def opened(port: int, credential: str, calls: list[Call], marks: list[str]) -> Iterator[str]:
    for path, body in calls:
        try:
            text = answer(port, credential, path, body)
        except urllib.error.HTTPError:
            continue
        except (OSError, http.client.HTTPException):
            return  # nobody who speaks HTTP
        if any(mark in text for mark in marks):
            yield path


def answer(port: int, credential: str, path: str, body: Any) -> str:
    """The first piece of it: a stream of events has no end."""
    headers = {"Authorization": f"token {credential}"} if credential else {}
    data = None if body is None else json.dumps(body).encode()
    if data:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with OPENER.open(request, timeout=5) as found:
        return str(found.read1(1 << 20).decode(errors="replace"))
