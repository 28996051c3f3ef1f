"""A real agent whose gang checks its network first, over gloo on loopback: torch is loaded six times."""

from __future__ import annotations

from typing import Any

import pytest
from slicelift.backends.local import Local
from slicelift.models import JobStatus, Status

TRAINING = """
import time
import slicelift
slicelift.log(step=0, loss=1.0)
time.sleep(3)
"""
ASKED = {"all_reduce": {"bytes": 2**20, "least_gbit": 0.001, "on_slow": "fail"}}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine goes without a check: here its agents are asked for one, as those of pods are."""
    plain = Local._request
    monkeypatch.setattr(Local, "_request", lambda *of: plain(*of) | {"check": ASKED})


@pytest.mark.usefixtures("checks")
def test_a_gang_starts_until_its_network_is_checked(bench: Any, launcher: Any) -> None:
    handle = bench.submit(TRAINING, workers=2)
    found = bench.wait(handle, lambda status: "network" in status.message)
    assert found == JobStatus(
        status=Status.STARTING, phase="preparing", message="Checking the network between the workers"
    )
    bench.wait(handle, lambda status: status.status == Status.RUNNING)
    done = bench.wait_ended(handle)
    assert done == JobStatus(status=Status.FINISHED, phase="ended", exit_code=0), bench.log(handle)
    states = [(state["state"], state["message"]) for state in launcher.states]
    assert states.index(("preparing", "Checking the network between the workers")) < states.index(
        ("running", "")
    )
    # told once, however long it takes
    assert bench.log(handle).count("Checking the network between the workers") == 1
    tags = [line["p"] for lines in launcher.events.values() for line in lines if line["k"] == "tag"]
    assert [set(tag) for tag in tags] == [{"network.all_reduce"}]
    assert launcher.points("loss") == {0: [1.0], 1: [1.0]}
