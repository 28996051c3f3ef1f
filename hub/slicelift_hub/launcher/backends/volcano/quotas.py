"""Queues in numbers: what a gang needs, what its queue and that queue's ancestors still have. Pure.

Volcano keeps back the reason when a queue is full at allocation, and gives no place in the queue: both are worked out
here, from objects as the API server gives them (or the part of each that `watching` keeps).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicelift_profiles.slices import GPU, RESOURCE_PREFIX

from slicelift_hub.counting import (
    Object,
    allocated,
    amounts,
    is_device,
    is_usable,
    limits,
    offered,
    plus,
    queue_state,
    times,
)
from slicelift_hub.launcher.backends.volcano.amounts import by_weight

ROOT = "root"


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What is missing, and where: `queue` "" is the cluster itself. `ever`: it could never be there."""

    resource: str
    needed: float
    free: float
    total: float
    queue: str = ""

    @property
    def ever(self) -> bool:
        return self.needed > self.total


def worker_needs(job: Object) -> dict[str, float]:
    """What one worker of a Volcano Job asks for."""
    return amounts(_first_task(job)["template"]["spec"]["containers"][0]["resources"]["requests"])


def gang_needs(job: Object) -> dict[str, float]:
    """What must be free at once for the job to start."""
    return times(worker_needs(job), int(job["spec"]["minAvailable"]))


def lineage(name: str, queues: Mapping[str, Object]) -> list[str]:
    """The queue and its ancestors but for the root, from the leaf up; an unknown queue has none."""
    found: list[str] = []
    while name and name != ROOT and name in queues and name not in found:
        found.append(name)
        name = queues[name].get("spec", {}).get("parent", "")
    return found


def quota_shortage(job: Object, queues: Mapping[str, Object]) -> Shortage | None:
    """The first limit of the queue or an ancestor that the gang does not fit in now: GPUs first, the impossible first."""
    needs = gang_needs(job)
    found = [
        Shortage(resource=resource, needed=needs[resource], free=limit - used, total=limit, queue=name)
        for name in lineage(job["spec"]["queue"], queues)
        for resource, limit, used in limits(queues[name])
        if needs.get(resource, 0.0) > limit - used
    ]
    order = by_weight({short.resource for short in found})
    return min(found, key=lambda short: (not short.ever, order.index(short.resource)), default=None)


def unlimited(job: Object, queues: Mapping[str, Object]) -> list[tuple[str, str]]:
    """(resource, queue) of each device of the job that a queue of its lineage has forgotten, though it limits others."""
    devices = [name for name in gang_needs(job) if is_device(name)]
    return [
        (resource, queue)
        for queue in lineage(job["spec"]["queue"], queues)
        if (listed := {name for name, _, _ in limits(queues[queue])})
        for resource in devices
        if resource not in listed
    ]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where gangs can lie: queues, nodes, and what our own pods hold of each node."""

    queues: Mapping[str, Object]
    nodes: Sequence[Object]
    held: Mapping[str, Mapping[str, float]]


def cluster_shortage(job: Object, ground: Ground) -> Shortage | None:
    """The first device of which the nodes that are open to the gang have too few free for it."""
    needs, total = gang_needs(job), device_totals(open_nodes(job, ground.nodes))
    for resource in by_weight(name for name in needs if is_device(name)):
        free, most = free_of(resource, job, ground), total.get(resource, 0.0)
        if needs[resource] > free:
            return Shortage(resource=resource, needed=needs[resource], free=free, total=most)
    return None


def free_of(resource: str, job: Object, ground: Ground) -> float:
    """At most how many of a device are free for a job.

    Queues do not tell on which nodes those in use are; of our own pods we know.
    """
    here = open_nodes(job, ground.nodes)
    ours = sum(_ours(ground, node, resource) for node in here)
    everywhere = free_devices(ground.queues, ground.nodes).get(resource, 0.0)
    return max(0.0, min(device_totals(here).get(resource, 0.0) - ours, everywhere))


def places(resource: str, job: Object, ground: Ground, *, each: float) -> int:
    """How many workers with `each` of a device find them on one node, at most: sessions' pods are not counted."""
    return sum(
        int((offered(node).get(resource, 0.0) - _ours(ground, node, resource)) // each)
        for node in open_nodes(job, ground.nodes)
    )


def open_nodes(job: Object, nodes: Sequence[Object]) -> list[Object]:
    """The nodes that take pods and to which selector and tolerations of the job let it come."""
    pod = _first_task(job)["template"]["spec"]
    return [node for node in nodes if is_usable(node) and _is_open(node, pod)]


def device_totals(nodes: Sequence[Object]) -> dict[str, float]:
    """All devices of the nodes that take pods."""
    total = plus({}, *map(offered, nodes))
    return {name: value for name, value in total.items() if is_device(name) and value}


def free_devices(queues: Mapping[str, Object], nodes: Sequence[Object]) -> dict[str, float]:
    """Devices that no queue has given out, over the whole cluster; what Volcano did not schedule is not seen."""
    used = plus({}, *(allocated(queue) for queue in top_queues(queues)))
    return {name: value - used.get(name, 0.0) for name, value in device_totals(nodes).items()}


def top_queues(queues: Mapping[str, Object]) -> list[Object]:
    """The queues whose use adds up to the cluster's: an ancestor's holds its children's."""
    return [
        queue
        for name, queue in queues.items()
        if name != ROOT and queue.get("spec", {}).get("parent", "") in ("", ROOT)
    ]


def is_leaf(name: str, queues: Mapping[str, Object]) -> bool:
    """Whether jobs may be submitted to it."""
    return name != ROOT and all(queue.get("spec", {}).get("parent") != name for queue in queues.values())


def make_capacity(
    queues: Mapping[str, Object], nodes: Sequence[Object], *, names: Iterable[str], waiting: Mapping[str, int]
) -> dict[str, Any]:
    """What `GET /capacity` answers: the keys of one machine, and `quotas` with every queue's limits and use.

    `names` are the queues shown; `waiting` counts our jobs that wait, by queue.
    """
    total, free = device_totals(nodes), free_devices(queues, nodes)
    shown = [name for name in sorted(names) if name in queues]
    cores = plus({}, *map(offered, nodes))
    used = plus({}, *(allocated(queue) for queue in top_queues(queues)))
    most, taken = int(cores.get("cpu", 0)), int(used.get("cpu", 0))
    return {
        "slots": {"total": most, "free": max(0, most - taken)},
        "gpus": _pair(GPU, total, free),
        "slices": [
            {"name": name.removeprefix(RESOURCE_PREFIX), **_pair(name, total, free), "simulated": False}
            for name in sorted(total)
            if name.startswith(RESOURCE_PREFIX)
        ],
        "queues": shown,
        "waiting": sum(waiting.values()),
        "quotas": [_make_quota(name, queues[name], waiting=waiting.get(name, 0)) for name in shown],
    }


def _make_quota(name: str, queue: Object, *, waiting: int) -> dict[str, Any]:
    rows: dict[str, dict[str, float | None]] = {
        resource: {"limit": limit, "used": used} for resource, limit, used in limits(queue)
    }
    for resource, used in allocated(queue).items():
        rows.setdefault(resource, {"limit": None, "used": used})
    return {"name": name, "state": queue_state(queue), "waiting": waiting, "resources": rows}


def _ours(ground: Ground, node: Object, resource: str) -> float:
    return ground.held.get(node["metadata"]["name"], {}).get(resource, 0.0)


def _pair(name: str, total: Mapping[str, float], free: Mapping[str, float]) -> dict[str, int]:
    return {"total": int(total.get(name, 0)), "free": max(0, int(free.get(name, 0)))}


def _is_open(node: Object, pod: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    selected = all(labels.get(name) == value for name, value in (pod.get("nodeSelector") or {}).items())
    barring = [
        taint
        for taint in node.get("spec", {}).get("taints") or ()
        if taint.get("effect") != "PreferNoSchedule"
    ]
    tolerations = pod.get("tolerations") or ()
    return selected and all(any(_tolerates(each, taint) for each in tolerations) for taint in barring)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def _first_task(job: Object) -> Any:
    return job["spec"]["tasks"][0]
