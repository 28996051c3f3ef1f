"""The addresses of objects at the API server. Pure."""

from __future__ import annotations

from urllib.parse import quote

BATCH = "/apis/batch.volcano.sh/v1alpha1"
SCHEDULING = "/apis/scheduling.volcano.sh/v1beta1"
TOPOLOGY = "/apis/topology.volcano.sh/v1alpha1"
CORE = "/api/v1"
PLAIN_BATCH = "/apis/batch/v1"


def jobs(namespace: str, name: str = "") -> str:
    """Volcano Jobs."""
    return _namespaced(BATCH, namespace, "jobs", name)


def plain_jobs(namespace: str, name: str = "") -> str:
    """Kubernetes' own Jobs."""
    return _namespaced(PLAIN_BATCH, namespace, "jobs", name)


def groups(namespace: str, name: str = "") -> str:
    """PodGroups."""
    return _namespaced(SCHEDULING, namespace, "podgroups", name)


def pods(namespace: str, name: str = "") -> str:
    """Pods."""
    return _namespaced(CORE, namespace, "pods", name)


def events(namespace: str) -> str:
    """Events."""
    return _namespaced(CORE, namespace, "events", "")


def secrets(namespace: str, name: str = "") -> str:
    """Secrets."""
    return _namespaced(CORE, namespace, "secrets", name)


def config_maps(namespace: str, name: str = "") -> str:
    """ConfigMaps."""
    return _namespaced(CORE, namespace, "configmaps", name)


def claims(namespace: str, name: str) -> str:
    """PersistentVolumeClaims."""
    return _namespaced(CORE, namespace, "persistentvolumeclaims", name)


def queues() -> str:
    """Queues, of the whole cluster."""
    return f"{SCHEDULING}/queues"


def nodes(name: str = "") -> str:
    """Nodes, of the whole cluster."""
    return f"{CORE}/nodes" + (f"/{quote(name, safe='')}" if name else "")


def hypernodes() -> str:
    """HyperNodes, of the whole cluster."""
    return f"{TOPOLOGY}/hypernodes"


def _namespaced(group: str, namespace: str, kind: str, name: str) -> str:
    path = f"{group}/namespaces/{quote(namespace, safe='')}/{kind}"
    return f"{path}/{quote(name, safe='')}" if name else path
