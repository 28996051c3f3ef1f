"""Submit, queue, watch, cancel, retry: over HTTP, against a real launcher and a steered backend."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from slicelift.errors import Conflict, NotFound, Refused, UserError
from slicelift.models import DataRef, Failure, Status, to_dict
from slicelift.sentences import remarks

from tests.promoting import make_promotion_id
from tests.waiting import wait_for

OUTSIDE = {"dvc_file": "x.dvc", "md5": "0" * 32, "size_bytes": 1, "nfiles": 1, "remote": "r"}


def test_a_job_goes_from_waiting_to_finished_with_its_history(launcher: Any) -> None:
    view = launcher.running()
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, exit_code=0, phase="ended")
    done = launcher.until(view.run_id, Status.FINISHED)
    assert [change.status for change in done.history] == ["WAITING", "STARTING", "RUNNING", "FINISHED"]
    assert done.handle == f"steered://{view.run_id}-1"
    assert (done.exit_code, done.tracker, done.attempt) == (0, "none", 1)
    assert done.created <= done.started <= done.ended


def test_a_failure_is_told_as_the_backend_told_it(launcher: Any) -> None:
    view = launcher.running()
    failure = Failure(message="boom", rank=1, exit_code=-9, cell=3, line=2)
    launcher.steer(f"{view.run_id}-1", Status.FAILED, exit_code=1, reason="rank-failed", failure=failure)
    done = launcher.until(view.run_id, Status.FAILED)
    assert (done.failure, done.reason, done.exit_code) == (failure, "rank-failed", 1)
    assert launcher.client.attempts(view.run_id)[0]["failure"]["cell"] == 3


def test_the_same_promotion_id_gives_the_same_run(launcher: Any) -> None:
    promotion_id, spec = make_promotion_id(), launcher.spec()
    first = launcher.client.submit(promotion_id, spec)
    again = launcher.client.submit(promotion_id, spec)
    assert first.run_id == again.run_id
    with launcher.http() as http:
        body = {"promotion_id": promotion_id, "spec": to_dict(spec)}
        assert http.post("/jobs", json=body).status_code == 200
    with pytest.raises(Conflict) as refusal:
        launcher.client.submit(promotion_id, replace(spec, workers=2))
    assert refusal.value.code == "promotion-differs"
    launcher.client.cancel(first.run_id)


def test_two_submits_at_once_make_one_job(launcher: Any) -> None:
    promotion_id, spec = make_promotion_id(), launcher.spec(workers=4)
    body = {"promotion_id": promotion_id, "spec": to_dict(spec)}
    answers: list[tuple[int, str]] = []

    def submit() -> None:
        with launcher.http() as http:
            answer = http.post("/jobs", json=body)
            answers.append((answer.status_code, answer.json()["run_id"]))

    threads = [threading.Thread(target=submit) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(code for code, _ in answers) == [200] * 11 + [201]
    run_id = answers[0][1]
    assert {found for _, found in answers} == {run_id}
    launcher.until(run_id, Status.RUNNING)
    assert launcher.lines("submits.log").count(f"{run_id}-1") == 1
    launcher.client.cancel(run_id)


def test_the_queue_is_strict_and_says_the_position(launcher: Any) -> None:
    wide = launcher.running(workers=3)
    second = launcher.submit(workers=2, name="second")
    third = launcher.submit(workers=1, name="third")
    # one slot is free and the third would fit, but nobody overtakes
    assert (launcher.client.job(second.run_id).position, launcher.client.job(third.run_id).position) == (1, 2)
    capacity = launcher.client.capacity()
    assert (capacity["slots"], capacity["waiting"]) == ({"total": 4, "free": 1}, 2)
    assert launcher.client.plan(launcher.spec())["position"] == 3
    launcher.steer(f"{wide.run_id}-1", Status.FINISHED)
    for view in (second, third):
        assert launcher.until(view.run_id, Status.RUNNING).position is None
        launcher.client.cancel(view.run_id)


def test_a_gang_is_all_or_nothing_and_never_larger_than_the_machine(launcher: Any) -> None:
    with pytest.raises(Refused) as refusal:
        launcher.submit(workers=5)
    assert refusal.value.code == "gang-too-large"
    assert refusal.value.detail == {"asked": 5, "has": 4, "pool": "slots"}
    assert "--workers 4" in refusal.value.hint


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"workers": 0}, "bad-workers"),
        ({"workers": 1, "gpus_per_worker": 1}, "gang-too-large"),
        ({"workers": 2, "slice": "1g.10gb", "preset": "slice"}, "preset-too-large"),
        ({"gpus_per_worker": 1, "slice": "1g.10gb", "preset": "slice"}, "slice-and-gpus"),
        ({"slice": "1g.10gb"}, "slice-not-taken"),
        ({"preset": "slice"}, "slice-missing"),
        ({"slice": "9g.99gb", "preset": "slice"}, "slice-unknown"),
        ({"queue": "vip"}, "queue-unknown"),
        ({"secrets": ("NO_SUCH",)}, "secret-unknown"),
        ({"secrets": ("LD_PRELOAD",)}, "bad-secret-name"),
        ({"snapshot_id": "0" * 64}, "snapshot-unknown"),
        ({"script": "../promoted.py"}, "bad-path"),
        ({"name": "a\nb"}, "bad-name"),
        ({"experiment": "a\x00"}, "bad-name"),
        ({"preset": "../../x"}, "unknown-preset"),
        ({"name": "x" * 201}, "spec-too-large"),
        ({"experiment": "x" * 100_000}, "spec-too-large"),
        ({"model_name": "x" * 201}, "spec-too-large"),
        ({"queue": "x" * 1000}, "spec-too-large"),
        ({"preset": "x" * 1000}, "spec-too-large"),
        ({"slice": "x" * 1000}, "spec-too-large"),
        ({"python": "x" * 5000}, "spec-too-large"),
        ({"tags": {str(i): "" for i in range(101)}}, "spec-too-large"),
        ({"tags": {"x" * 251: ""}}, "spec-too-large"),
        ({"tags": {"x": "x" * 8001}}, "spec-too-large"),
        ({"parameters": {"x": "数" * 40_000}}, "spec-too-large"),
        ({"parameters": {"x": json.loads("[" * 60 + "]" * 60)}}, "spec-too-large"),
        ({"secrets": ("A",) * 201}, "spec-too-large"),
        ({"workers": 100_000, "min_workers": 1}, "spec-too-large"),
        ({"gpus_per_worker": 10**400}, "spec-too-large"),
        ({"data": (DataRef(path="../x", **OUTSIDE),)}, "bad-path"),
    ],
)
def test_what_could_never_run_is_refused_with_a_way_on(
    launcher: Any, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(UserError) as refusal:
        launcher.submit(**changes)
    assert refusal.value.code == code
    assert refusal.value.hint


@pytest.mark.parametrize("field", ["workers", "name", "parameters", "data", "secrets", "snapshot_id"])
def test_a_spec_of_wrong_types_is_a_400_that_names_the_field(launcher: Any, field: str) -> None:
    spec = to_dict(launcher.spec()) | {field: {"a": 1} if field != "parameters" else "x"}
    with launcher.http() as http:
        answer = http.post("/jobs", json={"promotion_id": make_promotion_id(), "spec": spec})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad-body"


def test_cancel_of_a_waiting_job_just_removes_it(launcher: Any) -> None:
    wide = launcher.running(workers=4)
    waiting = launcher.submit()
    killed = launcher.client.cancel(waiting.run_id)
    assert (killed.status, killed.position, killed.started) == (Status.KILLED, None, None)
    assert killed.reason.startswith("cancelled by ")
    assert f"{waiting.run_id}-1" not in launcher.lines("submits.log")
    launcher.client.cancel(wide.run_id)


def test_cancel_answers_with_the_proof(launcher: Any) -> None:
    view = launcher.running()
    killed = launcher.client.cancel(view.promotion_id)
    assert (killed.status, killed.exit_code) == (Status.KILLED, -15)
    assert killed.reason.startswith("cancelled by ")
    assert [change.status for change in killed.history][-2:] == ["CANCELLING", "KILLED"]
    assert launcher.client.cancel(view.run_id) == killed


def test_a_job_that_had_finished_before_the_cancel_stays_finished(launcher: Any) -> None:
    view = launcher.running(name="slow")
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, phase="delivering", exit_code=0)
    assert launcher.client.cancel(view.run_id).status == Status.FINISHED


def test_a_start_that_is_impossible_fails_with_the_reason(launcher: Any) -> None:
    view = launcher.submit(name="impossible")
    failed = launcher.until(view.run_id, Status.FAILED)
    assert (failed.reason, failed.failure.message) == (
        "interpreter-missing",
        "The interpreter is gone. Choose another.",
    )
    assert launcher.client.capacity()["slots"]["free"] == 4


def test_retry_is_the_next_attempt_of_the_same_run(launcher: Any) -> None:
    view = launcher.running()
    with pytest.raises(Conflict) as refusal:
        launcher.client.retry(view.run_id)
    assert refusal.value.code == "attempt-not-over"
    launcher.steer(f"{view.run_id}-1", Status.FAILED, exit_code=1)
    launcher.until(view.run_id, Status.FAILED)
    again = launcher.client.retry(view.run_id)
    assert (again.run_id, again.attempt, again.promotion_id) == (view.run_id, 2, view.promotion_id)
    launcher.until(view.run_id, Status.RUNNING)
    launcher.steer(f"{view.run_id}-2", Status.FINISHED, exit_code=0)
    done = launcher.until(view.run_id, Status.FINISHED)
    assert (done.exit_code, done.failure) == (0, None)
    assert [row["status"] for row in launcher.client.attempts(view.run_id)] == ["FAILED", "FINISHED"]


def test_the_end_is_told_after_the_last_points_came(launcher: Any) -> None:
    view = launcher.running()
    agent = launcher.agent(view)
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, phase="delivering")
    assert agent.send(agent.metrics(1, 3, loss=0.5)).status_code == 200
    assert launcher.client.job(view.run_id).status == Status.RUNNING
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, phase="ended")
    done = launcher.until(view.run_id, Status.FINISHED)
    assert done.latest == {"loss": (3, 0.5)}


def test_what_is_still_on_its_way_after_the_end_is_told_until_it_came(make_launcher: Any) -> None:
    launcher = make_launcher("--Launcher.poll_seconds=0.05", "--Launcher.drain_seconds=0.1").start()
    view = launcher.running()
    agent = launcher.agent(view)
    launcher.steer(f"{view.run_id}-1", Status.FINISHED, phase="delivering")
    seen = launcher.until(view.run_id, Status.FINISHED)
    assert remarks(seen) == ["Still delivering logs and outputs"]
    assert agent.post("state", {"state": "ended", "message": ""}).status_code == 200
    wait_for("the end", lambda: launcher.client.job(view.run_id).phase == "ended")
    assert remarks(launcher.client.job(view.run_id)) == []


def test_a_job_that_the_backend_loses_does_not_run_for_ever(make_launcher: Any, database: Any) -> None:
    options = ("--Launcher.poll_seconds=0.05", "--Launcher.unknown_seconds=1.5")
    launcher = make_launcher(*options, database=database).start()
    back, lost = launcher.running(), launcher.running()
    for view in (back, lost):
        launcher.steer(f"{view.run_id}-1", Status.UNKNOWN, phase="Completing", reason="no-such-job")
        assert launcher.until(view.run_id, Status.UNKNOWN).phase == "Completing"
        launcher.steer(f"{back.run_id}-1", Status.RUNNING)
    failed = launcher.until(lost.run_id, Status.FAILED)
    assert failed.reason == "lost"
    assert launcher.until(back.run_id, Status.RUNNING).phase == ""
    assert launcher.client.capacity()["slots"]["free"] == 3
    launcher.client.cancel(back.run_id)


def test_jobs_are_listed_newest_first_and_page_by_page(make_launcher: Any, database: Any) -> None:
    launcher = make_launcher("--Launcher.poll_seconds=0.05", database=database).start()
    wide = launcher.running(workers=4)
    names = [launcher.submit(name=f"job {number}").run_id for number in range(5)]
    newest = list(reversed([wide.run_id, *names]))
    first = launcher.client.jobs(limit=4)
    rest = launcher.client.jobs(limit=4, before=first[-1].run_id)
    assert [view.run_id for view in first + rest] == newest
    assert [view.run_id for view in launcher.client.jobs(status=["RUNNING"])] == [wide.run_id]
    assert [view.position for view in launcher.client.jobs(status=["WAITING"])] == [5, 4, 3, 2, 1]


def test_a_slice_goes_to_one_job_at_a_time_and_is_called_simulated(make_launcher: Any) -> None:
    launcher = make_launcher('--Launcher.slices={"name": "1g.10gb"}').start()
    assert launcher.client.capacity()["slices"] == [
        {"name": "1g.10gb", "total": 1, "free": 1, "simulated": True}
    ]
    plan = launcher.client.plan(launcher.spec(slice="1g.10gb", preset="slice"))
    assert any("simulated" in note for note in plan["notes"])
    first, second = (
        launcher.running(slice="1g.10gb", preset="slice"),
        launcher.submit(slice="1g.10gb", preset="slice"),
    )
    assert launcher.client.job(second.run_id).position == 1
    # another pool does not wait for it
    cpu = launcher.running()
    launcher.client.cancel(first.run_id)
    launcher.until(second.run_id, Status.RUNNING)
    for view in (second, cpu):
        launcher.client.cancel(view.run_id)


def test_unknown_runs_and_calls_are_404(launcher: Any) -> None:
    with pytest.raises(NotFound) as refusal:
        launcher.client.job("r-aaaaaaaaaaaa")
    assert refusal.value.code == "run-unknown"
    with launcher.http() as http:
        assert http.get("/nothing").json()["code"] == "no-such-call"
        assert http.delete("/jobs").status_code == 405


def test_errors_are_json_with_a_hint(launcher: Any) -> None:
    with launcher.http() as http:
        half, raw = rb'{"a": [{"\ud800": 1}]}', b'{"a": "\xed\xa0\x80"}'
        for content in (b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, half, raw):
            answer = http.post("/jobs", content=content)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-json")
        answer = http.get("/jobs", params={"status": "nonsense"})
        assert "FINISHED" in answer.json()["hint"]
        assert http.get("/jobs", params={"limit": "-1"}).json()["code"] == "bad-argument"
