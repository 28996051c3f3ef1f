"""How long it takes from slicelift.log() in a rank to a watcher of the launcher's event stream.

A real job logs 20 metrics ten times a second; every event carries the time at which it was logged, by the clock
that the watcher reads, too.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from slicelift.launcher_client import Client
from slicelift.models import Status

from bench import jobs, project
from bench.figures import Figure, figure, p95

STEPS = 300
STEPS_PER_SECOND = 10
GOAL_SECONDS = 0.3

CELL = f"""
import time

import slicelift

time.sleep(2)
for step in range({STEPS}):
    slicelift.log(step=step, **{{f"metric_{{number:02d}}": step + number for number in range(20)}})
    time.sleep(1 / {STEPS_PER_SECOND})
"""


def run(place: Path) -> list[Figure]:
    """p95 and median over all steps."""
    root = project.make(place / "project")
    notebook = project.write_notebook(root / "log.ipynb", [CELL])
    project.commit(root)
    with jobs.launcher() as client:
        job = jobs.start(notebook)
        seconds = _watch(client, job.run_id)
    rate = f"20 metrics × {STEPS_PER_SECOND} steps/s"
    what = f"from the log call to a watcher, {rate}"
    return [
        figure("log-to-watcher-p95", f"{what}, p95", seconds, unit="s", goal=GOAL_SECONDS, statistic=p95),
        figure("log-to-watcher", f"{what}, median", seconds, unit="s", statistic=statistics.median),
    ]


def _watch(client: Client, run_id: str) -> list[float]:
    """Seconds under way of each step, by its first event."""
    found: dict[int, float] = {}
    for event, data in client.events([run_id]):
        now = time.time()
        if event == "points":
            for key, step, logged, _ in data["points"]:
                if key == "metric_00":
                    found.setdefault(step, now - logged)
        if len(found) == STEPS:
            return list(found.values())
        if event == "run" and data.status in (Status.FAILED, Status.KILLED):
            raise RuntimeError(f"the job ended {data.status}: {data.message}")
    raise RuntimeError(f"the stream ended after {len(found)} of {STEPS} steps")
