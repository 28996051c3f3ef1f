"""The agent's way to its launcher: one HTTP connection, the job token, and what each kind of answer means.

An `Unavailable` is worth trying again for as long as it takes; `NotFound` means that the launcher does not
want this attempt any more; every other `SliceliftError` is about that one call.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from slicelift.errors import NotFound, SliceliftError, Unavailable, from_http
from slicelift.runtime.folder import read_object

Body = bytes | IO[bytes] | None
_READ_BYTES = 1 << 20
_NO_WAY = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}


class Link:
    """Calls under `/api/v1/attempts/<id>/`; `path` is what follows, already quoted.

    One per thread: it holds a connection and is not locked.

    After a failure the address is read anew from the launcher's state file, where there is one (not in a pod), since a
    restarted launcher may listen elsewhere.
    """

    def __init__(self, request: Mapping[str, Any], *, timeout_seconds: float = 10.0) -> None:
        self.url = str(request["launcher_url"])
        self._state_file = Path(str(request["state_file"])) if request.get("state_file") else None
        self._token = str(request["token"])
        self._calls = f"/api/v1/attempts/{request['attempt_id']}/"
        self._timeout_seconds = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None
        # another launcher may have taken over between the submit and now
        self._find_launcher()

    def get_json(self, path: str) -> Any:
        """The decoded answer of a GET."""
        return self._json("GET", path, body=None, kind="application/json")

    def post_json(self, path: str, value: Any) -> Any:
        """POST a JSON value (or its bytes, already encoded) and decode the answer."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self._json("POST", path, body=body, kind="application/json")

    def post_bytes(self, path: str, body: bytes) -> Any:
        """POST raw bytes and decode the answer."""
        return self._json("POST", path, body=body, kind="application/octet-stream")

    def put_file(self, path: str, file: Path) -> Any:
        """PUT a file's bytes, streamed, and decode the answer. Raises OSError when the file cannot be read."""
        with file.open("rb") as stream:
            return self._json("PUT", path, body=stream, kind="application/octet-stream")

    @contextmanager
    def stream(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """A GET whose answer is read piece by piece; raises Unavailable when it is cut short."""
        response = self._open("GET", path, body=None, kind="application/json")
        try:
            with _translated():
                yield response
                while response.read(_READ_BYTES):
                    pass
            if response.length:
                raise _away(f"the answer to {path} ended {response.length} bytes too early")
        finally:
            self.close()

    def current_url(self) -> str:
        """Where the launcher is now, by its state file; safe to call from another thread."""
        told = read_object(self._state_file).get("url") if self._state_file else None
        return told if isinstance(told, str) and told else self.url

    def close(self) -> None:
        """Drop the connection; the next call opens one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _json(self, method: str, path: str, *, body: Body, kind: str) -> Any:
        response = self._open(method, path, body=body, kind=kind)
        with self._guarded():
            return json.loads(response.read() or b"null")

    def _open(self, method: str, path: str, *, body: Body, kind: str) -> http.client.HTTPResponse:
        with self._guarded():
            if self._connection is None:
                self._connection = make_connection(self.url, timeout_seconds=self._timeout_seconds)
            headers = {"Authorization": f"token {self._token}", "Content-Type": kind}
            if body is not None and not isinstance(body, bytes):
                headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
            self._connection.request(
                method, path_of(self.url) + self._calls + path, body=body, headers=headers
            )
            response = self._connection.getresponse()
        if response.status >= 400:
            raise self._refusal(response)
        return response

    def _refusal(self, response: http.client.HTTPResponse) -> SliceliftError:
        with self._guarded():
            raw = response.read()
        body: object = None
        with suppress(ValueError):
            body = json.loads(raw)
        error = from_http(response.status, body)
        ours = isinstance(body, dict) and "code" in body
        if response.status in (404, 410) and ours:
            return NotFound(error.code, error.message, error.hint)
        # 401: another launcher on our old port; 404 without our body: some other server there;
        # 5xx: a store that is full (507) or a fault that may pass, nothing that this call could mend
        if response.status in (401, 403, 404, 410, 429) or response.status >= 500:
            self._find_launcher()
            return _away(f"HTTP {response.status}: {error.message}")
        return error

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with _translated():
                yield
        except BaseException:
            self.close()
            self._find_launcher()
            raise

    def _find_launcher(self) -> None:
        found = self.current_url()
        if found != self.url:
            self.close()
            self.url = found


def make_connection(url: str, *, timeout_seconds: float) -> http.client.HTTPConnection:
    """A connection, not opened yet, to the server of an http or https address."""
    place = urlsplit(url)
    host = place.hostname or "127.0.0.1"
    if place.scheme == "https":
        return http.client.HTTPSConnection(host, place.port or 443, timeout=timeout_seconds)
    return http.client.HTTPConnection(host, place.port or 80, timeout=timeout_seconds)


def path_of(url: str) -> str:
    """The path below which that server answers, without a slash at its end: "" or as behind a hub's proxy."""
    return urlsplit(url).path.rstrip("/")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, TimeoutError, http.client.HTTPException, ValueError) as error:
        raise _away(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        # anything else is about a file of ours: a full disk must not look like an absent launcher
        if error.errno in _NO_WAY or isinstance(error, socket.gaierror) or type(error).__module__ == "ssl":
            raise _away(str(error)) from error
        raise


def _away(why: str) -> Unavailable:
    return Unavailable("launcher-away", f"The launcher does not answer as it should ({why}).")
