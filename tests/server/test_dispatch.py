"""The way of an attempt at the moments that a whole launcher passes too quickly: a real ledger, a steered backend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import GONE
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import JobStatus, Status
from slicelift_hub.launcher.chores import discard_ended

from tests.server.desk import PACE, Desk, end, until


@pytest.fixture
def desk(tmp_path: Path, database: Callable[[Path], Path | str]) -> Iterator[Desk]:
    made = Desk(database(tmp_path / "ledger.db"))
    yield made
    made.ledger.close()


def test_a_cancel_after_a_submit_without_a_handle_is_proved(desk: Desk) -> None:
    """The backend has it, the ledger's disk is full for the handle, and the user cancels."""
    run_id = desk.submit()

    async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function == desk.ledger.set_handle:
            raise OSError(28, "No space left on device")
        return await asyncio.to_thread(function, *args, **kwargs)

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: desk.backend.submits)
        desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
        dispatch.poke(f"{run_id}-1")
        await until(lambda: desk.status(run_id) == Status.KILLED)
        await end(dispatch, queue)

    desk.call = call
    asyncio.run(go())
    assert desk.backend.cancels == [f"steered://{run_id}-1"]


def test_a_backend_that_knows_it_again_gets_the_whole_time_the_next_time(desk: Desk) -> None:
    """About 5 s: three times half of what it has."""
    run_id = desk.submit()
    unknown = JobStatus(status=Status.UNKNOWN, reason=GONE)
    running = JobStatus(status=Status.RUNNING)

    async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        """The agent's own post follows at once whatever the backend says: the ledger has RUNNING again."""
        found = await asyncio.to_thread(function, *args, **kwargs)
        if function == desk.ledger.observe and args[1].status == Status.UNKNOWN:
            await asyncio.to_thread(desk.ledger.agent_said, f"{run_id}-1", running, ranks=[])
        return found

    async def go() -> None:
        dispatch = desk.dispatch(replace(PACE, unknown=1.6))
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: desk.status(run_id) == Status.RUNNING)
        for _ in range(3):
            desk.backend.said = unknown
            await asyncio.sleep(0.8)
            desk.backend.said, looks = running, desk.backend.looks
            await until(lambda looks=looks: desk.backend.looks > looks + 2)
        assert desk.status(run_id) == Status.RUNNING
        desk.backend.said = unknown
        await until(lambda: desk.status(run_id) == Status.FAILED)
        await end(dispatch, queue)

    desk.call = call
    asyncio.run(go())


@pytest.mark.parametrize("keep_jobs", [False, True])
def test_what_is_granted_while_the_launcher_stops_is_ended_or_left_for_the_next(
    desk: Desk, keep_jobs: bool
) -> None:
    run_id, granted, go_on = desk.submit(), threading.Event(), threading.Event()

    def grant() -> Any:
        found = desk.ledger.grant()
        granted.set()
        go_on.wait(10)
        return found

    async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(grant if function == desk.ledger.grant else function, *args, **kwargs)

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(granted.is_set)
        stopping = asyncio.create_task(dispatch.stop(keep_jobs=keep_jobs))
        await asyncio.sleep(0.05)
        go_on.set()
        assert await stopping == (0 if keep_jobs else 1)
        queue.cancel()

    desk.call = call
    asyncio.run(go())
    assert desk.status(run_id) == (Status.STARTING if keep_jobs else Status.KILLED)

    async def next_one() -> None:
        dispatch = desk.dispatch()
        assert await dispatch.adopt() == 1
        await until(lambda: desk.status(run_id) == Status.RUNNING)
        await dispatch.stop(keep_jobs=True)

    if keep_jobs:
        asyncio.run(next_one())


def test_what_the_backend_cannot_free_yet_is_asked_for_again(desk: Desk) -> None:
    run_id = desk.submit()
    desk.ledger.grant()
    desk.ledger.set_handle(f"{run_id}-1", f"steered://{run_id}-1")
    desk.backend.said = JobStatus(status=Status.FINISHED, phase="ended")
    desk.ledger.observe(f"{run_id}-1", desk.backend.said)
    for frees, left in ((False, 1), (True, 0)):
        desk.backend.frees = frees
        discard_ended(desk.ledger, desk.backend, keep_seconds=-1, longest_seconds=60)
        assert len(desk.ledger.ended_before(time.time() + 1)) == left


def test_a_cluster_that_is_away_is_told_in_the_card_and_asked_again(desk: Desk) -> None:
    """Of a backend that queues: while it waits, while it runs, and while it is to end."""
    desk.ledger.leased = desk.backend.leased = False
    desk.backend.away = Unavailable("webhook-silent", "Its webhook does not answer.")
    run_id = desk.submit()

    def told() -> tuple[Status, str, str]:
        view = desk.ledger.view(run_id)
        return view.status, view.reason, view.message

    async def go() -> None:
        dispatch = desk.dispatch(replace(PACE, listening=0.01))
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: told() == (Status.WAITING, "webhook-silent", "Its webhook does not answer."))
        desk.backend.said, desk.backend.away = JobStatus(status=Status.STARTING), None
        await until(lambda: told() == (Status.STARTING, "", ""))
        desk.ledger.agent_said(f"{run_id}-1", JobStatus(status=Status.RUNNING), ranks=[])
        # what the cluster can know is less than what agents say, and yet its words count
        desk.backend.said = JobStatus(status=Status.STARTING, reason="node-lost", message="Node a is lost.")
        await until(lambda: told() == (Status.RUNNING, "node-lost", "Node a is lost."))
        desk.backend.away = Unavailable("cluster-away", "It does not answer.")
        await until(lambda: told() == (Status.RUNNING, "cluster-away", "It does not answer."))
        desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
        dispatch.poke(f"{run_id}-1")
        await until(lambda: told() == (Status.CANCELLING, "cluster-away", "It does not answer."))
        desk.backend.away = None
        await until(lambda: told()[:2] == (Status.KILLED, "cancelled by ann"))
        await end(dispatch, queue)

    asyncio.run(go())
    # however often it was asked, one line each in the history
    said = [change.reason for change in desk.ledger.view(run_id).history]
    assert said.count("webhook-silent") == 1


def test_a_gang_takes_no_place_before_it_is_prepared(desk: Desk) -> None:
    desk.ledger.leased = desk.backend.leased = False
    desk.backend.unready = JobStatus(status=Status.WAITING, reason="data", message="Fetching the data.")
    run_id = desk.submit()

    def told() -> tuple[Status, str, str]:
        view = desk.ledger.view(run_id)
        return view.status, view.reason, view.message

    async def go() -> None:
        dispatch = desk.dispatch(replace(PACE, preparing=0.01))
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: told() == (Status.WAITING, "data", "Fetching the data."))
        await asyncio.sleep(0.1)
        assert desk.backend.submits == []
        desk.backend.unready = None
        await until(lambda: told() == (Status.RUNNING, "", ""))
        await end(dispatch, queue)

    asyncio.run(go())
    assert (len(desk.backend.submits), desk.backend.abandons) == (1, [])


def test_what_cannot_be_prepared_ends_the_job_before_it_took_anything(desk: Desk) -> None:
    desk.ledger.leased = desk.backend.leased = False
    desk.backend.unready = SliceliftError("data-not-in-remote", "The data lacks a.csv.", "Push it.")
    run_id = desk.submit()

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: desk.status(run_id).terminal)
        await end(dispatch, queue)

    asyncio.run(go())
    view = desk.ledger.view(run_id)
    assert (view.status, view.reason) == (Status.FAILED, "data-not-in-remote")
    assert "a.csv" in view.message
    assert desk.backend.submits == []


def test_a_cancel_ends_what_is_being_prepared(desk: Desk) -> None:
    """Also by a launcher that found the attempt under way: then the backend might have the gang, and is asked for the proof."""
    desk.ledger.leased = desk.backend.leased = False
    desk.backend.unready = JobStatus(status=Status.WAITING, reason="data", message="Fetching the data.")
    run_id = desk.submit()

    async def go() -> None:
        dispatch = desk.dispatch(replace(PACE, preparing=0.01))
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: desk.ledger.view(run_id).reason == "data")
        desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
        dispatch.poke(f"{run_id}-1")
        await until(lambda: desk.status(run_id) == Status.KILLED)
        await end(dispatch, queue)

    asyncio.run(go())
    assert desk.backend.abandons == [f"{run_id}-1"]


def test_a_suspend_gives_way_to_a_cancel(desk: Desk) -> None:
    """Its ranks may save for an hour, and now nobody wants that any more."""
    desk.backend.saves = True
    run_id = desk.submit()

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await until(lambda: desk.status(run_id) == Status.RUNNING)
        for reason in ("suspended by ann", "suspended by ben"):
            desk.ledger.cancel("ann", run_id, reason=reason)
            dispatch.poke(f"{run_id}-1")
            await until(lambda: len(desk.backend.cancels) > 1)
            view = desk.ledger.view(run_id)
            # it is asked again and again, and nothing is said to be wrong
            assert (view.status, view.reason, view.message) == (Status.CANCELLING, "suspended by ann", "")
        desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
        dispatch.poke(f"{run_id}-1")
        await until(lambda: desk.status(run_id) == Status.KILLED)
        assert desk.ledger.view(run_id).reason == "cancelled by ann"
        await end(dispatch, queue)

    asyncio.run(go())


@pytest.mark.parametrize("meanwhile", ["cancelled", "running"])
def test_what_changes_before_the_queue_is_served_is_not_forgotten(desk: Desk, meanwhile: str) -> None:
    """Cancelled by a quick user, or run by agents whose launcher was killed before it had the handle."""
    desk.ledger.leased = desk.backend.leased = False

    async def go() -> None:
        dispatch = desk.dispatch()
        queue = asyncio.create_task(dispatch.run())
        dispatch.wake()
        await asyncio.sleep(0.2)
        run_id = desk.submit()
        if meanwhile == "cancelled":
            desk.ledger.cancel("ann", run_id, reason="cancelled by ann")
        else:
            desk.ledger.agent_said(f"{run_id}-1", JobStatus(status=Status.RUNNING), ranks=[])
        dispatch.wake()
        if meanwhile == "cancelled":
            await until(lambda: desk.status(run_id) == Status.KILLED)
            assert desk.backend.submits == []
        else:
            await until(lambda: desk.ledger.view(run_id).handle)
        await end(dispatch, queue)

    asyncio.run(go())
