"""A real hub over a home of its own: proxy, launcher, culler, accounts; and people who sign in to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from slicelift.launcher_client import Client, read_state
from slicelift.models import RunView
from slicelift_hub import system_users
from slicelift_hub.accounts import Accounts

from tests.promoting import make_promotion_id, make_spec, upload
from tests.waiting import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
SLEEP = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


@dataclass
class Person:
    """Somebody signed in: `http` has the cookies of a browser, `api` a token of their own."""

    name: str
    home: Path
    http: httpx.Client
    api: httpx.Client

    def spawn(self, seconds: float = 120, **options: Any) -> int:
        """Start the session through the API and wait until it answers; the process id of its server."""
        answer = self.api.post(f"users/{quote(self.name)}/server", json=options)
        assert answer.status_code in (201, 202), answer.text
        wait_for(
            f"{self.name}'s session", lambda: self.server().get("ready"), seconds=seconds, why=self.server
        )
        return self.pid()

    def server(self) -> dict[str, Any]:
        found: dict[str, Any] = (
            self.api.get(f"users/{quote(self.name)}").json().get("servers", {}).get("", {})
        )
        return found

    def pid(self) -> int:
        """Of the session's server; its kernels have the same environment."""
        for pid, env in environments():
            ours = env.get("JUPYTERHUB_USER") == self.name and env.get("HOME", "").startswith(str(self.home))
            # what the session's first process may be: slicelift_hub.adopter, with the server's command behind
            command = command_of(pid)
            if ours and "singleuser" in command and "adopter" not in command:
                return pid
        raise AssertionError(f"{self.name} has no session")

    def session(self) -> dict[str, str]:
        """The environment of the session, token and all."""
        return environment_of(self.pid())

    def stop(self) -> None:
        """End the session and wait for it."""
        assert self.api.delete(f"users/{quote(self.name)}/server").status_code in (202, 204)
        wait_for(f"{self.name}'s session to end", lambda: not self.server(), why=self.server)


@dataclass
class Hub:
    """One hub over one home; may be killed and started again."""

    home: Path
    options: tuple[str, ...] = ("--tracker", "none", "--slots", "2", "--Launcher.poll_seconds=0.1")
    variables: dict[str, str] = field(default_factory=dict)
    port: int = 0
    launcher_port: int = 0
    process: subprocess.Popen[bytes] | None = None
    _clients: list[Any] = field(default_factory=list)

    def start(self, seconds: float = 120) -> Hub:
        """Until hub and launcher answer."""
        import json

        self.port = self.port or free_port()
        self.launcher_port = self.launcher_port or free_port()
        self.home.mkdir(parents=True, exist_ok=True)
        told = {"SLICELIFT_HOME": str(self.home), "SLICELIFT_LAUNCHER_OPTIONS": json.dumps(self.options)}
        told |= {"SLICELIFT_HUB_PORT": str(self.port), "SLICELIFT_LAUNCHER_PORT": str(self.launcher_port)}
        with (self.home / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(ROOT / "jupyterhub_config.py")],
                cwd=self.home,
                env=os.environ | told | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for("the hub", self.answers, seconds=seconds, why=self.log)
        return self

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the hub ended: {self.log()}"
        try:
            hub = httpx.get(f"{self.url}/hub/api/", trust_env=False).status_code == 200
            launcher = httpx.get(f"{self.url}/services/launcher/api/v1/health", trust_env=False)
        except httpx.TransportError:
            return False
        return hub and launcher.status_code == 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def launcher_url(self) -> str:
        return f"http://127.0.0.1:{self.launcher_port}"

    @property
    def launcher_pid(self) -> int:
        return int((read_state(self.home) or {})["pid"])

    def log(self) -> str:
        text = (self.home / "hub.log").read_text(errors="replace")
        launcher = self.home / "launcher.log"
        return text[-8000:] + (launcher.read_text(errors="replace")[-3000:] if launcher.exists() else "")

    def add_user(self, name: str, *, admin: bool = False, groups: tuple[str, ...] = ()) -> None:
        Accounts(self.home).add(name, password=PASSWORD, admin=admin, groups=groups)

    def browser(self) -> httpx.Client:
        """Not signed in yet."""
        made = httpx.Client(base_url=self.url, trust_env=False, follow_redirects=True, timeout=60)
        self._clients.append(made)
        return made

    def log_in(self, name: str, password: str = PASSWORD) -> Person:
        """Through the form, as a browser does it."""
        http = self.browser()
        answer = sign_in(http, name, password)
        assert answer.status_code == 200, answer.text
        assert "Sign in" not in answer.text
        headers = {"X-XSRFToken": xsrf(http), "Referer": self.url}
        made = http.post(f"/hub/api/users/{quote(name)}/tokens", json={"note": "test"}, headers=headers)
        assert made.status_code == 201, made.text
        return Person(name=name, home=self.home, http=http, api=self.api(made.json()["token"]))

    def api(self, token: str) -> httpx.Client:
        """The hub's API with that token."""
        headers = {"Authorization": f"token {token}"}
        base = f"{self.url}/hub/api/"
        made = httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=60)
        self._clients.append(made)
        return made

    def launcher(self, token: str) -> Client:
        """The launcher at its own port with that token."""
        made = Client(self.launcher_url, token)
        self._clients.append(made)
        return made

    def operator(self) -> Client:
        """The launcher with the token of its state file."""
        return self.launcher(str((read_state(self.home) or {})["token"]))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """The hub, its proxy and services; sessions and jobs go on."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def close(self) -> None:
        """Everything of this home: jobs, sessions, hub, by its own way where it still works."""
        was_up = self.process is not None and self.process.poll() is None
        if was_up:
            if read_state(self.home):
                self.operator().shutdown()
                wait_for("the launcher to end", lambda: read_state(self.home) is None)
            token = (self.home / "hub" / "operator.token").read_text()
            self.api(token).post("shutdown", json={"servers": True, "proxy": True})
            assert self.process is not None
            self.process.wait(60)
        for client in self._clients:
            client.close()
        if was_up:
            left = self.processes
            wait_for("all to end", lambda: not left(), seconds=20, why=lambda: f"{self.log()}\n{left()}")
        for pid, _ in self.processes():
            os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[tuple[int, str]]:
        """(pid, command line) of all that still lives and was started for this home: its path is in the environment."""
        mine = str(self.home)
        return [
            (pid, command_of(pid))
            for pid, env in environments()
            if pid != os.getpid() and any(value.startswith(mine) for value in env.values())
        ]


def sign_in(http: httpx.Client, name: str, password: str) -> httpx.Response:
    """Fill the form and send it; the page that follows."""
    http.get("/hub/login")
    form = {"username": name, "password": password, "_xsrf": xsrf(http)}
    return http.post("/hub/login", params={"next": "/hub/home"}, data=form)


def xsrf(http: httpx.Client) -> str:
    return next(
        cookie.value or "" for cookie in http.cookies.jar if cookie.name == "_xsrf" and "/hub" in cookie.path
    )


def submit(client: Client, source: str = SLEEP, **changes: Any) -> RunView:
    """A job of one worker that runs this source, over the real local backend."""
    snapshot = upload(client, {"promoted.py": source.encode()})
    return client.submit(make_promotion_id(), make_spec(snapshot, **changes))


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Of every process that we may look into."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            found = environment_of(int(entry.name))
            if found:
                yield int(entry.name), found


def environment_of(pid: int) -> dict[str, str]:
    try:
        parts = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in parts if "=" in part)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="session")
def make_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Hub]]:
    """Makes hubs over fresh homes with two users, not started yet; ends them all and sees that nothing is left.

    anna is an admin, ben is not, 李雷 is in the group `ml`.
    """
    made: list[Hub] = []

    def make(**changes: Any) -> Hub:
        hub = Hub(tmp_path_factory.mktemp("hub 集线器") / "home", **changes)
        hub.add_user("anna", admin=True)
        hub.add_user("ben")
        hub.add_user("李雷", groups=("ml",))
        made.append(hub)
        return hub

    yield make
    for hub in made:
        hub.close()
        system_users.remove_all(hub.home)


@pytest.fixture(scope="session")
def hub(make_hub: Callable[..., Hub]) -> Hub:
    """A running hub for the tests that do it no harm."""
    return make_hub().start()


@pytest.fixture(scope="session")
def anna(hub: Hub) -> Person:
    """An admin, signed in, no session yet."""
    return hub.log_in("anna")


@pytest.fixture(scope="session")
def ben(hub: Hub) -> Person:
    """A user, signed in, no session yet."""
    return hub.log_in("ben")


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions of this file, which test modules must not import."""
    return Tools


class Tools:
    """See `tools`."""

    PASSWORD = PASSWORD
    Hub = Hub
    Person = Person
    sign_in = staticmethod(sign_in)
    xsrf = staticmethod(xsrf)
    submit = staticmethod(submit)
    client = Client
    environments = staticmethod(environments)
    environment_of = staticmethod(environment_of)
    command_of = staticmethod(command_of)
