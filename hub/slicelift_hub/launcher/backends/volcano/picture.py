"""Everything that is known of one job at one moment, and how its pieces are read. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]

# Volcano tells these of every healthy job: that no pod was there yet, or that they are just being bound
_NOISE = re.compile(
    r"(?:PodGroup \S+ unschedulable, reason: )?"
    r"(?:0/0 tasks in gang unschedulable|\d+/\d+ tasks in gang unschedulable: pod group is ready)"
)
_FIT = re.compile(r"\d+/(?P<nodes>\d+) nodes are unavailable: (?P<reasons>.+?)\.?(?:\s*$|\. )")


@dataclass(frozen=True, kw_only=True)
class Line:
    """Our jobs of one queue: those that wait, the oldest first, and those that run."""

    waiting: Sequence[Object] = ()
    running: Sequence[Object] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One job with its PodGroup, pods and events; all queues and nodes; our jobs by queue; its claims by name.

    `held` is what our pods hold of each node.

    Objects are as the API server gives them, or the part of each that `watching` keeps. `now`: Unix seconds.
    """

    now: float
    job: Object
    group: Object | None = None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    queues: Mapping[str, Object] = field(default_factory=dict)
    nodes: Sequence[Object] = ()
    lines: Mapping[str, Line] = field(default_factory=dict)
    claims: Mapping[str, Object] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def queue(self) -> str:
        return str(self.job["spec"]["queue"])

    @property
    def replicas(self) -> int:
        return sum(int(task["replicas"]) for task in self.job["spec"]["tasks"])

    @property
    def least(self) -> int:
        return int(self.job["spec"]["minAvailable"])

    @property
    def placed(self) -> int:
        """Pods that have a node."""
        return sum(1 for pod in self.pods if pod.get("spec", {}).get("nodeName"))

    @property
    def since(self) -> float:
        """When the job came into its phase; at first, when it was made."""
        state = self.job.get("status", {}).get("state", {})
        return moment(state.get("lastTransitionTime")) or created(self.job)

    def told(self, kind: str) -> list[Object]:
        """Events of the job, its PodGroup or its pods since it is in this phase, newest first, without noise."""
        # events carry whole seconds
        fresh = [event for event in self.events if event_time(event) >= self.since - 1]
        wanted = [event for event in fresh if event.get("involvedObject", {}).get("kind") == kind]
        useful = [event for event in wanted if not is_noise(str(event.get("message", "")))]
        return sorted(useful, key=event_time, reverse=True)

    def scheduler_says(self) -> Iterator[str]:
        """What the scheduler said last of group and pods, the most telling first."""
        newest = max(_conditions(self.group, "Unschedulable"), key=_condition_time, default=None)
        if (
            newest is not None
            and newest.get("status") == "True"
            and not is_noise(str(newest.get("message", "")))
        ):
            yield str(newest.get("message", ""))
        for pod in self.pods:
            if not pod.get("spec", {}).get("nodeName"):
                yield from (str(each.get("message", "")) for each in _conditions(pod, "PodScheduled"))
        yield from (str(event.get("message", "")) for event in self.told("PodGroup"))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Why no node takes a pod: the nodes looked at, and for how many of them which reason holds."""

    nodes: int
    reasons: Mapping[str, int]


def is_noise(text: str) -> bool:
    """Whether the scheduler tells this of every healthy job."""
    return _NOISE.match(text) is not None


def read_fit(text: str) -> Fit | None:
    """From `0/4 nodes are unavailable: 1 node(s) had untolerated taint {a: b}, 3 Insufficient nvidia.com/gpu.`"""
    match = _FIT.search(text)
    if match is None:
        return None
    parts = re.split(r", (?=\d+ )", match["reasons"])
    rows = (part.partition(" ") for part in parts)
    return Fit(nodes=int(match["nodes"]), reasons={reason: int(n) for n, _, reason in rows if n.isdigit()})


def moment(text: object) -> float:
    """A time of Kubernetes in Unix seconds; 0 for none."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC).timestamp()
    except ValueError:
        return 0.0


def created(item: Object) -> float:
    """When it was made."""
    return moment(item["metadata"].get("creationTimestamp"))


def seen_since(item: Object) -> float:
    """Since when it is as it is, as far as known: a watch notes it as `seen`."""
    return float(item.get("seen") or created(item))


def event_time(event: Object) -> float:
    """When it was told last."""
    series = event.get("series") or {}
    for text in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if text:
            return moment(text)
    return created(event) if "metadata" in event else 0.0


def containers(pod: Object) -> Sequence[Object]:
    """The states of its containers, ours first."""
    found: Sequence[Object] = pod.get("status", {}).get("containerStatuses") or ()
    return found


def ended_state(pod: Object) -> Object:
    """How its first container that has ended did so; {} for none."""
    states = ((each.get("state") or {}).get("terminated") for each in containers(pod))
    found: Object = next(filter(None, states), {})
    return found


def read_word(text: str) -> Object:
    """What one of our programs has left as its last word; {} for what a program that is not ours has.

    Half of a surrogate pair, which an escape can hold and nobody can send on, becomes a question mark.
    """
    try:
        word = json.loads(text)
        word = json.loads(json.dumps(word, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return word if isinstance(word, Mapping) else {}


def _conditions(item: Object | None, kind: str) -> list[Object]:
    found = (item or {}).get("status", {}).get("conditions") or ()
    return [each for each in found if each.get("type") == kind]


def _condition_time(condition: Object) -> float:
    return moment(condition.get("lastTransitionTime"))


def condition_age(picture: Picture) -> float | None:
    """Seconds since the scheduler last renewed that the gang has no place; None where it says nothing such."""
    times = [_condition_time(each) for each in _conditions(picture.group, "Unschedulable")]
    return picture.now - max(times) if times else None
