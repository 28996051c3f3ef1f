"""Gangs whose nodes must lie close: two HyperNodes of three fake nodes each, with a GPU a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bed.kit import Api

GROUP = ("topology.volcano.sh", "v1alpha1", "hypernodes")


@pytest.fixture
def racks(api: Api, nodes: Callable[..., list[str]]) -> Iterator[Callable[..., list[set[str]]]]:
    """Two HyperNodes of `count` nodes with `gpus` each: `racks(3, gpus=1)`; the names of the nodes of either."""
    made: list[str] = []

    def make(count: int, *, gpus: int) -> list[set[str]]:
        names = nodes(2 * count, gpus=gpus)
        # neighbours by name lie apart
        found = [set(names[0::2]), set(names[1::2])]
        for number, members in enumerate(found):
            name = f"{names[0]}-rack-{number}"
            chosen = [
                {"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in sorted(members)
            ]
            body = {"apiVersion": "/".join(GROUP[:2]), "kind": "HyperNode", "metadata": {"name": name}}
            api.custom.create_cluster_custom_object(*GROUP, {**body, "spec": {"tier": 1, "members": chosen}})
            made.append(name)
        return found

    yield make
    for name in made:
        api.custom.delete_cluster_custom_object(*GROUP, name)


def test_a_gang_is_placed_within_one_hypernode(bench: Any, racks: Callable[..., list[set[str]]]) -> None:
    found = racks(3, gpus=1)
    first, second = (bench.submit(preset="near", workers=3) for _ in range(2))
    bench.wait_phase(first, "Running")
    bench.wait_phase(second, "Running")
    places = [{pod.spec.node_name for pod in bench.pods(handle)} for handle in (first, second)]
    assert places in (found, found[::-1])


def test_a_cluster_without_hypernodes_hears_no_wish_for_nodes_that_lie_close_and_the_plan_says_so(
    bench: Any, nodes: Callable[..., list[str]], racks: Callable[..., list[set[str]]]
) -> None:
    """Volcano places such a gang anywhere, and says nothing of it."""

    def told() -> list[str]:
        notes = bench.backend.plan(bench.spec(preset="near", workers=2), bench.attempt())
        return [note for note in notes if "HyperNodes" in note]

    nodes(2, gpus=1)
    assert told() == [
        "The preset near wants nodes that lie close, and the cluster has no HyperNodes to tell which do: Volcano takes any."
    ]
    handle = bench.submit(preset="near", workers=2)
    bench.wait_phase(handle, "Running")
    assert len({pod.spec.node_name for pod in bench.pods(handle)}) == 2
    racks(1, gpus=1)
    assert told() == []


# the scheduler names no group that lacks the numbers: it is told after 20 s
@pytest.mark.parametrize(("count", "gpus", "workers", "each"), [(3, 1, 4, 1), (2, 3, 3, 2)])
def test_a_gang_that_no_hypernode_can_hold_waits_although_the_cluster_could(
    bench: Any, racks: Callable[..., list[set[str]]], count: int, gpus: int, workers: int, each: int
) -> None:
    """Too few GPUs in each, and enough that lie apart: of six on two nodes, three pairs cannot be had."""
    racks(count, gpus=gpus)
    near = bench.submit(preset="near", workers=workers, gpus_per_worker=each)
    found = bench.wait_reason(near, "topology", seconds=90)
    assert "within tier 1 of the network" in found.message
    anywhere = bench.submit(workers=workers, gpus_per_worker=each)
    bench.wait_phase(anywhere, "Running")
    assert not any(pod.spec.node_name for pod in bench.pods(near))
