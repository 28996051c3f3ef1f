"""Metric lines: once each, in order, at once visible, and still there after a kill."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from slicelift.models import Status

from tests.waiting import wait_for


@pytest.fixture
def job(launcher: Any) -> Any:
    """A running job of two ranks and its agent."""
    view = launcher.running(workers=2)
    yield view, launcher.agent(view)
    launcher.client.cancel(view.run_id)


def test_lines_are_acknowledged_once_and_duplicates_change_nothing(launcher: Any, job: Any) -> None:
    view, agent = job
    lines = agent.metrics(1, 10, loss=1.0)
    assert agent.send(lines).json() == {"acked": [{"rank": 0, "process": "1-1", "q": 10}]}
    assert agent.send(lines).json() == {"acked": [{"rank": 0, "process": "1-1", "q": 10}]}
    assert agent.send(agent.metrics(6, 10, loss=1.0)).json()["acked"][0]["q"] == 15
    assert launcher.client.series(view.run_id)[0]["count"] == 15


def test_a_gap_is_refused_with_what_we_have_and_takes_nothing_in(launcher: Any, job: Any) -> None:
    view, agent = job
    agent.send(agent.metrics(1, 5, loss=1.0))
    body = {
        "streams": [
            {"rank": 1, "process": "2-2", "lines": agent.metrics(1, 3, loss=2.0)},
            {"rank": 0, "process": "1-1", "lines": agent.metrics(7, 3, loss=2.0)},
        ]
    }
    answer = agent.post("events", body)
    assert answer.status_code == 409
    assert answer.json()["code"] == "events-gap"
    assert answer.json()["detail"] == {"rank": 0, "process": "1-1", "have": 5}
    body["streams"][1]["lines"] = agent.metrics(6, 3, loss=2.0)
    acked = agent.post("events", body).json()["acked"]
    assert acked == [{"rank": 1, "process": "2-2", "q": 3}, {"rank": 0, "process": "1-1", "q": 8}]
    inside = agent.metrics(9, 4, loss=2.0)
    assert agent.send([inside[0], inside[2]]).status_code == 409
    counts = {(item["rank"], item["key"]): item["count"] for item in launcher.client.series(view.run_id)}
    assert counts == {(0, "loss"): 8, (1, "loss"): 3}


def test_the_view_tells_what_every_kind_of_line_said(launcher: Any, job: Any) -> None:
    view, agent = job
    agent.send(
        [
            {"q": 1, "t": 10.0, "k": "m", "s": 4, "m": {"loss": 0.5, "lr": 0.1}},
            {"q": 2, "t": 11.0, "k": "param", "p": {"lr": "0.1", "epochs": "3"}},
            {
                "q": 3,
                "t": 12.0,
                "k": "tag",
                "p": {"host": "here", "network.all_reduce": "All-reduce: 9 Gbit/s"},
            },
            {"q": 4, "t": 13.0, "k": "checkpoint", "s": 4, "path": "checkpoints/4.pt"},
            {"q": 5, "t": 14.0, "k": "dropped", "n": 500},
            # a step that goes back is what was logged last
            {"q": 6, "t": 15.0, "k": "m", "s": 1, "m": {"loss": 0.4}},
        ]
    )
    agent.send([{"q": 1, "t": 16.0, "k": "m", "s": 9, "m": {"loss": 7.0}}], rank=1)
    ranks = [{"rank": 0, "pid": 5, "state": "running"}, {"rank": 1, "pid": 6, "state": "running"}]
    agent.post("state", {"state": "running", "message": "", "ranks": ranks})
    seen = launcher.client.job(view.run_id)
    assert seen.latest == {"loss": (1, 0.4), "lr": (4, 0.1), "rank/1/loss": (9, 7.0)}
    assert seen.dropped_points == 500
    assert seen.network == "All-reduce: 9 Gbit/s"
    assert seen.ranks == (
        {"rank": 0, "state": "running", "last_seen": 15.0, "step": 1},
        {"rank": 1, "state": "running", "last_seen": 16.0, "step": 9},
    )
    (attempt,) = _after_checkpoint(launcher, view.run_id)
    assert attempt["params"] == {"lr": "0.1", "epochs": "3"}
    assert attempt["tags"] == {"host": "here", "network.all_reduce": "All-reduce: 9 Gbit/s"}
    assert attempt["checkpoint"] == {"step": 4, "path": "checkpoints/4.pt", "time": 13.0}


def test_what_is_not_kept_is_counted_by_its_reason(launcher: Any, job: Any) -> None:
    view, agent = job
    many = {f"k{number}": 1.0 for number in range(10_000)}
    agent.send(
        [
            {"q": 1, "t": 10.0, "k": "m", "s": 1, "m": {"early": 1.0}},
            {"q": 2, "t": 11.0, "k": "m", "s": 2, "m": many},
            {"q": 3, "t": 12.0, "k": "m", "s": 3, "m": {"early": 3.0, "late": 1.0, "k1": 2.0}},
            {"q": 4, "t": 13.0, "k": "m", "s": 3, "m": {"x" * 251: 1.0}},
            {"q": 5, "t": 14.0, "k": "dropped", "n": 7},
            {"q": 6, "t": 15.0, "k": "dropped", "n": 2, "why": "not-understood"},
        ]
    )
    seen = launcher.client.job(view.run_id)
    counted = {"too-many-names": 8002, "name-too-long": 1, "spool-full": 7, "not-understood": 2}
    assert seen.dropped_by == counted
    assert seen.dropped_points == 8012
    assert (seen.latest["early"], seen.latest["k1"], "late" in seen.latest) == ((3, 3.0), (3, 2.0), False)
    assert len(seen.latest) == len(launcher.client.series(view.run_id)) == 2000
    (attempt,) = _after_checkpoint(launcher, view.run_id)
    assert attempt["dropped_by"] == seen.dropped_by


def test_what_a_card_reads_at_every_look_has_a_bound(launcher: Any, job: Any) -> None:
    view, agent = job
    words = {f"p{number}": "x" * 8000 for number in range(200)}
    path = {"q": 3, "t": 1.0, "k": "checkpoint", "s": 4, "path": "x" * 100_000}
    # what is short still finds room
    late = {"q": 4, "t": 1.0, "k": "tag", "p": {"p0": "y", "p199": "short"}}
    agent.send([{"q": q, "t": 1.0, "k": kind, "p": words} for q, kind in ((1, "param"), (2, "tag"))])
    agent.send([path, late])
    (attempt,) = _after_checkpoint(launcher, view.run_id)
    kept = [*attempt["params"].values(), *attempt["tags"].values()]
    assert 1_000_000 < sum(map(len, kept)) <= 2**20
    assert attempt["tags"]["p199"] == "short"
    assert len(attempt["checkpoint"]["path"]) == 4096
    answer = agent.send([{"q": 5, "t": 1.0, "k": "param", "p": {"p": "x" * 9 * 2**20}}])
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


def test_nan_and_infinity_stay_themselves(launcher: Any, job: Any) -> None:
    view, agent = job
    values = [1.0, math.nan, math.inf, -math.inf, 2.0]
    lines = [
        {"q": q, "t": float(q), "k": "m", "s": q, "m": {"loss": value}} for q, value in enumerate(values, 1)
    ]
    assert agent.send(lines).status_code == 200
    with launcher.http() as http:
        (series,) = http.get(f"/jobs/{view.run_id}/series").json()["series"]
    assert [point[2] for point in series["points"]] == [1.0, "NaN", "Infinity", "-Infinity", 2.0]
    (exact,) = launcher.client.series(view.run_id)
    assert repr([point[2] for point in exact["points"]]) == repr(values)
    agent.send([{"q": 6, "t": 6.0, "k": "m", "s": 6, "m": {"loss": math.nan}}])
    assert math.isnan(launcher.client.job(view.run_id).latest["loss"][1])


@pytest.mark.parametrize(
    "line",
    [
        {"q": 1, "t": 1.0, "k": "m", "s": 1, "m": {"": 1.0, "k" * 300: 2.0}},
        {"q": 1, "t": 1.0, "k": "of the future", "x": [1]},
    ],
)
def test_a_line_that_means_nothing_does_not_stop_those_behind_it(launcher: Any, job: Any, line: Any) -> None:
    view, agent = job
    assert agent.send([line, *agent.metrics(2, 2, good=1.0)]).status_code == 200
    assert [item["key"] for item in launcher.client.series(view.run_id)] == ["good"]


@pytest.mark.parametrize(
    "changes",
    [
        {"m": {"loss": "much"}},
        {"m": {"loss": None}},
        {"m": {"loss": 10**400}},
        {"m": {"\ud800": 1.0}},
        {"m": [1.0]},
        {"s": 2**70},
        {"s": 1.5},
        {"t": "late"},
        {"t": math.nan},
        {"t": 1e300},
        {"k": 7},
        {"mlflow": []},
        {"mlflow": {"timestamp": "now"}},
        {"mlflow": {"key": 5}},
        {"mlflow": {"model_id": 5}},
        {"k": "param"},
        {"k": "tag", "p": {"a": 1}},
        {"k": "tag", "p": {"a": "\udfff"}},
        {"k": "checkpoint"},
        {"k": "dropped", "n": "many"},
    ],
)
def test_a_malformed_line_is_refused_and_nothing_of_its_call_is_kept(
    launcher: Any, job: Any, changes: dict[str, Any]
) -> None:
    view, agent = job
    good, bad = agent.metrics(1, 2, loss=1.0)
    answer = agent.send([good, bad | changes])
    # half of a surrogate pair is refused in any body, before it is looked at as events
    code = "bad-json" if "\\ud" in json.dumps(changes) else "bad-events"
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    for missing in ("q", "t", "k", "s", "m"):
        assert agent.send([good, {k: v for k, v in bad.items() if k != missing}]).status_code == 400
    assert launcher.client.series(view.run_id) == []
    note = {"q": 2, "t": 0.0, "k": "dropped", "n": 1}
    assert agent.send([good, note]).json() == {"acked": [{"rank": 0, "process": "1-1", "q": 2}]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"streams": 1},
        {"streams": [{"rank": 0, "process": "1-1"}]},
        {"streams": [{"rank": 5, "process": "1-1", "lines": []}]},
        {"streams": [{"rank": -1, "process": "1-1", "lines": []}]},
        {"streams": [{"rank": 0, "process": "", "lines": []}]},
        {"streams": [{"rank": 0, "process": "1-1", "lines": [{"t": 1}]}]},
        {"streams": [{"rank": 0, "process": "1-1", "lines": [{"q": "1"}]}]},
        {"streams": [{"rank": 0, "process": "1-1", "lines": ["x"]}]},
    ],
)
def test_what_is_no_stream_is_a_400(job: Any, body: Any) -> None:
    answer = job[1].post("events", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-events")


def test_series_are_asked_for_by_key_rank_range_and_attempt(launcher: Any, job: Any) -> None:
    view, agent = job
    agent.send(agent.metrics(1, 50, loss=1.0, accuracy=2.0))
    agent.send(agent.metrics(1, 50, loss=3.0), rank=1)
    ask = launcher.client.series
    assert [(s["key"], s["rank"], s["attempt"]) for s in ask(view.run_id)] == [
        ("accuracy", 0, 1),
        ("loss", 0, 1),
        ("loss", 1, 1),
    ]
    assert [(s["key"], s["rank"]) for s in ask(view.run_id, keys=["loss"], rank=1)] == [("loss", 1)]
    (part,) = ask(view.run_id, keys=["accuracy"], first=10, last=19)
    assert [point[0] for point in part["points"]] == list(range(10, 20))
    (few,) = ask(view.run_id, keys=["accuracy"], points=16)
    assert len(few["points"]) <= 16
    launcher.client.cancel(view.run_id)
    launcher.client.retry(view.run_id)
    assert ask(view.run_id) == []
    assert len(ask(view.run_id, attempt=1)) == len(ask(view.run_id, attempt="all")) == 3


def test_after_a_kill_the_fold_is_replayed_exactly(make_launcher: Any, database: Any) -> None:
    launcher = make_launcher("--Launcher.poll_seconds=0.05", database=database).start()
    view = launcher.running()
    agent = launcher.agent(view)
    agent.send(agent.metrics(1, 700, loss=1.0, other=math.nan))
    _after_checkpoint(launcher, view.run_id)
    agent.send(agent.metrics(701, 700, loss=2.0))
    agent.send([{"q": 1401, "t": 1.0, "k": "dropped", "n": 3}])
    before = repr((launcher.client.series(view.run_id), launcher.client.job(view.run_id)))
    assert launcher.rows("select count(*) from batches where not folded") != [(0,)]
    launcher.kill()
    launcher.start()
    assert repr((launcher.client.series(view.run_id), launcher.client.job(view.run_id))) == before
    # without a tracker a batch goes with the next checkpoint
    _after_checkpoint(launcher, view.run_id)
    assert launcher.rows("select count(*) from batches") == [(0,)]
    assert launcher.rows("select q from cursors") == [(1401,)]
    launcher.client.cancel(view.run_id)


def test_many_points_are_taken_in_and_answered_quickly(make_launcher: Any, database: Any) -> None:
    """20 metrics x 100 steps a second for 3 s, as an agent ships them. The shares are printed, not asserted."""
    launcher = make_launcher("--Launcher.poll_seconds=0.3", database=database).start()
    view = launcher.running()
    agent = launcher.agent(view)
    names = {f"metric_{number}": 0.1 * number for number in range(20)}
    began, used = time.monotonic(), _cpu_seconds(launcher.process.pid)
    for tick in range(60):
        agent.send(agent.metrics(1 + 5 * tick, 5, **names))
        time.sleep(max(0.0, began + 0.05 * (tick + 1) - time.monotonic()))
    spent = time.monotonic() - began
    share = (_cpu_seconds(launcher.process.pid) - used) / spent
    asked = time.monotonic()
    answer = launcher.client.series(view.run_id)
    print(
        f"\n{6000 / spent:.0f} points/s: {100 * share:.1f} % of a core; 20 series: {time.monotonic() - asked:.3f} s"
    )
    assert [item["count"] for item in answer] == [300] * 20
    launcher.steer(f"{view.run_id}-1", Status.FINISHED)
    launcher.until(view.run_id, Status.FINISHED)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _after_checkpoint(launcher: Any, run_id: str) -> Any:
    """The attempts, once the last checkpoint has everything: at most two seconds."""
    query = f"select count(*) from batches where not folded and run_id = '{run_id}'"
    wait_for("the checkpoint", lambda: launcher.rows(query) == [(0,)], seconds=15)
    return launcher.client.attempts(run_id)
