"""A real Jupyter server with the extension, a real launcher behind it, and a real project with a notebook.

The server comes in two ways: pytest-jupyter's, inside this process, and one in a process of its own (`desk`), which
can be killed and whose worker really works. The launcher's backend is the steered one of tests/server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403  # its fixtures, for this folder only
from slicelift.launcher_client import Client, find, read_state

from tests.waiting import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-page"
BASE = "/a%40b/"
# left out: they double the time of a start
OTHERS = ("jupyterlab", "jupyter_lsp", "notebook_shim", "jupyter_server_terminals")
NOTEBOOK = "训练 1.ipynb"
CELLS = ("steps = 3\nrate = 0.5\nname = 'x'", "for step in range(steps):\n    print(step * rate, name)")


class Launcher:
    """One launcher process over one home; may be killed and started again, on another port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Launcher:
        self.home.mkdir(parents=True, exist_ok=True)
        options = ["--home", str(self.home), "--port", str(free_port()), "--tracker", "none", "--slots", "64"]
        command = [sys.executable, "-m", "slicelift_hub.launcher", *options, "--backend", "steered.Steered"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "server")}
        with (self.home / "test.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        pid = self.process.pid
        wait_for("the launcher", lambda: (read_state(self.home) or {}).get("pid") == pid, why=self._log)
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    @property
    def url(self) -> str:
        return str((read_state(self.home) or {})["url"])

    @property
    def token(self) -> str:
        return str((read_state(self.home) or {})["token"])

    def client(self) -> Client:
        return find(self.home)

    def connections(self) -> int:
        """How many connections to its port are established."""
        port = f":{int(self.url.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(1 for row in rows if row[1].endswith(port) and row[3] == "01")

    def agent(self, run_id: str) -> Callable[[str, Any], httpx.Response]:
        """Posts as the agent of the run's first attempt."""
        path = self.home / "steered" / f"{run_id}-1.json"
        wait_for("the attempt", path.exists)
        told = json.loads(path.read_text())
        base = f"{self.url}/api/v1/attempts/{run_id}-1"

        def post(call: str, body: Any) -> httpx.Response:
            headers = {"Authorization": f"token {told['token']}"}
            content = body if isinstance(body, bytes) else json.dumps(body)
            return httpx.post(f"{base}/{call}", headers=headers, content=content, trust_env=False)

        return post

    def _log(self) -> str:
        return (self.home / "test.log").read_text()


class Desk:
    """A Jupyter server in a process of its own, over a folder with a project."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self.root = folder / "root"
        self.project = self.root / "pro ject"
        self.launcher = launcher
        self.log = folder / "jupyter.log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, **environment: str) -> Desk:
        command = [sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"]
        command += [f"--port={self.port}", "--ServerApp.port_retries=0", f"--ServerApp.base_url={BASE}"]
        command += [f"--ServerApp.jpserver_extensions={name}=False" for name in OTHERS]
        command += ["--ServerApp.jpserver_extensions=slicelift.server=True", *options]
        command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={self.root}"]
        variables = os.environ | {"SLICELIFT_HOME": str(self.launcher.home)} | environment
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=variables, start_new_session=True, cwd=self.root
            )
        wait_for("the server", self._answers, why=self.log.read_text)
        return self

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{BASE}"

    @property
    def path(self) -> str:
        """The notebook as the page names it."""
        return f"{self.project.name}/{NOTEBOOK}"

    def http(self, **more: Any) -> httpx.Client:
        headers = {"Authorization": f"token {TOKEN}"}
        return httpx.Client(
            base_url=f"{self.url}slicelift/", headers=headers, timeout=60, trust_env=False, **more
        )

    def post(self, call: str, **body: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(call, json=body)

    def get(self, call: str) -> httpx.Response:
        with self.http() as http:
            return http.get(call)

    def promote(self, promotion_id: str, **request: Any) -> list[dict[str, Any]]:
        answer = self.post("promote", path=self.path, promotion_id=promotion_id, request=request)
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines() if line]

    def workers(self) -> list[int]:
        """Process ids of the server's workers."""
        assert self.process is not None
        return [pid for pid in children(self.process.pid) if "slicelift.server.worker" in command_of(pid)]

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}api", trust_env=False).status_code == 200
        return False


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def make_notebook(path: Path, *cells: str) -> None:
    """Plain JSON, so that the bytes are ours; the first cell holds the parameters."""
    made = [
        {
            "cell_type": "code",
            "id": f"cell{index}",
            "source": source,
            "metadata": {} if index else {"tags": ["parameters"]},
            "outputs": [],
            "execution_count": None,
        }
        for index, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}
    path.write_text(json.dumps(document), encoding="utf-8")


def make_project(root: Path) -> Path:
    root.mkdir(parents=True)
    make_notebook(root / NOTEBOOK, *CELLS)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A running launcher, shared by the tests that do it no harm."""
    made = Launcher(tmp_path_factory.mktemp("launcher 发射") / "home").start()
    yield made
    made.stop()


@pytest.fixture
def own_launcher(tmp_path: Path) -> Iterator[Launcher]:
    """One for a test that kills it."""
    made = Launcher(tmp_path / "home of one's own").start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher) -> Iterator[Desk]:
    """A running server over the shared launcher."""
    made = Desk(tmp_path_factory.mktemp("desk"), launcher)
    make_project(made.project)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def make_desk(tmp_path: Path, desk: Desk, launcher: Launcher) -> Iterator[Callable[..., Desk]]:
    """Starts servers of a test's own, over a copy of the project."""
    made: list[Desk] = []

    def make(*options: str, behind: Launcher | None = None, **environment: str) -> Desk:
        folder = tmp_path / f"desk-{len(made)}"
        one = Desk(folder, behind or launcher)
        shutil.copytree(desk.project, one.project, ignore=shutil.ignore_patterns("*.lock"))
        made.append(one)
        return one.start(*options, **environment)

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    """For pytest-jupyter's server: our extension, and no worker before it is needed."""
    return {
        "ServerApp": {"jpserver_extensions": {"slicelift.server": True}},
        "SliceliftServer": {"worker_delay_seconds": -1.0},
    }


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions of this file, which test modules must not import."""
    return Tools


class Tools:
    """See `tools`."""

    make_notebook = staticmethod(make_notebook)
    make_project = staticmethod(make_project)
    children = staticmethod(children)
    command_of = staticmethod(command_of)
    token, notebook, cells = TOKEN, NOTEBOOK, CELLS
