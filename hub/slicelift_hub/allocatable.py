"""What a cluster has for sessions and what of it is free: the nodes' devices, minus what pods hold, within a queue's quota.

Pure. Objects are those of the Kubernetes API as JSON has them. What a pod has asked for counts from when it is bound to
a node, whoever it belongs to, until it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicelift.errors import Unavailable
from slicelift_profiles.catalog import Catalog

from slicelift_hub.choices import Machine, pool_of
from slicelift_hub.inventory import Inventory
from slicelift_hub.leases import Pool

SOURCE = "cluster"
DEVICES = "nvidia.com/"
# while a GPU is cut anew its node still tells what it had
_CUT, _CUT_WELL = "nvidia.com/mig.config.state", "success"
_OPEN = "Open"
_OVER = ("Succeeded", "Failed")
Object = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Count:
    """Devices of one kind: all there are, those that are free, and how many of these are on one node."""

    total: int = 0
    free: int = 0
    together: int = 0


def make_machine(
    catalog: Catalog, nodes: Iterable[Object], pods: Iterable[Object], queues: Sequence[Object]
) -> Machine:
    """The cluster as the form's choices see it. `queues`: the one of sessions and all above it.

    Raises Unavailable "queue-closed" where one of them takes nothing.
    """
    for queue in queues:
        _must_be_open(queue)
    counts = within(count(nodes, pods), queues)
    pools: dict[str, Pool] = {}
    together: dict[str, int] = {}
    for profile in catalog.profiles:
        if profile.resource_name:
            name, found = pool_of(profile), counts.get(profile.resource_name, Count())
            pools[name] = Pool(name=name, total=found.total, free=found.free)
            together[name] = found.together
    return Machine(inventory=Inventory(source=SOURCE), pools=pools, together=together, cluster=True)


def count(nodes: Iterable[Object], pods: Iterable[Object]) -> dict[str, Count]:
    """By resource, over all nodes that take pods."""
    taken: dict[str, dict[str, int]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and pod.get("status", {}).get("phase") not in _OVER:
            held = taken.setdefault(node, {})
            for name, number in wanted(pod).items():
                held[name] = held.get(name, 0) + number
    found: dict[str, Count] = {}
    for node in nodes:
        if takes_pods(node):
            held = taken.get(node["metadata"]["name"], {})
            for name, number in _devices(node["status"].get("allocatable")).items():
                found[name] = _with(found.get(name, Count()), number, max(0, number - held.get(name, 0)))
    return found


def wanted(pod: Object) -> dict[str, int]:
    """The devices that a pod holds: of its containers together, or of the init container that wants most."""
    spec = pod["spec"]
    init = spec.get("initContainers") or []
    # one that is always started again stays beside the containers
    beside = [each for each in init if each.get("restartPolicy") == "Always"]
    total: dict[str, int] = {}
    for container in (*spec.get("containers", ()), *beside):
        for name, number in _devices(container.get("resources", {}).get("requests")).items():
            total[name] = total.get(name, 0) + number
    for container in init:
        for name, number in _devices(container.get("resources", {}).get("requests")).items():
            total[name] = max(total.get(name, 0), number)
    return total


def takes_pods(node: Object) -> bool:
    """Whether it is ready, not cordoned, and no GPU of it is being cut anew."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    cut = (node["metadata"].get("labels") or {}).get(_CUT, _CUT_WELL)
    return ready and not node.get("spec", {}).get("unschedulable") and cut == _CUT_WELL


def within(counts: Mapping[str, Count], queues: Sequence[Object]) -> dict[str, Count]:
    """The counts cut down to what the queues still give. What a queue does not list, it does not limit."""
    found = dict(counts)
    for queue in queues:
        used = _devices(queue.get("status", {}).get("allocated"))
        for name, limit in _devices(queue["spec"].get("capability")).items():
            if name in found:
                one, left = found[name], max(0, limit - used.get(name, 0))
                found[name] = Count(
                    total=min(one.total, limit), free=min(one.free, left), together=min(one.together, left)
                )
    return found


def _must_be_open(queue: Object) -> None:
    state = queue.get("status", {}).get("state") or _OPEN
    if state != _OPEN:
        message = f"The queue {queue['metadata']['name']} is {state.lower()}: no session can start."
        raise Unavailable("queue-closed", message, "Whoever runs the cluster can open it.")


def _with(so_far: Count, number: int, free: int) -> Count:
    return Count(total=so_far.total + number, free=so_far.free + free, together=max(so_far.together, free))


def _devices(amounts: Mapping[str, Any] | None) -> dict[str, int]:
    """Counted ones only: devices are whole numbers, written as such."""
    return {
        name: int(value)
        for name, value in (amounts or {}).items()
        if name.startswith(DEVICES) and str(value).isdecimal()
    }
