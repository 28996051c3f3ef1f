"""Why a job waits: one sentence, from what the cluster says and from what it keeps back. Pure.

`explain` is for a job that was submitted, `foresee` for one that is only planned. The reasons are stable words:

    controller-silent scheduler-silent    a part of Volcano does not react
    queue-missing queue-closed queue-not-leaf
    quota-too-small quota-full            of the queue or an ancestor
    gpus-too-many node-too-small          never fits this cluster
    gpus-short gpus-fragmented            too few are free, or none together
    nodes-closed nodes-full topology      taints, selectors, other resources, HyperNodes
    image container claim mount           of pods that have a place
    resource-quota pods-refused plugin    Kubernetes did not let Volcano make the pods
    placing                               nothing is wrong
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicelift_hub.counting import is_device, is_usable, offered, queue_state
from slicelift_hub.launcher.backends.volcano.amounts import by_weight, count, noun, phrase
from slicelift_hub.launcher.backends.volcano.picture import (
    Object,
    Picture,
    condition_age,
    created,
    read_fit,
    seen_since,
)
from slicelift_hub.launcher.backends.volcano.places import Trouble, no_claim, pod_trouble
from slicelift_hub.launcher.backends.volcano.quotas import (
    Ground,
    Shortage,
    cluster_shortage,
    free_of,
    gang_needs,
    is_leaf,
    lineage,
    open_nodes,
    places,
    quota_shortage,
    worker_needs,
)
from slicelift_hub.launcher.backends.volcano.turn import jobs_ahead, turn_words

# a scheduler looks every second, a controller acts at once: what takes longer is not at work
SILENT_SECONDS = 20.0
# an unschedulable gang's condition is renewed at least so often
RENEWED_SECONDS = 150.0
_PRINTED = re.compile(r'Message:"((?:[^"\\]|\\.)+)')
# before why no node of a group takes a pod; of the whole cluster it has no such words
_IN_A_GROUP = "In hyperNode "
_MUTE = "it does not react. Whoever runs the cluster must look."


@dataclass(frozen=True, kw_only=True)
class Why:
    """A stable word, one sentence, and the place in the queue, from 1."""

    reason: str
    message: str
    position: int | None = None


def explain(picture: Picture) -> Why:
    """Why the gang is not running yet; "placing" when nothing stands in its way."""
    for check in _CHECKS:
        found = check(picture)
        if found is not None:
            return found
    return Why(reason="placing", message=f"Volcano is placing {_gang(picture.job)}.")


def foresee(picture: Picture) -> Why | None:
    """What would keep a job waiting that is not submitted; None where it would start at once, as far as can be seen."""
    for check in (_queue, _unclaimed, _quota_for_ever, _never_fits, _quota, _short, _apart):
        found = check(picture)
        if found is not None:
            return found
    return None


def _controller_silent(picture: Picture) -> Why | None:
    if picture.group is None:
        mute, missing = True, "has made nothing of the job"
    else:
        enqueued = picture.group.get("status", {}).get("phase") in ("Inqueue", "Running")
        refused = any(is_refusal(event) for event in picture.told("Job"))
        mute = enqueued and not picture.pods and not refused
        missing = "has made no pods although the queue let the job in"
    if not mute or picture.now - _touched(picture) <= SILENT_SECONDS:
        return None
    message = f"Volcano's controller {missing} for {_ago(picture)}: {_MUTE}"
    return Why(reason="controller-silent", message=message)


def _queue(picture: Picture) -> Why | None:
    name = picture.queue
    if not picture.queues:
        return None
    if name not in picture.queues:
        return Why(reason="queue-missing", message=f"There is no queue {name} in the cluster (any more).")
    for each in lineage(name, picture.queues):
        state = queue_state(picture.queues[each])
        if state in ("Closed", "Closing"):
            message = f"Queue {each} is {state.lower()}: it starts no jobs until somebody opens it."
            return Why(reason="queue-closed", message=message)
    if not is_leaf(name, picture.queues):
        message = f"Queue {name} has queues below it and takes no jobs itself."
        return Why(reason="queue-not-leaf", message=message)
    return None


def _refused(picture: Picture) -> Why | None:
    """Pods or what belongs to them could not be made; Volcano gives up after some minutes."""
    if len(picture.pods) >= picture.replicas:
        return None
    told = next((event for event in picture.told("Job") if is_refusal(event)), None)
    return None if told is None else read_refusal(told)


def is_refusal(event: Object) -> bool:
    """Whether Volcano's controller says of a job that it could not make something."""
    return event.get("reason") in (
        "FailedCreate",
        "PluginError",
        "PVCError",
        "PodGroupError",
        "JobStatusError",
    )


def read_refusal(event: Object) -> Why:
    """What could not be made, and by whose word."""
    text = _cut(_plain_words(str(event.get("message", ""))))
    if "exceeded quota" in text:
        return _resource_quota(text.partition("exceeded quota: ")[2])
    if event.get("reason") == "FailedCreate":
        return Why(reason="pods-refused", message=f"Kubernetes refuses the job's pods: {text}")
    return Why(reason="plugin", message=f"Volcano cannot prepare the job: {text}")


def _plain_words(text: str) -> str:
    """The API server's own words, where the controller prints the whole of its answer as Go does."""
    found = _PRINTED.search(text)
    return found[1].replace('\\"', '"') if found else text


def _quota_of_namespace(picture: Picture) -> Why | None:
    for event in picture.told("PodGroup"):
        text = str(event.get("message", ""))
        if text.startswith("resource quota insufficient"):
            return _resource_quota(_cut(text.partition(", ")[2]))
    return None


def _resource_quota(text: str) -> Why:
    message = f"The namespace's ResourceQuota leaves no room: {text.rstrip('.')}."
    return Why(reason="resource-quota", message=message)


def _pods(picture: Picture) -> Why | None:
    """What keeps pods from starting that have a place, or a claim that keeps them from getting one."""
    trouble: Trouble | None = pod_trouble(picture)
    return None if trouble is None else Why(reason=trouble.reason, message=trouble.message)


def _unclaimed(picture: Picture) -> Why | None:
    missing = next((name for name, claim in sorted(picture.claims.items()) if not claim), None)
    return None if missing is None else Why(reason="claim", message=no_claim(missing))


def _quota_for_ever(picture: Picture) -> Why | None:
    short = quota_shortage(picture.job, picture.queues)
    if short is None or not short.ever or picture.placed >= picture.least:
        return None
    amount, most = phrase(short.resource, short.needed), phrase(short.resource, short.total)
    gang = _capital(_gang(picture.job))
    message = (
        f"{gang} needs {amount}, and queue {short.queue} never gives more than {most}: it cannot start there."
    )
    return Why(reason="quota-too-small", message=message)


def _quota(picture: Picture) -> Why | None:
    short = quota_shortage(picture.job, picture.queues)
    if short is None or picture.placed >= picture.least:
        return None
    amount, total = phrase(short.resource, short.needed), phrase(short.resource, short.total)
    # of a quota that was cut while it was in use, more is given out than there is
    free = max(0.0, short.free)
    have = f"{_plain(short.resource, free)} of its {total} {_are(free)} free"
    lack = _plain(short.resource, short.needed - free)
    head = f"Queue {short.queue} is full: {_gang(picture.job)} needs {amount}, {have}, {lack} too few"
    return _in_turn(picture, "quota-full", head, short)


def _promised(picture: Picture) -> Why | None:
    """The numbers leave room, and yet the queue lets nobody in: it is promised to jobs that are let in before."""
    for event in picture.told("PodGroup"):
        text = str(event.get("message", ""))
        if text.startswith(("queue resource quota insufficient", "resource in cluster is overused")):
            if _is_waiting_at_the_door(picture):
                return _at_the_door(picture, text)
            break
    return None


def _is_waiting_at_the_door(picture: Picture) -> bool:
    return not picture.pods and (picture.group or {}).get("status", {}).get("phase", "Pending") == "Pending"


def _at_the_door(picture: Picture, text: str) -> Why:
    # "...: insufficient nvidia.com/gpu, insufficient cpu"
    names = by_weight(part.rpartition(" ")[2] for part in text.partition(": ")[2].split(", ") if part)
    what = noun(names[0]) if names else "resources"
    whole = text.startswith("resource in cluster")
    where = "of the cluster" if whole else f"of queue {picture.queue}"
    head = f"The {what} {where} are in use or promised to jobs that were let in before"
    return _in_turn(picture, "gpus-short" if whole else "quota-full", head, None)


def _never_fits(picture: Picture) -> Why | None:
    """Judged by the nodes that are there now: a cluster may also grow."""
    if not picture.nodes:
        return None
    nodes = open_nodes(picture.job, picture.nodes)
    if not nodes:
        return _none_open(picture)
    needs, found = worker_needs(picture.job), [offered(node) for node in nodes]
    for name in by_weight(needs):
        largest = max(node.get(name, 0.0) for node in found)
        if needs[name] > largest:
            most = f"the largest has {phrase(name, largest)}" if largest else f"there are no {noun(name)}"
            message = f"No node can hold a worker with {phrase(name, needs[name])}: {most}."
            return Why(reason="node-too-small", message=message)
    short = cluster_shortage(picture.job, _ground(picture))
    if short is None or not short.ever:
        return None
    amount, all_there_are = phrase(short.resource, short.needed), _plain(short.resource, short.total)
    message = f"{_gang(picture.job)} needs {amount}, and the nodes open to it have {all_there_are} in all."
    return Why(reason="gpus-too-many", message=_capital(message))


def _none_open(picture: Picture) -> Why:
    usable = sum(1 for node in picture.nodes if is_usable(node))
    if not usable:
        nodes = count(len(picture.nodes), "node")
        message = f"None of the cluster's {nodes} takes pods: they do not answer, are cordoned, or are out of memory or disk."
    else:
        message = (
            f"None of the cluster's {count(usable, 'node')} is open to this job: its preset asks for others."
        )
    return Why(reason="nodes-closed", message=message)


def _short(picture: Picture) -> Why | None:
    """Too few free devices in all."""
    if picture.placed >= picture.least or not picture.nodes:
        return None
    short = cluster_shortage(picture.job, _ground(picture))
    if short is None:
        return None
    name = short.resource
    have = f"{_plain(name, short.free)} of {phrase(name, short.total)}{_kinds(picture, name)} {_are(short.free)} free"
    head = (
        f"Too few {noun(name)} are free: {_gang(picture.job)} needs {_plain(name, short.needed)}, and {have}"
    )
    return _in_turn(picture, "gpus-short", head, short)


def _nodes(picture: Picture) -> Why | None:
    """The scheduler's own words on nodes, with the numbers that they leave out."""
    fit = next(filter(None, map(read_fit, picture.scheduler_says())), None)
    if fit is None or picture.placed >= picture.least:
        return None
    lacking = by_weight(
        reason.removeprefix("Insufficient ") for reason in fit.reasons if reason.startswith("Insufficient ")
    )
    closed = {
        reason: nodes for reason, nodes in fit.reasons.items() if not reason.startswith("Insufficient ")
    }
    if lacking and is_device(lacking[0]):
        return _fragmented(picture, lacking[0], closed)
    if lacking:
        needs = phrase(lacking[0], worker_needs(picture.job).get(lacking[0], 0.0))
        head = f"No node has {needs} free for a worker{_closed(closed)}"
        return _in_turn(picture, "nodes-full", head, None)
    message = f"None of the {count(fit.nodes, 'node')} takes a worker of this job{_closed(closed)}."
    return Why(reason="nodes-closed", message=message)


def _apart(picture: Picture) -> Why | None:
    """What the scheduler has not said yet: too few nodes have a worker's devices free, as far as our own pods tell."""
    for name, each in worker_needs(picture.job).items():
        if is_device(name) and places(name, picture.job, _ground(picture), each=each) < picture.least:
            return _fragmented(picture, name, {})
    return None


def _fragmented(picture: Picture, resource: str, closed: Mapping[str, int]) -> Why:
    """Enough are free in all (else `_short` had said so), but not where they would be needed."""
    free = free_of(resource, picture.job, _ground(picture))
    each = worker_needs(picture.job).get(resource, 0.0)
    head = (
        f"{_capital(phrase(resource, free))}{_kinds(picture, resource)} are free, but spread over nodes so that not "
        f"{count(picture.least, 'worker')} find {_plain(resource, each)} on one node each{_closed(closed)}"
    )
    return _in_turn(picture, "gpus-fragmented", head, None)


def _topology(picture: Picture) -> Why | None:
    """Where no group of nodes has the numbers the scheduler names none, and a moment later that may still change."""
    wish = picture.job["spec"].get("networkTopology") or {}
    if wish.get("mode") != "hard" or picture.placed:
        return None
    told = any(_IN_A_GROUP in text for text in picture.scheduler_says())
    if not told and picture.now - picture.since < SILENT_SECONDS:
        return None
    tier = wish.get("highestTierAllowed")
    message = f"The job's nodes must lie within tier {tier} of the network, and Volcano finds no such group of nodes with room."
    return Why(reason="topology", message=message)


def _scheduler_silent(picture: Picture) -> Why | None:
    if picture.placed >= picture.least or picture.group is None:
        return None
    age = condition_age(picture)
    # of a topology that cannot be had it never speaks
    mute = age is None and not picture.told("PodGroup") and not picture.job["spec"].get("networkTopology")
    mute = mute and picture.now - _touched(picture) > SILENT_SECONDS
    stale = age is not None and age > RENEWED_SECONDS and picture.now - picture.since > RENEWED_SECONDS
    if not (mute or stale):
        return None
    message = f"Volcano's scheduler says nothing of this job for {_ago(picture)}: {_MUTE}"
    return Why(reason="scheduler-silent", message=message)


def _touched(picture: Picture) -> float:
    """When something of the job last changed, before which nobody could have spoken of it."""
    return max(
        [seen_since(picture.group or picture.job), picture.since, *(created(pod) for pod in picture.pods)]
    )


_CHECKS: tuple[Callable[[Picture], Why | None], ...] = (
    _controller_silent,
    _queue,
    _refused,
    _quota_of_namespace,
    _pods,
    _quota_for_ever,
    _never_fits,
    _quota,
    _scheduler_silent,
    _short,
    _promised,
    _topology,
    _nodes,
)


def _in_turn(picture: Picture, reason: str, head: str, short: Shortage | None) -> Why:
    ahead = jobs_ahead(picture)
    words = turn_words(picture, ahead, short)
    return Why(reason=reason, message=f"{head}{words}.", position=len(ahead) + 1)


def _ground(picture: Picture) -> Ground:
    return Ground(queues=picture.queues, nodes=picture.nodes, held=picture.held)


def _gang(job: Object) -> str:
    workers = int(job["spec"]["minAvailable"])
    return "the job" if workers == 1 else f"the gang of {workers:,}"


def _kinds(picture: Picture, resource: str) -> str:
    """On which kinds of node: ` on H100 nodes`."""
    found = sorted(set(_products(open_nodes(picture.job, picture.nodes), resource)))
    return f" on {', '.join(found[:3])} nodes" if found else ""


def _products(nodes: Sequence[Object], resource: str) -> Iterator[str]:
    for node in nodes:
        labels: Mapping[str, Any] = node["metadata"].get("labels") or {}
        if offered(node).get(resource):
            name = labels.get("nvidia.com/gpu.product") or labels.get("node.kubernetes.io/instance-type")
            yield from [str(name)] if name else []


def _closed(reasons: Mapping[str, int]) -> str:
    """`; 3 nodes are closed to it (untolerated taint {a: b})`."""
    if not reasons:
        return ""
    total = sum(reasons.values())
    words = "; ".join(sorted(reason.removeprefix("node(s) ") for reason in reasons))
    return f"; {count(total, 'node')} {'is' if total == 1 else 'are'} closed to it ({_cut(words)})"


def _plain(name: str, value: float) -> str:
    """The number alone, for a resource that was just named."""
    value = max(0.0, value)
    return phrase(name, value) if name == "memory" else f"{value:g}"


def _ago(picture: Picture) -> str:
    return f"{max(0, round(picture.now - picture.since)):,} s"


def _are(value: float) -> str:
    return "is" if value == 1 else "are"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:299]}…"


def needs_words(job: Object) -> str:
    """What a gang takes, for a plan: `16 GPUs, 64 cores and 512 GiB of memory`."""
    needs = gang_needs(job)
    words = [phrase(name, needs[name]) for name in by_weight(needs)]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]
