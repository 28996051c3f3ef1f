"""The pod of one worker: container, volumes, resources. Pure.

Container 0 is ours, since Volcano reads exit codes there; what starts in it is `slicelift.runtime.pod`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slicelift.errors import Refused
from slicelift.models import JobSpec
from slicelift_profiles import ProfileError, slices
from slicelift_profiles.cluster import NEVER, REST, ClusterSettings
from slicelift_profiles.presets import Preset

from slicelift_hub.launcher.backends.volcano.data import claim_volume, gang_mounts, gang_volumes
from slicelift_hub.launcher.backends.volcano.names import (
    RETRY_ANNOTATION,
    check_image,
    literal,
    owner_hash,
)
from slicelift_hub.launcher.backends.volcano.sites import Site

START, REQUEST, ATTEMPT = "/slicelift/start", "/slicelift/request", "/slicelift/attempt"
CHECKPOINTS = "/slicelift/checkpoints"
ZIP = f"{START}/runtime.pyz"
# group may read: the pod's fsGroup is what its user is in
_SECRET_MODE, _PLAIN_MODE = 0o440, 0o444


def make_template(
    spec: JobSpec, *, name: str, owner: str, preset: Preset, site: Site, labels: Mapping[str, str]
) -> dict[str, Any]:
    """`name` is the job's, and that of the Secret that its pods read."""
    settings = preset.cluster
    pod: dict[str, Any] = {
        "restartPolicy": settings.restart_policy,
        "terminationGracePeriodSeconds": settings.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(site),
        "containers": [_make_container(spec, owner=owner, preset=preset, site=site)],
        "volumes": _make_volumes(name, spec, settings=settings, site=site),
    }
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        pod["tolerations"] = [dict(toleration) for toleration in settings.tolerations]
    if settings.priority_class:
        pod["priorityClassName"] = settings.priority_class
    annotations = {
        "sidecar.istio.io/inject": "false",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    return {"metadata": {"labels": {**settings.labels, **labels}, "annotations": annotations}, "spec": pod}


def worker_resources(spec: JobSpec, settings: ClusterSettings) -> dict[str, str]:
    """What one worker asks for, and its limit: Volcano counts requests only, and what is not in them not at all."""
    found = {
        "cpu": _cores(settings.cores(spec.gpus_per_worker)),
        "memory": settings.memory_text(spec.gpus_per_worker),
    }
    if spec.slice is not None:
        found[_slice_resource(spec.slice)] = "1"
    elif spec.gpus_per_worker:
        found[slices.GPU] = str(spec.gpus_per_worker)
    return found | {name: str(count) for name, count in sorted(settings.resources.items())}


def least_workers(spec: JobSpec) -> int:
    """With how many workers the gang starts and goes on."""
    return spec.workers if spec.min_workers is None else max(1, min(spec.min_workers, spec.workers))


def most_workers(spec: JobSpec, preset: Preset) -> int:
    """Up to how many workers the gang can be scaled, which torchrun must know from the start."""
    return spec.workers if spec.min_workers is None else max(spec.workers, preset.max_workers or 0)


def is_elastic(spec: JobSpec, preset: Preset) -> bool:
    """Whether the gang goes on while workers come and go; also one that begins with its least, where there may be more."""
    return least_workers(spec) < most_workers(spec, preset)


def interpreter(spec: JobSpec, settings: ClusterSettings) -> str:
    """The Python that ranks use: the kernel's, unless the preset's image has its own."""
    return settings.python or spec.python


def job_image(spec: JobSpec, settings: ClusterSettings, site: Site) -> str:
    """The preset's image, else the job's own (its session's), else the one for all. Raises Refused "bad-image"."""
    return check_image(settings.image or spec.image or site.image)


def _make_container(spec: JobSpec, *, owner: str, preset: Preset, site: Site) -> dict[str, Any]:
    settings = preset.cluster
    amounts = worker_resources(spec, settings)
    return {
        "name": settings.container,
        "image": job_image(spec, settings, site),
        "imagePullPolicy": "IfNotPresent",
        "command": _make_command(spec, settings),
        "workingDir": ATTEMPT,
        "env": _make_environment(spec, preset, site=site, resources=amounts),
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": container_security(settings.capabilities, site),
        "volumeMounts": _make_mounts(spec, owner, site),
    }


def _make_command(spec: JobSpec, settings: ClusterSettings) -> list[str]:
    start = [interpreter(spec, settings), "-P", ZIP]
    if not settings.command:
        return [literal(word) for word in start]
    *words, last = settings.command
    # torchrun's own options: one process, of no gang, which is our agent
    rest = ["--nnodes=1", "--nproc-per-node=1", "--standalone", "--no-python", *start]
    return [literal(word) for word in (*words, last.removesuffix(REST) + shlex.join(rest))]


def _make_environment(
    spec: JobSpec, preset: Preset, *, site: Site, resources: Iterable[str]
) -> list[dict[str, Any]]:
    settings = preset.cluster
    plain = {
        **slices.without_gpu(resources),
        "GLOO_SOCKET_IFNAME": site.interface,
        "NCCL_SOCKET_IFNAME": site.interface,
        **settings.environment,
    }
    return [
        _from_field("SLICELIFT_POD_IP", "status.podIP"),
        _from_field("SLICELIFT_NODE_NAME", "spec.nodeName"),
        _restarts(elastic=is_elastic(spec, preset)),
        *({"name": name, "value": literal(value)} for name, value in plain.items()),
    ]


def _restarts(*, elastic: bool) -> dict[str, Any]:
    """How often the gang was started again. The workers of an elastic one are replaced one by one.

    So there is no such number for all of them, and they stay one attempt.
    """
    name = "SLICELIFT_RESTARTS"
    return (
        {"name": name, "value": ""}
        if elastic
        else _from_field(name, f"metadata.annotations['{RETRY_ANNOTATION}']")
    )


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _make_volumes(name: str, spec: JobSpec, *, settings: ClusterSettings, site: Site) -> list[dict[str, Any]]:
    return [
        {"name": "start", "configMap": {"name": site.runtime, "defaultMode": _PLAIN_MODE, "optional": False}},
        {"name": "request", "secret": {"secretName": name, "defaultMode": _SECRET_MODE, "optional": False}},
        {"name": "attempt", "emptyDir": {"sizeLimit": settings.disk}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm}},
        _checkpoints(site),
        *gang_volumes(spec, site),
        *(dict(volume) for volume in site.volumes),
    ]


def _checkpoints(site: Site) -> dict[str, Any]:
    if not site.checkpoints_claim:
        return {"name": "checkpoints", "emptyDir": {}}
    return claim_volume("checkpoints", site.checkpoints_claim, read_only=False)


def _make_mounts(spec: JobSpec, owner: str, site: Site) -> list[dict[str, Any]]:
    return [
        {"name": "start", "mountPath": START, "readOnly": True},
        {"name": "request", "mountPath": REQUEST, "readOnly": True},
        {"name": "attempt", "mountPath": ATTEMPT},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the place of shared memory, not a temporary file
        {"name": "checkpoints", "mountPath": CHECKPOINTS}
        | ({"subPath": owner_hash(owner)} if site.checkpoints_claim else {}),
        *gang_mounts(spec, owner, site),
        *(dict(mount) for mount in site.mounts),
    ]


def pod_security(site: Site) -> dict[str, Any]:
    """Of a pod of ours."""
    if site.uid is None:
        return {"seccompProfile": {"type": "RuntimeDefault"}}
    ids = {"runAsUser": site.uid, "runAsGroup": site.uid, "fsGroup": site.uid, "runAsNonRoot": site.uid != 0}
    # without this, every file of a large claim would be given to the group at every start
    return {**ids, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}


def container_security(added: Sequence[str], site: Site) -> dict[str, Any]:
    """Of a container of ours: no capability but those `added`."""
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if added:
        capabilities["add"] = list(added)
    found: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    return found if site.uid in (None, 0) else {**found, "runAsNonRoot": True}


def _slice_resource(name: str) -> str:
    """The resource of a slice. Raises Refused where there is no such slice."""
    try:
        return slices.resource_name(name)
    except ProfileError as error:
        raise Refused(error.code, error.message, error.hint) from error


def _cores(cores: float) -> str:
    """As Kubernetes writes it: `32`, `500m`."""
    return str(int(cores)) if cores == int(cores) else f"{round(cores * 1000)}m"


def restarts_in_place(preset: Preset) -> bool:
    """Whether a failed worker is started again inside its pod, which then never counts as failed."""
    return preset.cluster.restart_policy != NEVER
