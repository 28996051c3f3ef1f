"""A launcher that is killed or stopped at any moment: nothing lost, nothing twice. Each start takes 1.5 s."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import httpx
import pytest
from slicelift.errors import SliceliftError
from slicelift.models import Status, to_dict

from tests.promoting import digest, make_promotion_id, make_snapshot
from tests.waiting import wait_for


@pytest.fixture
def own(make_launcher: Any, database: Any) -> Any:
    """A launcher for one test alone."""
    launcher = make_launcher("--Launcher.poll_seconds=0.05", database=database).start()
    yield launcher
    launcher.close()


def test_killed_while_a_job_runs_it_goes_on_and_its_end_is_right(own: Any) -> None:
    view, waiting = own.running(workers=3), own.submit(workers=4)
    agent = own.agent(view)
    assert agent.send(agent.metrics(1, 10, loss=0.25)).status_code == 200
    before = own.state
    own.kill()
    # it ended meanwhile, with a code of its own
    own.steer(f"{view.run_id}-1", Status.FAILED, exit_code=3, phase="ended")
    own.start()
    done = own.until(view.run_id, Status.FAILED)
    assert (done.exit_code, done.latest) == (3, {"loss": (10, 0.25)})
    own.until(waiting.run_id, Status.RUNNING)
    assert own.lines("submits.log") == [f"{view.run_id}-1", f"{waiting.run_id}-1"]
    assert own.state["token"] == before["token"]
    assert own.state["url"] == before["url"]
    assert own.state["instance"] != before["instance"]
    # the agent goes on where it was
    assert agent.send(agent.metrics(9, 4, loss=0.5)).json() == {
        "acked": [{"rank": 0, "process": "1-1", "q": 12}]
    }
    assert own.client.series(view.run_id)[0]["count"] == 12


def test_killed_between_ledger_and_backend_the_submit_is_repeated_with_the_same_token(own: Any) -> None:
    view = own.submit(name="slow")
    own.until(view.run_id, Status.STARTING)
    time.sleep(0.3)  # the backend is in the middle of its 1.5 s
    own.kill()
    assert own.rows("select handle from attempts") == [("",)]
    own.start()
    own.until(view.run_id, Status.RUNNING)
    assert own.lines("submits.log") == [f"{view.run_id}-1"] * 2
    assert own.agent(view).post("state", {"state": "running"}).json() == {"cancel": False}


def test_killed_during_a_cancel_the_cancel_goes_on(own: Any) -> None:
    (own.home / "steered" / "immortal").touch()
    view = own.running()
    thread = threading.Thread(target=_quietly, args=(lambda: own.client.cancel(view.run_id),))
    thread.start()
    with own.http() as http:
        wait_for("the cancel", lambda: http.get(f"/jobs/{view.run_id}").json()["status"] == "CANCELLING")
        wait_for("its word", lambda: "process 4711" in http.get(f"/jobs/{view.run_id}").json()["message"])
    own.kill()
    thread.join()
    (own.home / "steered" / "immortal").unlink()
    own.start()
    done = own.until(view.run_id, Status.KILLED)
    assert done.reason.startswith("cancelled by ")


def test_killed_at_random_moments_of_many_submits(own: Any) -> None:
    """One promotion, many kills, about 6 s: one run, one attempt, one start."""
    spec, ids, http = own.spec(workers=1), [make_promotion_id() for _ in range(4)], own.http()
    for number in range(3):
        killer = threading.Timer(0.01 * 4**number, own.kill)
        killer.start()
        for promotion_id in ids:
            body = {"promotion_id": promotion_id, "spec": to_dict(spec)}
            _quietly(lambda body=body: http.post("/jobs", json=body))
        killer.join()
        own.start()
    http.close()
    runs = [own.client.submit(promotion_id, spec) for promotion_id in ids]
    for view in runs:
        own.until(view.run_id, Status.RUNNING)
    assert own.rows("select count(*), count(distinct promotion_id) from runs") == [(4, 4)]
    assert own.rows("select count(*) from attempts") == [(4,)]
    assert set(own.lines("submits.log")) == {f"{view.run_id}-1" for view in runs}
    assert own.client.capacity()["slots"]["free"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_what_runs_with_that_reason_and_keeps_what_waits(own: Any, number: int) -> None:
    view, waiting = own.running(workers=4), own.submit()
    assert own.stop(number) == 0
    assert not (own.home / "launcher.json").exists()
    assert own.rows("select status, reason from attempts order by created") == [
        ("KILLED", "launcher stopped"),
        ("WAITING", ""),
    ]
    own.start()
    own.until(waiting.run_id, Status.RUNNING)
    again = own.client.retry(view.run_id)
    assert (again.attempt, again.status) == (2, Status.WAITING)


def test_a_stop_with_keep_jobs_leaves_them_alone(own: Any) -> None:
    view = own.running()
    own.client.shutdown(keep_jobs=True)
    assert own.process.wait(20) == 0
    assert own.lines("cancels.log") == []
    own.start()
    own.steer(f"{view.run_id}-1", Status.FINISHED, exit_code=0)
    assert own.until(view.run_id, Status.FINISHED).attempt == 1


def test_killed_in_the_middle_of_an_upload_what_was_whole_is_kept(own: Any) -> None:
    first, second = b"a" * 100_000, b"b" * 3_000_000
    snapshot = make_snapshot({"first": first, "second": second})
    sent = threading.Event()

    class Half:
        """A blob that stops in its middle."""

        def __init__(self) -> None:
            self.pieces = [second[:1_500_000], b""]

        def read(self, size: int = -1) -> bytes:
            if len(self.pieces) == 1:
                sent.set()
                time.sleep(0.5)
            return self.pieces.pop(0)

    blobs = [(digest(first), len(first), first), (digest(second), len(second), Half())]
    assert set(own.client.offer_snapshot(snapshot)) == {digest(first), digest(second)}
    thread = threading.Thread(target=_quietly, args=(lambda: own.client.send_blobs(iter(blobs)),))
    thread.start()
    sent.wait(10)
    time.sleep(0.2)
    own.kill()
    thread.join()
    assert list(own.home.glob("store/*/blobs/tmp/*"))
    own.start()
    assert not list(own.home.glob("store/*/blobs/tmp/*"))
    assert not list(own.home.glob("store/*/snapshots/*"))
    assert own.client.offer_snapshot(snapshot) == [digest(second)]
    assert own.client.send_blobs([(digest(second), len(second), second)]) == {"stored": 1, "known": 0}
    assert own.client.offer_snapshot(snapshot) == []
    assert own.client.snapshot(snapshot.id) == snapshot


def _quietly(call: Any) -> None:
    """The launcher is killed under it."""
    try:
        call()
    except (SliceliftError, httpx.TransportError, AssertionError):
        return
