"""The worker process by itself: how much memory it may take, and what it says then."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.server import workers

SMALL = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [{"cell_type": "code", "source": "n = 1"}],
}
Ask = Callable[[Path], dict[str, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], tuple[int, Ask]]]:
    """Starts a worker under a limit of its own: its pid, and `check` in it."""
    made: list[subprocess.Popen[str]] = []

    def begin(limit: int) -> tuple[int, Ask]:
        code = (
            f"import resource, runpy; resource.setrlimit(resource.RLIMIT_DATA, ({limit}, -1));"
            "runpy.run_module('slicelift.server.worker', run_name='__main__')"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            text=True,
        )
        made.append(process)

        def ask(path: Path) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(
                json.dumps({"id": 1, "call": "check", "arguments": {"path": str(path)}}) + "\n"
            )
            process.stdin.flush()
            return dict(json.loads(process.stdout.readline()))

        return process.pid, ask

    yield begin
    for process in made:
        process.communicate(timeout=20)


def test_a_worker_may_not_take_the_machine(start: Any, tmp_path: Path) -> None:
    small = tmp_path / "small.ipynb"
    small.write_text(json.dumps(SMALL))
    pid, ask = start(resource.RLIM_INFINITY)
    assert ask(small)["answer"]["ok"] is True
    [line] = [
        text
        for text in Path(f"/proc/{pid}/limits").read_text().splitlines()
        if text.startswith("Max data size")
    ]
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert 0 < int(line.split()[3]) <= min(4 * 1024**3, half)


def test_a_notebook_that_takes_more_is_refused_and_the_worker_lives(start: Any, tmp_path: Path) -> None:
    small, heavy = tmp_path / "small.ipynb", tmp_path / "heavy.ipynb"
    small.write_text(json.dumps(SMALL))
    heavy.write_text(json.dumps({**SMALL, "metadata": {"pad": "x" * 300 * 1024**2}}))
    _, ask = start(600 * 1024**2)
    told = ask(heavy)
    assert (told["status"], told["error"]["code"]) == (400, "notebook-too-heavy")
    assert "600 MiB" in told["error"]["message"]
    assert told["error"]["hint"]
    assert ask(small)["answer"]["ok"] is True


@pytest.mark.parametrize(("code", "starved"), [(-signal.SIGKILL, True), (-signal.SIGABRT, True), (1, False)])
def test_an_end_for_want_of_memory_is_told_as_such(code: int, starved: bool) -> None:
    assert ("memory" in workers._last_words(code)) is starved
