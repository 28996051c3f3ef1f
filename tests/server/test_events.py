"""The stream of events: at once, resumable, one for many runs, and no memory for those who do not read."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from slicelift.models import RunView, Status

from tests.waiting import wait_for


class Watch:
    """Reads a stream by hand, one event at a time."""

    def __init__(self, http: Any, runs: str, last_id: str = "") -> None:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        self.stream = http.stream("GET", "/events", params={"runs": runs}, headers=headers)
        response = self.stream.__enter__()
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        self.events = self._parse(response.iter_lines())
        self.id = ""

    def next(self, kind: str) -> Any:
        for event in self.events:
            self.id = event["id"]
            if event["event"] == kind:
                return json.loads(event["data"])
        raise AssertionError(f"the stream ended without a {kind}")

    def close(self) -> None:
        self.stream.__exit__(None, None, None)

    def _parse(self, lines: Iterator[str]) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        for line in lines:
            if line and not line.startswith(":"):
                name, _, event[name] = line.partition(": ")[0], None, line.partition(": ")[2]
            elif event:
                yield event
                event = {}


def test_it_begins_with_the_view_and_tells_points_and_changes_at_once(launcher: Any) -> None:
    view = launcher.running()
    other = launcher.running()
    agent, foreign = launcher.agent(view), launcher.agent(other)
    with launcher.http() as http:
        watch = Watch(http, view.run_id)
        assert watch.next("run")["status"] == "RUNNING"
        foreign.send(foreign.metrics(1, 1, loss=9.0))
        sent = time.monotonic()
        agent.send([{"q": 1, "t": 5.0, "k": "m", "s": 3, "m": {"loss": float("nan")}}])
        points = watch.next("points")
        print(f"\nsent to seen: {1e3 * (time.monotonic() - sent):.0f} ms")
        assert points == {"run_id": view.run_id, "attempt": 1, "rank": 0, "points": [["loss", 3, 5.0, "NaN"]]}
        launcher.steer(f"{view.run_id}-1", Status.FINISHED, exit_code=0)
        assert watch.next("run")["status"] == "FINISHED"
        watch.close()
    launcher.client.cancel(other.run_id)


def test_coming_back_with_the_last_id_misses_nothing_and_repeats_nothing(launcher: Any) -> None:
    view = launcher.running()
    agent = launcher.agent(view)
    with launcher.http() as http:
        watch = Watch(http, view.run_id)
        agent.send(agent.metrics(1, 1, loss=1.0))
        watch.next("points")
        watch.close()
        agent.send(agent.metrics(2, 1, loss=2.0))
        agent.send(agent.metrics(3, 1, loss=3.0))
        again = Watch(http, view.run_id, last_id=watch.id)
        seen = [again.next("points")["points"][0][1] for _ in range(2)]
        assert seen == [2, 3]
        again.close()
        for stale in ("0123456789abcdef-7", "nonsense", watch.id.rpartition("-")[0] + "-999999"):
            lost = Watch(http, view.run_id, last_id=stale)
            assert lost.next("reset") == {}
            assert lost.next("run")["latest"]["loss"] == [3, 3.0]
            lost.close()
    launcher.client.cancel(view.run_id)


def test_one_stream_for_many_runs_and_for_all(launcher: Any) -> None:
    views = [launcher.running() for _ in range(3)]
    agents = [launcher.agent(view) for view in views]
    with launcher.http() as http:
        two, every = Watch(http, f"{views[0].run_id},{views[1].promotion_id}"), Watch(http, "")
        for agent in reversed(agents):
            agent.send(agent.metrics(1, 1, loss=1.0))
        assert [two.next("points")["run_id"] for _ in range(2)] == [views[1].run_id, views[0].run_id]
        assert [every.next("points")["run_id"] for _ in range(3)] == [view.run_id for view in reversed(views)]
        assert http.get("/events", params={"runs": "r-aaaaaaaaaaaa"}).status_code == 404
        two.close()
        every.close()
    for view in views:
        launcher.client.cancel(view.run_id)


def test_the_client_survives_a_restart_of_the_launcher(make_launcher: Any, database: Any) -> None:
    """A restart takes 1.5 s."""
    launcher = make_launcher("--Launcher.poll_seconds=0.05", database=database).start()
    view = launcher.running()
    agent = launcher.agent(view)
    seen: list[tuple[str, Any]] = []
    done = threading.Event()

    def watch() -> None:
        from slicelift.errors import Unavailable

        while not done.is_set():
            try:
                for kind, data in launcher.client.events([view.run_id]):
                    seen.append((kind, data))
                    if kind == "run" and data.status.terminal:
                        return
            except Unavailable:
                time.sleep(0.1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    wait_for("the run", lambda: any(kind == "run" for kind, _ in seen))
    launcher.kill()
    launcher.start()
    wait_for("the run again", lambda: [kind for kind, _ in seen].count("run") >= 2)
    agent.send(agent.metrics(1, 2, loss=1.0))
    wait_for("the points", lambda: any(kind == "points" for kind, _ in seen))
    launcher.steer(f"{view.run_id}-1", Status.FINISHED)
    thread.join(15)
    done.set()
    assert isinstance(seen[-1][1], RunView)
    assert seen[-1][1].status == Status.FINISHED


@pytest.mark.timeout(60)
def test_a_watcher_that_does_not_read_is_dropped(launcher: Any) -> None:
    """About 5 s: more than the bound has to be sent."""
    view = launcher.running()
    agent = launcher.agent(view)
    host, port = launcher.url.removeprefix("http://").removesuffix("/api/v1").split(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        token = launcher.state["token"]
        head = f"GET /api/v1/events?runs={view.run_id} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: token {token}"
        deaf.sendall(f"{head}\r\n\r\n".encode())
        time.sleep(0.2)
        names = {f"a_rather_long_name_of_a_metric_{number:04}": 0.1 for number in range(900)}
        for tick in range(250):
            assert agent.send(agent.metrics(1 + tick, 1, **names)).status_code == 200
        deaf.settimeout(20)
        received = 0
        while chunk := deaf.recv(1 << 20):
            received += len(chunk)
    assert received < 250 * 900 * 40
    assert launcher.client.job(view.run_id).latest["a_rather_long_name_of_a_metric_0000"][0] == 250
    launcher.client.cancel(view.run_id)


def test_a_run_that_cannot_be_told_silences_no_other(launcher: Any) -> None:
    odd, other = launcher.running(), launcher.running()
    with launcher.http() as http:
        watch = Watch(http, other.run_id)
        assert watch.next("run")["status"] == "RUNNING"
        launcher.steer(f"{odd.run_id}-1", Status.FAILED, message="half a character: \udcff")
        wait_for("the odd one's end", lambda: "could not be told" in (launcher.home / "test.log").read_text())
        launcher.steer(f"{other.run_id}-1", Status.FINISHED, exit_code=0)
        assert watch.next("run")["status"] == "FINISHED"
        watch.close()
