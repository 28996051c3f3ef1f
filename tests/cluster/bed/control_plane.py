"""etcd, the API server with RBAC, the controllers, and the scheduler for what Volcano does not place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bed import kube, pki, processes
from bed.layout import Layout
from bed.processes import Program


def start_etcd(layout: Layout, binaries: Path) -> None:
    """One member whose data ends with the bed: nothing is flushed to disk for its sake."""
    client = f"http://127.0.0.1:{layout.ports['etcd']}"
    peer = f"http://127.0.0.1:{layout.ports['etcd-peer']}"
    command = (
        str(binaries / "etcd"),
        "--name=bed",
        f"--data-dir={layout.run / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=bed={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    processes.start(layout, Program(name="etcd", command=command, probe=f"{client}/health"))


def start_api_server(layout: Layout, binaries: Path) -> None:
    """Listens at this machine's end of the link only; certificates say who calls, RBAC what they may."""
    pki.kubeconfig(layout, "bed-admin", groups=("system:masters",), path=layout.kubeconfig)
    keys = layout.run / "pki"
    command = (
        str(binaries / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{layout.ports['etcd']}",
        f"--bind-address={layout.host_ip}",
        f"--advertise-address={layout.host_ip}",
        f"--secure-port={layout.ports['kube-apiserver']}",
        f"--service-cluster-ip-range={layout.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--client-ca-file={keys / 'ca.crt'}",
        # schedulers and controllers complain without; nobody ever gets this name
        f"--requestheader-client-ca-file={keys / 'ca.crt'}",
        "--requestheader-allowed-names=bed-front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--tls-cert-file={keys / 'serving.crt'}",
        f"--tls-private-key-file={keys / 'serving.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys / 'sa.pub'}",
        f"--service-account-signing-key-file={keys / 'sa.key'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
        f"--kubelet-client-key={keys / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        *(_FAST_API if layout.fast_faults else ()),
    )
    processes.start(layout, Program(name="kube-apiserver", command=command, probe=f"{layout.api}/readyz"))


def grant(layout: Layout, binaries: Path) -> None:
    """What a cluster made by kubeadm has and a bare API server lacks."""
    reads_names: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "bed:dns"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["endpoints", "services", "pods", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    # logs and exec: the API server calls the kubelet under this name
    calls_kubelet = kube.binding("system:kubelet-api-admin", user="kube-apiserver-kubelet-client")
    kube.apply(layout, binaries, [reads_names, kube.binding("bed:dns", user="system:coredns"), calls_kubelet])


def start_controllers(layout: Layout, binaries: Path) -> None:
    """kube-controller-manager: namespaces, garbage, service account tokens, lost nodes, endpoints."""
    keys, port = layout.run / "pki", layout.ports["kube-controller-manager"]
    command = (
        str(binaries / "kube-controller-manager"),
        *_calling(layout, "system:kube-controller-manager", port=port),
        "--use-service-account-credentials",
        f"--service-account-private-key-file={keys / 'sa.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        f"--cluster-signing-cert-file={keys / 'ca.crt'}",
        f"--cluster-signing-key-file={keys / 'ca.key'}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        *(_FAST_CONTROLLERS if layout.fast_faults else ()),
    )
    probe = f"https://127.0.0.1:{port}/healthz"
    processes.start(layout, Program(name="kube-controller-manager", command=command, probe=probe))


def start_scheduler(layout: Layout, binaries: Path) -> None:
    """kube-scheduler, the default one."""
    port = layout.ports["kube-scheduler"]
    command = (str(binaries / "kube-scheduler"), *_calling(layout, "system:kube-scheduler", port=port))
    probe = f"https://127.0.0.1:{port}/healthz"
    processes.start(layout, Program(name="kube-scheduler", command=command, probe=probe))


# a node counts as lost after 8 s instead of 50, and its pods are evicted after 5 s instead of 300
_FAST_API = ("--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5")
_FAST_CONTROLLERS = ("--node-monitor-period=1s", "--node-monitor-grace-period=8s")


def _calling(layout: Layout, user: str, *, port: int) -> tuple[str, ...]:
    config, keys = pki.kubeconfig(layout, user), layout.run / "pki"
    return (
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={keys / 'serving.crt'}",
        f"--tls-private-key-file={keys / 'serving.key'}",
    )
