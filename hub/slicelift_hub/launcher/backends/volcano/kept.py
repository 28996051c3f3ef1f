"""The part of each object that is kept in memory: the fields that are read, in the shape they had. Pure.

A job with its pods takes some kilobytes, so that a thousand of them fit beside everything else of a launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicelift_hub.counting import is_device
from slicelift_hub.launcher.backends.volcano.names import JOB_NAME_LABEL, NOTE
from slicelift_hub.launcher.backends.volcano.picture import is_noise

Object = Mapping[str, Any]
Kept = dict[str, Any]

_LONGEST_TEXT = 1200


def keep_job(job: Object) -> Kept:
    """A Volcano Job."""
    spec, status = job["spec"], job.get("status") or {}
    metadata = _identity(job)
    notes = job["metadata"].get("annotations") or {}
    metadata["annotations"] = {key: value for key, value in notes.items() if key.startswith(NOTE)}
    metadata["labels"] = dict(job["metadata"].get("labels") or {})
    wanted = ("queue", "minAvailable", "maxRetry", "networkTopology", "policies")
    state = _pick(status.get("state") or {}, "phase", "lastTransitionTime")
    return {
        "metadata": metadata,
        "spec": _pick(spec, *wanted) | {"tasks": [_keep_task(task) for task in spec.get("tasks") or ()]},
        "status": {"state": state} | _pick(status, "retryCount"),
    }


def keep_group(group: Object) -> Kept:
    """A PodGroup."""
    status = group.get("status") or {}
    conditions = [
        _pick(each, "type", "status", "reason", "lastTransitionTime") | _text(each)
        for each in status.get("conditions") or ()
    ]
    return {"metadata": _identity(group), "status": _pick(status, "phase") | {"conditions": conditions}}


def keep_pod(pod: Object) -> Kept:
    """A pod of a gang."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    metadata = _identity(pod) | {"labels": _pick(pod["metadata"].get("labels") or {}, JOB_NAME_LABEL)}
    placed = [
        _pick(each, "type", "status", "reason") | _text(each)
        for each in status.get("conditions") or ()
        if each.get("type") == "PodScheduled"
    ]
    states = [
        _pick(each, "image") | {"state": _keep_state(each.get("state") or {})}
        for each in status.get("containerStatuses") or ()
    ]
    kept = (
        _pick(status, "phase", "reason") | _text(status) | {"conditions": placed, "containerStatuses": states}
    )
    containers = [_requests(each) for each in spec.get("containers") or ()]
    # not ours: what a webhook of the cluster's has put there
    before = [_requests(each) | _pick(each, "restartPolicy") for each in spec.get("initContainers") or ()]
    kinds = {"containers": containers} | ({"initContainers": before} if before else {})
    return {
        "metadata": metadata,
        "spec": _pick(spec, "nodeName") | kinds,
        "status": kept,
    }


def keep_event(event: Object) -> Kept | None:
    """An event of a job; None for what is of no job, or told of every healthy one."""
    if not job_of_event(event) or is_noise(str(event.get("message", ""))):
        return None
    wanted = ("reason", "type", "lastTimestamp", "eventTime")
    series = {"series": _pick(event["series"], "lastObservedTime")} if event.get("series") else {}
    about = _pick(event.get("involvedObject") or {}, "kind", "name")
    identity = {"metadata": _pick(event["metadata"], "name", "creationTimestamp")}
    return identity | _pick(event, *wanted) | _text(event) | series | {"involvedObject": about}


def keep_queue(queue: Object) -> Kept:
    """A queue."""
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    kept = {"metadata": _identity(queue), "spec": _pick(spec, "capability", "parent")}
    return kept | {"status": _pick(status, "state", "allocated")}


def keep_node(node: Object) -> Kept:
    """A node."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    allocatable = {
        name: value
        for name, value in (status.get("allocatable") or {}).items()
        if is_device(name) or name in ("cpu", "memory")
    }
    ready = [
        _pick(each, "type", "status")
        for each in status.get("conditions") or ()
        if each.get("type") == "Ready"
    ]
    labels = dict(node["metadata"].get("labels") or {})
    kept = {"metadata": _identity(node) | {"labels": labels}, "spec": _pick(spec, "unschedulable", "taints")}
    return kept | {"status": {"allocatable": allocatable, "conditions": ready}}


def job_of_group(group: Object) -> str:
    """The name of the job that a PodGroup is of."""
    owners = group["metadata"].get("ownerReferences") or ()
    return next((str(owner["name"]) for owner in owners if owner.get("kind") == "Job"), "")


def job_of_pod(pod: Object) -> str:
    """The name of the job that a pod is of."""
    return str((pod["metadata"].get("labels") or {}).get(JOB_NAME_LABEL, ""))


def job_of_event(event: Object) -> str:
    """The name of the job that an event is about, through its PodGroup or pod; "" for what is not of a job."""
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind"), str(about.get("name", ""))
    if kind == "Job":
        return name
    if kind == "PodGroup":
        # <job>-<uid of the job>, and a uid has 36 characters; a session's is podgroup-<uid>
        return "" if name.startswith("podgroup-") else name[:-37]
    return name.rpartition("-worker-")[0] if kind == "Pod" else ""


def claims_of(job: Object) -> list[str]:
    """The claims that the pods of a job use."""
    volumes: Sequence[Object] = job["spec"]["tasks"][0]["template"]["spec"].get("volumes") or ()
    return [
        str(each["persistentVolumeClaim"]["claimName"])
        for each in volumes
        if each.get("persistentVolumeClaim")
    ]


def _keep_task(task: Object) -> Kept:
    pod = task["template"]["spec"]
    volumes = [
        _pick(each, "persistentVolumeClaim")
        for each in pod.get("volumes") or ()
        if "persistentVolumeClaim" in each
    ]
    spec = {"containers": [_requests(each) for each in pod.get("containers") or ()], "volumes": volumes}
    spec |= _pick(pod, "nodeSelector", "tolerations")
    return _pick(task, "name", "replicas") | {"template": {"spec": spec}}


def _keep_state(state: Object) -> Kept:
    found: Kept = {}
    for name, value in state.items():
        found[name] = _pick(value or {}, "reason", "exitCode") | _text(value or {})
    return found


def _requests(container: Object) -> Kept:
    return {"resources": {"requests": dict((container.get("resources") or {}).get("requests") or {})}}


def _identity(item: Object) -> Kept:
    wanted = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "ownerReferences")
    found = _pick(item["metadata"], *wanted)
    if "ownerReferences" in found:
        found["ownerReferences"] = [_pick(owner, "kind", "name") for owner in found["ownerReferences"]]
    return found


def _text(item: Object) -> Kept:
    text = str(item.get("message") or "")
    return {"message": text[:_LONGEST_TEXT]} if text else {}


def _pick(item: Object, *names: str) -> Kept:
    return {name: item[name] for name in names if item.get(name) not in (None, "")}
