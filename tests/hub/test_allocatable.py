"""What of a cluster is free for a session, by the API server's objects; and what the form says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from slicelift.errors import Unavailable
from slicelift_hub.allocatable import Count, count, make_machine
from slicelift_hub.choices import Offer, make_offers, refusal
from slicelift_hub.form import render_form
from slicelift_profiles.catalog import Catalog, Profile, load

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def node(name: str, *, ready: bool = True, labels: Mapping[str, str] | None = None, **devices: int) -> Any:
    """`gpu=4, small=2` of it; cores and memory beside them."""
    names = {"gpu": GPU, "small": SMALL, "large": LARGE}
    allocatable = {names[key]: str(number) for key, number in devices.items()}
    condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {},
        "status": {"conditions": [condition], "allocatable": {**allocatable, "cpu": "8", "memory": "1Gi"}},
    }


def container(**requests: int) -> dict[str, Any]:
    names = {"gpu": GPU, "small": SMALL, "large": LARGE}
    return {"resources": {"requests": {names[key]: str(number) for key, number in requests.items()}}}


def pod(on: str | None, *containers: Any, init: Sequence[Any] = (), phase: str = "Running") -> Any:
    spec = {"nodeName": on, "containers": list(containers), "initContainers": list(init)}
    return {"spec": spec, "status": {"phase": phase}}


def queue(*, parent: str = "", used: int = 0, **limits: int) -> Any:
    names = {"gpu": GPU, "small": SMALL, "large": LARGE}
    capability = {names[key]: str(number) for key, number in limits.items()}
    status = {"state": "Open", "allocated": {SMALL: str(used)}}
    return {
        "metadata": {"name": "q"},
        "spec": {"capability": capability, "parent": parent},
        "status": status,
    }


def offers(nodes: Sequence[Any], pods: Sequence[Any] = (), queues: Sequence[Any] = ()) -> dict[str, Offer]:
    machine = make_machine(load(), nodes, pods, queues)
    return {offer.profile.slug: offer for offer in make_offers(load(), machine, groups=["research"])}


def test_what_pods_hold_is_not_free_whoever_they_belong_to() -> None:
    pods = [
        pod("a", container(small=1), container()),
        pod("a", container(small=1), phase="Pending"),  # bound, on its way
        pod("a", container(small=1), phase="Succeeded"),
        pod(None, container(small=1)),  # not placed yet
        pod("b", container(gpu=3)),
    ]
    found = count([node("a", small=4), node("b", gpu=4), node("c", gpu=4)], pods)
    assert found == {
        SMALL: Count(total=4, free=2, together=2),
        GPU: Count(total=8, free=5, together=4),
    }


def test_a_session_gets_what_its_queue_and_all_above_still_give() -> None:
    found = offers([node("a", small=4)], queues=[queue(small=3, used=1), queue(small=10, used=9)])
    assert (found["slice-1g-10gb"].total, found["slice-1g-10gb"].free) == (3, 1)
    full = offers([node("a", small=4, large=1)], queues=[queue(small=2, used=2)])
    assert full["slice-1g-10gb"].reason == "No 1g.10gb slice is free. All 2 are in use."
    # nothing is said of it, so it is not limited
    assert full["slice-3g-40gb"].startable


def test_a_limit_in_kubernetes_own_form_is_one() -> None:
    """The API server writes 1000 as 1k."""
    full = queue()
    full["spec"]["capability"] = {SMALL: "1k"}
    full["status"]["allocated"] = {SMALL: "999"}
    found = offers([node("a", small=4)], queues=[full])
    assert (found["slice-1g-10gb"].total, found["slice-1g-10gb"].free) == (4, 1)


def test_no_session_starts_in_a_queue_that_is_closed() -> None:
    closed = queue(small=3)
    closed["status"]["state"] = "Closed"
    with pytest.raises(Unavailable) as caught:
        offers([node("a", small=4)], queues=[queue(small=3), closed])
    assert str(caught.value).startswith("The queue q is closed: no session can start.")


def test_the_form_speaks_of_a_cluster_and_calls_nothing_simulated() -> None:
    machine = make_machine(load(), [node("a", small=4), node("b", gpu=2)], [], [])
    found = {offer.profile.slug: offer for offer in make_offers(load(), machine, groups=["research"])}
    assert found["slice-2g-20gb"].reason == "This cluster has no 2g.20gb slice."
    assert refusal(found["slice-2g-20gb"]).code == "not-on-this-cluster"
    page = render_form(list(found.values()), machine, chosen="slice-1g-10gb")
    assert "4 of 4 free." in page
    assert "simulated" not in page
    assert "machine" not in page


def test_gpus_that_are_free_on_different_nodes_are_not_offered_together() -> None:
    pair = Profile(slug="two", display_name="Two GPUs", cpu=1, memory_bytes=1, gpus=2)
    catalog = Catalog(profiles=(pair,))
    for nodes, reason in (
        ([node("a", gpu=1), node("b", gpu=1)], "2 whole GPUs are not free on one node: at most 1."),
        ([node("a", gpu=2), node("b", gpu=1)], ""),
    ):
        machine = make_machine(catalog, nodes, [], [])
        assert make_offers(catalog, machine, groups=[])[0].reason == reason


def test_shares_are_given_out_on_a_cluster() -> None:
    shared = node("a")
    shared["status"]["allocatable"]["nvidia.com/gpu.shared"] = "4"
    assert offers([shared])["shared-gpu"].free == 4
    assert offers([node("a", gpu=1)])["shared-gpu"].reason == "This cluster has no share of a GPU."
