"""Where a launcher listens, what it tells jobs of itself, and by which names it may be called."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest


def test_pods_are_told_the_public_address_and_may_call_by_its_name(make_launcher: Any) -> None:
    launcher = make_launcher(
        "--Launcher.address=0.0.0.0",
        "--Launcher.public_url=http://launcher.slicelift:8765/",
        "--Launcher.hosts=launcher.slicelift.svc",
        "--Launcher.poll_seconds=0.05",
    ).start()
    view = launcher.running()
    told = json.loads((launcher.home / "steered" / f"{view.run_id}-1.json").read_text())
    assert told["url"] == "http://launcher.slicelift:8765"
    # programs of this machine go on by loopback
    port = launcher.url.split(":")[2].split("/")[0]
    assert launcher.url.startswith("http://127.0.0.1:")
    outside = _own_address()
    with httpx.Client(trust_env=False) as http:
        for name, status in (
            ("launcher.slicelift", 200),
            ("launcher.slicelift.svc:8765", 200),
            ("127.0.0.1", 200),
            ("launcher.example", 403),
            ("slicelift", 403),
        ):
            answer = http.get(f"http://{outside}:{port}/api/v1/health", headers={"Host": name})
            assert answer.status_code == status, name
        answer = http.get(f"http://{outside}:{port}/api/v1/jobs", headers={"Host": "launcher.slicelift"})
        assert answer.status_code == 401
    launcher.client.cancel(view.run_id)
    launcher.close()


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("--Launcher.public_url=launcher:8765", "bad-public-url"),
        ("--Launcher.public_url=http://", "bad-public-url"),
        ("--Launcher.public_url=ftp://launcher", "bad-public-url"),
        ("--Launcher.address=192.0.2.1", "address-unusable"),
        ("--Launcher.address=nonsense", "address-unusable"),
        ("--backend=slicelift_hub.nothing.Backend", "backend-unknown"),
        ("--Launcher.ledger=mysql://h/d", "ledger-address"),
        ("--Launcher.policy_file=/no/such/policy.yaml", "file-unreadable"),
    ],
)
def test_a_setting_that_cannot_be_is_named(make_launcher: Any, option: str, code: str) -> None:
    """Each tries a start, of a second or two."""
    name, _, value = option.partition("=")
    launcher = make_launcher(*((name, value) if name == "--backend" else (option,)))
    with pytest.raises(AssertionError):
        launcher.start()
    launcher.process.wait(20)
    body = json.loads((Path(launcher.home) / "test.log").read_text().strip().splitlines()[-1])
    assert body["code"] == code
    assert body["hint"]


def test_the_ledgers_address_may_come_by_the_environment(
    make_launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICELIFT_LEDGER", "mysql://u:s3cret@h/d")
    launcher = make_launcher()
    with pytest.raises(AssertionError):
        launcher.start()
    launcher.process.wait(20)
    said = (Path(launcher.home) / "test.log").read_text()
    assert json.loads(said.strip().splitlines()[-1])["code"] == "ledger-address"
    assert "s3cret" not in said


def _own_address() -> str:
    """An address of this machine that is not loopback, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
