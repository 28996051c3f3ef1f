"""One launcher per home: found, started, adopted, refused. A start takes 1.5 s."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicelift import launcher_start
from slicelift.errors import SliceliftError, Unavailable
from slicelift.launcher_client import Client, ensure, find, is_alive, read_state

from tests.waiting import wait_for


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with spaces and Chinese characters, whose daemon is ended afterwards."""
    root = tmp_path / "my home 家"
    root.mkdir()
    (root / "launcher_config.py").write_text("c.Launcher.tracker = 'none'\nc.Launcher.slots = 7\n")
    monkeypatch.setenv("SLICELIFT_HOME", str(root))
    yield root
    state = read_state(root)
    if state is not None:
        os.kill(state["pid"], signal.SIGTERM)
        wait_for("its end", lambda: read_state(root) is None)


def test_reading_starts_nothing_and_names_the_way_on(home: Path) -> None:
    with pytest.raises(Unavailable) as refusal:
        find()
    assert refusal.value.code == "launcher-not-running"
    assert "slicelift up" in refusal.value.hint
    assert os.listdir(home) == ["launcher_config.py"]


def test_a_state_file_of_the_dead_or_of_nonsense_counts_as_none(home: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for text in (json.dumps({"url": "http://127.0.0.1:1", "token": "t", "pid": dead.pid}), "{", "[]", "\xff"):
        (home / "launcher.json").write_text(text)
        with pytest.raises(Unavailable) as refusal:
            find()
        assert refusal.value.code == "launcher-not-running"


def test_another_version_is_refused_with_a_hint(home: Path) -> None:
    state = {"url": "http://127.0.0.1:1", "token": "t", "pid": os.getpid(), "version": "0.0.1"}
    (home / "launcher.json").write_text(json.dumps(state))
    with (home / "launcher.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for call in (find, ensure):
            with pytest.raises(SliceliftError) as refusal:
                call()
            assert refusal.value.code == "launcher-version"
            assert f"process {os.getpid()}" in refusal.value.message
            assert "slicelift down" in refusal.value.hint
        find(any_version=True).close()
    (home / "launcher.json").unlink()


def test_a_state_file_whose_process_id_is_anothers_by_now_blocks_nobody(home: Path) -> None:
    state = {"url": "http://127.0.0.1:1", "token": "t", "pid": os.getpid(), "version": "0.0.1"}
    (home / "launcher.json").write_text(json.dumps(state))
    (home / "launcher.lock").touch(0o600)
    with pytest.raises(Unavailable) as refusal:
        find()
    assert refusal.value.code == "launcher-not-running"
    clients: list[Client] = []
    threads = [threading.Thread(target=lambda: clients.append(ensure())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({client.health()["instance"] for client in clients}) == 1
    for client in clients:
        client.close()


def test_many_starters_at_once_end_with_one_launcher(home: Path) -> None:
    clients: list[Client] = []
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda: clients.append(ensure(on_progress=told.append))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({client.health()["instance"] for client in clients}) == 1
    assert told
    assert clients[0].capacity()["slots"] == {"total": 7, "free": 7}
    again = ensure()
    assert again.url == clients[0].url
    state = read_state(home)
    assert state is not None
    assert os.getsid(state["pid"]) != os.getsid(0)
    clients[0].shutdown()
    for client in [*clients, again]:
        client.close()
    wait_for("its end", lambda: read_state(home) is None)
    assert not (home / "launcher.json").exists()
    wait_for("its lock", lambda: _lock_is_free(home))


def test_a_launcher_that_cannot_come_up_says_why_to_who_started_it(home: Path) -> None:
    (home / "ledger.db").write_text("this is no database")
    with pytest.raises(SliceliftError) as refusal:
        ensure()
    assert refusal.value.code in ("launcher-failed", "ledger-damaged")
    assert "database" in refusal.value.message


def test_a_taken_port_is_named_with_the_option_that_changes_it(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = _run("--port", str(port))
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr
    assert "--port" in done.stderr
    assert json.loads(done.stderr.strip().splitlines()[-1])["code"] == "port-taken"
    assert not (home / "launcher.json").exists()


def test_a_second_launcher_over_one_home_is_refused(home: Path) -> None:
    client = ensure()
    done = _run()
    assert done.returncode == 1
    body = json.loads(done.stderr.strip().splitlines()[-1])
    assert body["code"] == "launcher-running"
    assert client.url in body["message"]
    assert client.health()["version"]
    client.close()


def test_a_launcher_whose_home_was_removed_ends_by_itself(home: Path) -> None:
    """It looks every 5 s."""
    client = ensure()
    state = read_state(home)
    client.close()
    assert state is not None
    shutil.rmtree(home)
    wait_for("its end", lambda: not is_alive(state["pid"]))


def test_the_client_is_light_to_import() -> None:
    heavy = "{'httpx', 'tornado', 'sqlalchemy', 'mlflow', 'IPython'} & set(sys.modules)"
    code = f"import sys, slicelift.launcher_client, slicelift.launcher_start; print(sorted({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_an_absent_launcher_is_away_not_an_accident(home: Path) -> None:
    with Client("http://127.0.0.1:9", "t") as client:
        for call in (
            client.health,
            client.jobs,
            lambda: next(client.events()),
            lambda: list(client.output("r-a", 1, "x")),
        ):
            with pytest.raises(Unavailable) as refusal:
                call()
            assert refusal.value.code == "launcher-away"
            assert refusal.value.hint


def test_what_a_broken_launcher_last_said_is_told(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text("noise\nTraceback (most recent call last):\nValueError: boom\n")
    with pytest.raises(SliceliftError) as refusal:
        launcher_start._raise_said(tmp_path, 0)
    assert refusal.value.code == "launcher-failed"
    assert "boom" in refusal.value.message


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slicelift_hub.launcher", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _lock_is_free(home: Path) -> bool:
    import fcntl

    with open(home / "launcher.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
