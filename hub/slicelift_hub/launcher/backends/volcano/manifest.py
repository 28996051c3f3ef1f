"""What is sent to the cluster for one attempt: the Job, the Secret that only its pods read, the runtime. Pure.

Every field that Volcano's webhook would fill in is written here: without the webhook the defaults are another
scheduler and a gang of none.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from slicelift.backends.base import Attempt, ranks_per_worker
from slicelift.errors import Refused
from slicelift.models import JobSpec, to_dict
from slicelift.runtime.nodes import MASTER_PORT
from slicelift.runtime.verdict import HOPELESS
from slicelift_profiles.presets import Preset

from slicelift_hub.launcher.backends.volcano.data import DATA
from slicelift_hub.launcher.backends.volcano.names import (
    MANAGED_BY,
    MOST_NOTE,
    NOTE,
    OURS,
    OWNER_LABEL,
    RUN_LABEL,
    check_job_name,
    label_value,
    namespace_of,
    note,
    owner_hash,
)
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.worker import (
    CHECKPOINTS,
    interpreter,
    is_elastic,
    least_workers,
    make_template,
    most_workers,
)

API = "batch.volcano.sh/v1alpha1"
TASK = "worker"
# a Secret takes 1 MiB, and that of a warm-up has a little more in it
_MOST_BYTES = 1_000_000
# of a pod's grace, what its agent needs to send what is left
_SHIPPING_SECONDS = 10


def make_job(spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site) -> dict[str, Any]:
    """The Volcano Job of an attempt. Raises Refused "bad-job-name" or "bad-image"."""
    name = check_job_name(attempt.attempt_id, task=TASK, replicas=most_workers(spec, preset))
    labels = make_labels(attempt)
    least = least_workers(spec)
    settings = preset.cluster
    body: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": spec.queue,
        "minAvailable": least,
        "maxRetry": _most_failures(spec, preset),
        "ttlSecondsAfterFinished": site.keep_seconds,
        "plugins": {"env": [], "svc": _service_flags(site)},
        "policies": _make_policies(elastic=is_elastic(spec, preset)),
        "tasks": [_make_task(spec, attempt, preset=preset, site=site, labels=labels)],
    }
    if is_elastic(spec, preset) or settings.min_success is not None:
        # else a worker that found no place would run the job again once the others are through
        body["minSuccess"] = min(settings.min_success or 1, spec.workers)
    if settings.priority_class:
        body["priorityClassName"] = settings.priority_class
    if settings.topology is not None:
        topology = settings.topology
        body["networkTopology"] = {"mode": topology.mode, "highestTierAllowed": topology.highest_tier}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace_of(site.namespace, attempt.owner)}
    metadata |= {"labels": labels, "annotations": _make_notes(spec, attempt, preset=preset)}
    return {"apiVersion": API, "kind": "Job", "metadata": metadata, "spec": body}


def is_of(job: Mapping[str, Any], attempt: Attempt) -> bool:
    """Whether a Job of the cluster was made for this attempt, not only under its name."""
    found = job["metadata"].get("annotations") or {}
    return all(found.get(NOTE + key) == note(value) for key, value in _identity(attempt).items())


def first_pod(job: str) -> str:
    """The pod on which the workers of the Job of that name find each other."""
    return f"{job}-{TASK}-0"


def make_secret(
    job: dict[str, Any], spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site
) -> dict[str, Any]:
    """What the pods of `job`, as the API server gave it back, read: the agent's request with its token.

    It is the job's, and goes with it.
    """
    request = make_request(spec, attempt, preset=preset, site=site)
    return make_secret_of(job, "agent.json", request, labels=make_labels(attempt))


def make_secret_of(
    job: Mapping[str, Any],
    key: str,
    content: Mapping[str, Any],
    *,
    labels: Mapping[str, str],
    api: str = API,
) -> dict[str, Any]:
    """A Secret of the job's name that goes with it, with `content` as JSON under `key`; `api`: of the job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": job["metadata"]["name"],
            "namespace": job["metadata"]["namespace"],
            "labels": dict(labels),
            "ownerReferences": [make_reference(job, api=api)],
        },
        "data": {key: base64.b64encode(json.dumps(content).encode()).decode()},
    }


def make_request(spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site) -> dict[str, Any]:
    """The content of agent.json, the same for every node; which one it is, a pod knows by itself."""
    name = attempt.attempt_id
    return {
        "attempt_id": name,
        "run_id": attempt.run_id,
        "promotion_id": attempt.promotion_id,
        "attempt": attempt.attempt,
        "launcher_url": attempt.launcher_url,
        "token": attempt.token,
        "cache": DATA,
        "checkpoints": f"{CHECKPOINTS}/{attempt.run_id}",
        "nodes": most_workers(spec, preset),
        "min_nodes": least_workers(spec),
        "nproc": ranks_per_worker(spec, leased=False),
        "master": f"{first_pod(name)}.{name}",
        "master_port": MASTER_PORT,
        "patience_seconds": site.patience_seconds,
        "grace_seconds": max(5, preset.cluster.grace_seconds - _SHIPPING_SECONDS),
        **_make_check(spec, preset),
        # a slice does not tell how busy it is
        **({"watch_gpus": True} if preset.cluster.idle_minutes and spec.gpus_per_worker else {}),
        "spec": {**to_dict(spec), "python": interpreter(spec, preset.cluster)},
    }


def check_request(request: Mapping[str, Any]) -> None:
    """Raises Refused "spec-too-large" for what no Secret could hold."""
    has = len(json.dumps(request).encode())
    if has > _MOST_BYTES:
        message = f"The job's `spec` has {has:,} bytes; {_MOST_BYTES:,} are allowed."
        hint = "Its pods get it in one Secret: use fewer or smaller tags, parameters and data sets."
        detail = {"field": "spec", "has": has, "most": _MOST_BYTES}
        raise Refused("spec-too-large", message, hint, detail=detail)


def make_runtime(content: bytes, *, name: str, namespace: str) -> dict[str, Any]:
    """The ConfigMap with what starts every job: never changed, named by its content."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: OURS}},
        "binaryData": {"runtime.pyz": base64.b64encode(content).decode()},
    }


def make_labels(attempt: Attempt) -> dict[str, str]:
    """By which our objects are found, and a run's among them."""
    return {
        MANAGED_BY: OURS,
        RUN_LABEL: label_value(attempt.run_id),
        OWNER_LABEL: owner_hash(attempt.owner),
    }


def make_reference(job: Mapping[str, Any], *, api: str = API) -> dict[str, Any]:
    """That something belongs to the job and goes with it. `api` is the job's: objects of a list do not say it."""
    identity = {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    return {"apiVersion": api, "kind": "Job", **identity, "controller": True, "blockOwnerDeletion": False}


def _most_failures(spec: JobSpec, preset: Preset) -> int:
    """The failure at which Volcano gives up. In an elastic gang it counts each worker, and the first one's loss fails all."""
    attempts = preset.cluster.attempts
    return attempts * most_workers(spec, preset) if is_elastic(spec, preset) else attempts


def _make_task(
    spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site, labels: dict[str, str]
) -> dict[str, Any]:
    name = attempt.attempt_id
    task = {
        "name": TASK,
        "replicas": spec.workers,
        "minAvailable": least_workers(spec),
        "maxRetry": preset.cluster.attempts,
        "template": make_template(
            spec, name=name, owner=attempt.owner, preset=preset, site=site, labels=labels
        ),
    }
    if preset.cluster.policies:
        task["policies"] = [dict(policy) for policy in preset.cluster.policies]
    return task


def _service_flags(site: Site) -> list[str]:
    """Published before they are ready, or a worker could not find the first one; Volcano's policy is on by default."""
    closed = str(not site.network_policy).lower()
    return ["--publish-not-ready-addresses=true", f"--disable-network-policy={closed}"]


def _make_check(spec: JobSpec, preset: Preset) -> dict[str, Any]:
    """What the gang measures before it trains; one worker has no network, and an elastic gang nobody to wait for."""
    wanted = bool(preset.cluster.check) and spec.workers > 1 and not is_elastic(spec, preset)
    return {"check": dict(preset.cluster.check)} if wanted else {}


def _make_policies(*, elastic: bool) -> list[dict[str, Any]]:
    """First match wins: a fault of the user's ends the job, any other loss starts the gang (or one worker) again."""
    again = "RestartPod" if elastic else "RestartJob"
    return [
        {"exitCode": HOPELESS, "action": "TerminateJob"},
        {"events": ["PodFailed", "PodEvicted"], "action": again},
    ]


def _identity(attempt: Attempt) -> dict[str, str]:
    return {"promotion": attempt.promotion_id, "attempt": attempt.attempt_id, "owner": attempt.owner}


def _make_notes(spec: JobSpec, attempt: Attempt, *, preset: Preset) -> dict[str, str]:
    """Annotations: whose it is and what, for people with kubectl and for a launcher that finds it again."""
    notes = {**_identity(attempt), "name": spec.name, "preset": preset.name}
    if is_elastic(spec, preset):
        notes[MOST_NOTE.removeprefix(NOTE)] = str(most_workers(spec, preset))
    if preset.cluster.max_hours is not None:
        notes["max-seconds"] = str(round(preset.cluster.max_hours * 3600))
    return {NOTE + key: note(value) for key, value in notes.items()}
