"""For tests on any cluster, the bed or somebody's own: clients, a namespace, a queue, and what to show of a failure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client import ApiException
from kubernetes.stream import stream

from tests.waiting import wait_for

BATCH, SCHEDULING = ("batch.volcano.sh", "v1alpha1"), ("scheduling.volcano.sh", "v1beta1")
LINES_SHOWN = 40


@dataclass(frozen=True)
class Api:
    """Clients of one user."""

    core: client.CoreV1Api
    custom: client.CustomObjectsApi
    raw: client.ApiClient


def connect(kubeconfig: Path) -> Api:
    """As the user of a kubeconfig."""
    raw = config.new_client_from_config(str(kubeconfig))
    return Api(client.CoreV1Api(raw), client.CustomObjectsApi(raw), raw)


@contextmanager
def namespace(api: Api, *, name: str = "", labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """A namespace of its own. Jobs go first, then pods, then the namespace: the other way round floods Volcano."""
    name = name or f"t-{secrets.token_hex(4)}"
    api.core.create_namespace({"metadata": {"name": name, "labels": dict(labels or {})}})
    try:
        # pods are refused until this is there
        wait_for(
            "the default account", lambda: _exists(api.core.read_namespaced_service_account, "default", name)
        )
        yield name
    finally:
        _empty(api, name)
        api.core.delete_namespace(name)


@contextmanager
def queue(api: Api, *, share: Mapping[str, str] | None = None) -> Iterator[str]:
    """An open queue with all of the cluster's `nvidia.com/*` resources, or with `share` of some: unlisted ones count 0."""
    name = f"q-{secrets.token_hex(4)}"
    capability = {**dict.fromkeys(device_names(api), "0"), **share} if share is not None else totals(api)
    body = {
        "apiVersion": "/".join(SCHEDULING),
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, "reclaimable": False, "capability": capability},
    }
    api.custom.create_cluster_custom_object(*SCHEDULING, "queues", body)
    wait_for(f"the queue {name}", lambda: queue_state(api, name) == "Open")
    try:
        yield name
    finally:
        api.custom.delete_cluster_custom_object(*SCHEDULING, "queues", name)


def queue_state(api: Api, name: str) -> str:
    """Open, Closing, Closed, Unknown, or empty."""
    found: str = (
        api.custom.get_cluster_custom_object(*SCHEDULING, "queues", name).get("status", {}).get("state", "")
    )
    return found


def command_queue(api: Api, name: str, action: str) -> None:
    """`OpenQueue` or `CloseQueue`, as vcctl sends it; returns before it is done."""
    found = api.custom.get_cluster_custom_object(*SCHEDULING, "queues", name)
    target = {
        "apiVersion": found["apiVersion"],
        "kind": "Queue",
        "name": name,
        "uid": found["metadata"]["uid"],
    }
    body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": action, "target": target}
    body["metadata"] = {"generateName": "say-"}
    api.custom.create_namespaced_custom_object("bus.volcano.sh", "v1alpha1", "default", "commands", body)


def totals(api: Api) -> dict[str, str]:
    """Every `nvidia.com/*` resource of the cluster and how many there are."""
    found: dict[str, int] = {}
    for node in api.core.list_node().items:
        for name, count in (node.status.allocatable or {}).items():
            if name.startswith("nvidia.com/"):
                found[name] = found.get(name, 0) + int(count)
    return {name: str(count) for name, count in found.items()}


def device_names(api: Api) -> list[str]:
    """The names alone."""
    return sorted(totals(api))


def gang(
    name: str,
    *,
    queue: str,
    image: str,
    command: Sequence[str],
    replicas: int = 2,
    resources: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A plain Volcano Job of one task `worker`, every field said; requests equal limits."""
    needs = {"cpu": "100m", "memory": "128Mi", **(resources or {})}
    container = {
        "name": "worker",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"requests": needs, "limits": needs},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
        **(pod or {}),
    }
    template = {"metadata": {"annotations": dict(annotations or {})}, "spec": spec}
    return {
        "apiVersion": "/".join(BATCH),
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "queue": queue,
            "minAvailable": replicas,
            "maxRetry": 1,
            "plugins": {
                "env": [],
                "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
            },
            "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}],
            "tasks": [
                {"name": "worker", "replicas": replicas, "minAvailable": replicas, "template": template}
            ],
        },
    }


def submit(api: Api, namespace: str, job: Mapping[str, Any]) -> None:
    """Creates a Volcano Job; what a webhook refuses raises `ApiException`."""
    api.custom.create_namespaced_custom_object(*BATCH, namespace, "jobs", job)


def phase(api: Api, namespace: str, name: str) -> str:
    """Volcano's word for where a Job stands, empty before it has one."""
    found = api.custom.get_namespaced_custom_object(*BATCH, namespace, "jobs", name)
    return str(found.get("status", {}).get("state", {}).get("phase", ""))


def wait_phase(api: Api, namespace: str, name: str, *wanted: str, seconds: float = 60) -> str:
    """Waits until a Job is in one of the phases and returns it."""
    wait_for(
        f"{name} to be {' or '.join(wanted)}", lambda: phase(api, namespace, name) in wanted, seconds=seconds
    )
    return phase(api, namespace, name)


def logs(api: Api, namespace: str, pod: str) -> str:
    """All that a pod's first container has printed; the client says None for nothing."""
    return api.core.read_namespaced_pod_log(pod, namespace) or ""


def execute(api: Api, namespace: str, pod: str, *command: str, seconds: float = 60) -> str:
    """A command in a running pod: its output and errors, in order. Raises `TimeoutError` when it does not end."""
    called = api.core.connect_get_namespaced_pod_exec
    asked = {"command": list(command), "stdout": True, "stderr": True, "_preload_content": False}
    answer = stream(called, pod, namespace, **asked)
    try:
        answer.run_forever(timeout=seconds)
        if answer.is_open():
            raise TimeoutError(f"{command} in {pod} did not end in {seconds:.0f} s")
        return str(answer.read_all())
    finally:
        answer.close()
        answer.sock.shutdown()  # closed by the other side first, close() leaves the connection open


def told(api: Api, namespace: str) -> dict[str, str]:
    """Events, Jobs and the end of every pod's log of a namespace, for the report of a failed test."""
    events = api.core.list_namespaced_event(namespace).items
    lines = [
        f"{one.type:<8}{one.involved_object.name}: {one.reason}: {one.message} (x{one.count or 1})"
        for one in events
    ]
    jobs = api.custom.list_namespaced_custom_object(*BATCH, namespace, "jobs")["items"]
    states = [f"{job['metadata']['name']}: {job.get('status', {}).get('state')}" for job in jobs]
    found = {"events": "\n".join(lines[-LINES_SHOWN:]), "jobs": "\n".join(states)}
    for pod in api.core.list_namespaced_pod(namespace).items:
        title = f"pod {pod.metadata.name}, {pod.status.phase} on {pod.spec.node_name}"
        with suppress(ApiException):
            found[title] = "\n".join(logs(api, namespace, pod.metadata.name).splitlines()[-LINES_SHOWN:])
    return found


def _empty(api: Api, namespace: str) -> None:
    api.custom.delete_collection_namespaced_custom_object(*BATCH, namespace, "jobs")
    wait_for(
        "Jobs to go", lambda: not api.custom.list_namespaced_custom_object(*BATCH, namespace, "jobs")["items"]
    )
    # else one that is under way would make its pods anew
    client.BatchV1Api(api.raw).delete_collection_namespaced_job(namespace, propagation_policy="Background")
    api.core.delete_collection_namespaced_pod(namespace)
    with suppress(AssertionError):
        wait_for("pods to go", lambda: not api.core.list_namespaced_pod(namespace).items, seconds=10)
        return
    # a node that is away keeps its pods until it is asked no more
    api.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
    wait_for("pods to be forgotten", lambda: not api.core.list_namespaced_pod(namespace).items)


def _exists(read: Callable[..., object], *arguments: str) -> bool:
    try:
        read(*arguments)
    except ApiException as refusal:
        if refusal.status != 404:
            raise
        return False
    return True
