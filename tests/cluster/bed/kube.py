"""kubectl of the bed: enough to lay out a cluster, without a Python client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bed.layout import Layout


def kubectl(layout: Layout, binaries: Path, *arguments: str, stdin: str = "") -> str:
    """What it prints; raises `RuntimeError` with what it complained of."""
    command = [str(binaries / "kubectl"), f"--kubeconfig={layout.kubeconfig}", *arguments]
    # its cache of the API lies in the folder of the bed, which is gone with it
    environment = {"HOME": str(layout.run), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def apply(layout: Layout, binaries: Path, objects: str | Sequence[Mapping[str, Any]]) -> None:
    """Objects as YAML or as dicts, server-side: some of Volcano's are too large for the other way."""
    listed = (
        objects
        if isinstance(objects, str)
        else json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    )
    kubectl(layout, binaries, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)


def get(layout: Layout, binaries: Path, *what: str) -> dict[str, Any]:
    """One object, or a list of them."""
    found: dict[str, Any] = json.loads(kubectl(layout, binaries, "get", *what, "-o", "json"))
    return found


def binding(role: str, *, user: str) -> dict[str, Any]:
    """A ClusterRole for a user, everywhere."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    name = f"bed:{user}".replace("system:", "")
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": reference,
        "subjects": [subject],
    }
