"""Scale over HTTP: who may, what the backend is asked, what the ledger keeps. A backend that queues by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Conflict, Refused, SliceliftError, UserError
from slicelift.models import JobSpec, Status
from slicelift_hub.launcher.ledger import Ledger

from tests.waiting import wait_for


@pytest.fixture(scope="module")
def queueing(make_launcher: Any) -> Iterator[Any]:
    launcher = make_launcher("--backend", "steered.Placed", "--Launcher.poll_seconds=0.05").start()
    yield launcher
    launcher.close()


@pytest.fixture
def run(queueing: Any) -> Iterator[Any]:
    """An elastic run of two workers, which needs one."""
    view = queueing.submit(workers=2, min_workers=1)
    yield queueing.until(view.run_id, Status.STARTING)
    queueing.client.cancel(view.run_id)


def test_the_run_has_another_number_of_workers_and_its_history_says_by_whom(queueing: Any, run: Any) -> None:
    scaled = queueing.client.scale(run.run_id, 4)
    assert (scaled.spec.workers, scaled.attempt, scaled.status) == (4, run.attempt, run.status)
    assert queueing.lines("scales.log")[-1] == f"{run.handle}=4"
    told = scaled.history[-1]
    assert told.reason == "scaled"
    assert told.message == f"scaled from 2 to 4 by {run.owner}"
    # the new workers' agents are listened to
    agent = queueing.agent(run)
    assert agent.post("state", {"state": "preparing", "node": 3, "nodes": 4}).status_code == 200
    # the same number again asks the cluster again, and is no event
    assert queueing.client.scale(run.run_id, 4).history == queueing.client.job(run.run_id).history
    assert queueing.lines("scales.log")[-2:] == [f"{run.handle}=4"] * 2


def test_what_the_cluster_refuses_is_taken_back(queueing: Any, run: Any) -> None:
    with pytest.raises(Refused, match="13 workers"):
        queueing.client.scale(run.run_id, 13)
    after = queueing.client.job(run.run_id)
    # what never was is no event either
    assert (after.spec.workers, after.history) == (2, run.history)


def test_no_gang_grows_beyond_the_launcher_s_own_bound(queueing: Any, run: Any) -> None:
    before = queueing.lines("asked.log")
    with pytest.raises(Refused, match="1,025 workers; 1,024 are") as refusal:
        queueing.client.scale(run.run_id, 1025)
    assert (refusal.value.code, queueing.lines("asked.log")) == ("spec-too-large", before)


@pytest.mark.parametrize("workers", [1, 0, -1])
def test_fewer_than_the_least_are_refused_before_the_cluster_is_asked(queueing: Any, workers: int) -> None:
    run = queueing.submit(workers=3, min_workers=2)
    wait_for("the backend to have it", lambda: queueing.client.job(run.run_id).handle)
    before = queueing.lines("scales.log")
    with pytest.raises(Refused, match=f"at least 2 workers; asked were {workers}") as refusal:
        queueing.client.scale(run.run_id, workers)
    assert (refusal.value.code, queueing.lines("scales.log")) == ("bad-workers", before)
    queueing.client.cancel(run.run_id)


def test_a_rule_refuses_more_workers_and_never_fewer(make_launcher: Any, tmp_path: Path) -> None:
    """A launcher of its own, with a rule that is tightened while the run goes on: about two seconds."""
    rule = tmp_path / "policy.yaml"
    rule.write_text("rules: [{name: wide, max_workers: 5, max_jobs: 1}]")
    launcher = make_launcher("--backend", "steered.Placed", f"--Launcher.policy_file={rule}").start()
    try:
        run = launcher.submit(workers=4, min_workers=1)
        wait_for("the backend to have it", lambda: launcher.client.job(run.run_id).handle)
        # it does not stand in its own way
        assert launcher.client.scale(run.run_id, 5).spec.workers == 5
        with pytest.raises(Refused, match="max_workers: 5; asked was 6"):
            launcher.client.scale(run.run_id, 6)
        rule.write_text("rules: [{name: tight, max_workers: 2, max_jobs: 1}]")
        assert launcher.client.scale(run.run_id, 3).spec.workers == 3
        launcher.client.cancel(run.run_id)
    finally:
        launcher.close()


def test_what_is_taken_back_leaves_alone_what_came_since(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.leased = False
    words = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "python3"}
    spec = JobSpec(name="job", snapshot_id="0" * 64, workers=2, min_workers=1, **words)
    run_id, _ = ledger.submit("ann", "p-1", spec=spec, snapshot={}, token_of=lambda name: name)
    try:
        for workers in (4, 3):
            ledger.scale("ann", run_id, workers)
        ledger.unscale("ann", run_id, 4, before=2)
        assert ledger.view(run_id).spec.workers == 3
        # and it may be that somebody has ended the run meanwhile
        ledger.cancel("ann", run_id, reason="cancelled by ann")
        ledger.unscale("ann", run_id, 3, before=2)
        assert ledger.view(run_id).spec.workers == 2
    finally:
        ledger.close()


def test_a_fixed_gang_and_a_run_that_is_over_keep_their_workers(queueing: Any, run: Any) -> None:
    fixed = queueing.submit(workers=2)
    wait_for("the backend to have it", lambda: queueing.client.job(fixed.run_id).handle)
    with pytest.raises(Refused) as refusal:
        queueing.client.scale(fixed.run_id, 1)
    assert refusal.value.code == "not-elastic"
    queueing.client.cancel(fixed.run_id)
    queueing.client.cancel(run.run_id)
    assert queueing.client.job(run.run_id).status == Status.KILLED
    with pytest.raises(Conflict) as over:
        queueing.client.scale(run.run_id, 1)
    assert over.value.code == "run-over"


def test_a_body_without_a_whole_number_is_refused(queueing: Any, run: Any) -> None:
    with pytest.raises(UserError) as refusal:
        queueing.client.scale(run.run_id, 1.5)
    assert refusal.value.code == "bad-body"


def test_a_promotion_that_is_sent_again_after_a_scale_is_the_same_run(queueing: Any, run: Any) -> None:
    queueing.client.scale(run.run_id, 3)
    again = queueing.client.submit(run.promotion_id, run.spec)
    assert (again.run_id, again.spec.workers) == (run.run_id, 3)


@pytest.mark.parametrize("how", ["done", "lost"])
def test_a_cluster_that_is_away_gets_the_number_once_it_is_back(queueing: Any, run: Any, how: str) -> None:
    """A call that was given up on: the API server has carried it out all the same, or has never seen it."""
    (queueing.home / "steered" / "away").write_text(how)
    scaled = queueing.client.scale(run.run_id, 4)
    assert scaled.spec.workers == 4
    assert scaled.history[-1].message == f"scaled from 2 to 4 by {run.owner}"
    queueing.agent(run).post("state", {"state": "preparing", "node": 0, "nodes": 4})
    wait_for("the cluster to hear of four", lambda: queueing.lines("scales.log")[-1] == f"{run.handle}=4")
    assert queueing.client.job(run.run_id).spec.workers == 4


def test_a_launcher_that_is_killed_before_the_cluster_has_heard_asks_again(make_launcher: Any) -> None:
    launcher = make_launcher("--backend", "steered.Placed").start()
    run = launcher.submit(workers=2, min_workers=1)
    wait_for("the backend to have it", lambda: launcher.client.job(run.run_id).handle)
    handle = launcher.client.job(run.run_id).handle
    (launcher.home / "steered" / "away").write_text("silent")
    asking = threading.Thread(target=lambda: suppressed(lambda: launcher.client.scale(run.run_id, 4)))
    asking.start()
    wait_for("the cluster to be asked", lambda: f"{handle}=4" in launcher.lines("asked.log"))
    launcher.kill()
    asking.join()
    assert launcher.lines("scales.log") == [f"{handle}=2"]
    (launcher.home / "steered" / "away").unlink()
    launcher.start()
    wait_for("the cluster to hear of four", lambda: launcher.lines("scales.log")[-1] == f"{handle}=4")
    assert launcher.client.job(run.run_id).spec.workers == 4
    launcher.client.cancel(run.run_id)
    launcher.close()


def test_of_two_at_once_the_one_that_the_ledger_has_is_the_clusters(queueing: Any, run: Any) -> None:
    """The first is on its way for a second; what was said last holds in both places."""
    (queueing.home / "steered" / "away").write_text("slow")
    first = threading.Thread(target=lambda: queueing.client.scale(run.run_id, 4))
    first.start()
    wait_for("the cluster to be asked", lambda: queueing.lines("asked.log")[-1] == f"{run.handle}=4")
    assert queueing.client.scale(run.run_id, 3).spec.workers == 3
    first.join()
    assert queueing.client.job(run.run_id).spec.workers == 3
    assert queueing.lines("scales.log")[-1] == f"{run.handle}=3"


def test_what_the_cluster_refuses_later_is_not_counted_as_the_runs(queueing: Any, run: Any) -> None:
    """As a launcher that was killed after it had written down what no cluster would give."""
    ledger = Ledger(queueing.ledger)
    try:
        ledger.scale(run.owner, run.run_id, 13)
    finally:
        ledger.close()
    wait_for("the run to have two again", lambda: queueing.client.job(run.run_id).spec.workers == 2)


def suppressed(call: Callable[[], Any]) -> None:
    """Its launcher is killed under it."""
    with suppress(SliceliftError):
        call()
