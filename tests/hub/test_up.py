"""`slicelift up` and `down` with a hub, from outside: one start, its addresses, and an end that leaves nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift.launcher_client import read_state
from slicelift.models import Status
from slicelift_hub import system_users

from tests.waiting import free_port, wait_for

SLICELIFT = [sys.executable, "-m", "slicelift"]


@dataclass
class Desk:
    """A home and the command line over it."""

    home: Path
    port: int
    hub_port: int
    up: subprocess.Popen[str] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SLICELIFT, *arguments],
            env=self.environment,
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def begin(self, *options: str) -> None:
        """Without MLflow, whose start is another test's."""
        # its start takes 10 to 30 s: JupyterHub, its proxy, the launcher
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "launcher_config.py").write_text("c.Launcher.tracker = 'none'\n")
        ports = ["--port", str(self.port), "--hub-port", str(self.hub_port)]
        self.up = subprocess.Popen(
            [*SLICELIFT, "up", "--json", "--no-demo", *ports, *options],
            env=self.environment,
            cwd=self.home.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def start(self, *options: str) -> None:
        """Until it says that everything is there."""
        self.begin(*options)
        assert self.up is not None
        assert self.up.stdout is not None
        self.told = json.loads(self.up.stdout.readline())

    def interrupt(self) -> int:
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        assert self.up is not None
        self.up.communicate(timeout=120)
        return self.up.returncode

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SLICELIFT_HOME": str(self.home)}

    def processes(self, tools: Any) -> dict[int, str]:
        """All that lives of this home, by its path in the environment."""
        return {
            pid: tools.command_of(pid)
            for pid, env in tools.environments()
            if pid != os.getpid() and any(value.startswith(str(self.home)) for value in env.values())
        }


@pytest.fixture
def desk(tmp_path: Path, tools: Any) -> Iterator[Desk]:
    made = Desk(home=tmp_path / "家 home", port=free_port(), hub_port=free_port())
    yield made
    if made.up is not None and made.up.poll() is None:
        made.interrupt()
    left = made.processes(tools)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert system_users.remove_all(made.home) == []


def test_one_start_lets_in_who_started_it_and_ctrl_c_leaves_nothing(desk: Desk, tools: Any) -> None:
    desk.begin()
    seen = _pages_until_told(desk)
    assert 404 not in seen, "a page that says nothing of a start"
    assert seen[-1] == 200
    told = desk.told
    assert told["hub"] == f"http://127.0.0.1:{desk.hub_port}"
    assert told["url"] == f"http://127.0.0.1:{desk.port}"
    with httpx.Client(base_url=told["hub"], trust_env=False, follow_redirects=True, timeout=30) as http:
        assert tools.sign_in(http, told["user"], told["password"]).url.path == "/hub/home"
        headers = {"X-XSRFToken": tools.xsrf(http), "Referer": told["hub"]}
        assert http.post(f"/hub/api/users/{told['user']}/server", headers=headers).status_code in (201, 202)
    again = json.loads(desk.run("up", "--json").stdout)
    assert (again["hub"], again["url"]) == (told["hub"], told["url"])
    assert "password" not in again
    token = (read_state(desk.home) or {})["token"]
    with tools.client(told["url"], token) as client:
        view = tools.submit(client)
        wait_for("it to run", lambda: client.job(view.run_id).status is Status.RUNNING)
    assert any("singleuser" in command for command in desk.processes(tools).values())
    assert desk.interrupt() == 0
    assert desk.processes(tools) == {}
    assert read_state(desk.home) is None
    # once more: the account is known, its pass phrase is not told again, the job was ended and is there
    desk.start("--keep-jobs")
    assert (desk.told["user"], desk.told["password"]) == (told["user"], None)
    found = json.loads(desk.run("status", view.run_id, "--json").stdout)
    assert found["status"] == "KILLED"
    assert desk.run("retry", view.run_id).returncode == 0
    down = json.loads(desk.run("down", "--json").stdout.splitlines()[-1])
    assert down["stopped"] is True
    assert desk.ended() == 0
    assert desk.processes(tools) == {}


@pytest.mark.parametrize("sign", ["hub/address.json", "hub/proxy.pid", "launcher.json"])
def test_ctrl_c_on_the_way_up_leaves_nothing(desk: Desk, tools: Any, sign: str) -> None:
    desk.begin()
    wait_for(sign, (desk.home / sign).exists)
    assert desk.interrupt() == 0
    wait_for("all to end", lambda: not desk.processes(tools), seconds=10, why=lambda: desk.processes(tools))


@pytest.mark.parametrize("victim", ["up", "hub", "proxy"])
def test_after_a_kill_the_next_up_takes_over(desk: Desk, victim: str) -> None:
    desk.start()
    assert desk.up is not None
    hub_pid = int(json.loads((desk.home / "hub" / "address.json").read_text())["pid"])
    proxy_pid = int((desk.home / "hub" / "proxy.pid").read_text())
    os.kill({"up": desk.up.pid, "hub": hub_pid, "proxy": proxy_pid}[victim], signal.SIGKILL)
    if victim == "proxy":  # the hub starts another
        wait_for("the hub", lambda: _answers(desk.told["hub"]), seconds=30)
    elif victim == "up":  # hub and jobs go on; who asks again is told so
        desk.ended()
        assert json.loads(desk.run("up", "--json").stdout)["hub"] == desk.told["hub"]
        assert json.loads(desk.run("down", "--json").stdout.splitlines()[-1])["stopped"] is True
    else:
        assert desk.ended() == 1
        desk.start()
        assert _answers(desk.told["hub"])


def test_a_launcher_in_the_background_gives_way_with_its_jobs(desk: Desk, tools: Any) -> None:
    desk.home.mkdir(parents=True)
    (desk.home / "launcher_config.py").write_text("c.Launcher.tracker = 'none'\n")
    command = [
        sys.executable,
        "-m",
        "slicelift_hub.launcher",
        "--home",
        str(desk.home),
        "--port",
        str(desk.port),
    ]
    alone = subprocess.Popen(command, env=desk.environment, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for("the launcher", lambda: read_state(desk.home))
    token = (read_state(desk.home) or {})["token"]
    url = f"http://127.0.0.1:{desk.port}"
    with tools.client(url, token) as client:
        view = tools.submit(client)
        wait_for("it to run", lambda: client.job(view.run_id).status is Status.RUNNING)
        desk.start()
        assert alone.wait(10) == 0
        found = client.job(view.run_id)
        assert (found.status, found.attempt) == (Status.RUNNING, 1)


def test_a_taken_hub_port_is_named_with_its_option(desk: Desk) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", desk.hub_port))
        holder.listen()
        done = desk.run("up", "--json", "--port", str(desk.port), "--hub-port", str(desk.hub_port))
    body = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, body["code"]) == (2, "port-taken")
    assert "slicelift up --hub-port N" in body["hint"]


def test_people_are_added_and_removed_while_the_hub_runs(hub: Any, tools: Any) -> None:
    environment = os.environ | {"SLICELIFT_HOME": str(hub.home)}

    def run(*arguments: str) -> dict[str, Any]:
        command = [*SLICELIFT, "hub", *arguments, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    made = run("add-user", "cora", "--group", "ml", "--group", "cv")
    assert (made["groups"], made["admin"]) == (["ml", "cv"], False)
    cora = hub.log_in("cora", made["password"])
    assert sorted(cora.api.get("user").json()["groups"]) == ["cv", "ml"]
    assert [user["name"] for user in run("users")["users"]] == ["anna", "ben", "cora", "李雷"]
    renewed = run("set-password", "cora")["password"]
    assert renewed != made["password"]
    assert run("add-user", "cora")["code"] == "user-exists"
    assert run("remove-user", "cora")["name"] == "cora"
    assert cora.api.get("user").status_code == 403
    with hub.browser() as browser:
        assert tools.sign_in(browser, "cora", renewed).status_code == 403
    assert run("remove-user", "cora")["code"] == "user-unknown"


def _pages_until_told(desk: Desk) -> list[int]:
    """What a browser gets that opens the hub's address while `up` is on its way: statuses, 0 before anybody listens."""
    assert desk.up is not None
    assert desk.up.stdout is not None
    seen: list[int] = []
    with httpx.Client(trust_env=False, follow_redirects=True, timeout=30) as http:
        while not select.select([desk.up.stdout], [], [], 0.05)[0]:
            try:
                seen.append(http.get(f"http://127.0.0.1:{desk.hub_port}/").status_code)
            except httpx.TransportError:
                seen.append(0)
    desk.told = json.loads(desk.up.stdout.readline())
    return seen


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/hub/api/", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
