"""Gangs that the backend has and that nobody may lose: refused halfway, left by another launcher, not understood."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Refused
from slicelift.models import JobStatus, Status
from slicelift_hub.launcher.chores import discard_ended
from slicelift_hub.launcher.dispatch import Dispatch

from tests.server.desk import PACE, Desk, end, until

REFUSAL = Refused("resource-quota", "The namespace's ResourceQuota leaves no room.", "Ask for less.")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Of a backend that queues by itself."""
    made = Desk(tmp_path / "ledger.db")
    made.ledger.leased = made.backend.leased = False
    yield made
    made.ledger.close()


def serve(desk: Desk, scene: Callable[[Dispatch], Any]) -> None:
    """A launcher that starts, for the time of the scene."""

    async def go() -> None:
        dispatch = desk.dispatch(replace(PACE, listening=0.01))
        await dispatch.adopt()
        queue = asyncio.create_task(dispatch.run())
        await scene(dispatch)
        await end(dispatch, queue)

    asyncio.run(go())


@pytest.mark.parametrize("another", [False, True])
def test_a_gang_of_a_refused_submit_is_proved_gone_before_it_has_failed(desk: Desk, another: bool) -> None:
    """Its Job was made and what its pods read was not, in the same try or in one that another launcher was killed in."""
    backend, run_id = desk.backend, desk.submit()
    backend.left = ("pod w-0 on node a",)
    if another:
        backend.unready, backend.gangs = REFUSAL, {f"{run_id}-1"}
    else:
        backend.refusal = REFUSAL

    async def scene(_: Dispatch) -> None:
        await until(lambda: len(backend.cancels) > 1)
        view = desk.ledger.view(run_id)
        assert (view.status, view.message) == (
            Status.WAITING,
            "Still alive: pod w-0 on node a. Trying again.",
        )
        backend.left = ()
        await until(lambda: desk.status(run_id) == Status.FAILED)

    serve(desk, scene)
    view = desk.ledger.view(run_id)
    assert (view.reason, view.message) == (REFUSAL.code, str(REFUSAL))
    # it was not tried again, and what is left of it will be discarded
    assert (len(backend.submits), backend.gangs) == (0 if another else 1, set())
    assert view.handle == f"steered://{run_id}-1"


@pytest.mark.parametrize("submitted", [False, True])
def test_a_cancel_by_the_next_launcher_makes_nothing(desk: Desk, submitted: bool) -> None:
    run_id = desk.submit()
    desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
    desk.backend.gangs = {f"{run_id}-1"} if submitted else set()

    async def scene(_: Dispatch) -> None:
        await until(lambda: desk.status(run_id) == Status.KILLED)

    serve(desk, scene)
    assert (desk.backend.submits, desk.backend.gangs) == ([], set())
    assert desk.backend.cancels == ([f"steered://{run_id}-1"] if submitted else [])


def test_a_phase_that_nobody_knows_is_no_end(desk: Desk) -> None:
    run_id = desk.submit()
    desk.backend.said = JobStatus(status=Status.UNKNOWN, phase="Resting", reason="unknown-phase")

    async def scene(_: Dispatch) -> None:
        await until(lambda: desk.status(run_id) == Status.UNKNOWN)
        await asyncio.sleep(3 * PACE.unknown)
        assert desk.status(run_id) == Status.UNKNOWN
        # its agents may know more, and it is not told again
        desk.ledger.agent_said(f"{run_id}-1", JobStatus(status=Status.RUNNING), ranks=[])
        await asyncio.sleep(0.1)
        assert desk.status(run_id) == Status.RUNNING
        desk.backend.said = JobStatus(status=Status.FINISHED)
        await until(lambda: desk.status(run_id) == Status.FINISHED)

    serve(desk, scene)


def test_a_stop_ends_what_waits_in_the_cluster_and_leaves_what_waits_here(desk: Desk) -> None:
    desk.backend.said = JobStatus(status=Status.WAITING, reason="quota-full")
    there = desk.submit()

    async def scene(dispatch: Dispatch) -> None:
        await until(lambda: desk.ledger.view(there).reason == "quota-full")
        desk.backend.unready = JobStatus(status=Status.WAITING, reason="data", message="Fetching.")
        here = desk.submit("p-2")
        dispatch.wake()
        await until(lambda: desk.ledger.view(here).reason == "data")
        assert await dispatch.stop(keep_jobs=False) == 1
        assert (desk.status(there), desk.status(here)) == (Status.KILLED, Status.WAITING)

    serve(desk, scene)
    assert desk.backend.gangs == set()


def test_one_that_cannot_be_tidied_away_keeps_no_other(desk: Desk) -> None:
    runs = [desk.submit(f"p-{number}") for number in range(3)]
    for run_id in runs:
        desk.ledger.set_handle(f"{run_id}-1", f"steered://{run_id}-1")
        desk.ledger.observe(f"{run_id}-1", JobStatus(status=Status.FINISHED))
    desk.backend.closed = {f"steered://{runs[0]}-1"}
    discard_ended(desk.ledger, desk.backend, keep_seconds=-1, longest_seconds=60)
    assert [row.run_id for row in desk.ledger.ended_before(time.time() + 1)] == runs[:1]


def test_a_job_that_comes_while_the_launcher_still_adopts_is_taken_up_once(desk: Desk) -> None:
    """The queue is served before the list of what was left, which has it too."""
    listed = asyncio.Event()
    tasks: list[str] = []

    async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        found = await asyncio.to_thread(function, *args, **kwargs)
        if function == desk.ledger.active:
            await listed.wait()
        return found

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        run_id = desk.submit()
        desk.ledger.agent_said(f"{run_id}-1", JobStatus(status=Status.RUNNING), ranks=[])
        adopting = asyncio.create_task(dispatch.adopt())
        dispatch.wake()
        await until(lambda: desk.backend.submits)
        listed.set()
        assert await adopting == 1
        tasks.extend(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("drive "))
        assert tasks == [f"drive {run_id}-1"]
        await end(dispatch, queue)

    desk.call = call
    asyncio.run(go())
