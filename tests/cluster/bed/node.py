"""The real node: containerd and a kubelet in namespaces of their own, like a machine beside this one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from bed import network, pki, processes
from bed.layout import DNS_HEALTH, KUBELET_HEALTH, NODE, PROXY_HEALTH, Layout
from bed.processes import Program

CGROUPS = Path("/sys/fs/cgroup")
PLUGINS = "/usr/lib/cni"
# with the API server's and the controllers' part in control_plane.py
FAST_FAULTS = {
    "nodeStatusUpdateFrequency": "2s",
    "nodeStatusReportFrequency": "10s",
    "nodeLeaseDurationSeconds": 4,
}
LABELS = {"nvidia.com/mig.strategy": "mixed", "slicelift.test/devices": "stand-in"}


def start_namespaces(layout: Layout) -> None:
    """The node's mounts, processes and network; everything inside ends with its first process."""
    make_cgroups(layout)
    layout.folder("shared")
    _run("mount", "--bind", str(layout.shared), str(layout.shared))
    _run("mount", "--make-shared", str(layout.shared))
    apart = (
        "unshare",
        "--mount",
        "--propagation=slave",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    )
    init = (sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(layout.run))
    processes.start(layout, Program(name="node", command=(*apart, *init)))
    ready = layout.run / "node.ready"
    processes.wait_until("the node's namespaces", ready.exists, seconds=60)
    network.connect(layout, processes.init_of_node(layout))


def start_containerd(layout: Layout) -> None:
    """The container runtime, with the folders of the bed at their standard places."""
    config = layout.run / "containerd.toml"
    config.write_text(_containerd_config(layout.folder("cni")))
    (layout.run / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(layout)))
    command = ("containerd", "--config", str(config), "--log-level", "warn")
    processes.start(layout, Program(name="containerd", command=command, inside=True))


def wait_containerd(layout: Layout) -> None:
    """Until it answers."""
    check = ("ctr", "--namespace", "k8s.io", "--timeout", "2s", "images", "ls", "-q")
    processes.wait_until("containerd", lambda: run(layout, *check, check=False).returncode == 0, seconds=120)


def start_kubelet(layout: Layout, binaries: Path) -> None:
    """The kubelet as node `bed-node`; the API server must answer."""
    (layout.run / "resolv.conf").write_text(f"nameserver {layout.gateway}\n")
    config = layout.run / "kubelet.json"
    config.write_text(json.dumps(_kubelet_config(layout), indent=1))
    user = pki.kubeconfig(layout, f"system:node:{NODE}", groups=("system:nodes",))
    command = (
        str(binaries / "kubelet"),
        f"--config={config}",
        f"--kubeconfig={user}",
        f"--hostname-override={NODE}",
        f"--node-ip={layout.node_ip}",
        f"--node-labels={','.join(f'{name}={value}' for name, value in LABELS.items())}",
        "--cert-dir=/var/lib/kubelet/pki",
    )
    probe = f"http://{layout.node_ip}:{KUBELET_HEALTH}/healthz"
    processes.start(layout, Program(name="kubelet", command=command, inside=True, probe=probe))


def start_proxy(layout: Layout, binaries: Path) -> None:
    """kube-proxy: services answer pods and this machine alike. Its rules live in the node's own network."""
    command = (
        str(binaries / "kube-proxy"),
        f"--kubeconfig={pki.kubeconfig(layout, 'system:kube-proxy')}",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        # pods of one bridge would answer each other directly, past the translation
        "--masquerade-all",
        f"--cluster-cidr={layout.pods}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--iptables-localhost-nodeports=false",
        f"--healthz-bind-address={layout.node_ip}:{PROXY_HEALTH}",
    )
    probe = f"http://{layout.node_ip}:{PROXY_HEALTH}/healthz"
    processes.start(layout, Program(name="kube-proxy", command=command, inside=True, probe=probe))


def start_dns(layout: Layout, binaries: Path) -> None:
    """CoreDNS at the bridge's address; `host.bed.test` is this machine."""
    file = layout.run / "Corefile"
    file.write_text(_corefile(layout, pki.kubeconfig(layout, "system:coredns")))
    command = (str(binaries / "coredns"), "-conf", str(file))
    probe = f"http://{layout.node_ip}:{DNS_HEALTH}/health"
    processes.start(layout, Program(name="coredns", command=command, inside=True, probe=probe))


def run(
    layout: Layout, *command: str, check: bool = True, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command on the node, as root there."""
    inside = ("nsenter", "--target", str(processes.init_of_node(layout)), "--mount", "--net", "--pid", "--")
    return subprocess.run([*inside, *command], input=stdin, text=True, capture_output=True, check=check)


def path(layout: Layout, place: str) -> Path:
    """Where a path of the node is found from this machine, as long as the node lives."""
    return Path(f"/proc/{processes.init_of_node(layout)}/root{place}")


def mounts(layout: Layout) -> list[str]:
    """Where something is mounted on the node."""
    lines = Path(f"/proc/{processes.init_of_node(layout)}/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines]


def make_cgroups(layout: Layout) -> None:
    """A cgroup of the bed in every hierarchy; the kubelet keeps its pods below it."""
    for hierarchy in _hierarchies():
        ours = hierarchy / layout.cgroup
        ours.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty until said
            if (ours / name).exists() and (hierarchy / name).exists():
                (ours / name).write_text((hierarchy / name).read_text())
        if (ours / "cgroup.controllers").exists() and hierarchy == CGROUPS:
            given = " ".join(f"+{name}" for name in (hierarchy / "cgroup.controllers").read_text().split())
            for level in (hierarchy, ours):
                with contextlib.suppress(OSError):  # held by a process of this level: then as it was
                    (level / "cgroup.subtree_control").write_text(given)


def remove_cgroups(layout: Layout) -> None:
    """Depth first; a cgroup whose last process is only just gone is tried again for a while."""
    deadline = time.monotonic() + 10
    for hierarchy in _hierarchies():
        ours = hierarchy / layout.cgroup
        for folder in sorted(ours.rglob("*"), key=lambda one: len(one.parts), reverse=True):
            if folder.is_dir():
                _remove_cgroup(folder, deadline)
        _remove_cgroup(ours, deadline)


def _remove_cgroup(folder: Path, deadline: float) -> None:
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """Version 1 has one folder per controller, version 2 is one folder."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [
        one
        for one in CGROUPS.iterdir()
        if one.is_dir() and not one.is_symlink() and (one / "cgroup.procs").exists()
    ]


def _containerd_config(cni: Path) -> str:
    return f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  # without CAP_SYS_RESOURCE no score can be lowered
  restrict_oom_score_adj = true
  sandbox_image = "local.test/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def _bridge(layout: Layout) -> dict[str, object]:
    pods = {"subnet": str(layout.pods), "rangeStart": str(layout.pods[10]), "gateway": layout.gateway}
    addresses = {"type": "host-local", "ranges": [[pods]], "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {
        "type": "bridge",
        "bridge": network.BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "0.4.0", "name": "bed", "plugins": [plugin]}


def _kubelet_config(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.run / "pki" / "ca.crt")},
        },
        # a refusal is remembered for 30 s by default: a role given a moment later would not count
        "authorization": {"mode": "Webhook", "webhook": {"cacheUnauthorizedTTL": "1s"}},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "clusterDNS": [layout.gateway],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzBindAddress": layout.node_ip,
        "healthzPort": KUBELET_HEALTH,
        "imageGCHighThresholdPercent": 100,  # no registry could give them back
        "makeIPTablesUtilChains": False,
        "maxPods": 110,
        "nodeStatusUpdateFrequency": "2s",  # 10 by default: so long a withdrawn device would still be counted
        "resolvConf": str(layout.run / "resolv.conf"),
        "tlsCertFile": str(layout.run / "pki" / "serving.crt"),
        "tlsPrivateKeyFile": str(layout.run / "pki" / "serving.key"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        **(FAST_FAULTS if layout.fast_faults else {}),
    }


def _corefile(layout: Layout, user: Path) -> str:
    """Names of the cluster, one of this machine, and none of the world: asking for these fails at once."""
    return f"""cluster.local in-addr.arpa {{
  bind {layout.gateway}
  errors
  health {layout.node_ip}:{DNS_HEALTH}
  kubernetes {{
    kubeconfig {user}
    pods insecure
    ttl 2
  }}
  cache 2
}}
bed.test {{
  bind {layout.gateway}
  hosts {{
    {layout.host_ip} host.bed.test
  }}
}}
. {{
  bind {layout.gateway}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
