"""`up --no-hub` and `down` as real processes: taken ports, a second `up`, Ctrl-C, a launcher that dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import free_port


# each `up` starts a real launcher; MLflow's own start (some 20 s) is not waited for
@contextmanager
def started(home: Path, cwd: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`slicelift up --no-hub` until the launcher answers; the lines that it has printed so far."""
    process = subprocess.Popen(
        [sys.executable, "-m", "slicelift", "up", "--no-hub", "--port", str(free_port()), *options],
        cwd=cwd,
        env=os.environ | {"SLICELIFT_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not any("launcher at" in line for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        yield process, lines
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def launcher_pid(home: Path) -> int:
    return int(json.loads((home / "launcher.json").read_text())["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_taken_port_is_named_with_its_option(cli: Any, empty_home: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        for option in ("--port", "--mlflow-port", "--hub-port"):
            done = cli("up", "--port", free_port(), "--hub-port", free_port(), option, port, "--json")
            assert (done.code, done.json["code"]) == (2, "port-taken")
            assert str(port) in done.json["message"]
            assert f"slicelift up {option} N" in done.json["hint"]
    assert not empty_home.exists()


def test_ctrl_c_stops_everything_and_a_second_up_says_where(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "家 home"
    monkeypatch.setenv("SLICELIFT_HOME", str(home))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "prepare_demo.py").write_text("print('demo data written')")
    with started(home, tmp_path) as (process, lines):
        pid = launcher_pid(home)
        assert os.getpgid(pid) != os.getpgid(process.pid), "Ctrl-C of the terminal would reach the launcher"
        again = cli("up", "--no-hub")
        assert again.code == 0
        assert "running already: http://127.0.0.1:" in again.out
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not alive(pid)
    assert not (home / "launcher.json").exists()
    assert "Stopped. No job was running." in rest
    assert re.search(r"\d s  demo: demo data written", "".join(lines) + rest)


def test_the_way_in_is_told_before_mlflow_answers(tmp_path: Path) -> None:
    with started(tmp_path / "home", tmp_path, "--no-demo") as (process, lines):
        assert process.stdout is not None
        while "Ctrl-C stops everything." not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    text = "".join(lines)
    assert "MLflow at" not in text
    assert re.search(r"^  launcher  http://127.0.0.1:\d+$", text, re.MULTILINE)
    assert "  MLflow    starting; a line below says when it answers\n" in text


def test_down_stops_an_up_of_another_version_too(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("SLICELIFT_HOME", str(home))
    with started(home, tmp_path, "--no-demo", "--slots", "3") as (process, _):
        told = json.loads(cli("jobs", "--json").out)
        assert told == {"jobs": []}
        state = json.loads((home / "launcher.json").read_text())
        (home / "launcher.json").write_text(json.dumps(state | {"version": "0.0.1"}))
        done = cli("up", "--no-hub", "--json")
        assert (done.code, done.json["code"]) == (1, "launcher-version")
        assert f"process {state['pid']}" in done.json["message"]
        done = cli("down", "--json")
        assert (done.code, done.json["stopped"]) == (0, True)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "The launcher was stopped, as by `slicelift down`" in out
    assert cli("down").out == "No launcher is running.\n"


def test_a_launcher_that_is_killed_ends_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with started(home, tmp_path, "--no-demo") as (process, _):
        os.kill(launcher_pid(home), signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "exit status -9" in out
    assert str(home / "launcher.log") in out
    assert "Traceback" not in out


def test_a_home_that_cannot_be_used(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLICELIFT_HOME", str(tmp_path / "file" / "home"))
    done = cli("up", "--no-hub", "--port", free_port(), "--no-demo", "--json")
    assert done.code == 1
    assert done.json["code"] == "home-unusable"
