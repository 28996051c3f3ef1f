"""The ledger itself: what its text and numbers may be, who waits for whom, and ids. On SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.models import Failure, JobSpec, JobStatus, SnapshotFile, Status
from slicelift_hub.database import open_database, reading, writing
from slicelift_hub.launcher.ingest import Ingest
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_events import Stream
from slicelift_hub.launcher.ledger_limits import WallTime
from slicelift_hub.launcher.tables import attempts, batches, changes
from slicelift_hub.leases import Leases, make_inventory
from sqlalchemy import delete, func, insert, select

ODD = "NUL \0, halves \ud800 and \udfff, the mark \uffff and \uffff0000, 发射 🚀"
SPEC = JobSpec(
    name="job", snapshot_id="0" * 64, notebook="n.ipynb", script="promoted.py", cwd=".", python="python3"
)

HEAD = (
    "id",
    "tree",
    "commit",
    "base_commit",
    "branch",
    "notebook",
    "cwd",
    "script",
    "script_sha256",
    "lock_sha256",
)
SNAPSHOT = {**dict.fromkeys(HEAD, "x"), "dirty": False}


@pytest.fixture
def place(tmp_path: Path, database: Callable[[Path], Path | str]) -> Path | str:
    """Where the ledger of a test is."""
    return database(tmp_path / "ledger.db")


@pytest.fixture
def ledger(place: Path | str) -> Iterator[Ledger]:
    made = Ledger(place)
    made.declare_inventory(make_inventory(slots=4, gpus=0, slices=[]))
    yield made
    made.close()


def test_every_character_that_json_can_bring_comes_back_as_it_was(ledger: Ledger) -> None:
    run_id = _submit(ledger, owner=ODD, note=ODD)
    failure = Failure(message=ODD, traceback=ODD)
    status = JobStatus(status=Status.STARTING, reason=ODD, message=ODD, failure=failure)
    assert ledger.observe(f"{run_id}-1", status)
    view = ledger.find(ODD, run_id)
    assert (view.owner, view.reason, view.message, view.failure) == (ODD, ODD, ODD, failure)
    assert ledger.agent_said(f"{run_id}-1", status, ranks=[{"rank": 0, "state": ODD}])
    # the same again is no news: else the history of a job would grow with every look
    assert not ledger.observe(f"{run_id}-1", status)
    assert not ledger.agent_said(f"{run_id}-1", status, ranks=[{"rank": 0, "state": ODD}])
    assert ledger.list_runs(ODD, before="\0\ud800") == []


def test_numbers_of_64_bits_and_paths_of_any_length_fit(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    long = "/".join(["数据" * 100] * 5)
    for size in (3 * 2**40, 2**62):
        ledger.add_output(attempt, path=long, sha256="0" * 64, size_bytes=size)
    (output,) = ledger.outputs_of(run_id)
    assert (output.path, output.size_bytes) == (long, 2**62)
    assert ledger.observe(f"{run_id}-1", JobStatus(status=Status.FAILED, exit_code=2**40))
    assert ledger.view(run_id).exit_code == 2**40


def test_paths_are_in_one_order_on_every_database(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    paths = ["a-b", "a.b", "aB", "ab", "a b", "Z", "ä", "数", "a/b"]
    for path in paths:
        ledger.add_output(attempt, path=path, sha256="0" * 64, size_bytes=1)
    assert [output.path for output in ledger.outputs_of(run_id)] == sorted(paths)


def test_lines_of_tens_of_megabytes_are_kept(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    line = {"q": 1, "t": 1.0, "k": "tag", "p": {"a": "x" * 30_000_000}}
    ledger.append(attempt, [Stream(rank=0, process="1-1", lines=[line])], exported=False)
    (batch,) = ledger.unfolded()
    assert batch.lines == [line]


def test_ids_are_never_used_again(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    row = {"run_id": run_id, "attempt_id": f"{run_id}-1", "attempt": 1, "rank": 0, "process": "1-1"}
    row |= {"lines": "[]", "folded": False, "exported": False}
    for _ in range(2):
        with ledger.writing() as connection:
            connection.execute(insert(batches).values(row))
        with ledger.reading() as connection:
            last = connection.scalar(select(func.max(batches.c.batch_id)))
        with ledger.writing() as connection:
            connection.execute(delete(batches))
        with suppress(RuntimeError), ledger.writing() as connection:
            connection.execute(insert(batches).values(row))
            raise RuntimeError
    with ledger.writing() as connection:
        connection.execute(insert(batches).values(row))
        assert connection.scalar(select(func.max(batches.c.batch_id))) > last


def test_a_writer_has_the_ledger_to_itself_from_its_first_line(place: Path | str, ledger: Ledger) -> None:
    """Two processes' worth of engines count up what they read; one lost update would show."""
    other = open_database(place)

    def count_up(engine: Any) -> None:
        for _ in range(40):
            with writing(engine) as connection:
                known = connection.scalar(select(func.max(changes.c.attempt))) or 0
                row = {"run_id": "r", "attempt": known + 1, "time": 0.0, "status": "RUNNING"}
                connection.execute(insert(changes).values(row))

    threads = [threading.Thread(target=count_up, args=(engine,)) for engine in (ledger.engine, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reading(other) as connection:
        found = connection.execute(select(func.count(), func.max(changes.c.attempt))).one()
    other.dispose()
    assert tuple(found) == (160, 160)


def test_readers_have_one_view_and_wait_for_no_writer(place: Path | str, ledger: Ledger) -> None:
    run_id = _submit(ledger)
    other = open_database(place)
    here = attempts.c.attempt_id == f"{run_id}-1"
    count = select(func.count()).select_from(changes)
    with reading(ledger.engine) as view:
        before = view.scalar(count)
        with writing(other) as connection:
            connection.execute(attempts.update().where(here).values(message="news"))
            row = {"run_id": run_id, "attempt": 1, "time": 0.0, "status": "RUNNING"}
            connection.execute(insert(changes).values(row))
            # the writer is still at it, and nobody waits
            began = time.monotonic()
            assert view.scalar(select(attempts.c.message).where(here)) == ""
            assert time.monotonic() - began < 5
        assert (view.scalar(count), view.scalar(select(attempts.c.message).where(here))) == (before, "")
    other.dispose()
    assert ledger.view(run_id).message == "news"


def test_two_that_make_a_new_ledger_at_once_make_one(place: Path | str) -> None:
    faults: list[BaseException] = []

    def make() -> None:
        try:
            found = Ledger(place)
            Leases(found.engine).request("x", {"slots": 1})
            found.close()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_what_was_taken_in_although_the_answer_was_lost_is_in_the_curves(ledger: Ledger) -> None:
    """A connection that breaks after its commit cannot be had at will: here the answer is thrown away."""
    run_id = _submit(ledger)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    append, losing = ledger.append, [False]

    def lossy(*args: Any, **kwargs: Any) -> Any:
        result = append(*args, **kwargs)
        if losing[0]:
            raise ConnectionError("the answer is lost")
        return result

    ledger.append = lossy  # type: ignore[method-assign]
    ingest = Ingest(ledger, publish=lambda *_: None, exported=True)

    def send(first: int, count: int) -> None:
        lines = [
            {"q": q, "t": 1.0, "k": "m", "s": q, "m": {"loss": 0.5}} for q in range(first, first + count)
        ]
        ingest.accept(attempt, [Stream(rank=0, process="1-1", lines=lines)])

    send(1, 10)
    losing[0] = True
    with pytest.raises(ConnectionError):
        send(11, 10)
    losing[0] = False
    # the agent sends them again, and more; then the fold is saved, and a new launcher reads it
    send(11, 15)
    ingest.checkpoint()
    for found in (ingest, Ingest(ledger, publish=lambda *_: None, exported=True)):
        found.replay()
        assert [row["count"] for row in found.series(f"{run_id}-1")] == [25]


def test_a_wall_time_counts_from_the_start_and_holds_for_the_newest_submit(ledger: Ledger) -> None:
    ledger.set_wall_time("ann", "p-1", WallTime(seconds=10, source="rule a"))
    ledger.set_wall_time("eve", "p-1", WallTime(seconds=0, source="rule of another"))
    run_id = _submit(ledger)
    now = time.time()
    assert ledger.overdue(now + 1000) == []
    ledger.grant()
    assert ledger.overdue(now + 5) == []
    (late,) = ledger.overdue(now + 20)
    assert (late.owner, late.run_id, late.limit) == ("ann", run_id, WallTime(seconds=10, source="rule a"))
    ledger.set_wall_time("ann", "p-1", WallTime(seconds=100, source="preset b"))
    assert ledger.overdue(now + 20) == []
    ledger.cancel("ann", run_id, reason="enough")
    assert ledger.overdue(now + 1000) == []
    ledger.set_wall_time("ann", "p-1", None)


def test_what_a_person_has_under_way_is_theirs_and_not_over(ledger: Ledger) -> None:
    first, _ = _submit(ledger, 1), _submit(ledger, 2)
    _submit(ledger, 3, owner="eve")
    assert ledger.under_way("ann") == [SPEC, SPEC]
    ledger.cancel("ann", first, reason="enough")
    assert ledger.under_way("ann") == [SPEC]
    assert (ledger.knows("ann", "p-1"), ledger.knows("eve", "p-1"), ledger.knows("eve", "\0")) == (
        True,
        False,
        False,
    )


def test_the_export_to_mlflow_is_worked_off_step_by_step(ledger: Ledger) -> None:
    run_id = _submit(ledger, **SNAPSHOT)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    lines = [{"q": 1, "t": 1.0, "k": "m", "s": 1, "m": {"loss": 0.5}}]
    ledger.append(attempt, [Stream(rank=0, process="1-1", lines=lines)], exported=False)
    files = (SnapshotFile(path="MLmodel", sha256="0" * 64, size_bytes=3),)
    assert ledger.add_version(attempt, name="net", files=files, meta={"a": ODD})
    assert not ledger.add_version(attempt, name="net", files=files, meta={})
    # nothing before MLflow knows the run
    assert (ledger.batches_to_export(10), ledger.versions_to_register()) == ([], [])
    assert [run.run_id for run in ledger.runs_to_open()] == [run_id]
    ledger.set_mlflow_run(run_id, "m-1")
    assert ledger.runs_to_open() == []
    (batch,) = ledger.batches_to_export(10)
    assert (batch.mlflow_run_id, batch.lines) == ("m-1", lines)
    ledger.observe(attempt.attempt_id, JobStatus(status=Status.FINISHED, phase="ended"))
    assert ledger.runs_to_close() == []
    ledger.mark_exported([batch.batch_id])
    (end,) = ledger.runs_to_close()
    assert (end.run_id, end.status) == (run_id, Status.FINISHED)
    ledger.mark_closed(run_id, 1)
    assert ledger.runs_to_close() == []
    (pending,) = ledger.versions_to_register()
    assert (pending.name, pending.meta, pending.files) == ("net", {"a": ODD}, files)
    assert not ledger.view(run_id).tracked
    ledger.mark_registered(pending.id, version="1", tags={"k": "v"})
    run = ledger.tracked_run(run_id)
    assert run is not None
    assert ledger.note_version(run, name="by hand", version="7", tags={}, created=1.0)
    assert not ledger.note_version(run, name="by hand", version="7", tags={}, created=1.0)
    assert [model.name for model in ledger.models_of("ann")] == ["by hand", "net"]
    assert ledger.set_alias("ann", "net", alias="champion", version="1", by="ann") is None
    assert ledger.find_version("ann", "net", "1").aliases == ("champion",)
    assert ledger.view(run_id).tracked
    again = ledger.retry("ann", run_id, token_of=lambda name: name)
    assert [run.attempt for run in ledger.runs_to_reopen()] == [2]
    ledger.mark_reopened(run_id, 2)
    assert ledger.runs_to_reopen() == []
    # what ended long ago is let go of, once
    assert [row.attempt_id for row in ledger.ended_before(time.time() + 1)] == [attempt.attempt_id]
    ledger.mark_discarded(attempt.attempt_id)
    assert ledger.ended_before(time.time() + 1) == []
    assert [row.attempt_id for row in ledger.active()] == [again]
    ledger.note_snapshot("ann", "s", files=1, size_bytes=2**40)
    ledger.note_snapshot("ann", "s", files=1, size_bytes=2**40)


def _submit(ledger: Ledger, number: int = 1, owner: str = "ann", **changes: Any) -> str:
    promotion_id = f"p-{number}"
    run_id, new = ledger.submit(owner, promotion_id, spec=SPEC, snapshot=changes, token_of=lambda name: name)
    assert new
    return run_id


def test_the_processes_of_an_attempt_have_a_bound(ledger: Ledger) -> None:
    """All of them are read at each call."""
    run_id = _submit(ledger)
    attempt = ledger.attempt(f"{run_id}-1")
    assert attempt is not None
    lines = [{"q": 1, "t": 1.0, "k": "m", "s": 1, "m": {"loss": 1.0}}]
    many = [Stream(rank=0, process=f"p{number}", lines=lines) for number in range(50_001)]
    with pytest.raises(UserError) as caught:
        ledger.append(attempt, many, exported=True)
    assert caught.value.code == "too-many-processes"
    assert ledger.append(attempt, many[:1], exported=True)[1] == [{"rank": 0, "process": "p0", "q": 1}]
