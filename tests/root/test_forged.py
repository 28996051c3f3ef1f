"""What a job's user writes into the attempt's folder leads root nowhere: not to others' processes, not to others' files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.backends.local import Local
from slicelift.errors import SliceliftError
from slicelift.models import JobSpec, Status
from slicelift.runtime import processes
from slicelift_hub.isolation import JobEnclosure
from slicelift_hub.system_users import remove_all, system_user

from tests.waiting import wait_for

pytestmark = pytest.mark.needs_root

HANDLE = "local://r-forged-1"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    yield made
    wait_for("the accounts to go", lambda: not remove_all(made), why=lambda: remove_all(made))


@pytest.fixture
def local(home: Path) -> Local:
    return Local(home, enclosure=JobEnclosure(home))


@pytest.fixture
def folder(home: Path, local: Local) -> Path:
    """The folder of an attempt of Bob's, whose processes wrote what they liked."""
    root = home / "attempts" / "r-forged-1"
    root.mkdir(parents=True, mode=0o700)
    bob = system_user(home, "bob")
    os.chown(root, bob.uid, bob.gid)
    (root.parent / ".r-forged-1.json").write_text('{"owner": "bob"}')
    return root


@pytest.fixture
def bystander() -> Iterator[processes.Process]:
    """A process that is not Bob's."""
    with subprocess.Popen(["sleep", "600"]) as child:
        found = processes.look(child.pid)
        assert found is not None
        yield found
        assert child.poll() is None, "it was ended"
        child.kill()


def test_a_foreign_process_is_neither_signalled_nor_ended(
    local: Local, folder: Path, bystander: processes.Process
) -> None:
    told = {"pid": bystander.pid, "start_time": bystander.start_time, "boot_id": processes.boot_id()}
    (folder / "agent.pid").write_text(json.dumps(told))
    (folder / "processes.json").write_text(json.dumps([list(bystander.key)]))
    proof = local.cancel(HANDLE, reason="a test", grace_seconds=0)
    assert (proof.gone, proof.killed) == (True, 0)
    assert local.status(HANDLE).status is Status.KILLED


def test_links_are_not_followed_and_pipes_do_not_block(local: Local, folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    victim.chmod(0o600)
    for name in (
        "cancel.json",
        f".cancel.json.{os.getpid()}",
        f".exit.json.{os.getpid()}",
        "reserve.1",
        "agent.lock",
    ):
        (folder / name).symlink_to(victim)
    (folder / "agent.log").symlink_to(tmp_path / "made by root")
    os.mkfifo(folder / "agent.pid")
    os.mkfifo(folder / "processes.json")
    began = time.monotonic()
    local.cancel(HANDLE, reason="a test", grace_seconds=0)
    assert local.status(HANDLE).status is Status.KILLED
    assert time.monotonic() - began < 20
    assert (victim.read_text(), victim.stat().st_uid) == ("untouched", 0)
    assert not (tmp_path / "made by root").exists()


@pytest.mark.parametrize(
    "text", ['{"status": "HACKED"}', '{"status": "RUNNING"}', '{"failure": [1]}', "[1]", "\0", ""]
)
def test_an_exit_status_that_is_none_ends_the_job_as_failed(local: Local, folder: Path, text: str) -> None:
    (folder / "exit.json").write_text(text)
    (folder / "delivered.json").write_text("{}")
    status = local.status(HANDLE)
    assert (status.status, status.phase) == (Status.FAILED, "ended")
    assert local.cancel(HANDLE, reason="a test").gone
    assert local.discard(HANDLE)
    assert not list(folder.parent.iterdir())


def test_what_is_given_to_the_user_is_not_read_from_the_folder(
    local: Local, folder: Path, tmp_path: Path
) -> None:
    """A delivering agent is started anew: the forged request must not have root give Bob somebody's folder."""
    (tmp_path / "annas").mkdir()
    forged = {"owner": "root", "cache": str(tmp_path / "annas"), "checkpoints": str(tmp_path / "annas")}
    (folder / "agent.json").write_text(json.dumps(forged))
    (folder / "exit.json").write_text('{"status": "FINISHED"}')
    (folder / "agent.pid").write_text("{}")
    local.status(HANDLE)
    assert (tmp_path / "annas").stat().st_uid == 0
    assert (local.home / "checkpoints" / "r-forged").stat().st_uid == system_user(local.home, "bob").uid
    # the folder holds no runtime: the agent ends at once, and may not outlive Bob's account
    wait_for("the agent to end", lambda: "No module named" in (folder / "agent.log").read_text())


def test_a_given_attempt_never_gets_an_agent_of_roots(home: Path, folder: Path) -> None:
    """The isolation was switched off meanwhile."""
    (folder / "exit.json").write_text('{"status": "FINISHED"}')
    (folder / "agent.pid").write_text("{}")
    status = Local(home).status(HANDLE)
    assert (status.status, status.phase) == (Status.FINISHED, "delivering")
    assert not (folder / "agent.log").exists()


def test_the_plan_makes_no_user(home: Path, local: Local) -> None:
    words = {"name": "n", "snapshot_id": "s", "notebook": "n.ipynb", "script": "p.py", "cwd": "."}
    attempt: dict[str, Any] = {
        "attempt_id": "r-plan-1",
        "run_id": "r-plan",
        "promotion_id": "p",
        "attempt": 1,
    }
    attempt |= {"launcher_url": "http://127.0.0.1:1", "token": "t", "owner": "carol"}
    local.render(JobSpec(**words, python=sys.executable), Attempt(**attempt))
    assert not (home / "hub").exists()
    with pytest.raises(SliceliftError):
        local.folder("../../etc")
    system_user(home, "carol")
