"""A lost node, an API server that restarts, a launcher that is killed: what is told meanwhile, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from slicelift.models import Status

pytestmark = pytest.mark.drill


@pytest.fixture
def away(own_bed: Cluster) -> Iterator[Callable[[str], None]]:
    """Kills a program of the bed; it runs again when the test is over."""
    killed: list[str] = []

    def kill(name: str) -> None:
        own_bed.kill(name)
        killed.append(name)

    yield kill
    for name in killed:
        if own_bed.programs()[name] is None:
            own_bed.start(name)


def test_an_api_server_that_is_killed_loses_nothing(
    bench: Any, own_bed: Cluster, nodes: Any, away: Any
) -> None:
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    away("kube-apiserver")
    # what was known is known, and after a while it is said that nothing new comes
    assert bench.backend.status(handle).phase == "Running"
    found = bench.wait_reason(handle, "cluster-away", seconds=30)
    assert (found.status, found.phase) == (Status.STARTING, "Running")
    own_bed.start("kube-apiserver")
    bench.wait(handle, lambda found: found.reason == "", seconds=20)
    bench.end_pods(handle)
    assert bench.wait(handle, lambda found: found.status.terminal).status == Status.FINISHED


def test_another_launcher_finds_it_again_by_its_handle(bench: Any, make_bench: Any, nodes: Any) -> None:
    nodes(1)
    spec, attempt = bench.spec(), bench.attempt()
    handle = bench.backend.submit(spec, attempt)
    bench.backend.close()
    other = make_bench(queue=bench.queue)
    # killed between the submit and its note: it is submitted again
    assert other.backend.submit(spec, attempt) == handle
    other.wait_phase(handle, "Running")
    assert other.backend.cancel(handle, reason="test", grace_seconds=0).gone


def test_on_a_node_that_does_not_answer_the_end_is_unproven_until_it_is_back(
    make_bench: Any, own_bed: Cluster, api: Api, image: str, away: Any
) -> None:
    """Takes a minute: a node is lost after 40 s without a word of its kubelet."""
    bench = make_bench(image=image, share={"nvidia.com/mig-1g.10gb": "2"})
    handle = bench.submit(preset="real", workers=1, gpus_per_worker=0, slice="1g.10gb")
    bench.wait_phase(handle, "Running", seconds=60)
    away("kubelet")
    found = bench.wait_reason(handle, "node-lost", seconds=90)
    assert found.status == Status.RUNNING
    assert found.message.endswith("with 1 of 1 workers on it; 1 slice 1g.10gb there still count as used.")
    proof = bench.backend.cancel(handle, reason="test", grace_seconds=0)
    assert not proof.gone
    (left,) = proof.left
    assert "which does not answer; 1 slice 1g.10gb still count as used" in left
    own_bed.start("kubelet")
    kit.wait_for("proof", lambda: bench.backend.cancel(handle, reason="test", grace_seconds=0).gone)
    kit.wait_for("the quota", lambda: bench.allocated("nvidia.com/mig-1g.10gb") == "0", seconds=20)
