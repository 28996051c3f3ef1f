"""A launcher under a small stand-in for the hub, and two users of it who are kept apart by users of the system."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from slicelift.launcher_client import Client, read_state
from slicelift.models import DataRef, RunView, Status
from slicelift.runtime import processes
from slicelift_hub import isolation
from slicelift_hub.homes import slug
from slicelift_hub.system_users import SystemUser, remove_all, system_user

from tests.promoting import make_promotion_id, make_spec, upload
from tests.waiting import free_port, wait_for

SCOPE = "access:services!service=launcher"


class _Whose(BaseHTTPRequestHandler):
    """`GET /user` as the hub answers it: a token is its user's name with `token-` before it."""

    def do_GET(self) -> None:
        name = self.headers["Authorization"].removeprefix("token token-")
        body = json.dumps({"kind": "user", "name": name, "scopes": [SCOPE]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@dataclass
class Machine:
    """One home with a launcher for several users. `close` ends what still runs and removes the system's users."""

    home: Path
    hub_url: str
    process: subprocess.Popen[bytes] | None = None
    _clients: dict[str, Client] = field(default_factory=dict)

    def start(self) -> Machine:
        command = [sys.executable, "-m", "slicelift_hub.launcher", "--hub", "--home", str(self.home)]
        command += ["--tracker", "none", "--port", str(free_port()), "--slots", "8"]
        told = {"JUPYTERHUB_API_URL": self.hub_url, "JUPYTERHUB_API_TOKEN": "the service's own"}
        told |= {"JUPYTERHUB_SERVICE_NAME": "launcher", "ADMINS_CLOUD_KEY": "key-of-the-admin"}
        with (self.home.parent / "launcher.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=os.environ | told, stdout=log, stderr=log)
        pid = self.process.pid
        wait_for("the launcher", lambda: (read_state(self.home) or {}).get("pid") == pid, why=self.log)
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._drop_clients()

    def close(self) -> None:
        self._drop_clients()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
        accounts = json.loads((self.home / "hub" / "accounts.json").read_bytes())
        uids = {uid for _, uid in accounts.values()}
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            found = processes.look(pid)
            if found and processes.user_of(pid) in uids:
                processes.send(found, signal.SIGKILL)
        wait_for("the accounts to go", lambda: not remove_all(self.home))
        assert not _accounts_left(accounts)

    def user(self, name: str) -> SystemUser:
        return system_user(self.home, name)

    def home_of(self, name: str) -> Path:
        return self.home / "homes" / slug(name)

    def client(self, name: str) -> Client:
        if name not in self._clients:
            state = read_state(self.home)
            assert state is not None
            self._clients[name] = Client(str(state["url"]), f"token-{name}")
        return self._clients[name]

    def submit(self, name: str, script: str, **changes: Any) -> RunView:
        client = self.client(name)
        snapshot = upload(client, {"promoted.py": script.encode()})
        return client.submit(make_promotion_id(), make_spec(snapshot, **changes))

    def until(self, name: str, run_id: str, status: Status, seconds: float = 200) -> RunView:
        client = self.client(name)

        def reached() -> bool:
            view = client.job(run_id)
            assert view.status == status or not view.status.terminal, (view, self.words(view))
            return view.status == status

        wait_for(status, reached, seconds=seconds, why=lambda: self.log() + self.words(client.job(run_id)))
        return client.job(run_id)

    def words(self, view: RunView) -> str:
        """What the job's agent and its rank 0 wrote."""
        root = self.attempt(view.run_id)
        files = [root / "agent.log", root / "logs" / "rank-0.log"]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def attempt(self, run_id: str) -> Path:
        return self.home / "attempts" / f"{run_id}-1"

    def processes_of(self, name: str) -> list[int]:
        uid = self.user(name).uid
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if processes.look(pid) and processes.user_of(pid) == uid]

    def run_as(self, name: str, program: str, *arguments: str, network: bool = True) -> Any:
        """What a Python program of that user's, in a session of theirs, prints as JSON."""
        home = self.home_of(name)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-S", "-c", program, *arguments]
        enclosed = isolation.enclosed_command(name, command, writable=[home], network=network, home=self.home)
        done = subprocess.run(enclosed, cwd=home, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _drop_clients(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def log(self) -> str:
        return (self.home.parent / "launcher.log").read_text(errors="replace")[-4000:]


def make_data(remote: Path, files: dict[str, bytes], **words: Any) -> DataRef:
    """A folder in a DVC remote that is a directory, as `dvc push` leaves it."""
    rows = [{"md5": md5(data), "relpath": name} for name, data in sorted(files.items())]
    listing = json.dumps(rows).encode()
    for name, data in {
        **{md5(data): data for data in files.values()},
        f"{md5(listing)}.dir": listing,
    }.items():
        place = remote / "files" / "md5" / name[:2] / name[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    size = sum(map(len, files.values()))
    told = {"path": "data", "dvc_file": "data.dvc", "remote": "store", "remote_config": {"url": str(remote)}}
    return DataRef(md5=f"{md5(listing)}.dir", size_bytes=size, nfiles=len(files), **(told | words))


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _accounts_left(accounts: dict[str, Any]) -> list[str]:
    names = Path("/etc/passwd").read_text()
    return [name for name, _ in accounts.values() if f"{name}:" in names]


@pytest.fixture(scope="session")
def hub_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Whose)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def machine(hub_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Shared by all tests: a launcher takes seconds to come up."""
    home = tmp_path_factory.mktemp("machine 机") / "home 家"
    home.mkdir(mode=0o700)
    made = Machine(home, hub_url)
    for name in ("anna", "bob"):
        (made.home_of(name)).mkdir(mode=0o700, parents=True)
        made.user(name)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="session")
def tools() -> Any:
    """Functions of this file, which test modules must not import."""
    return Tools


class Tools:
    """See `tools`."""

    make_data = staticmethod(make_data)
