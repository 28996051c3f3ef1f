"""From a Volcano Job with its pods to our status. Pure.

A gang is WAITING until every worker that it needs has a node, then STARTING; that it is RUNNING its agents say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from slicelift.models import Failure, JobStatus, Status
from slicelift.runtime.verdict import HOPELESS

from slicelift_hub.counting import held_by_node, is_device, is_ready, plus, says_unready
from slicelift_hub.launcher.backends.volcano.amounts import phrase
from slicelift_hub.launcher.backends.volcano.manifest import first_pod
from slicelift_hub.launcher.backends.volcano.names import MOST_NOTE
from slicelift_hub.launcher.backends.volcano.picture import (
    Object,
    Picture,
    ended_state,
    event_time,
    read_word,
)
from slicelift_hub.launcher.backends.volcano.places import pod_trouble
from slicelift_hub.launcher.backends.volcano.waiting import explain, is_refusal, read_refusal

OVER = ("Completed", "Failed", "Terminated", "Aborted")
_HERE = ("Running", "Succeeded")
# ends of a whole pod, of which no agent lives to tell
_KUBELETS = {"OOMKilled", "Evicted", "StartError", "ContainerCannotRun", "DeadlineExceeded", "NodeShutdown"}


@dataclass(frozen=True, kw_only=True)
class _Failed:
    """A failed pod: the exit code of our container, what else is known, whether the node ended it."""

    pod: str
    code: int
    words: str
    killed: bool


def fold(picture: Picture) -> JobStatus:
    """Where the job stands. An unknown phase is UNKNOWN with Volcano's raw word kept."""
    phase = raw_phase(picture.job)
    if phase in OVER:
        return _ended(picture, phase)
    if phase in ("Aborting", "Terminating", "Completing", "Restarting"):
        return _leaving(picture, phase)
    if phase not in ("Pending", "Running"):
        message = f"Volcano gives the job the phase {phase}, which this launcher does not know."
        return _make(picture, Status.UNKNOWN, phase=phase, reason="unknown-phase", message=message)
    if phase == "Running" and len(picture.pods) < picture.least:
        return _thinned(picture, phase)
    if picture.placed < picture.least:
        return _waits(picture, phase)
    return _placed(picture, phase)


def raw_phase(job: Object) -> str:
    """Volcano's own word; a job that its controller has not seen yet is Pending."""
    return str((job.get("status", {}).get("state") or {}).get("phase") or "Pending")


def restarts(job: Object) -> int:
    """How often the whole gang was started again. Volcano also counts the failure for which it gives up.

    In an elastic gang single workers are replaced, and the gang goes on.
    """
    return 0 if _is_elastic(job) else max(0, min(_counted(job), int(job["spec"]["maxRetry"]) - 1))


def _is_elastic(job: Object) -> bool:
    """Whether single workers are replaced."""
    spec = job["spec"]
    replaced = any(policy.get("action") == "RestartPod" for policy in spec.get("policies") or ())
    return replaced or int(spec["minAvailable"]) < sum(int(task["replicas"]) for task in spec["tasks"])


def _counted(job: Object) -> int:
    """What Volcano has counted against `maxRetry`."""
    return int(job.get("status", {}).get("retryCount") or 0)


def lost_pods(picture: Picture) -> list[tuple[Object, Object | None]]:
    """Pods whose node is not ready or does not answer, with that node; None for one that the cluster has no more."""
    nodes = {str(node["metadata"]["name"]): node for node in picture.nodes}
    found = []
    for pod in picture.pods:
        name = pod.get("spec", {}).get("nodeName")
        over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if name and nodes and not over and (name not in nodes or not is_ready(nodes[name])):
            found.append((pod, nodes.get(name)))
    return found


def held_words(pods: list[Object]) -> str:
    """What these pods still count as using: `8 GPUs`."""
    total = plus({}, *held_by_node(pods).values())
    return ", ".join(
        phrase(name, value) for name, value in sorted(total.items()) if value and is_device(name)
    )


def _waits(picture: Picture, phase: str) -> JobStatus:
    why = explain(picture)
    found = _make(picture, Status.WAITING, phase=phase, reason=why.reason, message=why.message)
    return JobStatus(**{**vars(found), "position": why.position})


def _thinned(picture: Picture, phase: str) -> JobStatus:
    """It ran, and lost pods: a matter of a second, unless Volcano's controller is away. It does not wait for a place."""
    gone = picture.replicas - len(picture.pods)
    message = f"The gang lacks {gone} of its {picture.replicas} workers, and the cluster has not started it again yet."
    return _make(picture, Status.STARTING, phase=phase, reason="worker-gone", message=message)


def _leaving(picture: Picture, phase: str) -> JobStatus:
    """Its pods are being ended. For a new start the gang has given its place back, and waits again from here on.

    The failure at which Volcano gives up also leads through Restarting, and begins nothing.
    """
    again = phase == "Restarting" and 0 < restarts(picture.job) == _counted(picture.job)
    status = Status.WAITING if again else Status.STARTING
    lost = _lost_words(picture)
    if lost:
        return _make(picture, status, phase=phase, reason="node-lost", message=lost)
    if not again:
        return _make(picture, status, phase=phase)
    message = "The cluster starts the gang again; its former workers end first."
    return _make(picture, status, phase=phase, reason="restarting", message=message)


def _lost_words(picture: Picture) -> str:
    """On which nodes that do not answer, or can hold no pods now, the job has workers; "" for none."""
    lost = lost_pods(picture)
    if not lost:
        return ""
    names = sorted({str(pod["spec"]["nodeName"]) for pod, _ in lost})
    held = held_words([pod for pod, _ in lost])
    counted = f"; {held} there still count as used" if held else ""
    answer = all(node is not None and says_unready(node) for _, node in lost)
    state = "is not ready" if answer else "does not answer"
    return f"Node {', '.join(names)} {state}, with {len(lost)} of {picture.replicas} workers on it{counted}."


def _placed(picture: Picture, phase: str) -> JobStatus:
    lost = _lost_words(picture)
    if lost:
        status = Status.RUNNING if phase == "Running" else Status.STARTING
        return _make(picture, status, phase=phase, reason="node-lost", message=lost)
    trouble = pod_trouble(picture)
    if trouble is not None:
        return _make(picture, Status.STARTING, phase=phase, reason=trouble.reason, message=trouble.message)
    here = {pod["metadata"]["name"] for pod in picture.pods if pod.get("status", {}).get("phase") in _HERE}
    if phase == "Running" and picture.least <= len(here) < picture.replicas:
        return _fewer(picture, phase, here)
    return _make(picture, Status.STARTING, phase=phase)


def _fewer(picture: Picture, phase: str, here: set[str]) -> JobStatus:
    """An elastic gang; torchrun's store is on its first worker, without which nobody meets."""
    words = f"The gang has {len(here)} of its {picture.replicas} workers"
    if first_pod(picture.name) in here:
        message = f"{words} and goes on with these."
        return _make(picture, Status.STARTING, phase=phase, reason="workers-fewer", message=message)
    message = f"{words}, and goes on once the first one is back: the others meet there."
    return _make(picture, Status.STARTING, phase=phase, reason="first-worker-gone", message=message)


def _ended(picture: Picture, phase: str) -> JobStatus:
    if phase == "Completed":
        return _finished(picture, phase)
    if phase == "Aborted":
        return _make(
            picture, Status.KILLED, phase=phase, reason="aborted", message="It was aborted in the cluster."
        )
    worst = next(_failed(picture), None)
    if worst is None:
        return _never_ran(picture, phase)
    told = f"{worst.pod} ended with exit code {worst.code}{worst.words}"
    if worst.code == HOPELESS:
        message = f"{told}: starting it again would not help."
        return _make(
            picture, Status.FAILED, phase=phase, reason="user-error", message=message, exit_code=HOPELESS
        )
    most = int(picture.job["spec"]["maxRetry"])
    tail = ""
    if phase == "Failed" and most > 1:
        tail = f" and was started {most} times in all"
        if _is_elastic(picture.job):
            tail = f", and {most} lost workers are the most that the gang may have"
    found = _make(
        picture,
        Status.FAILED,
        phase=phase,
        reason="worker-failed",
        message=f"{told}{tail}.",
        exit_code=worst.code,
    )
    # what agents tell of a failure says more, where they could tell
    return (
        replace(found, failure=Failure(message=f"{told}.", exit_code=worst.code)) if worst.killed else found
    )


def _finished(picture: Picture, phase: str) -> JobStatus:
    """With the pods whose agents gave up on a launcher that was away: what they had not sent is gone with them."""
    silent = [
        str(pod["metadata"]["name"])
        for pod in picture.pods
        if read_word(str(ended_state(pod).get("message") or "")).get("delivered") is False
    ]
    if not silent:
        return _make(picture, Status.FINISHED, phase=phase, exit_code=0)
    names = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
    message = f"The launcher was away for too long after the end: what {names} had not sent is lost, models and outputs too."
    return _make(picture, Status.FINISHED, phase=phase, reason="undelivered", message=message, exit_code=0)


def _never_ran(picture: Picture, phase: str) -> JobStatus:
    """Ended without a failed pod: Volcano gave up making them, or somebody ended it."""
    refusals = sorted(filter(is_refusal, picture.events), key=event_time)
    if refusals:
        why = read_refusal(refusals[-1])
        return _make(picture, Status.FAILED, phase=phase, reason=why.reason, message=why.message)
    message = f"Volcano ended the job as {phase}, and no pod of it says why."
    return _make(picture, Status.FAILED, phase=phase, reason=phase.lower(), message=message)


def _failed(picture: Picture) -> Iterator[_Failed]:
    """Failed pods, a user's error first."""
    rows = []
    for pod in picture.pods:
        status = pod.get("status", {})
        if status.get("phase") == "Failed":
            ended = ended_state(pod)
            killed = bool({str(status.get("reason")), str(ended.get("reason"))} & _KUBELETS)
            row = _Failed(
                pod=str(pod["metadata"]["name"]),
                code=int(ended.get("exitCode") or 1),
                words=_words(status, ended),
                killed=killed,
            )
            rows.append(row)
    return iter(sorted(rows, key=lambda row: (row.code != HOPELESS, row.pod)))


def _words(pod: Object, ended: Object) -> str:
    """What the kubelet says of an end, and what our agent has left as its last word."""
    told = str(ended.get("message") or "")
    word = read_word(told)
    if word:
        told = str(word.get("message") or word.get("reason") or "")
    words = [str(pod.get("reason") or ""), str(ended.get("reason") or ""), told]
    kept = ": ".join(word.strip()[:300] for word in words if word.strip() and word != "Error")
    return f" ({kept})" if kept else ""


def _make(
    picture: Picture,
    status: Status,
    *,
    phase: str,
    reason: str = "",
    message: str = "",
    exit_code: int | None = None,
) -> JobStatus:
    notes = picture.job["metadata"].get("annotations") or {}
    return JobStatus(
        status=status,
        phase=phase,
        reason=reason,
        message=message,
        exit_code=exit_code,
        workers=picture.replicas if MOST_NOTE in notes else None,
        restarts=restarts(picture.job),
    )
