"""What nodes have, what pods hold and what queues give, in numbers: one way to count, for sessions and for jobs.

Pure. Objects are those of the Kubernetes API as JSON has them, or the part of each that a watch keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

Object = Mapping[str, Any]
Amounts = Mapping[str, float]

NVIDIA = "nvidia.com/"
# while a GPU is cut anew its node still tells what it had
_CUT, _CUT_WELL = "nvidia.com/mig.config.state", "success"
_OVER = ("Succeeded", "Failed")
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


def quantity(value: object) -> float:
    """`256Gi`, `500m`, `8`, `1k`, `1e3` -> a number; 0 for what is no quantity."""
    return _read(str(value).strip())


def amounts(listed: Mapping[str, object] | None) -> dict[str, float]:
    """A resource list of Kubernetes in numbers: cores, bytes, devices."""
    return {name: quantity(value) for name, value in (listed or {}).items()}


def plus(first: Amounts, *others: Amounts) -> dict[str, float]:
    """The sum, over all names."""
    total = dict(first)
    for other in others:
        for name, value in other.items():
            total[name] = total.get(name, 0.0) + value
    return total


def times(each: Amounts, count: int) -> dict[str, float]:
    """The same, `count` times."""
    return {name: value * count for name, value in each.items()}


def is_device(name: str) -> bool:
    """Whether it is counted by devices (GPUs, slices, network cards), not cores or bytes."""
    return "/" in name


def offered(node: Object) -> dict[str, float]:
    """What a node has for pods, in use or not: nothing where it takes none, and no GPU while one of them is cut anew."""
    if not is_usable(node):
        return {}
    found = amounts(node.get("status", {}).get("allocatable"))
    if (node["metadata"].get("labels") or {}).get(_CUT, _CUT_WELL) == _CUT_WELL:
        return found
    return {name: value for name, value in found.items() if not name.startswith(NVIDIA)}


def is_usable(node: Object) -> bool:
    """Whether the node takes pods: ready, not cordoned, and not closed by Kubernetes itself, as one without room on its disk."""
    spec = node.get("spec", {})
    closed = any(
        taint.get("effect") in ("NoSchedule", "NoExecute") and taint["key"].startswith("node.kubernetes.io/")
        for taint in spec.get("taints") or ()
    )
    return is_ready(node) and not spec.get("unschedulable", False) and not closed


def is_ready(node: Object) -> bool:
    """Whether its kubelet answers."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def says_unready(node: Object) -> bool:
    """Whether its kubelet answers, and says itself that it cannot work: a container runtime that is down, a network."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(each.get("type") == "Ready" and each.get("status") == "False" for each in conditions)


def held(pod: Object) -> dict[str, float]:
    """What a pod holds: what all of its containers ask for, or an init container that wants more before them.

    One that is always started again stays beside those that follow.
    """
    spec = pod.get("spec") or {}
    beside: dict[str, float] = {}
    before: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        wanted = plus(beside, _requests(container))
        before = _larger(before, wanted)
        if container.get("restartPolicy") == "Always":
            beside = wanted
    return _larger(before, plus(beside, *map(_requests, spec.get("containers") or ())))


def held_by_node(pods: Iterable[Object]) -> dict[str, dict[str, float]]:
    """What pods hold of each node: from when they are bound to it until they have ended."""
    found: dict[str, dict[str, float]] = {}
    for pod in pods:
        name, phase = (pod.get("spec") or {}).get("nodeName"), (pod.get("status") or {}).get("phase")
        if name and phase not in _OVER:
            found[name] = plus(found.get(name, {}), held(pod))
    return found


def limits(queue: Object) -> list[tuple[str, float, float]]:
    """(resource, limit, used) of a queue. What is not listed is not limited, as the scheduler has it."""
    used = allocated(queue)
    return [
        (name, limit, used.get(name, 0.0)) for name, limit in amounts(queue["spec"].get("capability")).items()
    ]


def allocated(queue: Object) -> dict[str, float]:
    """What jobs and sessions of a queue hold."""
    return amounts(queue.get("status", {}).get("allocated"))


def queue_state(queue: Object) -> str:
    """`Open`, `Closed`, `Closing` or `Unknown`; a queue that is quite new has none yet and counts as open."""
    return str(queue.get("status", {}).get("state") or "Open")


def _requests(container: Object) -> dict[str, float]:
    return amounts((container.get("resources") or {}).get("requests"))


def _larger(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


# a look at a job reads those of all nodes and queues, and a thousand jobs are looked at every few seconds
@lru_cache(maxsize=4096)
def _read(text: str) -> float:
    for suffix, factor in (*_BINARY.items(), *_SUFFIXES.items()):
        if text.endswith(suffix):
            return _number(text.removesuffix(suffix)) * factor
    return _number(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
