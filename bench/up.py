"""From `slicelift up` on a machine that has run it before to the first metric of the quickstart at a watcher.

In a copy of this repository with a home of its own, by the commands a user types. Two ways in turn: `promote` when
`up` says that everything is there, MLflow too; and `promote` as soon as the launcher answers, while MLflow is still
starting, since training never waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from slicelift.errors import SliceliftError
from slicelift.launcher_client import Client, find

from bench import project
from bench.figures import Figure, figure
from tests.waiting import free_port

SOURCE = Path(__file__).resolve().parent.parent
NOTEBOOK = "notebooks/quickstart.ipynb"
COMMAND = [sys.executable, "-m", "slicelift"]
ROUNDS = 3
GOAL_SECONDS = 30
LIMIT_SECONDS = 240


def run(place: Path) -> list[Figure]:
    """Time to the first metric both ways, and to everything being there."""
    root = _copy(place / "copy")
    _round(root, wait=True)  # the first start makes the demo project, MLflow's tables and Python's bytecode
    rounds = [(_round(root, wait=True), _round(root, wait=False)) for _ in range(ROUNDS)]
    ready, patient = zip(*(both[0] for both in rounds), strict=True)
    eager = [both[1][1] for both in rounds]
    what = "`slicelift up`, warm, to first metric"
    return [
        figure("up-to-first-metric", what, patient, unit="s", goal=GOAL_SECONDS),
        figure("up-to-first-metric-eager", f"{what}, promoted while MLflow starts", eager, unit="s"),
        figure("up-to-ready", "`slicelift up`, warm, to launcher and MLflow answering", ready, unit="s"),
    ]


def _round(root: Path, *, wait: bool) -> tuple[float, float]:
    """Seconds until promoting may begin and to the first metric; everything is stopped when this returns."""
    start, log = time.perf_counter(), root.parent / "up.log"
    with log.open("ab") as said:
        command = [*COMMAND, "up", "--no-hub", "--json", "--port", str(free_port())]
        up = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=said, start_new_session=True)
        try:
            if wait:
                _wait_for_ready(up)
            client = _answering(up)
            ready = time.perf_counter() - start
            promote = [*COMMAND, "promote", NOTEBOOK, "--workers", "2"]
            subprocess.run(promote, cwd=root, stdout=said, stderr=said, check=True)
            _first_point(client)
            return ready, time.perf_counter() - start
        except (RuntimeError, subprocess.CalledProcessError):
            print(log.read_text(encoding="utf-8", errors="replace")[-4000:])
            raise
        finally:
            _stop(up)


def _wait_for_ready(up: subprocess.Popen[bytes]) -> None:
    """`up --json` prints the addresses once everything is there."""
    if up.stdout is None or not up.stdout.readline():
        raise RuntimeError("`slicelift up` ended before everything was there")


def _answering(up: subprocess.Popen[bytes]) -> Client:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and up.poll() is None:
        try:
            client = find()
            client.health()
        except SliceliftError:
            time.sleep(0.1)
        else:
            return client
    raise RuntimeError(f"`slicelift up` did not get its launcher to answer (exit status {up.poll()})")


def _first_point(client: Client) -> None:
    newest = client.jobs(limit=1)[0]
    for event, data in client.events([newest.run_id]):
        if event == "points":
            return
        if event == "run" and data.latest:
            return
        if event == "run" and data.status.terminal:
            raise RuntimeError(f"the quickstart ended {data.status} without a metric: {data.message}")


def _stop(up: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, as a user stops it."""
    up.send_signal(signal.SIGINT)
    try:
        up.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(up.pid, signal.SIGKILL)
        up.wait()


def _copy(root: Path) -> Path:
    """This repository as git sees it, as a repository of its own: its side refs stay out of yours."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=SOURCE,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (SOURCE / name).is_file():
            shutil.copy2(SOURCE / name, target)
    return project.make(root)
