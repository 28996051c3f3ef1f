"""Who lives in a mount namespace that was made for something: known by a name, never by the namespace's number."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicelift.runtime import processes

pytestmark = pytest.mark.needs_root

# as the agent does: it enters a namespace, and what it leaves there has neither a mark nor a parent any more
STRAY = """
import pathlib, subprocess, sys
from slicelift.runtime.mounts import enter_namespace
sign = pathlib.Path(sys.argv[1])
sign.touch()
assert enter_namespace(sign)
stray = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True, stdout=subprocess.DEVNULL)
print(stray.pid, flush=True)
"""

Leave = Callable[[str], int]


@pytest.fixture
def leave(tmp_path: Path) -> Iterator[Leave]:
    """Leaves a process in a namespace of the attempt of that name; its process id."""
    left = []

    def make(attempt: str) -> int:
        folder = tmp_path / "未 attempts" / attempt
        folder.mkdir(parents=True)
        command = [sys.executable, "-c", STRAY, str(folder / "agent.lock")]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        left.append(int(told.stdout))
        return left[-1]

    yield make
    for pid in left:
        if process := processes.look(pid):
            processes.send(process, signal.SIGKILL)


def test_a_stray_is_found_by_the_name_of_its_attempt_and_by_no_other(leave: Leave) -> None:
    first, second = leave("r-a-1"), leave("r-a-10")
    assert processes.environment(first) == [b""]
    found = [process.pid for process in processes.find(processes.Tree(attempt_id="r-a-1"))]
    assert found == [first]
    assert processes.inhabitants([first, second], "r-a-10") == {second}


def test_who_gets_the_number_of_a_namespace_that_is_gone_is_left_alone(leave: Leave) -> None:
    """The kernel gives it to the next one at once: to a session of somebody else's, to a container."""
    first = leave("r-a-1")
    number = processes.mount_namespace(first)
    assert processes.end(lambda: processes.find(processes.Tree(attempt_id="r-a-1")), grace_seconds=0).found
    others = [leave(f"r-b-{attempt}") for attempt in range(1, 6)]
    assert number in map(processes.mount_namespace, others), "the kernel did not use the number again"
    assert processes.find(processes.Tree(attempt_id="r-a-1")) == []


def test_who_shares_our_own_view_is_nobodys_inhabitant(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as child:
        assert processes.inhabitants([child.pid], tmp_path.parts[1]) == set()
        child.kill()
