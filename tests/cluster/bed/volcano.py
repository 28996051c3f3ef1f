"""Volcano: its own definitions and roles from its own installer, its three programs outside the cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from bed import kube, pki, processes
from bed.layout import Layout
from bed.processes import Program

ACCOUNTS = "system:serviceaccount:volcano-system"
ADMISSION = (
    "/jobs/mutate",
    "/jobs/validate",
    "/podgroups/validate",
    "/queues/mutate",
    "/queues/validate",
    "/hypernodes/validate",
    "/cronjobs/validate",
)
WANTED = (
    "Namespace",
    "ServiceAccount",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
# `capacity`, not `proportion` (never both): quotas as people write them, by resource and along the queue's ancestors,
# instead of shares by weight; and an unbound claim of an unknown driver cannot make a queue "overused" for ever.
# Without `network-topology-aware` a job's wish for nodes that lie close is not heard, and not refused.
SCHEDULING = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: capacity
    enableHierarchy: true
  - name: nodeorder
  - name: binpack
  - name: network-topology-aware
"""


def install(layout: Layout, binaries: Path, installer: Path) -> None:
    """Definitions, roles, and the seven webhooks, which then refuse every Job until the webhook manager runs."""
    documents = (installer / "volcano-development.yaml").read_text().split("\n---")
    kinds = [(_kind(text), text) for text in documents]
    # one call: an account lies in a namespace that must exist, which comes first in the file as well
    wanted = [text for kind, text in kinds if kind in WANTED]
    hooks = [json.dumps(_by_url(layout, yaml.safe_load(text))) for kind, text in kinds if kind in WEBHOOKS]
    kube.apply(layout, binaries, "\n---\n".join([*wanted, *hooks]))


def start_webhooks(layout: Layout, binaries: Path) -> None:
    """The webhook manager; it writes its authority into the seven webhooks by itself."""
    keys = layout.run / "pki"
    command = (
        str(binaries / "volcano-webhook-manager"),
        f"--kubeconfig={pki.kubeconfig(layout, f'{ACCOUNTS}:volcano-admission')}",
        f"--enabled-admission={','.join(ADMISSION)}",
        f"--tls-cert-file={keys / 'serving.crt'}",
        f"--tls-private-key-file={keys / 'serving.key'}",
        f"--ca-cert-file={keys / 'ca.crt'}",
        f"--webhook-url={_webhook(layout)}",
        "--listen-address=127.0.0.1",
        f"--port={layout.ports['volcano-webhook']}",
        "--enable-healthz",
        f"--healthz-address=127.0.0.1:{layout.ports['volcano-webhook-health']}",
        "--v=1",
    )
    probe = f"https://127.0.0.1:{layout.ports['volcano-webhook-health']}/healthz"
    processes.start(layout, Program(name="volcano-webhook-manager", command=command, probe=probe))


def start_scheduler(layout: Layout, binaries: Path) -> None:
    """The gang scheduler; it makes the queues root and default, and gives up unless the webhooks answer."""
    conf = layout.run / "volcano-scheduler.yaml"
    conf.write_text(SCHEDULING)
    command = (
        str(binaries / "volcano-scheduler"),
        f"--kubeconfig={pki.kubeconfig(layout, f'{ACCOUNTS}:volcano-scheduler')}",
        f"--scheduler-conf={conf}",
        "--leader-elect=false",
        # claims of local volumes would count as volumes of a driver that no node has
        "--ignored-provisioners=kubernetes.io/no-provisioner",
        f"--cache-dump-dir={layout.folder('volcano')}",
        *_watched(layout, "volcano-scheduler"),
        "--enable-metrics",
        f"--listen-address=127.0.0.1:{layout.ports['volcano-scheduler-metrics']}",
    )
    _start(layout, "volcano-scheduler", command)


def start_controller(layout: Layout, binaries: Path) -> None:
    """The Job controller, with the rates that keep it from being what everything waits for."""
    command = (
        str(binaries / "volcano-controller-manager"),
        f"--kubeconfig={pki.kubeconfig(layout, f'{ACCOUNTS}:volcano-controllers')}",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--worker-threads=8",
        *_watched(layout, "volcano-controller"),
        f"--listen-address=127.0.0.1:{layout.ports['volcano-controller-metrics']}",
    )
    _start(layout, "volcano-controller", command)


def _start(layout: Layout, name: str, command: tuple[str, ...]) -> None:
    probe = f"http://127.0.0.1:{layout.ports[name]}/healthz"
    processes.start(layout, Program(name=name, command=command, probe=probe))


def _watched(layout: Layout, name: str) -> tuple[str, ...]:
    return ("--enable-healthz", f"--healthz-address=127.0.0.1:{layout.ports[name]}", "--v=3")


def _kind(text: str) -> str:
    found = re.search(r"^kind: *(\w+)", text, re.MULTILINE)
    return found.group(1) if found and "name: volcano-monitoring" not in text else ""


def _by_url(layout: Layout, configuration: dict[str, Any]) -> dict[str, Any]:
    """The same webhook, called at an address of this machine instead of through a Service."""
    for hook in configuration["webhooks"]:
        service = hook["clientConfig"].pop("service")
        hook["clientConfig"] = {"url": _webhook(layout) + service["path"]}
    return configuration


def _webhook(layout: Layout) -> str:
    return f"https://127.0.0.1:{layout.ports['volcano-webhook']}"
