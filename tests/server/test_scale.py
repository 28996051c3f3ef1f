"""A thousand jobs at once: what they cost the launcher. The ledger is on PostgreSQL, as on a cluster. About 30 s."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Status, to_dict

from tests.promoting import make_promotion_id
from tests.waiting import wait_for

JOBS = 1000
WATCHERS = 100
MOST_BYTES = 300 * 2**20

pytestmark = pytest.mark.needs_postgresql


@pytest.fixture(scope="module")
def busy(make_launcher: Any, postgres: Any) -> Iterator[tuple[Any, list[str]]]:
    """A launcher over a backend that queues by itself, with a thousand jobs that run, and their ids."""
    address = postgres.make_database()
    launcher = make_launcher("--backend", "steered.Queueing", database=lambda _: address).start()
    spec = to_dict(launcher.spec(workers=8, gpus_per_worker=8))

    def submit(count: int) -> list[str]:
        with launcher.http() as http:
            bodies = [{"promotion_id": make_promotion_id(), "spec": spec} for _ in range(count)]
            return [http.post("/jobs", json=body).json()["run_id"] for body in bodies]

    with ThreadPoolExecutor(4) as pool:
        runs = [run_id for made in pool.map(submit, [JOBS // 4] * 4) for run_id in made]
    count = "select count(*) from runs where status = 'RUNNING'"
    wait_for("all to run", lambda: launcher.rows(count) == [(JOBS,)], seconds=120)
    yield launcher, runs
    launcher.client.shutdown(keep_jobs=True)


@pytest.mark.timeout(240)
def test_a_thousand_jobs_fit_into_300_mb_and_are_told_in_time(busy: tuple[Any, list[str]]) -> None:
    launcher, runs = busy
    stop, seconds = threading.Event(), []
    watchers = [threading.Thread(target=_watch, args=(launcher, stop)) for _ in range(WATCHERS)]
    for thread in watchers:
        thread.start()
    for run_id in runs[:20]:
        agent = launcher.agent(launcher.client.job(run_id))
        agent.send(agent.metrics(1, 200, **{f"metric_{number}": 0.5 for number in range(20)}))
    for run_id in runs[-20:]:
        began = time.monotonic()
        launcher.steer(f"{run_id}-1", Status.FINISHED)
        launcher.agent(launcher.client.job(run_id)).post("state", {"state": "ended"})
        launcher.until(run_id, Status.FINISHED)
        seconds.append(time.monotonic() - began)
    used = _resident_bytes(launcher.process.pid)
    stop.set()
    agent.send(agent.metrics(201, 1, last=0.5))  # wakes them
    for thread in watchers:
        thread.join()
    began = time.monotonic()
    views = launcher.client.jobs(limit=JOBS)
    listed = time.monotonic() - began
    print(
        f"\n{JOBS} jobs, {WATCHERS} watchers: {used / 2**20:.0f} MiB resident; an end is told in "
        f"{statistics.median(seconds):.2f} s (slowest {max(seconds):.2f} s); the list of all takes {listed:.2f} s"
    )
    assert len(views) == JOBS
    assert used <= MOST_BYTES


def _watch(launcher: Any, stop: threading.Event) -> None:
    """A page that follows all runs, and reads."""
    with launcher.http() as http, http.stream("GET", "/events", timeout=30) as answer:
        for _ in answer.iter_bytes():
            if stop.is_set():
                return


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
