"""The end of a gang, proved: the Job deleted, no pod of it alive. And what nobody owns any more, swept."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from slicelift.backends.base import Proof
from slicelift.errors import SliceliftError

from slicelift_hub.counting import is_ready
from slicelift_hub.launcher.backends.volcano import paths
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.names import JOB_NAME_LABEL, MANAGED_BY, OURS
from slicelift_hub.launcher.backends.volcano.picture import Object, created, moment
from slicelift_hub.launcher.backends.volcano.status import OVER, held_words, raw_phase

# beyond the grace of its pods: garbage collection, the kubelet, an API server that restarts
_PATIENCE_SECONDS = 20.0
_LOOK_SECONDS = 0.5
# for pods that may still save, before who asked is told so
_SAVING_LOOK_SECONDS = 1.0
# a controller that was just making pods may make some more
_LOOKS = 2


def end(client: Client, namespace: str, name: str, *, grace_seconds: float | None) -> Proof:
    """Delete the job unless it is over, and wait for the proof: `grace_seconds` + 20 s at most. Safe to repeat.

    None: the pods have the time of their template, which may be an hour. It is not waited for: a proof that is neither
    gone nor names what is left is to be asked for again. Deleting needs no controller of Volcano's: Kubernetes itself
    collects the pods. Raises Unavailable.
    """
    job = client.find(paths.jobs(namespace, name))
    alive = living_pods(client, namespace, name)
    over = job is not None and raw_phase(job) in OVER
    if job is not None and not over:
        client.delete(paths.jobs(namespace, name), uid=job["metadata"]["uid"])
    if not over:
        _end_pods(client, namespace, alive, grace_seconds)
    saving = grace_seconds is None and not over
    seconds = _SAVING_LOOK_SECONDS if saving else (grace_seconds or 0.0) + _PATIENCE_SECONDS
    left = _wait_gone(client, namespace, name, seconds=seconds)
    late = [pod for pod in left if not saving or _is_late(pod)]
    return Proof(
        gone=not left, killed=max(0, len(alive) - len(left)), left=tuple(_tell(client, pod) for pod in late)
    )


def living_pods(client: Client, namespace: str, name: str) -> list[dict[str, Any]]:
    """Pods of the job that are not over, asked of the API server itself."""
    found, _ = client.list(paths.pods(namespace), labelSelector=f"{JOB_NAME_LABEL}={name}")
    return [pod for pod in found if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]


def discard(client: Client, namespace: str, name: str) -> bool:
    """Delete a job that is over, with all that belongs to it; whether nothing is left of it."""
    job = client.find(paths.jobs(namespace, name))
    if job is None:
        return not living_pods(client, namespace, name)
    if raw_phase(job) not in OVER:
        return False
    client.delete(paths.jobs(namespace, name), uid=job["metadata"]["uid"])
    return client.find(paths.jobs(namespace, name)) is None


def sweep(client: Client, namespace: str, *, runtime: str, keep_seconds: float) -> list[str]:
    """Delete what nobody owns: runtimes that no job uses, aborted jobs of long ago.

    What was deleted, by kind and name. What belongs to a job Kubernetes itself collects with it. Volcano never collects
    aborted jobs by itself (volcano-sh/volcano#4736).
    """
    ours = f"{MANAGED_BY}={OURS}"
    jobs, _ = client.list(paths.jobs(namespace), labelSelector=ours)
    plain, _ = client.list(paths.plain_jobs(namespace), labelSelector=ours)
    maps, _ = client.list(paths.config_maps(namespace), labelSelector=ours)
    templates = [job["spec"]["tasks"][0]["template"] for job in jobs]
    templates += [job["spec"]["template"] for job in plain]
    used = {name for each in templates for name in _config_maps_of(each)} | {runtime}
    old = [job for job in jobs if raw_phase(job) == "Aborted" and _ended_for(job) > keep_seconds]
    doomed = [("job", paths.jobs, job) for job in old]
    doomed += [
        ("configmap", paths.config_maps, each) for each in maps if each["metadata"]["name"] not in used
    ]
    deleted = []
    for kind, path, item in doomed:
        name = str(item["metadata"]["name"])
        if client.delete(path(namespace, name), uid=item["metadata"]["uid"]):
            deleted.append(f"{kind} {name}")
    return deleted


def _end_pods(client: Client, namespace: str, pods: Collection[Object], grace_seconds: float | None) -> None:
    """Give the pods no more time than asked; what the garbage collector deletes has the time of its template.

    Never none at all: the API server would forget a pod at once, whether or not its node has ended it.
    """
    if grace_seconds is None:
        pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    else:
        grace_seconds = max(1.0, grace_seconds)
    for pod in pods:
        metadata = pod["metadata"]
        client.delete(
            paths.pods(namespace, metadata["name"]), uid=metadata["uid"], grace_seconds=grace_seconds
        )


def _is_late(pod: Object) -> bool:
    """Whether it should have been gone for a while: the API server writes down when the time of a pod is over."""
    due = pod["metadata"].get("deletionTimestamp")
    return bool(due) and time.time() > moment(due) + _PATIENCE_SECONDS


def _wait_gone(client: Client, namespace: str, name: str, *, seconds: float) -> list[dict[str, Any]]:
    until, empty = time.monotonic() + seconds, 0
    left: list[dict[str, Any]] = []
    while empty < _LOOKS:
        left = living_pods(client, namespace, name)
        empty = 0 if left else empty + 1
        if left and time.monotonic() > until:
            return left
        if empty < _LOOKS:
            time.sleep(_LOOK_SECONDS)
    return left


def _tell(client: Client, pod: Object) -> str:
    """A pod that cannot be proved gone, with its node and what still counts as used there."""
    name, node_name = pod["metadata"]["name"], (pod.get("spec") or {}).get("nodeName")
    if not node_name:
        return f"pod {name}, which has no node"
    held = held_words([pod])
    counted = f"; {held} still count as used" if held else ""
    answers = _answers(client, node_name)
    state = "" if answers else ", which does not answer"
    return f"pod {name} on node {node_name}{state}{counted}"


def _answers(client: Client, node: str) -> bool:
    try:
        found = client.find(paths.nodes(node))
    except SliceliftError:
        # one that may not be looked at is not said to be lost
        return True
    return found is not None and is_ready(found)


def _config_maps_of(template: Mapping[str, Any]) -> list[str]:
    volumes = template["spec"].get("volumes") or ()
    return [str(volume["configMap"]["name"]) for volume in volumes if volume.get("configMap")]


def _ended_for(job: Object) -> float:
    """Seconds since it became what it is."""
    since = moment((job["status"].get("state") or {}).get("lastTransitionTime"))
    return time.time() - (since or created(job))
