"""User B, with all that B's processes can reach, gets at nothing of user A's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Status
from slicelift.runtime import processes

from tests.waiting import wait_for

pytestmark = pytest.mark.needs_root

# A's job: a port without a password, files in the shared places, a secret in environment and command line
TARGET = """
import os, pathlib, socket, subprocess, sys, time
pathlib.Path("/tmp/left-by-anna").write_text("x")
pathlib.Path("/dev/shm/left-by-anna").write_text("x")
pathlib.Path("outputs").mkdir()
pathlib.Path("outputs/result.txt").write_text("anna's")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "--password=annas-word"])
listener = socket.create_server(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0annas-abstract-socket")
abstract.listen()
print("port", listener.getsockname()[1], flush=True)
time.sleep(600)
"""
# B's program: everything is tried, and what worked is told
PROBE = """
import json, os, signal, socket, sys
told = json.loads(sys.argv[1])

def works(act):
    try:
        act()
    except OSError:
        return False
    return True

def connect(family, address):
    with socket.socket(family) as found:
        found.settimeout(2)
        found.connect(address)

def read(path):
    if os.path.isdir(path):
        os.listdir(path)
    else:
        open(path, "rb").close()

print(json.dumps({
    "files": [path for path in told["paths"] if works(lambda: read(path))],
    "written": [path for path in told["paths"] if works(lambda: os.close(os.open(path, os.O_WRONLY)))],
    "environments": [pid for pid in told["pids"] if works(lambda: open(f"/proc/{pid}/environ", "rb").read())],
    "command lines": [pid for pid in told["pids"] if works(lambda: open(f"/proc/{pid}/cmdline", "rb").read())],
    "roots": [pid for pid in told["pids"] if works(lambda: os.listdir(f"/proc/{pid}/root/tmp"))],
    "memory": [pid for pid in told["pids"] if works(lambda: open(f"/proc/{pid}/mem", "rb"))],
    "signalled": [pid for pid in told["pids"] if works(lambda: os.kill(pid, 0))],
    "ports": [port for port in told["ports"] if works(lambda: connect(socket.AF_INET, ("127.0.0.1", port)))],
    "abstract": works(lambda: connect(socket.AF_UNIX, "\\0annas-abstract-socket")),
    "shared": [name for place in ("/tmp", "/var/tmp", "/dev/shm") for name in os.listdir(place) if "anna" in name],
}))
"""
NOTHING = {
    "files": [],
    "written": [],
    "environments": [],
    "roots": [],
    "memory": [],
    "signalled": [],
    "ports": [],
}


@pytest.fixture(scope="module")
def annas(machine: Any) -> Any:
    """Anna's running job, with a secret and a file of hers in her home; a second job of hers is over."""
    client = machine.client("anna")
    client.set_secret("ANNAS_KEY", "annas-secret")
    (machine.home_of("anna") / "diary.txt").write_text("dear diary")
    over = machine.submit("anna", "open('left', 'w').write('x')\nprint('annas words')\n")
    machine.until("anna", over.run_id, Status.FINISHED)
    view = machine.submit("anna", TARGET, secrets=("ANNAS_KEY",))
    machine.until("anna", view.run_id, Status.RUNNING)
    wait_for("its port", lambda: b"port" in client.logs(view.run_id, rank=0)[0], seconds=120)
    yield view
    client.cancel(view.run_id)
    assert machine.until("anna", view.run_id, Status.KILLED).status is Status.KILLED


@pytest.fixture(scope="module")
def told(machine: Any, annas: Any) -> dict[str, Any]:
    """Where all of Anna's is, as root sees it."""
    paths = [str(path) for path in machine.home.rglob("*") if not _for_all(path, machine.home)]
    pids = machine.processes_of("anna")
    ports = sorted({port for pid in pids for port in _listening(pid)} - _listening("self"))
    assert len(pids) >= 4  # agent, gang, rank, its child
    assert len(ports) >= 2  # the rank's, the agent's MLflow
    assert any(b"annas-secret" in Path(f"/proc/{pid}/environ").read_bytes() for pid in pids)
    for name in (
        "launcher.json",
        "identity.json",
        "ledger.db",
        "diary.txt",
        "result.txt",
        "secrets.json",
        "agent.json",
    ):
        assert any(path.endswith(f"/{name}") for path in paths), name
    return {"paths": paths, "pids": pids, "ports": ports}


def test_a_session_of_another_user_reaches_nothing(machine: Any, told: dict[str, Any]) -> None:
    found = machine.run_as("bob", PROBE, json.dumps(told))
    own = [path for path in found.pop("files") if not _bobs(path, machine)]
    written = [path for path in found.pop("written") if not _bobs(path, machine)]
    assert (own, written) == ([], [])
    rest = {name: [] for name in NOTHING if name not in ("files", "written")}
    assert found == {**rest, "command lines": [], "abstract": False, "shared": []}


def test_a_job_of_another_user_reaches_nothing(machine: Any, told: dict[str, Any]) -> None:
    script = PROBE.replace("sys.argv[1]", repr(json.dumps(told)))
    view = machine.submit("bob", script)
    machine.until("bob", view.run_id, Status.FINISHED)
    found = json.loads(machine.client("bob").logs(view.run_id, rank=0)[0].decode().splitlines()[-1])
    # its own folder, by way of the list of all
    assert [path for path in found.pop("files") if not _bobs(path, machine) and view.run_id not in path] == []
    assert [path for path in found.pop("written") if not _bobs(path, machine)] == []
    rest = {name: [] for name in NOTHING if name not in ("files", "written")}
    assert found == {**rest, "command lines": [], "abstract": False, "shared": []}


def test_the_other_users_rights_alone_reach_nothing(machine: Any, told: dict[str, Any]) -> None:
    """Bob's uid in the machine's own view, as by a way around the mounts: rights, not only views, keep him out."""
    bob = machine.user("bob")
    found = _run_bare(f"os.setgroups([]); os.setgid({bob.gid}); os.setuid({bob.uid})", told)
    assert {name: found[name] for name in NOTHING} == NOTHING


def test_the_probe_sees_all_where_nothing_keeps_it_out(told: dict[str, Any]) -> None:
    """What the other tests are worth: the same program as root."""
    found = _run_bare("pass", told)
    assert found["files"] == told["paths"]
    for name in ("environments", "command lines", "roots", "memory", "signalled"):
        assert found[name] == told["pids"], name


def test_the_http_interface_tells_nothing_of_it(machine: Any, annas: Any) -> None:
    import httpx

    client = machine.client("bob")
    assert annas.run_id not in {view.run_id for view in client.jobs()}
    headers = {"Authorization": "token token-bob"}
    with httpx.Client(base_url=f"{client.url}/api/v1", headers=headers, trust_env=False) as http:
        for path in ("", "/logs", "/series", "/outputs", "/attempts"):
            assert http.get(f"/jobs/{annas.run_id}{path}").status_code == 404, path
        assert http.post(f"/jobs/{annas.run_id}/cancel").status_code == 404
        assert http.get(f"/snapshots/{annas.spec.snapshot_id}/files/promoted.py").status_code == 404
        assert "ANNAS_KEY" not in http.get("/secrets").text


def _run_bare(first: str, told: dict[str, Any]) -> Any:
    # the interpreter may lie where only root comes: it has what it needs before the rights are dropped
    program = f"import json, os, signal, socket, sys\n{first}\n{PROBE}"
    command = [sys.executable, "-S", "-c", program, json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _for_all(path: Path, home: Path) -> bool:
    return path.is_symlink() or path.is_relative_to(home / "public")


def _bobs(path: str, machine: Any) -> bool:
    """Bob's own, or an empty folder of the view on the way to it."""
    place, bob = Path(path), machine.user("bob")
    on_the_way = any(own.is_relative_to(place) for own in _places_of_bob(machine))
    return on_the_way or place.lstat().st_uid == bob.uid


def _places_of_bob(machine: Any) -> list[Path]:
    folders = [machine.home / name for name in ("homes", "attempts", "cache", "checkpoints")]
    uid = machine.user("bob").uid
    return [
        entry
        for folder in folders
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.stat().st_uid == uid
    ]


def _listening(pid: int | str) -> set[int]:
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}


def test_processes_are_told_apart_by_user(machine: Any, annas: Any) -> None:
    pid = machine.processes_of("anna")[0]
    assert processes.user_of(pid) == machine.user("anna").uid != os.getuid()
