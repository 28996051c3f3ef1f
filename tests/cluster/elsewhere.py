"""Somebody's own cluster, as far as tests may use it: what a bed has beside its own programs, node and devices."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bed.cluster import Cluster
from bed.images import Image
from kubernetes.config import new_client_from_config


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """`host_ip`: where pods reach this machine. `shared`: a folder that this machine and every node have at the same path."""

    kubeconfig: Path
    host_ip: str
    shared: Path

    def kubectl(self, *arguments: str) -> str:
        """As whom the kubeconfig names; raises `CalledProcessError`."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def environment_image(self, *, project: Path | None = None) -> Image:
        """The training image, or with `project` the session's; both are brought along."""
        name = os.environ["SLICELIFT_CLUSTER_SESSION_IMAGE" if project else "SLICELIFT_CLUSTER_IMAGE"]
        return Image(name=name, by_digest=name)


Place = Cluster | Elsewhere


def find(kubeconfig: Path) -> Elsewhere:
    """Raises KeyError naming what of the environment is missing."""
    shared = Path(os.environ["SLICELIFT_CLUSTER_SHARED"])
    return Elsewhere(kubeconfig=kubeconfig, host_ip=_own_address(kubeconfig), shared=shared)


def _own_address(kubeconfig: Path) -> str:
    """That from which this machine calls the API server."""
    with new_client_from_config(str(kubeconfig)) as client:
        server = urlsplit(client.configuration.host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.hostname, server.port or 443))
        return str(probe.getsockname()[0])
