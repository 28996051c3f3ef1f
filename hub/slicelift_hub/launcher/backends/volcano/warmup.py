"""The Job that brings one version of some data into the shared cache before a gang takes its place: rendered and read. Pure.

A plain Job of Kubernetes on CPUs, outside of Volcano's queues: it asks for nothing that is given out there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slicelift.backends.base import Attempt
from slicelift.errors import SliceliftError
from slicelift.models import DataRef, JobSpec, size_text, to_dict
from slicelift.runtime.verdict import HOPELESS
from slicelift_profiles.presets import Preset
from slicelift_profiles.slices import without_gpu

from slicelift_hub.launcher.backends.volcano.data import (
    DATA,
    DATA_LABEL,
    VOLUME,
    claim_volume,
    data_key,
)
from slicelift_hub.launcher.backends.volcano.manifest import make_secret_of
from slicelift_hub.launcher.backends.volcano.names import (
    MANAGED_BY,
    NOTE,
    OURS,
    OWNER_LABEL,
    check_image,
    literal,
    namespace_of,
    note,
    owner_hash,
)
from slicelift_hub.launcher.backends.volcano.picture import (
    Object,
    Picture,
    created,
    ended_state,
    moment,
    read_word,
)
from slicelift_hub.launcher.backends.volcano.places import pod_trouble
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.turn import duration
from slicelift_hub.launcher.backends.volcano.worker import (
    REQUEST,
    START,
    ZIP,
    container_security,
    interpreter,
    job_image,
    pod_security,
)

CONTAINER = "warm-up"
_API = "batch/v1"
SCRATCH = "/slicelift/scratch"
_DONE = {"Complete", "SuccessCriteriaMet"}
_FAILED = {"Failed", "FailureTarget"}
_TRIES = 3
# how long an ended one is there: jobs on the same data that come in that time need none of their own
_KEEP_SECONDS = 120
_GRACE_SECONDS = 10
_NEEDS = {"cpu": "100m", "memory": "256Mi"}
_TEXT = 400


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """How far one is: `done`, failed with an `error`, or under way, as `message` says."""

    job: Object
    done: bool = False
    error: SliceliftError | None = None
    message: str = ""


def make_warm_up(
    ref: DataRef, spec: JobSpec, attempt: Attempt, *, name: str, preset: Preset, site: Site
) -> dict[str, Any]:
    """The Job, by a name that is never used twice. Raises Refused "bad-image"."""
    labels = _labels(ref, attempt)
    notes = {"attempt": attempt.attempt_id, "owner": attempt.owner, "data": describe(ref)}
    pod = {"metadata": {"labels": labels}, "spec": _make_pod(name, spec, attempt, preset=preset, site=site)}
    # a node that is drained or lost is not the data's fault
    rules = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [HOPELESS]},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return {
        "apiVersion": _API,
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace_of(site.namespace, attempt.owner),
            "labels": labels,
            "annotations": {NOTE + key: note(value) for key, value in notes.items()},
        },
        "spec": {
            "backoffLimit": _TRIES - 1,
            "activeDeadlineSeconds": round(site.data_hours * 3600),
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
            "podFailurePolicy": {"rules": rules},
            "template": pod,
        },
    }


def make_warm_up_secret(job: Object, ref: DataRef, spec: JobSpec, attempt: Attempt) -> dict[str, Any]:
    """What the pod of `job`, as the API server gave it back, reads; with the attempt's token. It goes with the job.

    Of the spec what it needs: a job of many data sets has many of these.
    """
    needed = replace(spec, data=(), parameters={}, tags={})
    request = {
        "attempt_id": attempt.attempt_id,
        "launcher_url": attempt.launcher_url,
        "token": attempt.token,
        "spec": to_dict(needed),
        "ref": to_dict(ref),
    }
    return make_secret_of(job, "warmup.json", request, labels=_labels(ref, attempt), api=_API)


def read_warm_up(job: Object, pods: Iterable[Object], *, events: Sequence[Object] = (), now: float) -> WarmUp:
    """How far it is, by the Job, its pods and their events, all as the API server gives them."""
    data = _note(job, "data")
    if _conditions(job) & _DONE:
        return WarmUp(job=job, done=True)
    mine = sorted((pod for pod in pods if _is_of(pod, job)), key=created)
    if _conditions(job) & _FAILED:
        return WarmUp(job=job, error=_make_error(data, job["status"], mine))
    # the newest pod, as a gang of one
    gang = {**job, "spec": {"minAvailable": 1}}
    picture = Picture(now=now, job=gang, pods=mine[-1:], events=events)
    return WarmUp(job=job, message=_trouble(data, picture) or _progress(data, job, now=now))


def asker(job: Object) -> str:
    """The attempt that started it."""
    return _note(job, "attempt")


def is_over(job: Object) -> bool:
    """Whether it has fetched all, or has failed."""
    return bool(_conditions(job) & (_DONE | _FAILED))


def is_leaving(job: Object) -> bool:
    """Whether somebody has deleted it: what it did so far is of use, and it is not waited for."""
    return bool(job["metadata"].get("deletionTimestamp"))


def describe(ref: DataRef) -> str:
    """`data/train (2000 files, 40.0 GiB)`."""
    files = f"{ref.nfiles} file{'' if ref.nfiles == 1 else 's'}"
    return f"{ref.path} ({files}, {size_text(ref.size_bytes)})"


def _conditions(job: Object) -> set[str]:
    found = (job.get("status") or {}).get("conditions") or ()
    return {str(each["type"]) for each in found if each.get("status") == "True"}


def _note(job: Object, key: str) -> str:
    return str((job["metadata"].get("annotations") or {}).get(NOTE + key, ""))


def _labels(ref: DataRef, attempt: Attempt) -> dict[str, str]:
    # not the run's: it may be of use to many, and is none of its pods
    return {
        MANAGED_BY: OURS,
        OWNER_LABEL: owner_hash(attempt.owner),
        DATA_LABEL: data_key(attempt.owner, ref),
    }


def _make_pod(name: str, spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site) -> dict[str, Any]:
    settings = preset.cluster
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(site),
        "containers": [_make_container(spec, attempt, preset=preset, site=site)],
        "volumes": [
            {"name": "start", "configMap": {"name": site.runtime, "defaultMode": 0o444, "optional": False}},
            {"name": "request", "secret": {"secretName": name, "defaultMode": 0o440, "optional": False}},
            {"name": "scratch", "emptyDir": {}},
            claim_volume(VOLUME, site.data_claim, read_only=False),
            *(dict(volume) for volume in site.volumes),
        ],
    }
    if settings.tolerations:
        pod["tolerations"] = [dict(toleration) for toleration in settings.tolerations]
    return pod


def _make_container(spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site) -> dict[str, Any]:
    own = bool(site.data_image)
    python = "python3" if own else interpreter(spec, preset.cluster)
    variables = {"PYTHONPATH": ZIP, "HOME": SCRATCH, "TMPDIR": SCRATCH, **without_gpu(_NEEDS)}
    return {
        "name": CONTAINER,
        "image": check_image(site.data_image) if own else job_image(spec, preset.cluster, site),
        "imagePullPolicy": "IfNotPresent",
        "command": [literal(python), "-P", "-m", "slicelift.runtime.warming"],
        "workingDir": SCRATCH,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": dict(_NEEDS), "limits": {"cpu": "2", "memory": site.data_memory}},
        "securityContext": container_security((), site),
        "volumeMounts": [
            {"name": "start", "mountPath": START, "readOnly": True},
            {"name": "request", "mountPath": REQUEST, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": VOLUME, "mountPath": DATA, "subPath": owner_hash(attempt.owner)},
            *(dict(mount) for mount in site.mounts),
        ],
    }


def _is_of(pod: Object, job: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == job["metadata"]["uid"] for owner in owners)


def _make_error(data: str, status: Object, pods: Sequence[Object]) -> SliceliftError:
    """What the last pod that ended left as its word, else what Kubernetes says of the Job."""
    reasons = {str(each.get("reason", "")) for each in status.get("conditions") or ()}
    if "DeadlineExceeded" in reasons:
        return _out_of_time(data)
    for pod in reversed(pods):
        ended = ended_state(pod)
        word = read_word(str(ended.get("message", "")))
        if {"code", "message", "hint"} <= word.keys():
            return SliceliftError(*(str(word[name]) for name in ("code", "message", "hint")))
        if ended.get("reason") == "OOMKilled":
            return _out_of_memory(data)
    said = [str(each.get("message", "")) for each in status.get("conditions") or ()]
    why = next(filter(None, said), "no pod of it has left a word")[:_TEXT].rstrip(".")
    hint = "`slicelift retry` tries again; kubectl shows its pods by the label slicelift.io/data."
    return SliceliftError("data-fetch-failed", f"The data {data} could not be fetched: {why}.", hint)


def _out_of_memory(data: str) -> SliceliftError:
    message = f"The memory of the pod that fetches the data {data} was not enough."
    return SliceliftError("data-fetch-failed", message, "Ask an admin to raise c.Volcano.data_memory.")


def _out_of_time(data: str) -> SliceliftError:
    message = f"Fetching the data {data} took longer than it may, and was ended."
    hint = "`slicelift retry` goes on with what is there; an admin can raise c.Volcano.data_hours."
    return SliceliftError("data-too-slow", message, hint)


def _trouble(data: str, picture: Picture) -> str:
    """What keeps its pod from running, "" for nothing."""
    trouble = pod_trouble(picture)
    if trouble is not None:
        return f"The data {data} cannot be fetched yet: {trouble.message}"
    for text in picture.scheduler_says():
        return f"The pod that fetches the data {data} has no place: {text[:_TEXT]}"
    return ""


def _progress(data: str, job: Object, *, now: float) -> str:
    since = moment((job.get("status") or {}).get("startTime")) or created(job)
    seconds = now - since
    message = f"Fetching the data {data} into the shared cache"
    return f"{message}, for {duration(seconds)} so far" if seconds >= 60 else message
