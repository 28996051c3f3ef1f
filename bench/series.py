"""How long the launcher takes to answer 300 points of a series of a million.

The points come in as an agent sends them, over HTTP with a job token, so they lie in the ledger as a real
run's do; the answer is taken over HTTP, too.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import httpx
from slicelift.launcher_client import Client
from slicelift.models import Status

from bench import jobs, project
from bench.figures import Figure, figure, p95

POINTS = 1_000_000
POINTS_A_CALL = 1_000
ASKED = 300
ROUNDS = 40
GOAL_SECONDS = 0.2


def run(place: Path) -> list[Figure]:
    """The answer's time, and how fast points were taken in."""
    root = project.make(place / "project")
    notebook = project.write_notebook(root / "wait.ipynb", ["import time\ntime.sleep(3600)"])
    project.commit(root)
    with jobs.launcher() as client:
        job = jobs.start(notebook)
        jobs.wait(client, job.run_id, wanted=Status.RUNNING)
        rate = POINTS / _fill(client, job.run_id)
        answers = [_timed(client, job.run_id) for _ in range(ROUNDS)]
    what = f"answer of {ASKED} points from a series of {POINTS:,}, p95"
    return [
        figure("series-1m", what, answers, unit="s", goal=GOAL_SECONDS, statistic=p95),
        figure("ingest-rate", f"points taken in, {POINTS_A_CALL:,} a call", [rate], unit="points/s"),
    ]


def _fill(client: Client, run_id: str) -> float:
    """Send the points as a process of rank 0 would; gives the seconds it took."""
    headers = {"Authorization": f"token {jobs.attempt_token(run_id)}"}
    url = f"{client.url}/api/v1/attempts/{run_id}-1/events"
    start = time.perf_counter()
    with httpx.Client(headers=headers, timeout=60) as http:
        for first in range(0, POINTS, POINTS_A_CALL):
            lines = [_line(step) for step in range(first, first + POINTS_A_CALL)]
            body = {"streams": [{"rank": 0, "process": "1-1", "lines": lines}]}
            http.post(url, json=body).raise_for_status()
    return time.perf_counter() - start


def _line(step: int) -> dict[str, object]:
    loss = math.exp(-step / 2e5) + 0.05 * math.sin(step)
    return {"q": step + 1, "t": 1.7e9 + step, "k": "m", "s": step, "m": {"loss": loss}}


def _timed(client: Client, run_id: str) -> float:
    start = time.perf_counter()
    found = client.series(run_id, keys=["loss"], points=ASKED)
    seconds = time.perf_counter() - start
    count, points = found[0]["count"], len(found[0]["points"])
    if count != POINTS or not 0 < points <= ASKED:
        raise RuntimeError(f"asked for {ASKED} of {POINTS:,} points, got {points} of {count:,}")
    return seconds
