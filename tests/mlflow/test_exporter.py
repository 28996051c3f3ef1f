"""The export: outages, kills at any moment, lost runs; counted in MLflow's own database."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slicelift import tracking
from slicelift.models import Status
from slicelift_hub.launcher.ledger_events import Checkpoint
from slicelift_hub.launcher.series import Fold

from tests.waiting import wait_for

pytestmark = pytest.mark.slow

START = 1764469000.0
COUNT = "select key, count(*), sum(step) from metrics where run_uuid = ? group by key order by key"


def lines(first: int, last: int, *names: str) -> list[dict[str, Any]]:
    """Spool lines `first` to `last`, one point per name in each."""
    return [
        {"q": q, "t": START + q / 10, "k": "m", "s": q, "m": dict.fromkeys(names, q / 3)}
        for q in range(first, last + 1)
    ]


def test_a_run_from_beginning_to_end(house: Any, server: Any) -> None:
    run = house.submit()
    house.append(run.run_id, lines(1, 700, "loss", "acc"))
    house.append(run.run_id, lines(1, 20, "loss"), rank=1)
    words = (
        {"k": "param", "p": {"depth": "3"}},
        {"k": "tag", "p": {"colour": "green", "slicelift.owner": "eve"}},
    )
    other = {"k": "checkpoint", "s": 3, "path": "x"}, {"k": "dropped", "n": 5}
    kinds = [{"q": 701 + i, "t": START, **line} for i, line in enumerate((*words, *other))]
    house.append(run.run_id, kinds)
    house.settle()
    house.end(run.run_id, Status.FINISHED)
    house.settle()
    (mlflow_run,) = server.runs_of(run.promotion_id)
    assert house.tracked(run.run_id).mlflow_run_id == mlflow_run
    assert server.rows(COUNT, mlflow_run) == [
        ("acc", 700, 245350),
        ("loss", 700, 245350),
        ("rank/1/loss", 20, 210),
    ]
    assert server.rows("select status from runs where run_uuid = ?", mlflow_run) == [("FINISHED",)]
    params = dict(server.rows("select key, value from params where run_uuid = ?", mlflow_run))
    assert params == {"lr": "0.1", "depth": "3"}
    tags = dict(server.rows("select key, value from tags where run_uuid = ?", mlflow_run))
    assert (tags["colour"], tags["slicelift.owner"]) == ("green", "ann")
    assert house.changed == [run.run_id, run.run_id]
    assert house.ledger.runs_to_close() == []
    assert house.ledger.batches_to_export(10) == []


def test_a_retry_goes_on_in_the_same_run(house: Any, server: Any) -> None:
    run = house.submit()
    house.append(run.run_id, lines(1, 5, "loss"))
    house.end(run.run_id, Status.FAILED, "worker-died")
    house.settle()
    (mlflow_run,) = server.runs_of(run.promotion_id)
    state = "select status from runs where run_uuid = ?"
    assert server.rows(state, mlflow_run) == [("FAILED",)]
    house.ledger.retry("ann", run.run_id, token_of=lambda attempt_id: f"a-{attempt_id}")
    house.settle()
    assert server.rows(state, mlflow_run) == [("RUNNING",)]
    again = [line | {"t": line["t"] + 100} for line in lines(1, 3, "loss")]
    house.append(run.run_id, again, process="2-2")
    house.end(run.run_id, Status.KILLED, "cancelled")
    house.settle()
    assert server.runs_of(run.promotion_id) == [mlflow_run]
    assert server.rows(state, mlflow_run) == [("KILLED",)]
    assert server.rows(COUNT, mlflow_run) == [("loss", 8, 21)]
    tags = dict(server.rows("select key, value from tags where run_uuid = ?", mlflow_run))
    assert (tags["slicelift.attempt"], tags["slicelift.reason"]) == ("2", "cancelled")


def test_a_server_stopped_in_the_middle_doubles_and_loses_nothing(house: Any, server: Any) -> None:
    """About 10 s: the server stands still for longer than every time-out."""
    first = house.submit()
    house.exporter.start()
    house.append(first.run_id, lines(1, 300, "loss"))
    wait_for("its run in MLflow", lambda: server.runs_of(first.promotion_id))
    os.kill(server.supervised.pid, signal.SIGSTOP)
    try:
        second = house.submit()  # a create hangs in the air
        for q in range(301, 1001, 50):
            began = time.monotonic()
            house.append(first.run_id, lines(q, q + 49, "loss"))
            assert time.monotonic() - began < 1, "the ledger waited for MLflow"
            time.sleep(0.1)
        house.append(second.run_id, lines(1, 100, "loss"))
        time.sleep(6)
    finally:
        os.kill(server.supervised.pid, signal.SIGCONT)
    house.append(first.run_id, lines(1001, 1050, "loss"))
    house.end(first.run_id, Status.FINISHED)
    house.end(second.run_id, Status.FINISHED)
    wait_for("both runs", lambda: all(house.tracked(run.run_id).mlflow_run_id for run in (first, second)))
    wait_for("the rest", lambda: not house.ledger.batches_to_export(1) and not house.ledger.runs_to_close())
    for run, points in ((first, 1050), (second, 100)):
        (mlflow_run,) = server.runs_of(run.promotion_id)
        assert server.rows(COUNT, mlflow_run) == [("loss", points, points * (points + 1) // 2)]
        assert server.rows("select status from runs where run_uuid = ?", mlflow_run) == [("FINISHED",)]


# one process loads everything and forks a fresh exporter for each line it reads
EXPORTERS = """
import os, sys, time
from pathlib import Path
from slicelift_hub.launcher.exporter import Exporter
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.mlflow_server import TrackerState

state = TrackerState(status="up", url=sys.argv[2])
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        ledger = Ledger(Path(sys.argv[1]))
        Exporter(ledger, tracker=lambda: state, blob_path=Path, changed=lambda run_id: None).start()
        time.sleep(100)
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""


def test_kill_9_at_random_moments(make_house: Any, server: Any, tmp_path: Path) -> None:
    """About 10 s: fifteen lives of an exporter."""
    house = make_house()
    runs = [house.submit() for _ in range(3)]
    for run in runs:
        for q in range(1, 1500, 100):
            house.append(run.run_id, lines(q, q + 99, "loss", "acc"))
    command = [sys.executable, "-c", EXPORTERS, str(tmp_path / "ledger.db"), server.url]
    rng = random.Random(7)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as exporters:
        assert exporters.stdin is not None
        assert exporters.stdout is not None
        for _ in range(15):
            exporters.stdin.write("one\n")
            exporters.stdin.flush()
            pid = int(exporters.stdout.readline())
            time.sleep(rng.uniform(0, 0.6))
            os.kill(pid, signal.SIGKILL)
        exporters.stdin.close()
    for run in runs:
        house.end(run.run_id, Status.FINISHED)
    house.settle(60)
    for run in runs:
        (mlflow_run,) = server.runs_of(run.promotion_id)
        assert server.rows(COUNT, mlflow_run) == [("acc", 1500, 1125750), ("loss", 1500, 1125750)]


def test_a_crash_between_mlflow_and_the_ledger_opens_no_second_run(make_house: Any, server: Any) -> None:
    house = make_house()
    run = house.submit()

    def crash(*_: Any) -> None:
        raise SystemExit

    house.ledger.set_mlflow_run = crash
    with pytest.raises(SystemExit):
        house.exporter.export_runs()
    again = make_house()
    again.settle()
    assert server.runs_of(run.promotion_id) == [again.tracked(run.run_id).mlflow_run_id]


def fold_of(last: int) -> bytes:
    fold = Fold()
    for line in lines(1, last, "loss"):
        fold.add(line["s"], line["t"], line["m"]["loss"])
    return fold.to_bytes()


@pytest.mark.parametrize("how", ["deleted in MLflow", "gone from the database"])
def test_a_lost_run_is_made_again_once_with_its_history(house: Any, server: Any, how: str) -> None:
    run = house.submit()
    house.append(run.run_id, lines(1, 40, "loss"))
    house.settle()
    lost = house.tracked(run.run_id).mlflow_run_id
    folds = {(f"{run.run_id}-1", 0, "loss"): fold_of(40)}
    house.ledger.save(Checkpoint(upto=10**6, folds=folds, lives={}))
    if how == "deleted in MLflow":
        server.mlflow.post("runs/delete", {"run_id": lost})
    else:
        _erase(server.supervised.folder / "mlflow.db", lost)
    house.append(run.run_id, lines(41, 60, "loss"))
    house.end(run.run_id, Status.FINISHED)
    for _ in range(3):
        house.settle()
    found = house.tracked(run.run_id).mlflow_run_id
    assert found != lost
    assert set(server.runs_of(run.promotion_id)) - {lost} == {found}
    assert server.rows(COUNT, found) == [("loss", 60, 1830)]
    assert server.rows("select status from runs where run_uuid = ?", found) == [("FINISHED",)]


@pytest.mark.parametrize("experiment", ["x" * 600, "x" * 100_000])
def test_one_run_that_mlflow_refuses_holds_up_no_other(house: Any, server: Any, experiment: str) -> None:
    bad = house.submit(experiment=experiment)
    good = house.submit()
    house.append(good.run_id, lines(1, 3, "loss"))
    house.settle()
    assert house.tracked(bad.run_id).mlflow_run_id is None
    assert (house.exporter.fault(bad.run_id)[:6], house.exporter.fault(good.run_id)) == ("MLflow", "")
    assert house.changed == [bad.run_id, good.run_id]
    (mlflow_run,) = server.runs_of(good.promotion_id)
    assert server.rows(COUNT, mlflow_run) == [("loss", 3, 6)]


def test_points_that_cannot_be_told_hold_up_no_other_and_are_told_later(
    house: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody foresaw, in more batches than a round takes."""
    bad, good = house.submit(), house.submit()
    for q in range(1, 121):
        house.append(bad.run_id, lines(q, q, "bad"))
    house.append(good.run_id, lines(1, 3, "loss"))
    real = tracking.points_of

    def fail(batch: list[dict[str, Any]], *, rank: int) -> Any:
        if "bad" in batch[0]["m"]:
            raise ZeroDivisionError
        return real(batch, rank=rank)

    with monkeypatch.context() as patched:
        patched.setattr(tracking, "points_of", fail)
        house.settle()
    (mlflow_run,) = server.runs_of(good.promotion_id)
    assert server.rows(COUNT, mlflow_run) == [("loss", 3, 6)]
    assert "ZeroDivisionError" in house.exporter.fault(bad.run_id)
    patched_clock = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: patched_clock)
    house.exporter.export_runs()
    (mlflow_run,) = server.runs_of(bad.promotion_id)
    assert server.rows(COUNT, mlflow_run) == [("bad", 120, 7260)]
    assert house.exporter.fault(bad.run_id) == ""
    assert house.changed.count(bad.run_id) == 3


def test_death_of_the_server_in_the_middle(house: Any, server: Any) -> None:
    """About 20 s: MLflow starts anew."""
    run = house.submit()
    house.exporter.start()
    house.append(run.run_id, lines(1, 200, "loss"))
    wait_for("its run in MLflow", lambda: server.runs_of(run.promotion_id))
    os.kill(server.supervised.pid, signal.SIGKILL)
    house.append(run.run_id, lines(201, 400, "loss"))
    house.end(run.run_id, Status.FINISHED)
    other = house.submit()
    wait_for("the other one in MLflow", lambda: house.tracked(other.run_id).mlflow_run_id, seconds=180)
    wait_for("the rest", lambda: not house.ledger.batches_to_export(1) and not house.ledger.runs_to_close())
    (mlflow_run,) = server.runs_of(run.promotion_id)
    assert server.rows(COUNT, mlflow_run) == [("loss", 400, 80200)]
    assert len(server.runs_of(other.promotion_id)) == 1


def _erase(database: Path, run: str) -> None:
    """What an emptied database looks like to us: no row of the run is left."""
    with sqlite3.connect(database, timeout=20) as connection:
        for table, column in (
            ("metrics", "run_uuid"),
            ("latest_metrics", "run_uuid"),
            ("params", "run_uuid"),
            ("tags", "run_uuid"),
            ("runs", "run_uuid"),
        ):
            connection.execute(f"delete from {table} where {column} = ?", (run,))
    connection.close()
