"""The supervised MLflow server: its port, its death, its silence, and the launcher's own death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Conflict
from slicelift_hub.launcher.mlflow_server import MlflowServer

from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def test_it_is_up_on_loopback_with_its_own_database(server: Any) -> None:
    state = server.supervised.state
    assert (state.status, state.message) == ("up", "")
    assert state.url.startswith("http://127.0.0.1:")
    assert time.time() - state.answered < 10
    assert (server.supervised.folder / "mlflow.db").is_file()
    assert server.rows("select name from experiments") != []


def test_no_jobs_runner_and_no_workers_beside_it(server: Any) -> None:
    children = Path(f"/proc/{server.supervised.pid}/task/{server.supervised.pid}/children").read_text()
    assert children.strip() == ""


def test_another_host_name_is_refused(server: Any) -> None:
    request = urllib.request.Request(f"{server.url}/api/2.0/mlflow/experiments/get?experiment_id=0")
    request.add_header("Host", "evil.example.org")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=5)
    assert refusal.value.code == 403
    refusal.value.close()


def test_a_stopped_server_is_down_and_up_again_when_it_goes_on(server: Any) -> None:
    """About 5 s: two looks of 2 s each must go unanswered."""
    os.kill(server.supervised.pid, signal.SIGSTOP)
    try:
        wait_for("MLflow to be down", lambda: server.supervised.state.status == "down", seconds=15)
        assert "does not answer" in server.supervised.state.message
    finally:
        os.kill(server.supervised.pid, signal.SIGCONT)
    wait_for("MLflow to be up", lambda: server.supervised.state.status == "up", seconds=15)


def test_a_taken_port_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict) as refusal:
            MlflowServer(tmp_path, port=port).start()
    assert refusal.value.code == "port-taken"
    assert str(port) in refusal.value.message
    assert "--mlflow-port" in refusal.value.hint


def test_the_former_port_is_taken_again_unless_it_is_taken(tmp_path: Path) -> None:
    first = MlflowServer(tmp_path)
    first.start()
    url = first.url
    first.stop()
    again = MlflowServer(tmp_path)
    again.start()
    assert again.url == url
    beside = MlflowServer(tmp_path)
    beside.start()
    assert beside.url not in ("", url)
    again.stop()
    beside.stop()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_text(
        "this is no database, though it has the name of one\n" * 99
    )
    supervised = MlflowServer(tmp_path)
    supervised.start()
    wait_for("word of its end", lambda: "exit code 1" in supervised.state.message, seconds=20)
    assert supervised.state.status == "down"
    assert supervised.state.message.endswith("DatabaseError: file is not a database")
    supervised.stop()


LAUNCHER = """
import sys, time
from pathlib import Path
from slicelift_hub.launcher.mlflow_server import MlflowServer

server = MlflowServer(Path(sys.argv[1]))
server.start()
while server.pid is None:
    time.sleep(0.01)
print(server.pid, flush=True)
time.sleep(100)
"""


def test_kill_9_of_the_launcher_takes_the_server_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        wait_for("numpy", lambda: "numpy" in Path(f"/proc/{pid}/maps").read_text())  # it is well on its way
        os.kill(pid, signal.SIGSTOP)  # the worst case: it cannot even notice
        launcher.kill()
    wait_for("its end", lambda: not _alive(pid), seconds=10)


def test_it_is_started_again_on_the_same_port_after_its_death(tmp_path: Path) -> None:
    """No wait for MLflow itself: that a new process comes on the same address is enough."""
    supervised = MlflowServer(tmp_path)
    supervised.start()
    url = supervised.url
    wait_for("a process", lambda: supervised.pid)
    first = supervised.pid
    os.kill(first, signal.SIGKILL)
    wait_for("another process", lambda: supervised.pid not in (None, first), seconds=10)
    assert supervised.url == url
    supervised.stop()
    assert supervised.pid is None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
