"""Gangs whose GPUs do nothing: when that is told, when they are ended, and without evidence nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slicelift.models import JobSpec, JobStatus, Status
from slicelift_hub.launcher import chores
from slicelift_hub.launcher.idle import IdleLimit, judge_idle
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.nodes import Report, fold_idle, take_in

from tests.waiting import wait_for

WORDS = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "python3"}
SPEC = JobSpec(name="job", snapshot_id="0" * 64, workers=2, gpus_per_worker=1, preset="watched", **WORDS)
RUNNING = JobStatus(status=Status.RUNNING, phase="running")
STOP, TELL = IdleLimit(minutes=30, stop=True), IdleLimit(minutes=30)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    made.leased = False
    yield made
    made.close()


@pytest.mark.parametrize(
    ("limit", "minutes", "reason", "said"),
    [
        (TELL, 29, "", None),
        (TELL, 30, "", "All GPUs have been idle for 30 min."),
        (TELL, 90, "gpus-idle", None),
        (TELL, 0, "gpus-idle", "The GPUs work again."),
        (TELL, 0, "gpus-busy", None),
        (STOP, 14, "", None),
        (STOP, 15, "", "All GPUs have been idle for 15 min; the job is ended after 30 min of that."),
        (STOP, 29, "gpus-idle", None),
        (STOP, 0, "gpus-idle", "The GPUs work again."),
        # nobody is ended untold
        (STOP, 45, "", "All GPUs have been idle for 15 min; the job is ended after 30 min of that."),
        (IdleLimit(minutes=1, stop=True), 0, "", None),
    ],
)
def test_what_is_said_when(limit: IdleLimit, minutes: int, reason: str, said: str | None) -> None:
    found = judge_idle(limit, minutes=minutes, reason=reason)
    assert (found and found.message) == said
    assert found is None or found.status == Status.RUNNING


def test_one_that_was_told_is_ended_at_its_limit() -> None:
    ended = JobStatus(status=Status.KILLED, reason="GPUs idle for 30 min")
    assert judge_idle(STOP, minutes=30, reason="gpus-idle") == ended


def test_a_gang_is_idle_as_long_as_the_node_that_did_something_last() -> None:
    nodes = take_in({}, Report(node=0, state="running", idle=40))
    assert fold_idle(nodes) == 40
    assert fold_idle(take_in(nodes, Report(node=1, state="running", idle=3))) == 3
    # of a node that does not tell nobody knows, and one that is over needs not to
    assert fold_idle(take_in(nodes, Report(node=1, state="running"))) is None
    assert fold_idle(take_in(nodes, Report(node=1, state="ended"))) == 40
    assert fold_idle({}) is None


def test_it_is_told_in_the_card_and_then_the_run_is_ended(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    services, changed = _services(ledger, STOP)
    assert ledger.idle() == []
    for minutes in (3, 20, 31):
        for node in (0, 1):
            ledger.agent_said(f"{run_id}-1", RUNNING, ranks=[], node=node, needed=2, idle=minutes)
        asyncio.run(chores._Chores.look_at_gpus(SimpleNamespace(_services=services)))  # type: ignore[arg-type]
        if minutes == 20:
            told = ledger.view(run_id)
            assert (told.status, told.reason) == (Status.RUNNING, "gpus-idle")
            assert told.message.startswith("All GPUs have been idle for 15 min")
    view = ledger.view(run_id)
    assert (view.status, view.reason) == (Status.CANCELLING, "GPUs idle for 30 min")
    assert changed == [run_id, run_id]
    # it is being ended, and asked no more
    assert ledger.idle() == []


def test_a_preset_without_a_limit_ends_nobody(ledger: Ledger) -> None:
    run_id = _submit(ledger)
    services, changed = _services(ledger, None)
    for node in (0, 1):
        ledger.agent_said(f"{run_id}-1", RUNNING, ranks=[], node=node, needed=2, idle=1000)
    asyncio.run(chores._Chores.look_at_gpus(SimpleNamespace(_services=services)))  # type: ignore[arg-type]
    assert (ledger.view(run_id).status, changed) == (Status.RUNNING, [])


def test_an_agent_tells_for_how_long_and_nonsense_is_no_evidence(make_launcher: Any) -> None:
    """A launcher as a process: about two seconds."""
    launcher = make_launcher("--backend", "steered.Placed").start()
    try:
        view = launcher.submit(workers=1, gpus_per_worker=1)
        wait_for("the backend to have it", lambda: launcher.client.job(view.run_id).handle)
        agent, found = launcher.agent(view), []
        for idle in (7, None, -1, True, "7", 10**12):
            agent.post("state", {"state": "running", "node": 0, "idle_minutes": idle})
            found.append(launcher.client.attempts(view.run_id)[0]["nodes"][0].get("idle"))
        assert found == [7, None, None, None, None, None]
        launcher.client.cancel(view.run_id)
    finally:
        launcher.close()


def _submit(ledger: Ledger) -> str:
    run_id, _ = ledger.submit("ann", "p-1", spec=SPEC, snapshot={}, token_of=lambda name: name)
    ledger.set_handle(f"{run_id}-1", f"volcano://jobs/{run_id}-1")
    return run_id


def _services(ledger: Ledger, limit: IdleLimit | None) -> tuple[Any, list[str]]:
    """As much of a launcher's parts as the chore needs, and the runs whose view changed."""

    async def call(function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        return function(*given, **more)

    changed: list[str] = []
    parts = {
        "ledger": ledger,
        "call": call,
        "policy": SimpleNamespace(idle_limit=lambda preset: limit if preset == "watched" else None),
        "announcer": SimpleNamespace(changed=changed.append),
        "dispatch": SimpleNamespace(poke=lambda _: None),
    }
    return SimpleNamespace(**parts), changed
