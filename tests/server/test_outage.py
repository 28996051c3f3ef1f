"""The ledger on a PostgreSQL that goes away: calls say so and may be repeated, jobs go on, nothing is lost.

The outages are of seconds; SLICELIFT_OUTAGE_SECONDS=120 has the first of them last two minutes.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import Status, to_dict
from slicelift_hub.database import open_database, reading, show_address, writing

from tests.promoting import make_promotion_id
from tests.waiting import wait_for

OUTAGE_SECONDS = float(os.environ.get("SLICELIFT_OUTAGE_SECONDS", "3"))
QUICK = "--Launcher.poll_seconds=0.05"


pytestmark = pytest.mark.needs_postgresql


@pytest.fixture(scope="module")
def server(postgres: Any) -> Iterator[Any]:
    """A server of this module's own, which other modules' ledgers do not miss."""
    made = type(postgres)()
    made.start()
    yield made
    made.close()


@pytest.fixture
def launcher(make_launcher: Any, server: Any) -> Iterator[Any]:
    address = server.make_database()
    made = make_launcher(QUICK, database=lambda _: address).start()
    yield made
    server.start()
    made.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_calls_answer_503_meanwhile_and_nothing_is_lost(launcher: Any, server: Any, end: str) -> None:
    """A job runs, logs and ends meanwhile."""
    view = launcher.running()
    agent = launcher.agent(view)
    agent.send(agent.metrics(1, 10, loss=0.5))
    getattr(server, end)()
    with launcher.http() as http:
        for call in (lambda: http.get("/jobs"), lambda: agent.send(agent.metrics(11, 10, loss=0.5))):
            began = time.monotonic()
            answer = call()
            assert (answer.status_code, answer.json()["code"]) == (503, "ledger-away")
            assert answer.headers["Retry-After"] == "2"
            assert time.monotonic() - began < 5
        # whoever asks for health or waits for events is served
        assert http.get("/health").status_code == 200
        launcher.steer(f"{view.run_id}-1", Status.FAILED, exit_code=3, reason="rank-failed")
        time.sleep(OUTAGE_SECONDS)
        server.start()
        answer = _insist(lambda: agent.send(agent.metrics(11, 10, loss=0.5)))
        assert answer.json()["acked"][0]["q"] == 20
        done = launcher.until(view.run_id, Status.FAILED)
    assert (done.exit_code, done.reason, done.latest) == (3, "rank-failed", {"loss": (20, 0.5)})
    (series,) = launcher.client.series(view.run_id)
    assert series["count"] == 20
    # and the same after a restart, from what is in the ledger alone
    launcher.kill()
    launcher.start()
    assert launcher.client.series(view.run_id)[0]["count"] == 20


def test_many_senders_over_two_crashes_of_the_server_count_every_point_once(
    launcher: Any, server: Any
) -> None:
    """About 8 s: four ranks that send and, as agents do, send again what was not acknowledged."""
    view = launcher.running(workers=4)
    agent, over = launcher.agent(view), threading.Event()
    sent: dict[int, int] = {}

    def send(rank: int) -> None:
        q = 1
        while not over.is_set():
            answer = agent.send(agent.metrics(q, 5, loss=1.0), rank=rank)
            assert answer.status_code in (200, 503), answer.text
            q += 5 * (answer.status_code == 200)
            sent[rank] = q - 1
            time.sleep(0.01)

    threads = [threading.Thread(target=send, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        time.sleep(1)
        server.kill()
        time.sleep(1)
        server.start()
    time.sleep(2)
    over.set()
    for thread in threads:
        thread.join()
    assert all(sent[rank] > 20 for rank in range(4))
    for _ in range(2):
        counts = {row["rank"]: row["count"] for row in launcher.client.series(view.run_id)}
        assert counts == sent
        launcher.kill()
        launcher.start()
    launcher.client.cancel(view.run_id)


def test_submits_during_an_outage_make_each_job_once(launcher: Any, server: Any) -> None:
    """Clients repeat until they have an answer; about 4 s."""
    spec, promotions = launcher.spec(), [make_promotion_id() for _ in range(6)]

    def submit(promotion_id: str) -> None:
        body = {"promotion_id": promotion_id, "spec": to_dict(spec)}
        with launcher.http() as http:
            _insist(lambda: http.post("/jobs", json=body))

    threads = [threading.Thread(target=submit, args=(promotion_id,)) for promotion_id in promotions]
    killer = threading.Timer(0.01, server.kill)
    killer.start()
    for thread in threads:
        thread.start()
    killer.join()
    time.sleep(1)
    server.start()
    for thread in threads:
        thread.join()
    assert launcher.rows("select count(*), count(distinct promotion_id) from runs") == [(6, 6)]
    assert launcher.rows("select count(*) from attempts") == [(6,)]
    for promotion_id in promotions:
        launcher.client.cancel(promotion_id)
    assert launcher.client.capacity()["slots"] == {"total": 4, "free": 4}


def test_a_start_waits_for_a_server_that_comes_up_later(make_launcher: Any, server: Any) -> None:
    address = server.make_database()
    server.stop()
    made = make_launcher(QUICK, database=lambda _: address)
    starter = threading.Thread(target=made.start)
    starter.start()
    wait_for("its log", (made.home / "test.log").exists)
    wait_for("word that it waits", lambda: "Waiting for it." in (made.home / "test.log").read_text())
    server.start()
    starter.join()
    assert made.client.jobs() == []
    made.close()


def test_a_start_in_vain_says_what_is_missing_and_no_password(make_launcher: Any, server: Any) -> None:
    address = server.make_database().replace("slicelift@", "slicelift:s3cret@").replace("sl-pg-", "no-pg-")
    made = make_launcher("--Launcher.ledger_patience_seconds=0", database=lambda _: address)
    with pytest.raises(AssertionError):
        made.start()
    said = (made.home / "test.log").read_text()
    assert json.loads(said.strip().splitlines()[-1])["code"] == "ledger-away"
    assert "s3cret" not in said


def test_a_second_launcher_over_one_ledger_is_refused_until_the_first_is_gone(
    make_launcher: Any, server: Any
) -> None:
    """Two homes, one ledger: as two pods would have it."""
    address = server.make_database()
    first = make_launcher(QUICK, database=lambda _: address).start()
    view = first.running()
    second = make_launcher(QUICK, "--Launcher.ledger_patience_seconds=1", database=lambda _: address)
    with pytest.raises(AssertionError):
        second.start()
    body = json.loads((second.home / "test.log").read_text().strip().splitlines()[-1])
    assert (body["code"], "c.Launcher.ledger" in body["hint"]) == ("ledger-taken", True)
    first.kill()
    second.start()
    assert second.client.job(view.run_id).run_id == view.run_id
    second.close()


def test_a_launcher_that_loses_its_ledger_to_another_stops(make_launcher: Any, server: Any) -> None:
    """About 8 s: it is frozen while its connection is cut and the next one starts, and looks every 5 s."""
    address = server.make_database()
    name = address.partition("@/")[2].partition("?")[0]
    first = make_launcher(QUICK, database=lambda _: address).start()
    view = first.running()
    first.process.send_signal(signal.SIGSTOP)
    server.sql(
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
        database="postgres",
    )
    second = make_launcher(QUICK, database=lambda _: address).start()
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(60) == 0
    assert "Another launcher serves this ledger now" in (first.home / "test.log").read_text()
    assert second.client.job(view.run_id).run_id == view.run_id
    second.client.shutdown(keep_jobs=True)


def test_a_writer_that_hangs_does_not_hold_up_others_for_ever(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("slicelift_hub.database.BUSY_SECONDS", 1)
    one, other = (open_database(server.make_database()) for _ in range(2))
    other.dispose()
    other = open_database(
        str(one.url.render_as_string(hide_password=False)) + "&options=-c%20lock_timeout%3D500ms"
    )
    began = time.monotonic()
    with writing(one), pytest.raises(Unavailable, match="lock timeout"), writing(other):
        pass
    assert time.monotonic() - began < 5
    for engine in (one, other):
        engine.dispose()


@pytest.mark.parametrize(
    "address", ["mysql://u:s3cret@h/d", "postgresql+asyncpg://u:s3cret@h/d", "s3cret", "sqlite:///s3cret"]
)
def test_what_is_no_address_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(SliceliftError) as refusal:
        open_database(address)
    assert refusal.value.code == "ledger-address"
    assert "s3cret" not in str(refusal.value)
    assert "postgresql+psycopg://" in refusal.value.hint


def test_a_database_that_is_not_ours_is_no_outage(server: Any) -> None:
    """A fault of a query stays what it is."""
    engine = open_database(server.make_database())
    with pytest.raises(Exception, match="does not exist"), reading(engine) as connection:
        connection.exec_driver_sql("select * from nothing")
    engine.dispose()
    assert "s3cret" not in show_address("postgresql+psycopg://u:s3cret@h/d")


def _insist(call: Any) -> Any:
    """As agents and clients do: again until it is taken. For a second after an outage nobody asks the server anew."""
    until = time.monotonic() + 30
    while (answer := call()).status_code == 503:
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)
    return answer
