"""Fake nodes by the hundred: kwok plays their kubelets. A pod there runs nothing and is believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bed import kube, pki, processes
from bed.layout import Layout
from bed.processes import Program

MARK = "kwok.x-k8s.io/node"
LABEL = {"type": "kwok"}
RUN_FOR, EXIT_CODE = "slicelift.test/run-for", "slicelift.test/exit-code"
TOLERATION = {"key": MARK, "operator": "Exists"}
ADDRESSES = "198.18.0.1/15"  # set apart for measurements; nothing is ever sent to them
AS_THEY_ARE = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
BATCH = 100


def start(layout: Layout, binaries: Path, stages: Path) -> None:
    """kwok for every node with its annotation; pods end as their annotations say, see `pod_ends`."""
    file = layout.run / "kwok-stages.yaml"
    # without a line between them two documents become one, and the first is lost
    kept = [(stages / name).read_text() for name in AS_THEY_ARE]
    file.write_text("\n---\n".join([*kept, _ends(failed=False), _ends(failed=True)]))
    port = layout.ports["kwok"]
    command = (
        str(binaries / "kwok"),
        f"--kubeconfig={pki.kubeconfig(layout, 'bed-kwok', groups=('system:masters',))}",
        f"--config={file}",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        # it renews after a quarter of this; shorter costs the API server most of a core at a thousand nodes
        f"--node-lease-duration-seconds={12 if layout.fast_faults else 40}",
        f"--cidr={ADDRESSES}",
        f"--server-address=127.0.0.1:{port}",
    )
    processes.start(layout, Program(name="kwok", command=command, probe=f"http://127.0.0.1:{port}/healthz"))


def pod_ends(*, after: str, exit_code: int = 0) -> dict[str, str]:
    """Annotations of a pod on a fake node that ends `after`, such as "5s", with an exit code; without them it runs on."""
    return {RUN_FOR: after} | ({EXIT_CODE: str(exit_code)} if exit_code else {})


def add_nodes(
    layout: Layout, binaries: Path, *, count: int, resources: Mapping[str, str], prefix: str = "fake"
) -> list[str]:
    """`count` fake nodes with `resources` beside CPUs and memory in plenty, tainted and labelled; returns their names."""
    names = [f"{prefix}-{number}" for number in range(count)]
    for start_at in range(0, count, BATCH):
        batch = [_node(name, resources) for name in names[start_at : start_at + BATCH]]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": batch})
        kube.kubectl(layout, binaries, "create", "-f", "-", stdin=listed)
    return names


def remove_nodes(layout: Layout, binaries: Path, names: list[str]) -> None:
    """Takes them away; pods on them go with the controllers' help."""
    for start_at in range(0, len(names), BATCH):
        some = names[start_at : start_at + BATCH]
        kube.kubectl(layout, binaries, "delete", "node", "--ignore-not-found", "--wait=false", *some)


def _node(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    has = {"cpu": "64", "memory": "512Gi", "pods": "110", **resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake"},
            "labels": {
                **LABEL,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "slicelift.test/devices": "fake",
            },
        },
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": has, "allocatable": has},
    }


def _ends(*, failed: bool) -> str:
    """kwok's own stage takes every pod of a kind called Job for finished at once, and Volcano's is called so, too."""
    exit_code = f'{{{{ index $root.metadata.annotations "{EXIT_CODE}" }}}}' if failed else "0"
    return f"""apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata:
  name: {"pod-fail" if failed else "pod-complete"}
spec:
  resourceRef: {{apiGroup: v1, kind: Pod}}
  selector:
    matchExpressions:
    - {{key: '.metadata.deletionTimestamp', operator: DoesNotExist}}
    - {{key: '.status.phase', operator: In, values: [Running]}}
    - {{key: '.metadata.annotations["{RUN_FOR}"]', operator: Exists}}
    - {{key: '.metadata.annotations["{EXIT_CODE}"]', operator: {"Exists" if failed else "DoesNotExist"}}}
  delay:
    durationMilliseconds: 1000
    durationFrom: {{expressionFrom: '.metadata.annotations["{RUN_FOR}"]'}}
  next:
    statusTemplate: |
      {{{{ $now := Now }}}}
      {{{{ $root := . }}}}
      containerStatuses:
      {{{{ range $index, $item := .spec.containers }}}}
      {{{{ $origin := index $root.status.containerStatuses $index }}}}
      - image: {{{{ $item.image | Quote }}}}
        name: {{{{ $item.name | Quote }}}}
        ready: false
        restartCount: 0
        started: false
        state:
          terminated:
            exitCode: {exit_code}
            finishedAt: {{{{ $now | Quote }}}}
            reason: {"Error" if failed else "Completed"}
            startedAt: {{{{ $origin.state.running.startedAt | Quote }}}}
      {{{{ end }}}}
      phase: {"Failed" if failed else "Succeeded"}
"""
