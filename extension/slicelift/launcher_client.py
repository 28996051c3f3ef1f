"""The launcher's HTTP face: one method per call, errors as they were raised there.

`find` gives the running launcher, `ensure` starts one if there is none (see `launcher_start`); in a session of a hub
both give the hub's (see `launcher_address`). A client survives restarts of its launcher: after a broken connection the
address is read anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from slicelift import launcher_address
from slicelift._version import __version__
from slicelift.errors import SliceliftError, Unavailable, from_http
from slicelift.models import JobSpec, ModelVersionView, Output, RunView, Snapshot, from_dict, to_dict

if TYPE_CHECKING:
    import httpx

STATE_FILE = "launcher.json"
LOCK_FILE = "launcher.lock"
CONNECT_SECONDS = 3.0
READ_SECONDS = 60.0
# the launcher says something every 15 s
STREAM_SECONDS = 45.0
_CHUNK_BYTES = 256 * 1024
_FOLLOW_SECONDS = 0.3
_AWAY_HINT = "See what it says in launcher.log of its home, or start it: `make up` or `slicelift up`."


class Reader(Protocol):
    """What is left of a blob, read like a file."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; b"" at the end."""
        ...


Blob = tuple[str, int, "bytes | Reader"]


class Client:
    """One launcher. Methods raise what it answered (`slicelift.errors`), and `Unavailable` when it is away.

    With `home` the address is read again from the state file after a broken connection. `away_hint` is what to do
    when it does not answer.
    """

    def __init__(
        self, url: str, token: str, *, home: Path | None = None, away_hint: str = _AWAY_HINT
    ) -> None:
        import httpx  # a quarter of a second, which reading commands that fail early need not pay

        self.url = url
        self._home = home
        self._away_hint = away_hint
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        # trust_env off: a proxy of the environment must not see calls on loopback
        headers = {"Authorization": f"token {token}"}
        self._http = httpx.Client(
            timeout=timeout, headers=headers, trust_env=False, verify=url.startswith("https:")
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all connections."""
        self._http.close()

    def health(self) -> dict[str, Any]:
        """`{version, instance, tracker}`."""
        return self._get("/health")

    def capacity(self) -> dict[str, Any]:
        """Slots, GPUs, slices, queues, and how many wait."""
        return self._get("/capacity")

    def offer_snapshot(self, snapshot: Snapshot) -> list[str]:
        """The digests that the store lacks; when there are none, the snapshot is complete. Idempotent."""
        return list(self._post("/snapshots", {"snapshot": to_dict(snapshot)})["missing"])

    def send_blobs(self, blobs: Iterable[Blob]) -> dict[str, int]:
        """Send contents as (sha256, size, bytes or a reader), in one stream: `{stored, known}`.

        Each is in the store as soon as it has arrived whole, also when the connection breaks later.
        """
        return self._json("POST", "/blobs", content=_tar_stream(blobs))

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """A complete snapshot."""
        return from_dict(Snapshot, self._get(f"/snapshots/{snapshot_id}")["snapshot"])

    def snapshot_file(self, snapshot_id: str, path: str) -> bytes:
        """The bytes of one file of a snapshot."""
        return b"".join(self._stream(f"/snapshots/{snapshot_id}/files/{quote(path)}"))

    def plan(self, spec: JobSpec) -> dict[str, Any]:
        """`{manifest, position, capacity, notes}`; submits nothing."""
        return self._post("/plan", {"spec": to_dict(spec)})

    def submit(self, promotion_id: str, spec: JobSpec) -> RunView:
        """Submit once: the same id again gives the same run."""
        return _run(self._post("/jobs", {"promotion_id": promotion_id, "spec": to_dict(spec)}))

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
        everyone: bool = False,
    ) -> list[RunView]:
        """Runs, newest first; `before` is the run id of the last one seen. `everyone` is for the operator's token."""
        query = {"status": ",".join(status), "limit": limit, "before": before or ""}
        if everyone:
            query["everyone"] = "1"
        return [_run(item) for item in self._get("/jobs", query)["jobs"]]

    def job(self, ident: str) -> RunView:
        """One run by run id or promotion id."""
        return _run(self._get(f"/jobs/{quote(ident, safe='')}"))

    def cancel(self, ident: str) -> RunView:
        """End a run: KILLED once its processes are proved gone, else CANCELLING and why. Up to 40 s."""
        return _run(self._post(f"/jobs/{quote(ident, safe='')}/cancel", {}))

    def suspend(self, ident: str) -> RunView:
        """End a run with time to save a checkpoint, for a `retry` to go on from; else as `cancel`."""
        return _run(self._post(f"/jobs/{quote(ident, safe='')}/suspend", {}))

    def scale(self, ident: str, workers: int) -> RunView:
        """Another number of workers for an elastic run that is under way."""
        return _run(self._post(f"/jobs/{quote(ident, safe='')}/scale", {"workers": workers}))

    def retry(self, ident: str) -> RunView:
        """One more attempt of a run that is over."""
        return _run(self._post(f"/jobs/{quote(ident, safe='')}/retry", {}))

    def series(
        self,
        ident: str,
        *,
        keys: Sequence[str] = (),
        attempt: int | str | None = None,
        rank: int | None = None,
        first: int | None = None,
        last: int | None = None,
        points: int = 300,
    ) -> list[dict[str, Any]]:
        """`{key, attempt, rank, count, points: [(step, time, value)]}` of the last attempt, one, or `all`."""
        asked = {"attempt": attempt, "rank": rank, "from": first, "to": last, "points": points}
        query = {name: value for name, value in asked.items() if value is not None}
        found = self._get(f"/jobs/{quote(ident, safe='')}/series", query | {"keys": ",".join(keys)})["series"]
        return [{**item, "points": [_point(point) for point in item["points"]]} for item in found]

    def logs(
        self,
        ident: str,
        *,
        rank: int | str = 0,
        attempt: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> tuple[bytes, int]:
        """(bytes from `offset`, where to go on); a negative offset counts from the end."""
        asked = {"rank": rank, "attempt": attempt, "offset": offset, "limit": limit}
        query = {name: value for name, value in asked.items() if value is not None}
        response = self._send("GET", f"/jobs/{quote(ident, safe='')}/logs", params=query)
        return response.content, int(response.headers["X-Next-Offset"])

    def attempts(self, ident: str) -> list[dict[str, Any]]:
        """Every attempt of a run, oldest first."""
        return list(self._get(f"/jobs/{quote(ident, safe='')}/attempts")["attempts"])

    def outputs(self, ident: str) -> list[Output]:
        """What all attempts left under ./outputs."""
        return [
            from_dict(Output, item) for item in self._get(f"/jobs/{quote(ident, safe='')}/outputs")["outputs"]
        ]

    def output(self, ident: str, attempt: int, path: str) -> Iterator[bytes]:
        """The bytes of one output file, streamed."""
        return self._stream(f"/jobs/{quote(ident, safe='')}/outputs/{attempt}/{quote(path)}")

    def events(self, run_ids: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
        """For ever: ("run", RunView), ("points", dict), and ("reset", {}) when points may have been missed.

        No ids: all runs. A broken stream goes on where it stopped, also after a restart of the launcher; one
        that cannot be opened again raises `Unavailable`.
        """
        last_id = ""
        while True:
            for event_id, kind, data in self._events_once(run_ids, last_id):
                last_id = event_id
                yield kind, _run(data) if kind == "run" else data
            time.sleep(_FOLLOW_SECONDS)

    def models(self) -> list[ModelVersionView]:
        """All registered versions, newest first."""
        return [from_dict(ModelVersionView, item) for item in self._get("/models")["models"]]

    def set_alias(self, name: str, alias: str, version: str) -> ModelVersionView:
        """Let `alias` name this version."""
        path = f"/models/{quote(name, safe='')}/aliases/{quote(alias, safe='')}"
        return from_dict(ModelVersionView, self._post(path, {"version": version}))

    def secrets(self) -> list[str]:
        """Names only."""
        return list(self._get("/secrets")["secrets"])

    def set_secret(self, name: str, value: str) -> None:
        """Set or replace."""
        self._json("PUT", f"/secrets/{quote(name, safe='')}", json={"value": value})

    def delete_secret(self, name: str) -> None:
        """Forget it."""
        self._json("DELETE", f"/secrets/{quote(name, safe='')}")

    def shutdown(self, *, keep_jobs: bool = False) -> None:
        """Have the launcher stop; it answers before it does."""
        self._post("/shutdown", {"keep_jobs": keep_jobs})

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._json("GET", path, params=dict(query or {}))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        # Python's JSON knows NaN, httpx's encoder refuses it, and a parameter may well be one
        content = json.dumps(body).encode()
        return self._json("POST", path, content=content)

    def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._send(method, path, **request).json()
        return answer

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self._told():
            response = self._http.request(method, f"{self.url}/api/v1{path}", **request)
            # another launcher may have our old port by now; a stream cannot be sent twice
            if response.status_code == 401 and self._look_again() and _is_plain(request):
                response = self._http.request(method, f"{self.url}/api/v1{path}", **request)
        _raise_error(response)
        return response

    def _stream(self, path: str) -> Iterator[bytes]:
        with self._told(), self._http.stream("GET", f"{self.url}/api/v1{path}") as response:
            if response.is_error:
                response.read()
                _raise_error(response)
            yield from response.iter_bytes(_CHUNK_BYTES)

    def _events_once(self, run_ids: Sequence[str], last_id: str) -> Iterator[tuple[str, str, Any]]:
        """(id, kind, data) until the stream breaks; the breaking itself is no error, not to open is."""
        import httpx

        headers = {"Last-Event-ID": last_id} if last_id else {}
        timeout = httpx.Timeout(STREAM_SECONDS, connect=CONNECT_SECONDS)
        url, params = f"{self.url}/api/v1/events", {"runs": ",".join(run_ids)}
        opened = False
        try:
            with self._http.stream("GET", url, params=params, headers=headers, timeout=timeout) as response:
                if response.is_error:
                    response.read()
                    _raise_error(response)
                opened = True
                yield from _parse_events(response.iter_lines())
        except httpx.TransportError as error:
            self._look_again()
            if not opened:
                raise _away(self.url, error, self._away_hint) from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Trouble with the connection becomes `launcher-away`, and the address is looked up anew."""
        import httpx

        try:
            yield
        except httpx.TransportError as error:
            self._look_again()
            raise _away(self.url, error, self._away_hint) from error

    def _look_again(self) -> bool:
        """Read address and token anew; whether they changed."""
        state = read_state(self._home) if self._home is not None else None
        if not state:
            return False
        before = (self.url, self._http.headers["Authorization"])
        self.url = str(state["url"])
        self._http.headers["Authorization"] = f"token {state['token']}"
        return before != (self.url, self._http.headers["Authorization"])


def default_home() -> Path:
    """`SLICELIFT_HOME`, else the XDG data folder's `slicelift`."""
    told = os.environ.get("SLICELIFT_HOME")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(told or f"{data}/slicelift").expanduser().absolute()


def read_state(home: Path) -> dict[str, Any] | None:
    """The state file of the launcher that serves `home`, or None when none does.

    A process of that id may be another one's by now: what counts is the lock, which a launcher holds for life.
    """
    try:
        state: dict[str, Any] = json.loads((home / STATE_FILE).read_bytes())
        served = is_alive(int(state["pid"])) and is_locked(home / LOCK_FILE)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return state if served else None


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not awaited by its parent does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists()
    except PermissionError:
        return True
    except OSError:
        return False


def is_locked(file: Path) -> bool:
    """Whether some service holds this lock of its home for life. Ours is shared and let go at once: nobody waits for it.

    Raises OSError when there is no such file.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find(home: Path | None = None, *, any_version: bool = False) -> Client:
    """The launcher that serves `home`; without `home` the one that the environment names, else the user's own.

    Starts nothing. Raises `launcher-not-running` (the hub's: `launcher-away`), or `launcher-version` when it is of
    another version than this package and `any_version` is not said, as only who wants to stop it may.
    """
    address = launcher_address.told() if home is None else None
    if address is not None:
        return _told_client(address, any_version=any_version)
    root = home or default_home()
    state = read_state(root)
    if state is None:
        message = f"No launcher serves {root}."
        raise Unavailable("launcher-not-running", message, "Start one: `make up` or `slicelift up`.")
    if not any_version:
        check_version(state)
    return Client(str(state["url"]), str(state["token"]), home=root)


def ensure(home: Path | None = None, *, on_progress: Any = None) -> Client:
    """See `launcher_start.ensure`: the running launcher, or a new one; the hub's where the environment names it."""
    from slicelift import launcher_start  # only who may start one needs it

    return launcher_start.ensure(home, on_progress=on_progress)


def check_version(state: Mapping[str, Any]) -> None:
    """Raises `launcher-version`: two versions at once would misread each other's data."""
    if state.get("version") == __version__:
        return
    message = (
        f"The running launcher (process {state.get('pid')}) is version {state.get('version')}, "
        f"this is slicelift {__version__}."
    )
    hint = "Stop it with `slicelift down --keep-jobs` (or Ctrl-C where it runs), then try again."
    raise SliceliftError("launcher-version", message, hint)


def _told_client(address: launcher_address.Address, *, any_version: bool) -> Client:
    """The hub's launcher, asked once whether it is there and of our version."""
    client = Client(address.url, address.token, away_hint=launcher_address.AWAY_HINT)
    try:
        version = client.health().get("version")
    except BaseException:
        client.close()
        raise
    if any_version or version == __version__:
        return client
    client.close()
    message = (
        f"The launcher of the hub ({address.url}) is version {version}, this is slicelift {__version__}."
    )
    hint = f"Restart this session from the hub, or in this environment: pip install slicelift=={version}"
    raise SliceliftError("launcher-version", message, hint)


def _run(data: Mapping[str, Any]) -> RunView:
    latest = {key: [step, float(value)] for key, (step, value) in data.get("latest", {}).items()}
    return from_dict(RunView, {**data, "latest": latest})


def _point(point: Sequence[Any]) -> tuple[int, float, float]:
    return int(point[0]), float(point[1]), float(point[2])


def _is_plain(request: Mapping[str, Any]) -> bool:
    return isinstance(request.get("content", b""), bytes)


def _raise_error(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        body = response.json()
    except ValueError:
        body = None
    raise from_http(response.status_code, body)


def _away(url: str, error: Exception, hint: str) -> Unavailable:
    message = f"The launcher at {url} does not answer ({type(error).__name__})."
    return Unavailable("launcher-away", message, hint)


def _parse_events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"])
            fields = {}


def _tar_stream(blobs: Iterable[Blob]) -> Iterator[bytes]:
    """One plain member per blob. A content shorter or longer than announced raises before it could harm."""
    for sha256, size, content in blobs:
        member = tarfile.TarInfo(sha256)
        member.size = size
        yield member.tobuf(tarfile.USTAR_FORMAT)
        sent = 0
        for chunk in _chunks(content):
            sent += len(chunk)
            if sent <= size:
                yield chunk
        if sent != size:
            message = f"Blob {sha256} has {sent} bytes, not {size}: it changed while it was sent."
            raise SliceliftError("blob-differs", message, "Promote again.")
        yield bytes(-size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _chunks(content: bytes | Reader | IO[bytes]) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk
