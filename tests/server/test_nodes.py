"""What agents of several nodes may call, over HTTP: a real launcher and a backend that queues by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from slicelift.models import Status

from tests.waiting import wait_for


@pytest.fixture(scope="module")
def queueing(make_launcher: Any) -> Iterator[Any]:
    launcher = make_launcher("--backend", "steered.Placed").start()
    yield launcher
    launcher.close()


@pytest.fixture
def job(queueing: Any) -> Iterator[Any]:
    """(view, agent) of a gang of two workers with two ranks each."""
    view = queueing.submit(workers=2, gpus_per_worker=2)
    wait_for("the backend to have it", lambda: queueing.client.job(view.run_id).handle)
    yield view, queueing.agent(view)
    queueing.client.cancel(view.run_id)


def test_the_ranks_of_a_gang_are_those_of_all_its_gpus(job: Any) -> None:
    _, agent = job
    for rank, status in ((0, 200), (3, 200), (4, 400)):
        assert agent.send(agent.metrics(1, 1, loss=1.0), rank=rank).status_code == status


def test_it_runs_when_every_node_does(queueing: Any, job: Any) -> None:
    view, agent = job
    first = {"state": "running", "node": 0, "nodes": 2, "ranks": [{"rank": 0, "pid": 1, "state": "running"}]}
    agent.post("state", first)
    agent.post("state", {"state": "preparing", "node": 1, "nodes": 2, "message": "Waiting for names"})
    found = queueing.client.job(view.run_id)
    assert (found.status, found.message) == (Status.STARTING, "Worker 1: Waiting for names")
    agent.post("state", first | {"node": 1, "ranks": [{"rank": 2, "pid": 1, "state": "running"}]})
    found = queueing.client.job(view.run_id)
    assert (found.status, [row["rank"] for row in found.ranks]) == (Status.RUNNING, [0, 2])


@pytest.mark.parametrize("node", [2, -1, "0", True, None])
def test_a_node_that_the_gang_does_not_have_is_refused(job: Any, node: Any) -> None:
    _, agent = job
    answer = agent.post("state", {"state": "running", "node": node})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-body")


def test_only_what_is_known_of_ranks_is_kept_and_of_those_that_the_gang_has(queueing: Any, job: Any) -> None:
    view, agent = job
    rank = {"rank": 3, "pid": 7, "state": "running" * 9, "blob": "x" * 100_000}
    assert agent.post("state", {"state": "running", "node": 1, "ranks": [rank]}).status_code == 200
    (attempt,) = queueing.client.attempts(view.run_id)
    (node,) = attempt["nodes"]
    assert node["ranks"] == [{"rank": 3, "pid": 7, "state": "runningrunningrunnin"}]
    for rows in (
        [{"rank": 4}],
        [{"rank": -1}],
        [{"rank": True}],
        [{}],
        ["0"],
        "ranks",
        {"rank": 0},
        [{"rank": 0}] * 5,
    ):
        answer = agent.post("state", {"state": "running", "node": 0, "ranks": rows})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-body"), rows
    (attempt,) = queueing.client.attempts(view.run_id)
    assert [row["node"] for row in attempt["nodes"]] == [1]


def test_what_an_agent_tells_is_cut_to_size(queueing: Any, job: Any) -> None:
    view, agent = job
    long = "x" * 200_000
    texts = dict.fromkeys(("message", "exception", "file", "source", "traceback"), long)
    told = {"status": "FAILED", "reason": long, "message": long, "failure": texts}
    assert agent.post("state", {"state": "ended", "node": 0, "exit": told}).status_code == 200
    (attempt,) = queueing.client.attempts(view.run_id)
    (node,) = attempt["nodes"]
    assert len(str(node)) < 100_000
    agent.post("state", {"state": "preparing", "node": 1, "message": "x" * 4000})
    assert queueing.client.job(view.run_id).message == "Worker 1: " + "x" * 1000
    answer = agent.post("state", {"state": "running", "node": 0, "message": "x" * 2**21})
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    for log in ("4", "999999", "agent-2", "agent-999999"):
        answer = agent.post(f"logs?rank={log}&offset=0", "line")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-rank"), log
    for log in ("3", "agent", "agent-1"):
        assert agent.post(f"logs?rank={log}&offset=0", "line").status_code == 200, log


def test_what_all_agents_of_a_gang_tell_has_a_bound(queueing: Any) -> None:
    """An elastic gang may come to have a thousand, and each of them a failure with a long traceback."""
    view = queueing.submit(workers=2, min_workers=1)
    wait_for("the backend to have it", lambda: queueing.client.job(view.run_id).handle)
    agent, codes = queueing.agent(view), set()
    told = {"status": "FAILED", "reason": "r", "failure": {"traceback": "x" * 64 * 1024}}
    for node in range(70):
        answer = agent.post("state", {"state": "ended", "node": node, "exit": told})
        codes.add(answer.json().get("code", "taken"))
    assert codes == {"taken", "too-much-told"}
    (attempt,) = queueing.client.attempts(view.run_id)
    assert 60 < len(attempt["nodes"]) < 70
    queueing.client.cancel(view.run_id)


@pytest.mark.parametrize("body", [{"name": "m" * 257}, {"meta": {"signature": "x" * 2**20}}])
def test_what_describes_a_model_has_a_bound(job: Any, body: Any) -> None:
    _, agent = job
    file = {"path": "MLmodel", "sha256": "0" * 64, "size_bytes": 1}
    answer = agent.post("models", {"name": "m", "files": [file], "meta": {}, **body})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-body")


def test_the_token_of_a_submission_opens_its_restarts_and_nothing_else(queueing: Any, job: Any) -> None:
    view, agent = job
    first, base = agent.base, agent.base.rpartition("-")[0]
    agent.base = f"{base}-2"
    assert agent.post("state", {"state": "preparing", "node": 1}).json() == {"cancel": False}
    found = queueing.client.job(view.run_id)
    assert (found.attempt, found.status) == (2, Status.STARTING)
    assert agent.send(agent.metrics(1, 3, loss=2.0)).status_code == 200
    # what the attempt before still has to send is its own
    agent.base = first
    assert agent.send(agent.metrics(1, 2, loss=1.0)).status_code == 200
    assert agent.post("logs?rank=agent-1&offset=0", "late").status_code == 200
    counts = {
        (row["attempt"], row["count"]) for row in queueing.client.series(view.run_id, attempt="all", rank=0)
    }
    assert counts == {(1, 2), (2, 3)}
    for other in ("-0", "-02", "-200", "-x", "-", "", "-3/../1"):
        agent.base = base + other
        assert agent.post("state", {"state": "running"}).status_code in (403, 404), other
    agent.base = base.replace(view.run_id, "r-aaaaaaaaaaaa") + "-1"
    assert agent.post("state", {"state": "running"}).status_code == 404
    assert queueing.client.job(view.run_id).attempt == 2


def test_a_cancel_reaches_the_agents_of_a_restart(queueing: Any, job: Any) -> None:
    view, agent = job
    agent.base = agent.base.rpartition("-")[0] + "-2"
    (queueing.home / "steered" / "immortal").touch()
    try:
        agent.post("state", {"state": "running", "node": 0})
        # the answer would wait for a proof that does not come
        with queueing.http() as http, pytest.raises(httpx.ReadTimeout):
            http.post(f"/jobs/{view.run_id}/cancel", json={}, timeout=2)
        assert agent.post("state", {"state": "running", "node": 0}).json() == {"cancel": True}
    finally:
        (queueing.home / "steered" / "immortal").unlink()
    assert queueing.until(view.run_id, Status.KILLED).attempt == 2
