"""How the hub's configuration finds ports and proxy, and what it says when it cannot."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slicelift_hub import config

CHP = "configurable-http-proxy"
HUB = "http://127.0.0.1:8081"
HOLD = "from slicelift_hub import config; print('now', flush=True); config.hold(); print('held', flush=True); input()"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As of an installation by pip: no clone around it, and no proxy on PATH."""
    monkeypatch.setenv("SLICELIFT_HOME", str(tmp_path / "家 home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(config, "_ROOT", tmp_path / "nowhere")
    (tmp_path / "bin").mkdir()
    return tmp_path / "家 home"


def refused(caught: pytest.ExceptionInfo[SystemExit]) -> dict[str, Any]:
    """The last line that a hub writes which does not come up."""
    return dict(json.loads(str(caught.value.code)))


def make_program(file: Path, first: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{first}\n")
    file.chmod(0o755)


def test_without_a_proxy_the_command_that_installs_one_is_told(home: Path) -> None:
    # PyPI's, which is no use here
    make_program(home.parent / "bin" / CHP, "#!/opt/node env/bin/python")
    with pytest.raises(SystemExit) as caught:
        config.proxy_command(HUB)
    told = refused(caught)
    assert told["code"] == "proxy-missing"
    assert told["hint"].endswith(f"npm install --ignore-scripts --prefix '{home}/proxy' {CHP}@5")
    # what that command leaves
    script = home / "proxy" / "node_modules" / CHP / "bin" / CHP
    make_program(script, "#!/usr/bin/env node")
    assert config.proxy_command(HUB)[-3:] == [str(script), "--default-target", HUB]


def test_npms_proxy_is_found_on_the_path(home: Path) -> None:
    make_program(home.parent / "bin" / CHP, "#!/usr/bin/env node")
    assert config.proxy_command(HUB)[-3] == str(home.parent / "bin" / CHP)


def test_a_setting_that_is_no_number_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICELIFT_HUB_PORT", "eight")
    with pytest.raises(SystemExit) as caught:
        config.public_url()
    assert refused(caught)["message"] == "SLICELIFT_HUB_PORT is 'eight', not a number."


def test_inner_ports_stay_and_are_roots_own_where_there_are_such(home: Path) -> None:
    ports = {name: config.inner_port(name) for name in ("hub", "proxy")}
    assert len(set(ports.values())) == 2
    assert {name: config.inner_port(name) for name in ports} == ports
    assert (home / "hub" / "ports.json").stat().st_mode & 0o777 == 0o600
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    kept = os.geteuid() == 0 and first > 600
    assert all((port < first) is kept for port in ports.values())


def test_one_hub_per_home_and_a_look_at_its_lock_keeps_none_out(home: Path) -> None:
    lock = os.open(config.hub_folder() / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "now\n"
        time.sleep(0.3)
        os.close(lock)
        assert first.stdout.readline() == "held\n"
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert json.loads(second.stderr.splitlines()[-1])["code"] == "hub-running"
        first.communicate("\n")
