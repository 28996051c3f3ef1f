"""From `slicelift up` on a machine that has run it before to the first metric of the quickstart at a watcher.

In a copy of this repository with a home of its own: start, promote with the command a user types as soon as the
launcher answers, and stop the clock at the first point of the event stream. MLflow is still starting then:
training never waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from slicelift.errors import SliceliftError
from slicelift.launcher_client import Client, find

from bench import jobs, project
from bench.figures import Figure, figure

SOURCE = Path(__file__).resolve().parent.parent
NOTEBOOK = "notebooks/quickstart.ipynb"
ROUNDS = 3
GOAL_SECONDS = 30
LIMIT_SECONDS = 240


def run(place: Path) -> list[Figure]:
    """Time to the first metric, and to an MLflow that answers."""
    root = _copy(place / "copy")
    _round(root)  # the first start makes the demo project, MLflow's tables and Python's bytecode
    rounds = [_round(root) for _ in range(ROUNDS)]
    metric, tracker = (list(column) for column in zip(*rounds, strict=True))
    return [
        figure(
            "up-to-first-metric", "`slicelift up`, warm, to first metric", metric, unit="s", goal=GOAL_SECONDS
        ),
        figure("up-to-tracker", "`slicelift up`, warm, to MLflow answering", tracker, unit="s"),
    ]


def _round(root: Path) -> tuple[float, float]:
    """Seconds to the first metric and to MLflow; everything is stopped when this returns."""
    start = time.perf_counter()
    with (root.parent / "up.log").open("ab") as log:
        command = [sys.executable, "-m", "slicelift", "up", "--port", str(_free_port())]
        up = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, start_new_session=True)
        try:
            client = _answering(up)
            promote = [sys.executable, "-m", "slicelift", "promote", NOTEBOOK, "--workers", "2"]
            subprocess.run(promote, cwd=root, stdout=log, stderr=log, check=True)
            _first_point(client)
            metric = time.perf_counter() - start
            jobs.mlflow_url(client)
            return metric, time.perf_counter() - start
        finally:
            _stop(up)


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
