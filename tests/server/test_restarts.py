"""Attempts that a cluster makes by itself: whose row is whose, what is told of the ones before, and old ledgers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Attempt, Manifest, Proof
from slicelift.errors import NotFound, SliceliftError
from slicelift.models import Failure, JobSpec, JobStatus, Status
from slicelift_hub.launcher import migration, tables
from slicelift_hub.launcher.dispatch import Dispatch, Pace
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.nodes import Nodes, Report, fold_end, fold_ranks, fold_status, take_in
from slicelift_hub.launcher.services import make_attempt

from tests.server.desk import until

SPEC = JobSpec(
    name="job", snapshot_id="0" * 64, notebook="n.ipynb", script="promoted.py", cwd=".", python="python3"
)
GANG = replace(SPEC, workers=2)
FAILED = {"status": "FAILED", "reason": "rank-failed", "message": "boom", "exit_code": 1, "time": 10.0}
FAILURE = {"message": "boom", "rank": 1, "exit_code": 1}
STARTING = JobStatus(status=Status.STARTING)
RUNNING = JobStatus(status=Status.RUNNING)


@pytest.fixture
def ledger(tmp_path: Path, database: Callable[[Path], Path | str]) -> Iterator[Ledger]:
    """One over a backend that queues by itself."""
    made = Ledger(database(tmp_path / "ledger.db"))
    made.leased = False
    yield made
    made.close()


def submit(ledger: Ledger, spec: JobSpec = GANG, *, name: str = "p-1") -> str:
    """A job that its backend has."""
    run_id, _ = ledger.submit("ann", name, spec=spec, snapshot={}, token_of=lambda attempt: f"a-{attempt}")
    ledger.set_handle(f"{run_id}-1", f"pods://{run_id}-1")
    return run_id


def restart(ledger: Ledger, run_id: str, number: int) -> bool:
    row, new = ledger.restarted(f"{run_id}-1", number, status=Status.STARTING)
    assert (row.attempt, row.restarts, row.submission) == (number + 1, number, f"{run_id}-1")
    assert row.handle == f"pods://{run_id}-1"
    return new


def test_a_restart_is_the_next_attempt_of_the_same_card(ledger: Ledger) -> None:
    run_id = submit(ledger)
    ledger.agent_said(f"{run_id}-1", RUNNING, ranks=[{"rank": 0}], node=0, needed=2)
    ledger.agent_said(f"{run_id}-1", RUNNING, ranks=[{"rank": 1}], node=1, needed=2)
    ledger.agent_ended(f"{run_id}-1", FAILED | {"failure": FAILURE}, node=1, workers=2)
    assert restart(ledger, run_id, 1)
    assert not restart(ledger, run_id, 1)
    view = ledger.view(run_id)
    assert (view.attempt, view.status, view.handle) == (2, Status.STARTING, f"pods://{run_id}-1")
    first, second = ledger.attempts_of(run_id)
    assert (first["status"], first["reason"], first["exit_code"]) == ("FAILED", "rank-failed", 1)
    assert first["failure"]["rank"] == 1
    assert (second["status"], second["submission"]) == ("STARTING", f"{run_id}-1")
    assert [(change.attempt, change.status) for change in view.history] == [
        (1, Status.WAITING),
        (1, Status.STARTING),
        (1, Status.RUNNING),
        (1, Status.FAILED),
        (2, Status.STARTING),
    ]
    current = ledger.current(f"{run_id}-1")
    assert current is not None
    assert current.attempt_id == f"{run_id}-2"


def test_restarts_that_nobody_told_of_have_their_rows_too(ledger: Ledger) -> None:
    run_id = submit(ledger)
    assert restart(ledger, run_id, 3)
    rows = [(row["attempt"], row["status"], row["reason"]) for row in ledger.attempts_of(run_id)]
    assert rows == [
        (1, "FAILED", "restarted"),
        (2, "FAILED", "restarted"),
        (3, "FAILED", "restarted"),
        (4, "STARTING", ""),
    ]
    # an agent of one of them may still have something to send
    assert not restart(ledger, run_id, 2)


def test_what_agents_tell_late_explains_the_attempt_before(ledger: Ledger) -> None:
    run_id = submit(ledger)
    restart(ledger, run_id, 1)
    assert ledger.agent_ended(f"{run_id}-1", FAILED | {"failure": FAILURE, "echo": True}, node=0, workers=2)
    lost = ledger.attempts_of(run_id)[0]
    assert (lost["reason"], lost["message"]) == (
        "worker-lost",
        "Worker 1 ended without a word, and the others failed without it: boom.",
    )
    told = FAILED | {"message": "bang", "time": 11.0, "failure": FAILURE | {"message": "bang"}}
    assert ledger.agent_ended(f"{run_id}-1", told, node=1, workers=2)
    first = ledger.attempts_of(run_id)[0]
    assert (first["reason"], first["message"], first["failure"]["message"]) == ("rank-failed", "bang", "bang")
    assert ledger.view(run_id).status == Status.STARTING


def test_a_backends_own_explanation_stays(ledger: Ledger) -> None:
    run_id = submit(ledger)
    failure = Failure(message="The image cannot be pulled.")
    ledger.observe(f"{run_id}-1", JobStatus(status=Status.FAILED, reason="image", failure=failure))
    assert not ledger.agent_ended(f"{run_id}-1", FAILED | {"failure": FAILURE}, node=0, workers=2)
    assert ledger.view(run_id).failure == failure


def test_a_failure_that_the_backend_cannot_explain_is_what_the_agents_told(ledger: Ledger) -> None:
    run_id = submit(ledger)
    ledger.agent_ended(f"{run_id}-1", FAILED | {"failure": FAILURE}, node=1, workers=2)
    ledger.observe(f"{run_id}-1", JobStatus(status=Status.FAILED, phase="Failed", message="2 pods failed"))
    view = ledger.view(run_id)
    assert (view.status, view.phase, view.reason, view.message) == (
        Status.FAILED,
        "Failed",
        "rank-failed",
        "boom",
    )
    assert (view.exit_code, view.failure and view.failure.rank) == (1, 1)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("over", lambda ledger, run_id: ledger.observe(f"{run_id}-1", JobStatus(status=Status.FINISHED))),
        ("far", lambda ledger, run_id: None),
        ("retried", lambda ledger, run_id: retry(ledger, run_id)),
    ],
)
def test_a_token_opens_no_attempt_that_cannot_be(
    ledger: Ledger, name: str, before: Callable[[Ledger, str], Any]
) -> None:
    run_id = submit(ledger)
    before(ledger, run_id)
    with pytest.raises(NotFound):
        ledger.restarted(f"{run_id}-1", 101 if name == "far" else 1, status=Status.STARTING)


def retry(ledger: Ledger, run_id: str) -> None:
    ledger.observe(f"{run_id}-1", JobStatus(status=Status.FAILED))
    ledger.retry("ann", run_id, token_of=lambda attempt: f"a-{attempt}")


def test_a_retry_takes_the_next_free_number_and_its_restarts_follow(ledger: Ledger) -> None:
    run_id = submit(ledger)
    restart(ledger, run_id, 1)
    ledger.observe(f"{run_id}-2", JobStatus(status=Status.FAILED))
    assert ledger.retry("ann", run_id, token_of=lambda attempt: f"a-{attempt}") == f"{run_id}-3"
    row, new = ledger.restarted(f"{run_id}-3", 1, status=Status.STARTING)
    assert (row.attempt_id, row.restarts, new) == (f"{run_id}-4", 1, True)
    # the agents of the first submission may bring what they have, and begin nothing
    assert ledger.restarted(f"{run_id}-1", 1, status=Status.STARTING)[1] is False
    with pytest.raises(NotFound):
        ledger.restarted(f"{run_id}-1", 2, status=Status.STARTING)


def test_a_gang_that_was_to_end_is_still_to_end_after_a_restart(ledger: Ledger) -> None:
    run_id = submit(ledger)
    assert ledger.cancel("ann", run_id, reason="cancelled by ann").status == Status.CANCELLING
    row, _ = ledger.restarted(f"{run_id}-1", 1, status=Status.STARTING)
    assert (row.status, row.cancel) == (Status.CANCELLING, "cancelled by ann")


def test_a_full_store_is_said_in_the_card_until_there_is_room(ledger: Ledger) -> None:
    run_id = submit(ledger)
    ledger.agent_said(f"{run_id}-1", RUNNING, ranks=[])
    assert ledger.store_full(f"{run_id}-1", full=True)
    assert not ledger.store_full(f"{run_id}-1", full=True)
    view = ledger.view(run_id)
    assert (view.status, view.reason) == (Status.RUNNING, "store-full")
    assert view.message.startswith("The disk under the launcher's store is full")
    assert ledger.store_full(f"{run_id}-1", full=False)
    assert ledger.view(run_id).reason == "store-back"
    ledger.observe(f"{run_id}-1", JobStatus(status=Status.FINISHED))
    assert not ledger.store_full(f"{run_id}-1", full=True)
    assert ledger.view(run_id).message == ""


def test_only_the_last_attempt_of_a_submission_is_discarded(ledger: Ledger) -> None:
    run_id = submit(ledger)
    restart(ledger, run_id, 1)
    assert ledger.ended_before(2e9) == []
    ledger.observe(f"{run_id}-2", JobStatus(status=Status.FINISHED))
    assert [row.attempt_id for row in ledger.ended_before(2e9)] == [f"{run_id}-2"]
    token = f"a-{run_id}-1"
    found = ledger.attempt_of_token(token)
    assert found is not None
    assert found.attempt_id == f"{run_id}-1"
    ledger.mark_discarded(f"{run_id}-2")
    assert ledger.ended_before(2e9) == []
    # and with what the backend held ends what the agents could do
    assert ledger.attempt_of_token(token) is None


def test_a_place_in_the_backends_queue_is_shown_and_writes_no_history(ledger: Ledger) -> None:
    run_id = submit(ledger)
    for ahead in (7, 6):
        message = f"{ahead} jobs are ahead."
        ledger.observe(
            f"{run_id}-1",
            JobStatus(status=Status.WAITING, reason="quota", message=message, position=ahead + 1),
        )
    view = ledger.view(run_id)
    assert (view.position, view.message, len(view.history)) == (7, "6 jobs are ahead.", 2)
    ledger.observe(f"{run_id}-1", STARTING)
    assert ledger.view(run_id).position is None


def report(node: int, state: str, **more: Any) -> Report:
    return Report(node=node, state=state, **more)


def folded(*reports: Report) -> Nodes:
    nodes: Nodes = {}
    for each in reports:
        nodes = take_in(nodes, each)
    return nodes


def test_a_gang_runs_when_all_its_nodes_do() -> None:
    nodes = folded(report(0, "running"), report(1, "preparing", message="Unpacking the snapshot"))
    assert fold_status(nodes, needed=2) == JobStatus(
        status=Status.STARTING, phase="preparing", message="Worker 1: Unpacking the snapshot"
    )
    # an elastic one goes on with those that are there
    assert fold_status(nodes, needed=1).status == Status.RUNNING
    nodes = take_in(nodes, report(1, "ended", exit={"status": "FINISHED"}))
    assert fold_status(nodes, needed=2) == JobStatus(status=Status.RUNNING, phase="running")


def test_a_rank_that_moved_to_another_node_is_shown_once() -> None:
    nodes = folded(
        report(0, "running", ranks=({"rank": 0, "state": "ended"}, {"rank": 1, "state": "running"})),
        report(1, "running", ranks=({"rank": 0, "state": "running"},)),
    )
    assert fold_ranks(nodes) == [
        {"rank": 0, "state": "running", "node": 1},
        {"rank": 1, "state": "running", "node": 0},
    ]


@pytest.mark.parametrize(
    ("ends", "reason", "message"),
    [
        ([FAILED | {"time": 12.0}, FAILED | {"time": 11.0, "message": "first"}], "rank-failed", "first"),
        ([FAILED | {"echo": True}, FAILED | {"time": 12.0, "message": "cause"}], "rank-failed", "cause"),
        (
            [FAILED | {"echo": True}, None],
            "worker-lost",
            "Worker 1 ended without a word, and the others failed without it: boom.",
        ),
        (
            [None, {"status": "KILLED"}],
            "worker-lost",
            "Worker 0 ended without a word, and the cluster ended the others.",
        ),
        ([{"status": "KILLED"}, {"status": "KILLED"}], None, ""),
        ([None, None], None, ""),
        ([{"status": "made up"}, {"no": "status"}], None, ""),
    ],
)
def test_the_first_trigger_over_all_nodes(
    ends: list[dict[str, Any] | None], reason: str | None, message: str
) -> None:
    nodes = folded(*(report(node, "ended", exit=end) for node, end in enumerate(ends)))
    end = fold_end(nodes, workers=2)
    assert (end and end.reason, end.message if end else "") == (reason, message)


def test_what_a_job_makes_up_as_its_end_is_cut_and_typed() -> None:
    made_up = {"status": "FAILED", "reason": ["x"], "message": "m" * 10**6, "exit_code": "7", "time": "soon"}
    failure = {"message": 5, "rank": "0", "traceback": "t" * 10**6, "cell": True}
    nodes = folded(report(0, "ended", exit=made_up | {"failure": failure}))
    end = fold_end(nodes, workers=1)
    assert end is not None
    assert end.failure is not None
    assert (len(end.message), end.exit_code, end.failure.rank, end.failure.cell) == (8000, None, None, None)
    assert len(end.failure.traceback) == 65536


@dataclass
class Queue:
    """A backend that queues by itself; `said` is what `status` answers."""

    name: str = "queue"
    leased: bool = False
    said: JobStatus = field(default_factory=lambda: JobStatus(status=Status.WAITING, reason="quota"))
    submits: list[str] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    changed: Callable[[str], None] = lambda _handle: None

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        return {}

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        return []

    def listen(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    def capacity(self) -> Mapping[str, Any] | None:
        return None

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        return None

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        return f"queue://{attempt.attempt_id}" if attempt.attempt_id in self.submits else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        self.submits.append(attempt.attempt_id)
        return f"queue://{attempt.attempt_id}"

    def status(self, handle: str) -> JobStatus:
        return self.said

    def cancel(self, handle: str, *, reason: str, grace_seconds: float = 10.0, saving: bool = False) -> Proof:
        self.cancels.append(handle)
        self.said = JobStatus(status=Status.KILLED)
        return Proof(gone=True)

    def scale(self, handle: str, workers: int) -> None:
        """Its gangs keep their workers."""

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        return True


class Desk:
    """A dispatch over a backend that queues, polled so rarely that only its news count."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.backend = ledger, Queue()

    def dispatch(self) -> Dispatch:
        def make(row: Any, held: Any) -> Attempt:
            return make_attempt("http://127.0.0.1:1", "key", row, held)

        return Dispatch(
            self.ledger,
            self.backend,
            call=asyncio.to_thread,
            ask=asyncio.to_thread,
            changed=lambda _: None,
            make_attempt=make,
            pace=Pace(poll=60.0, listening=60.0, retry=0.01),
        )

    def submit(self) -> str:
        run_id, _ = self.ledger.submit("ann", "p-1", spec=GANG, snapshot={}, token_of=lambda name: name)
        return run_id

    def say(self, run_id: str, status: JobStatus) -> None:
        self.backend.said = status
        self.backend.changed(f"queue://{run_id}-1")

    async def until(self, run_id: str, attempt: int, status: Status) -> None:
        def there() -> bool:
            view = self.ledger.view(run_id)
            return (view.attempt, view.status) == (attempt, status)

        await until(there)


@pytest.fixture
def desk(ledger: Ledger) -> Desk:
    return Desk(ledger)


async def served(dispatch: Dispatch) -> asyncio.Task[None]:
    await dispatch.adopt()
    return asyncio.create_task(dispatch.run())


def test_a_backend_that_queues_gets_the_job_at_once_and_its_news_are_heard(desk: Desk) -> None:
    async def go() -> str:
        dispatch = desk.dispatch()
        queue = await served(dispatch)
        run_id = desk.submit()
        dispatch.wake()
        await until(lambda: desk.ledger.view(run_id).reason == "quota")
        assert desk.ledger.view(run_id).status == Status.WAITING
        desk.say(run_id, STARTING)
        await desk.until(run_id, 1, Status.STARTING)
        desk.say(run_id, JobStatus(status=Status.WAITING, restarts=1, message="A pod was evicted."))
        await desk.until(run_id, 2, Status.WAITING)
        desk.say(run_id, JobStatus(status=Status.FINISHED, restarts=1))
        await desk.until(run_id, 2, Status.FINISHED)
        await dispatch.stop(keep_jobs=True)
        queue.cancel()
        return run_id

    run_id = asyncio.run(go())
    assert desk.backend.submits == [f"{run_id}-1"]
    first = desk.ledger.attempts_of(run_id)[0]
    assert (first["reason"], first["message"]) == ("restarted", "A pod was evicted.")


def test_what_the_backend_says_of_the_attempt_before_is_not_the_next_ones(desk: Desk) -> None:
    """Agents of the restarted gang are quicker than the watch."""

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = await served(dispatch)
        run_id = desk.submit()
        dispatch.wake()
        desk.backend.said = STARTING
        await desk.until(run_id, 1, Status.STARTING)
        await asyncio.to_thread(desk.ledger.restarted, f"{run_id}-1", 1, status=Status.STARTING)
        unwanted = JobStatus(status=Status.RUNNING, reason="of the attempt before")
        desk.say(run_id, unwanted)
        await asyncio.sleep(0.3)
        assert desk.ledger.view(run_id).status == Status.STARTING
        desk.say(run_id, replace(unwanted, restarts=1, reason="its own"))
        await desk.until(run_id, 2, Status.RUNNING)
        assert desk.ledger.view(run_id).reason == "its own"
        await dispatch.stop(keep_jobs=True)
        queue.cancel()

    asyncio.run(go())


def test_a_job_that_waits_in_the_backend_is_cancelled_there_also_by_the_next_launcher(desk: Desk) -> None:
    async def first() -> str:
        dispatch = desk.dispatch()
        queue = await served(dispatch)
        run_id = desk.submit()
        dispatch.wake()
        await until(lambda: desk.ledger.view(run_id).handle)
        await dispatch.stop(keep_jobs=True)
        queue.cancel()
        return run_id

    async def second(run_id: str) -> None:
        dispatch = desk.dispatch()
        queue = await served(dispatch)
        row = await asyncio.to_thread(desk.ledger.cancel, "ann", run_id, reason="cancelled by ann")
        assert row.status == Status.CANCELLING
        dispatch.poke(row.attempt_id)
        await desk.until(run_id, 1, Status.KILLED)
        await dispatch.stop(keep_jobs=True)
        queue.cancel()

    run_id = asyncio.run(first())
    asyncio.run(second(run_id))
    assert (desk.backend.submits, desk.backend.cancels) == ([f"{run_id}-1"], [f"queue://{run_id}-1"])


def test_a_submit_that_was_cut_off_is_repeated_under_its_own_name(desk: Desk) -> None:
    """The launcher was killed before it wrote the handle down; meanwhile the gang has been started again."""
    run_id = desk.submit()
    desk.ledger.restarted(f"{run_id}-1", 1, status=Status.STARTING)

    async def go() -> None:
        dispatch = desk.dispatch()
        desk.backend.said = JobStatus(status=Status.FINISHED, restarts=1)
        queue = await served(dispatch)
        await desk.until(run_id, 2, Status.FINISHED)
        await dispatch.stop(keep_jobs=True)
        queue.cancel()

    asyncio.run(go())
    assert desk.backend.submits == [f"{run_id}-1"]
    assert desk.ledger.view(run_id).handle == f"queue://{run_id}-1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of the first versions, with a run that is over, one that runs and one that waits."""
    path = tmp_path / "old.db"
    script = (Path(__file__).parent / "ledger_format_1.sql").read_text(encoding="utf-8")
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


def test_an_old_ledger_loses_nothing(old: Path) -> None:
    ledger = Ledger(old)
    over, running, waiting = sorted(ledger.list_runs(None), key=lambda view: view.promotion_id)
    assert [view.status for view in (over, running, waiting)] == [
        Status.FINISHED,
        Status.RUNNING,
        Status.WAITING,
    ]
    assert [(row["attempt"], row["submission"]) for row in ledger.attempts_of(over.run_id)] == [
        (1, f"{over.run_id}-1"),
        (2, f"{over.run_id}-2"),
    ]
    assert [row["rank"] for row in running.ranks] == [0, 1]
    assert waiting.position == 1
    row = ledger.attempt_of_token(f"a-{running.run_id}-1")
    assert row is not None
    assert (row.submission, row.restarts) == (row.attempt_id, 0)
    # its agent goes on to speak as it did
    assert not ledger.agent_said(row.attempt_id, RUNNING, ranks=[dict(rank) for rank in ranks_of(running)])
    assert ledger.observe(row.attempt_id, JobStatus(status=Status.FINISHED, phase="ended"))
    assert [found.run_id for found in ledger.grant()] == [waiting.run_id]
    # asked for again, the spec without the newer fields is the same one
    again = ledger.submit("bob", "p-3", spec=waiting.spec, snapshot={}, token_of=str)
    assert again == (waiting.run_id, False)
    ledger.close()
    Ledger(old).close()


def ranks_of(view: Any) -> list[dict[str, Any]]:
    return [{"rank": row["rank"], "pid": 7 + row["rank"], "state": row["state"]} for row in view.ranks]


def test_a_way_to_todays_format_that_breaks_off_leaves_the_old_one(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenError(Exception):
        pass

    def broken(_connection: Any) -> str:
        raise BrokenError

    monkeypatch.setitem(migration._STEPS, "1", after(migration._STEPS["1"], broken))
    with pytest.raises(BrokenError):
        Ledger(old)
    monkeypatch.undo()
    with sqlite3.connect(old) as connection:
        (found,) = connection.execute("select value from about where key = 'format'").fetchone()
        columns = [row[1] for row in connection.execute("pragma table_info(attempts)")]
    connection.close()
    assert (found, "submission" in columns) == ("1", False)
    Ledger(old).close()


def after(first: Callable[[Any], str], then: Callable[[Any], str]) -> Callable[[Any], str]:
    def both(connection: Any) -> str:
        first(connection)
        return then(connection)

    return both


def test_a_ledger_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    with ledger.writing() as connection:
        connection.execute(tables.about.update().values(value="99"))
    ledger.close()
    with pytest.raises(SliceliftError) as raised:
        Ledger(path)
    assert raised.value.code == "ledger-format"
