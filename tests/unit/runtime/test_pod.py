"""What a pod is told, and what it tells the cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import slicelift
from slicelift.errors import SliceliftError
from slicelift.runtime import pod, preparation
from slicelift.runtime.echo import Echo
from slicelift.runtime.pod import exit_code_of, make_request, unpack_runtime

GIVEN: dict[str, Any] = {
    "attempt_id": "r-abc-2",
    "run_id": "r-abc",
    "attempt": 2,
    "nodes": 2,
    "min_nodes": 2,
    "grace_seconds": 50,
}
POD = {"VC_TASK_INDEX": "1", "SLICELIFT_POD_IP": "10.0.0.7"}


@pytest.mark.parametrize(("restarts", "attempt"), [("", 2), ("0", 2), ("3", 5), ("what", 2)])
def test_a_restart_of_the_gang_is_the_next_attempt(restarts: str, attempt: int) -> None:
    found = make_request(GIVEN, POD | {"SLICELIFT_RESTARTS": restarts})
    assert (found["attempt"], found["attempt_id"]) == (attempt, f"r-abc-{attempt}")
    assert (found["node"], found["address"], found["rendezvous"]) == (1, "10.0.0.7", "r-abc-2")
    assert (found["grace_seconds"], found["patience_seconds"], found["source"]) == (50, 1800.0, "")


def test_a_new_pod_of_an_elastic_gang_joins_the_attempt_that_goes_on() -> None:
    given = GIVEN | {"min_nodes": 1}
    first, second = (make_request(given, POD | {"SLICELIFT_RESTARTS": "3"}) for _ in range(2))
    assert first["attempt_id"] == second["attempt_id"] == "r-abc-2"
    assert first["source"] != second["source"]


def test_no_request_is_none() -> None:
    assert make_request({}, POD) == {}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, {"status": "FINISHED"}),
        (143, {"status": "KILLED", "reason": "ended by SIGTERM", "saved": True}),
        (1, {"status": "KILLED", "reason": "ended by SIGTERM", "saved": False}),
        (78, {"status": "KILLED", "reason": "cancelled by the launcher", "saved": True}),
        (78, {"status": "FAILED", "reason": "attempt-unknown"}),
        (78, {"status": "FAILED", "reason": "interpreter-missing"}),
        (78, {"status": "FAILED", "reason": "secret-missing"}),
        (78, {"status": "FAILED", "reason": "snapshot-unsafe"}),
        (78, {"status": "FAILED", "reason": "data-not-in-remote"}),
        (78, {"status": "FAILED", "reason": "data-changed", "logged": True}),
        (78, {"status": "FAILED", "reason": "rank-failed", "failure": {"exception": "SyntaxError"}}),
        (78, {"status": "FAILED", "reason": "rank-failed", "failure": {"exception": "NameError"}}),
        (
            1,
            {
                "status": "FAILED",
                "reason": "rank-failed",
                "failure": {"exception": "NameError"},
                "logged": True,
            },
        ),
        (1, {"status": "FAILED", "reason": "rank-failed", "failure": {"exception": "RuntimeError"}}),
        (1, {"status": "FAILED", "reason": "rank-failed", "failure": None}),
        (1, {"status": "FAILED", "reason": "launcher-away"}),
        (1, {"status": "FAILED", "reason": "disk-full"}),
        (1, {}),
    ],
)
def test_the_exit_code_says_whether_to_try_again(code: int, told: dict[str, Any]) -> None:
    assert exit_code_of(told) == code


def test_the_cluster_keeps_a_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "termination-log"
    monkeypatch.setattr(pod, "_TERMINATION_LOG", place)
    told = {"reason": "rank-failed", "message": "坏 " * 5000}
    pod._leave_word(told, 1, delivered=True)
    assert not place.exists()  # it is the container runtime's to make
    place.touch()
    pod._leave_word(told, 1, delivered=True)
    word = json.loads(place.read_text())
    assert (word["reason"], word["exit_code"], word["message"][:2]) == ("rank-failed", 1, "坏 ")
    assert word["delivered"]
    # the bounds of the kubelet, and of what the launcher keeps of each pod
    assert (len(place.read_bytes()) < 4096, len(place.read_text()) < 1200) == (True, True)
    pod._leave_word({"message": "\udc80"}, 0, delivered=False)
    assert json.loads(place.read_text())["delivered"] is False


def test_only_the_package_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "runtime.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
        archive.writestr("slicelift/runtime/pod.py", "x = 1\n")
    unpack_runtime(tmp_path / "runtime.pyz", tmp_path / "runtime")
    found = [path.relative_to(tmp_path / "runtime") for path in (tmp_path / "runtime").rglob("*.py")]
    assert found == [Path("slicelift/runtime/pod.py")]


def test_a_name_is_waited_for_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of pods come with the cluster's DNS, which this machine has not: the resolver is the test's."""
    answers = iter([socket.gaierror(-2, "unknown"), socket.gaierror(-3, "later"), [("10.0.0.7", 0)]])

    def resolve(name: str, _port: None) -> Any:
        assert name == "r-abc-1-worker-0.r-abc-1"
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    said: list[str] = []
    preparation.wait_for_name("r-abc-1-worker-0.r-abc-1", say=said.append)
    assert said == ["Waiting for the other workers' names"]


def test_a_name_that_never_comes_is_told_with_what_to_look_at() -> None:
    with pytest.raises(SliceliftError) as raised:
        preparation.wait_for_name("worker-0.invalid", seconds=0.1, say=lambda _: None)
    assert raised.value.code == "master-unknown"
    assert "worker-0.invalid" in raised.value.message


def test_the_containers_output_shows_no_secret(tmp_path: Path) -> None:
    log, out = tmp_path / "agent.log", tmp_path / "container.log"
    log.write_bytes(b"before\n")
    known: list[str] = []
    with out.open("wb") as target:
        echo = Echo(log, target.fileno(), secrets=lambda: tuple(known))
        echo.start()
        until = threading.Event()
        while b"before\n" not in out.read_bytes():
            until.wait(0.02)
        known.append("hunter22")
        with log.open("ab") as more:
            more.write(b"the key is hunter22\n")
        echo.finish()
    assert out.read_bytes() == b"before\nthe key is ***\n"


def test_the_package_runs_from_an_archive_alone(tmp_path: Path) -> None:
    """Without a request it says so; nothing of slicelift is installed where `-I -S` looks."""
    package = Path(slicelift.__file__).parent
    with zipfile.ZipFile(tmp_path / "runtime.pyz", "w") as archive:
        archive.writestr("__main__.py", "from slicelift.runtime.pod import main\nraise SystemExit(main())\n")
        heads = [package / name for name in ("__init__.py", "_version.py", "errors.py", "models.py")]
        for source in [*heads, *(package / "runtime").glob("*.py")]:
            archive.write(source, f"slicelift/{source.relative_to(package)}")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "runtime.pyz")],
        env={"SLICELIFT_POD_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no request in {tmp_path}/request/agent.json" in done.stderr
