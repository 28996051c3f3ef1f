"""Where a person logs in: a real JupyterHub, or a real JupyterLab alone, started as a user starts them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift_hub.system_users import remove_all

from tests.waiting import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
SLICELIFT = [sys.executable, "-m", "slicelift"]


def answers(url: str, token: str = "") -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    with suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


@dataclass(kw_only=True)
class Place:
    """A port on which a browser is answered, over a home of its own."""

    home: Path
    port: int = field(default_factory=free_port)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return self.origin

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | {"SLICELIFT_HOME": str(self.home)}

    def slicelift(self, *arguments: str) -> dict[str, Any]:
        """One command with --json, as the operator of this machine."""
        done = subprocess.run(
            [*SLICELIFT, *arguments, "--json"],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stdout.strip(), done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def run(
        self, command: list[str], *, cwd: Path, log: str, more: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """A server in a process group of its own; what it says is in a file beside the home."""
        with (self.home.parent / log).open("a") as said:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env={**self.variables, **more},
                stdout=said,
                stderr=said,
                text=True,
                start_new_session=True,
            )


@dataclass(kw_only=True)
class PlainLab(Place):
    """JupyterLab without a hub, over a project; the launcher is whatever it starts by itself."""

    project: Path
    person: Path
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    server: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"{self.origin}/a%40b"

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.project}",
            "--ServerApp.base_url=/a%40b/",
            f"--IdentityProvider.token={self.token}",
        ]
        self.person.mkdir(exist_ok=True)
        personal = {"HOME": str(self.person), "JUPYTER_PREFER_ENV_PATH": "1"}
        self.server = self.run(command, cwd=self.project, log="lab.log", more=personal)
        wait_for(f"JupyterLab ({self.home.parent / 'lab.log'})", self.is_up, seconds=90)

    def is_up(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, (self.home.parent / "lab.log").read_text()
        return answers(f"{self.url}/api/status", self.token)

    def has_launcher(self) -> bool:
        """Whether the launcher answers that it starts by itself when it is asked for the first time."""
        return answers(f"{self.url}/slicelift/api/jobs?limit=1", self.token)

    def stop(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(30)

    def end_kernels(self) -> None:
        """Those of notebooks that a test left open: each takes its share of the machine."""
        for session in json.loads(self._call("sessions")):
            self._call(f"sessions/{session['id']}", method="DELETE")

    def settings(self, plugin: str, **values: Any) -> None:
        """What this person chose in JupyterLab's settings of one plugin (`@jupyterlab/...:name`)."""
        package, _, name = plugin.partition(":")
        folder = self.person / ".jupyter" / "lab" / "user-settings" / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values))

    def _call(self, path: str, *, method: str = "GET") -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", headers=headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@dataclass(kw_only=True)
class RunningHub(Place):
    """`slicelift up`, whole: hub, proxy, launcher, MLflow, culler."""

    launcher_port: int = field(default_factory=free_port)
    up: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        command = [*SLICELIFT, "up", "--hub-port", str(self.port), "--port", str(self.launcher_port)]
        self.up = self.run(command, cwd=ROOT, log="up.log", more={})
        wait_for(f"the hub ({self.home.parent / 'up.log'})", self.is_up, seconds=120)

    def is_up(self) -> bool:
        assert self.up is not None
        assert self.up.poll() is None, (self.home.parent / "up.log").read_text()
        return answers(f"{self.url}/hub/api/") and answers(f"{self.url}/services/launcher/api/v1/health")

    def restart(self) -> None:
        """The hub's own process is killed and started again: sessions and jobs live on."""
        assert self.up is not None
        os.kill(self._pid("hub/address.json"), signal.SIGKILL)
        self.up.wait(60)
        self.start()

    def kill_launcher(self) -> None:
        """The launcher's process is killed; another one has come when this returns."""
        killed = self._pid("launcher.json")
        os.kill(killed, signal.SIGKILL)
        wait_for("another launcher", lambda: self._pid("launcher.json") not in (0, killed))

    def stop(self) -> None:
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        self.up.wait(90)
        if os.geteuid() == 0:
            remove_all(self.home)

    def _pid(self, file: str) -> int:
        """0 while the file is not there."""
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self.home / file).read_text())["pid"])
        return 0
