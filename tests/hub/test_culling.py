"""Idle sessions end although a tab is open, busy kernels never: the real culler, the real sessions.

About a minute and a half: a hub, three sessions, and twice the seconds that it takes to be idle.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from slicelift.runtime import processes
from slicelift_hub.culling import arbiter, idle_seconds, make_role

from tests.waiting import wait_for

# longer than a kernel takes to start on a busy machine
IDLE_SECONDS = 25
PROFILES = """
profiles:
  - {slug: short, display_name: Short, cpu: 1, memory: 1Gi}
  - {slug: long, display_name: Long, cpu: 1, memory: 1Gi, idle_minutes: 60}
"""
# a session whose user has put a server of their own in its place, which tells what it is shown
SPY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers["Authorization"], flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *_):
        return
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def culled_hub(make_hub: Callable[..., Any]) -> Any:
    hub = make_hub(variables={"SLICELIFT_IDLE_SECONDS": str(IDLE_SECONDS), "SLICELIFT_CULL_SECONDS": "1"})
    (hub.home / "profiles.yaml").write_text(PROFILES)
    settings = f"c.LocalSliceSpawner.profiles_file = {str(hub.home / 'profiles.yaml')!r}\n"
    (hub.home / "jupyterhub_config.py").write_text(settings + "c.LocalSliceSpawner.demo = ''\n")
    return hub.start()


def test_an_idle_session_ends_with_its_tab_open_and_a_busy_kernel_stays(culled_hub: Any) -> None:
    busy, idle, other = (culled_hub.log_in(name) for name in ("anna", "ben", "李雷"))
    other.spawn(profile="long")
    busy.spawn(profile="short")
    with _kernel(culled_hub, busy) as kernel:
        kernel.execute("import time\nwhile True: time.sleep(0.1)")
        wait_for(
            "the cell", lambda: _kernel_row(culled_hub, busy)["execution_state"] == "busy", why=culled_hub.log
        )
        idle.spawn(profile="short")
        with _open_tab(culled_hub, idle) as polls:
            wait_for("the idle session to end", lambda: not idle.server(), seconds=120, why=culled_hub.log)
        assert polls[0] > 5
        assert busy.server()["ready"]
        # nothing else kept it: once the cell is interrupted, the session goes as well
        _rest(culled_hub, busy, "POST", f"kernels/{_kernel_row(culled_hub, busy)['id']}/interrupt")
        wait_for("the other one to end", lambda: not busy.server(), seconds=120, why=culled_hub.log)
    # idle for longest, but its profile has a limit of its own
    assert other.server()["ready"]


def test_idle_is_the_time_since_the_last_word_of_kernels_and_terminals() -> None:
    now = 1_796_000_000.0
    rows = [{"execution_state": "idle", "last_activity": _text(now - ago)} for ago in (500, 40)]
    assert idle_seconds(rows, [], age=1000, now=now) == pytest.approx(40)
    assert idle_seconds(rows, [{"last_activity": _text(now - 7)}], age=1000, now=now) == pytest.approx(7)
    assert idle_seconds([], [], age=1000, now=now) == 1000
    busy = {"execution_state": "busy", "last_activity": _text(now - 900)}
    assert idle_seconds([*rows, busy], [], age=1000, now=now) is None


@pytest.mark.parametrize(
    ("answer", "idle"), [("[]", True), ("[1]", False), ("{", False), ('[{"last_activity": "x"}]', False)]
)
def test_a_session_is_shown_its_own_token_alone_and_may_answer_anything(
    monkeypatch: pytest.MonkeyPatch, answer: str, idle: bool
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "the culler's")
    command, own = [sys.executable, "-S", "-c", SPY, answer], {"JUPYTERHUB_API_TOKEN": "the session's"}
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True) as spy:
        assert spy.stdout is not None
        try:
            port, process = int(spy.stdout.readline()), processes.look(spy.pid)
            assert process is not None
            state = {"address": f"http://127.0.0.1:{port}", "since": time.time() - 100}
            state |= {"pid": process.pid, "pid_start": process.start_time}
            server = {"full_name": "ben/", "url": "/user/ben/", "state": state}
            assert asyncio.run(arbiter(inactive_limit=60, server=server)) is idle
            # whoever has the port of a session that is gone is asked nothing
            state["pid_start"] += 1
            assert not asyncio.run(arbiter(inactive_limit=60, server=server))
            # of a pod the hub keeps it
            server["state"] = {"address": state["address"], "since": state["since"], "pod_name": "ben"}
            assert not asyncio.run(arbiter(inactive_limit=60, server=server))
            server["state"]["token"] = "the session's"
            assert asyncio.run(arbiter(inactive_limit=60, server=server)) is idle
        finally:
            spy.kill()
        seen = spy.stdout.readlines()
        assert set(seen) == {"token the session's\n"}
        assert len(seen) <= 4


@pytest.mark.asyncio
async def test_max_hours_end_a_session_in_any_case_and_one_that_is_gone_is_left_alone() -> None:
    server = {"full_name": "ben/", "url": "/user/ben/", "started": _text(time.time() - 7300)}
    state = {"address": "http://127.0.0.1:9", "idle_minutes": 1}
    assert await arbiter(inactive_limit=60, server=server | {"state": state | {"max_hours": 2}})
    assert not await arbiter(inactive_limit=60, server=server | {"state": state})
    assert not await arbiter(inactive_limit=60, server=server | {"state": {}})


def test_the_culler_may_look_and_stop_and_nothing_else() -> None:
    scopes = {scope.partition(":")[0] for scope in make_role()["scopes"]}
    assert scopes == {"list", "read", "admin", "delete"}
    assert [scope for scope in make_role()["scopes"] if scope.startswith("admin:")] == ["admin:server_state"]


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def _open_tab(hub: Any, person: Any) -> Iterator[list[int]]:
    """What an open JupyterLab does all the time: ask for kernels, sessions and files."""
    polls, stop = [0], threading.Event()

    def poll() -> None:
        while not stop.wait(0.3):
            for path in ("status", "kernels", "contents"):
                polls[0] += _rest(hub, person, "GET", path).status_code == 200

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield polls
    finally:
        stop.set()
        thread.join()


@contextmanager
def _kernel(hub: Any, person: Any) -> Iterator[Any]:
    """A kernel of that session, and a client of it that came by its connection file."""
    made = _rest(hub, person, "POST", "kernels", json={"name": "python3"})
    assert made.status_code == 201, made.text
    # an enclosed session has a /tmp of its own, in which its kernels' files and sockets lie
    root, variables = f"/proc/{person.pid()}/root", person.session()
    folder = Path(root + variables.get("JUPYTER_RUNTIME_DIR", variables["HOME"]))
    (file,) = folder.rglob(f"kernel-{made.json()['id']}.json")
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    if client.transport == "ipc":
        client.ip = root + client.ip
    # without heartbeats, which call a kernel dead that is only slow; what is sent waits for it
    client.start_channels(hb=False)
    try:
        yield client
    finally:
        client.stop_channels()


def _kernel_row(hub: Any, person: Any) -> dict[str, Any]:
    row: dict[str, Any] = _rest(hub, person, "GET", "kernels").json()[0]
    return row


def _rest(hub: Any, person: Any, method: str, path: str, **more: Any) -> httpx.Response:
    """The session's own API, through the proxy."""
    headers = {"Authorization": person.api.headers["Authorization"]}
    url = f"{hub.url}/user/{person.name}/api/{path}"
    return httpx.request(method, url, headers=headers, trust_env=False, timeout=30, **more)
