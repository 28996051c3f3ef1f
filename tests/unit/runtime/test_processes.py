"""Who lives in a mount namespace whose number the kernel may have given away again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicelift.runtime import processes

HERE = processes.mount_namespace()
MARK = b"SLICELIFT_SESSION=s-new"


def is_marked(item: bytes) -> bool:
    return item == MARK


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts a program with exactly this environment; its process id once it prints a line."""
    started = []

    def start(command: list[str], environment: dict[str, str]) -> int:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_is_just_exec_ed_is_judged_by_nobody(run: Callable[..., int], tmp_path: Path) -> None:
    """It bears a mark before and after, and shows none while its memory is exchanged."""
    script = tmp_path / "again"
    script.write_text(f'#!/bin/sh\necho\nexec "{script}"\n')
    script.chmod(0o755)
    pid = run(["/bin/sh", "-c", f'echo; exec "{script}" >/dev/null'], {"SLICELIFT_SESSION": "s-new"})
    unseen = 0
    for _ in range(20_000):
        unseen += MARK not in processes.environment(pid)
        assert processes.inhabitants([pid], HERE, is_marked) == set()
    assert processes.alive((pid, processes.look(pid).start_time))  # type: ignore[union-attr]
    assert unseen, "it was never looked at while it was being exec'ed"


@pytest.mark.parametrize("environment", [{}, {"OTHER": "1"}])
def test_who_has_cleared_its_environment_still_lives_there(
    run: Callable[..., int], environment: dict[str, str]
) -> None:
    pid = run([sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"], environment)
    assert processes.inhabitants([pid], HERE, is_marked) == {pid}
    assert processes.inhabitants([pid], "mnt:[1]", is_marked) == set()


def test_one_with_the_mark_of_another_speaks_for_all(run: Callable[..., int]) -> None:
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]
    bare, marked = run(command, {}), run(command, {"SLICELIFT_SESSION": "s-new"})
    assert processes.inhabitants([bare, marked], HERE, is_marked) == set()
    assert os.getpid() in processes.inhabitants([os.getpid(), bare], HERE, is_marked)
