"""Real gangs of two that check their network first, over torch and gloo on loopback: torch is loaded six times each."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    print("trained", os.environ.get("SLICELIFT_CHECK"))
    dist.destroy_process_group()
"""


def wish(**asked: Any) -> str:
    """As the agent puts it into the environment."""
    return json.dumps({"all_reduce": {"bytes": 2**20, **asked}})


def left(attempt: Any) -> dict[str, Any]:
    """check.json."""
    found: dict[str, Any] = json.loads((attempt.root / "check.json").read_text(encoding="utf-8"))
    return found


def test_a_gang_measures_then_trains_without_a_trace_of_it(attempt: Any) -> None:
    code = attempt.run(TRAINING, nproc=2, SLICELIFT_CHECK=wish(least_gbit=0.001, on_slow="fail"))
    assert code == 0, (attempt.root / "agent.log").read_text() + attempt.log(1)
    found = left(attempt)
    assert (found["ranks"], found["size_bytes"], found["slowest"]) == (2, 2**20, None)
    assert 0 < found["latency_seconds"] < 10
    assert 0 < found["seconds"] < 10
    assert attempt.outcome == {"exit_code": 0, "failures": []}
    assert all("trained None\n" in attempt.log(rank) for rank in (0, 1))
    (event,) = [event for event in attempt.events() if event["k"] == "tag"]
    assert event["p"]["network.all_reduce"].startswith("All-reduce: ")
    assert event["p"]["network.all_reduce"].endswith("; the preset expects 0.001 Gbit/s")
    assert attempt.events(1) == []


def test_a_gang_on_a_slow_network_does_not_train(attempt: Any) -> None:
    assert attempt.run(TRAINING, nproc=2, SLICELIFT_CHECK=wish(least_gbit=1e5, on_slow="fail")) == 1
    (failure,) = attempt.outcome["failures"]
    assert (failure["rank"], failure["reason"]) == (None, "network-slow")
    assert failure["message"].endswith("and the preset expects 100000 Gbit/s.")
    assert not list((attempt.root / "ranks").iterdir())
    (event,) = attempt.events()
    assert event["p"]["network.all_reduce"].startswith("Slow network: ")
