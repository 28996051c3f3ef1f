"""A followed run on a screen: plain lines in a pipe, a live picture on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slicelift.cli.screens import PlainScreen
from slicelift.models import JobSpec, RunView, Status, StatusChange

SPEC = JobSpec(
    name="digits", snapshot_id="0" * 64, notebook="n.ipynb", script="p.py", cwd=".", python="python"
)


def change(status: Status, second: int, message: str = "") -> StatusChange:
    return StatusChange(time=1_700_000_000.0 + second, attempt=1, status=status, message=message)


def view(*history: StatusChange, **more: Any) -> RunView:
    return RunView(
        promotion_id="p-" + "a" * 20,
        run_id="r-abcdefghijkl",
        name="digits",
        owner="ann",
        status=history[-1].status,
        spec=SPEC,
        history=history,
        created=1_700_000_000.0,
        **more,
    )


def lines_of(*views: RunView) -> list[str]:
    """What a pipe sees, without the times of day."""
    stream = io.StringIO()
    screen = PlainScreen(stream)
    for each in views:
        screen.show(each)
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    return [line[10:] for line in lines]


def test_one_line_per_change_and_none_without() -> None:
    waiting, starting = change(Status.WAITING, 0), change(Status.STARTING, 1)
    running, finished = change(Status.RUNNING, 2), change(Status.FINISHED, 9)
    assert lines_of(
        view(waiting, position=3),
        view(waiting, position=3),
        view(waiting, position=2),
        view(waiting, starting, message="Linking data"),
        view(waiting, starting, message="Linking data"),
        view(waiting, starting, running),
        view(waiting, starting, running),
        view(waiting, starting, running, finished, ended=1_700_000_009.0),
    ) == [
        "Waiting: 2 jobs ahead",
        "Waiting: 1 job ahead",
        "Starting: Linking data",
        "Running",
        "Finished in 9.0 s",
    ]


def test_changes_that_were_missed_are_told() -> None:
    past = (change(Status.WAITING, 0), change(Status.STARTING, 1, "Linking data."), change(Status.RUNNING, 2))
    end = change(Status.KILLED, 3)
    assert lines_of(view(*past, end, reason="cancelled by ann")) == [
        "Waiting",
        "Starting: Linking data",
        "Running",
        "Cancelled: cancelled by ann",
    ]


def test_at_most_one_line_of_metrics_a_second_and_the_last_one_always() -> None:
    running, finished = change(Status.RUNNING, 0), change(Status.FINISHED, 1)
    many = [view(running, latest={"loss": (step, 1 / (step + 1))}) for step in range(500)]
    end = view(running, finished, latest={"loss": (500, 0.125)}, ended=1_700_000_001.0)
    told = lines_of(*many, end)
    assert told[:2] == ["Running", "step 0  loss 1"]
    assert told[-2:] == ["Finished in 1.0 s", "step 500  loss 0.125"]
    assert len(told) <= 6


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_terminal_shows_the_end_of_a_run(failed_run: dict[str, Any], term: str) -> None:
    """Under a real pseudo terminal, 100 columns wide."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "slicelift", "watch", failed_run["run_id"]],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": term, "COLUMNS": "100", "LINES": "40"},
        cwd=Path(sys.prefix),
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:
        pass  # the terminal's other side is closed
    os.close(master)
    assert process.wait(30) == 1
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "Rank 0 failed in cell 3, line 2: ZeroDivisionError" in text
    assert ("✗ it fails" in text) == (term != "dumb")
    assert "Traceback (most recent call last)" in text
    assert "it fails.ipynb, cell 3, line 5" in text
