"""Service accounts with the rights of hub/deploy/rbac, as an admin gives them; tests may run beside a real installation."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from bed.kit import Api
from kubernetes import client, utils

RBAC = Path(__file__).resolve().parents[2] / "hub" / "deploy" / "rbac"
HUB, LAUNCHER = "slicelift-hub", "slicelift-launcher"
FILES = {
    HUB: ("hub.yaml", "sessions-namespace.yaml"),
    LAUNCHER: ("launcher.yaml", "jobs-namespace.yaml"),
}


@contextmanager
def account(api: Api, name: str, *, namespace: str, folder: Path, also: Sequence[str] = ()) -> Iterator[Path]:
    """A kubeconfig of the hub's or the launcher's account, which lives in `namespace` and may work there and in `also`."""
    own = f"{name}-{secrets.token_hex(3)}"
    of_the_cluster, of_a_namespace = (
        list(yaml.safe_load_all(_renamed((RBAC / file).read_text(), name, own, namespace)))
        for file in FILES[name]
    )
    rbac = client.RbacAuthorizationV1Api(api.raw)
    for body in of_the_cluster:
        _apply(api, body, namespace)
    for place in (namespace, *also):
        for body in of_a_namespace:
            _apply(api, body, place)
    try:
        yield kubeconfig(api, folder / f"{name}.kubeconfig", account=own, namespace=namespace)
    finally:
        for body in of_the_cluster:
            if body["kind"] == "ClusterRoleBinding":
                rbac.delete_cluster_role_binding(body["metadata"]["name"])
            if body["kind"] == "ClusterRole":
                rbac.delete_cluster_role(body["metadata"]["name"])


def kubeconfig(api: Api, path: Path, *, account: str, namespace: str) -> Path:
    """A kubeconfig of a service account, with a token of an hour."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = api.core.create_namespaced_service_account_token(account, namespace, asked)
    settings = api.raw.configuration
    cluster = {"server": settings.host, "certificate-authority": str(settings.ssl_ca_cert)}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": made.status.token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(body))
    return path


def rights(api: Api, namespace: str) -> set[tuple[str, str, str]]:
    """(API group, resource, verb) of what an account may do in a namespace, by the API server's own word."""
    made = client.AuthorizationV1Api(api.raw).create_self_subject_rules_review(
        {"spec": {"namespace": namespace}}
    )
    return {
        (group, resource, verb)
        for rule in made.status.resource_rules
        for group in rule.api_groups or ()
        for resource in rule.resources or ()
        for verb in rule.verbs
    }


def _renamed(text: str, name: str, own: str, namespace: str) -> str:
    return (
        text.replace(name, own)
        .replace("namespace: slicelift\n", f"namespace: {namespace}\n")
        .replace("namespace: slicelift}", f"namespace: {namespace}}}")
    )


def _apply(api: Api, body: dict[str, Any], namespace: str) -> None:
    name = body["metadata"]["name"]
    if (body["kind"], name) == ("ServiceAccount", "default"):
        api.core.patch_namespaced_service_account(name, namespace, body)
    else:
        utils.create_from_dict(api.raw, body, namespace=namespace)
