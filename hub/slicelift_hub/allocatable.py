"""What a cluster has for sessions and what of it is free: the nodes' devices, minus what pods hold, within a queue's quota.

Pure. What a pod has asked for counts whoever it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slicelift.errors import Unavailable
from slicelift_profiles.catalog import Catalog

from slicelift_hub.choices import Machine, pool_of
from slicelift_hub.counting import Object, held_by_node, is_device, limits, offered, queue_state
from slicelift_hub.inventory import Inventory
from slicelift_hub.leases import Pool

SOURCE = "cluster"


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
    """Devices by resource, over all nodes that take pods."""
    taken = held_by_node(pods)
    found: dict[str, Count] = {}
    for node in nodes:
        used = taken.get(node["metadata"]["name"], {})
        for name, number in offered(node).items():
            if is_device(name):
                free = max(0, int(number - used.get(name, 0.0)))
                found[name] = _with(found.get(name, Count()), int(number), free)
    return found


def within(counts: Mapping[str, Count], queues: Sequence[Object]) -> dict[str, Count]:
    """The counts cut down to what the queues still give. What a queue does not list, it does not limit."""
    found = dict(counts)
    for queue in queues:
        for name, limit, used in limits(queue):
            if name in found:
                one, left = found[name], max(0, int(limit - used))
                found[name] = Count(
                    total=min(one.total, int(limit)),
                    free=min(one.free, left),
                    together=min(one.together, left),
                )
    return found


def _must_be_open(queue: Object) -> None:
    state = queue_state(queue)
    if state != "Open":
        message = f"The queue {queue['metadata']['name']} is {state.lower()}: no session can start."
        raise Unavailable("queue-closed", message, "Whoever runs the cluster can open it.")


def _with(so_far: Count, number: int, free: int) -> Count:
    return Count(total=so_far.total + number, free=so_far.free + free, together=max(so_far.together, free))
