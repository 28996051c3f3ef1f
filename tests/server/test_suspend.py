"""Suspend and resume over HTTP: what the launcher asks of its backend, what it tells agents, what a card is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import SUSPENDED, JobSpec, JobStatus, Status
from slicelift_hub.launcher.ingest import Ingest
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_events import Stream
from slicelift_hub.leases import make_inventory

from tests.waiting import wait_for

SPEC = JobSpec(
    name="job", snapshot_id="0" * 64, notebook="n.ipynb", script="promoted.py", cwd=".", python="python3"
)
SAVES = b"""
import time
import slicelift

if __name__ == "__main__":
    found = slicelift.resume()
    state, start = found if found else ({"done": 0}, 0)
    print("from step", start, flush=True)
    for step in range(start, 400):
        slicelift.log(step=step, done=float(state["done"]))
        state["done"] += 1
        slicelift.checkpoint(state, step=step + 1)
        time.sleep(0.05 if start == 0 else 0)
"""


@pytest.fixture
def ledger(tmp_path: Path, database: Callable[[Path], Path | str]) -> Iterator[Ledger]:
    made = Ledger(database(tmp_path / "ledger.db"))
    made.declare_inventory(make_inventory(slots=4, gpus=0, slices=[]))
    yield made
    made.close()


def test_a_suspended_run_says_by_whom_and_resumes_as_the_next_attempt(launcher: Any) -> None:
    view = launcher.running()
    agent = launcher.agent(view)
    agent.send([{"q": 1, "t": 1.0, "k": "checkpoint", "s": 40, "path": "/checkpoints/40"}])
    suspended = launcher.client.suspend(view.run_id)
    assert (suspended.status, suspended.suspended, suspended.checkpoint) == (Status.KILLED, True, 40)
    assert suspended.reason.startswith(SUSPENDED)
    assert launcher.client.suspend(view.run_id) == suspended
    # the backend was asked to give its ranks time
    assert launcher.lines("savings.log")[-1] == view.handle
    assert launcher.client.capacity()["slots"]["free"] == 4
    again = launcher.client.retry(view.run_id)
    assert (again.attempt, again.checkpoint, again.previous) == (2, 40, "")
    launcher.client.cancel(view.run_id)


def test_a_cancelled_run_is_not_a_suspended_one(launcher: Any) -> None:
    view = launcher.running()
    cancelled = launcher.client.cancel(view.run_id)
    assert view.handle not in launcher.lines("savings.log")
    assert (cancelled.status, cancelled.suspended) == (Status.KILLED, False)
    assert launcher.client.suspend(view.run_id) == cancelled


def test_the_next_attempt_knows_why_the_one_before_failed_and_where_it_goes_on(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    ingest = Ingest(ledger, publish=lambda *_: None, exported=True)
    row = ledger.attempt(f"{run_id}-1")
    assert row is not None
    line = {"q": 1, "t": 1.0, "k": "checkpoint", "s": 7, "path": "p"}
    ingest.accept(row, [Stream(rank=0, process="1-1", lines=[line])])
    failed = JobStatus(status=Status.FAILED, reason="rank-failed", message="Rank 1 raised ValueError: bad")
    assert ledger.observe(row.attempt_id, failed)
    ledger.retry("ann", run_id, token_of=lambda name: name)
    # from memory before the fold is saved, from the ledger after it
    for view in (ingest.complete(ledger.view(run_id)), _saved(ingest, ledger).view(run_id)):
        assert (view.attempt, view.checkpoint, view.previous) == (2, 7, "Rank 1 raised ValueError: bad")


def test_an_attempt_that_is_being_suspended_is_so_after_a_restart_of_the_launcher(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    ledger.grant()
    ledger.cancel("ann", run_id, reason="suspended by ann")
    (row,) = ledger.active()
    assert (row.status, row.suspending) == (Status.CANCELLING, True)
    view = ledger.view(run_id)
    assert (view.suspended, view.reason) == (False, "suspended by ann")


def test_a_real_job_saves_once_more_and_goes_on_from_there(make_launcher: Any) -> None:
    """The local backend, an agent, a rank: some seconds, since interpreters start."""
    local = make_launcher("--backend", "slicelift.backends.local.Local").start()
    try:
        snapshot = local.snapshot(**{"promoted.py": SAVES})
        view = local.submit(snapshot_id=snapshot.id)
        local.until(view.run_id, Status.RUNNING, 60)
        wait_for("the third checkpoint", lambda: (local.client.job(view.run_id).checkpoint or 0) >= 3)
        suspended = local.client.suspend(view.run_id)
        assert suspended.suspended, suspended
        step = suspended.checkpoint
        local.client.retry(view.run_id)
        done = local.until(view.run_id, Status.FINISHED, 60)
        assert (done.attempt, done.latest["done"]) == (2, (399, 399.0))
        log, _ = local.client.logs(view.run_id, attempt=2)
        assert f"from step {step}".encode() in log
    finally:
        local.close()


def _submit(ledger: Ledger) -> str:
    run_id, _ = ledger.submit("ann", "p-1", spec=SPEC, snapshot={}, token_of=lambda name: name)
    return run_id


def _saved(ingest: Ingest, ledger: Ledger) -> Ledger:
    ingest.checkpoint()
    return ledger
