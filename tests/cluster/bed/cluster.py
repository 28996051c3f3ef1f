"""One bed as an object: up, down, and everything a test does to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bed import (
    builds,
    cleanup,
    control_plane,
    devices,
    images,
    kube,
    kwok,
    layout,
    node,
    pki,
    processes,
    volcano,
)
from bed.images import Image
from bed.layout import NODE, Layout

Report = Callable[[str], None]
NEEDED = {
    "containerd": "containerd",
    "runc": "runc",
    "ctr": "containerd",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
}
# these write where the node lays its own folders over
TAKEN = ("/var/lib", "/var/log", "/run", "/var/run")


class Cluster:
    """A running bed. Get one from `up` or `attach`."""

    def __init__(self, plan: Layout, *, report: Report) -> None:
        self.layout = plan
        self.binaries = plan.run / "bin"
        self.share = plan.run / "share"
        self._report = report

    @property
    def run(self) -> Path:
        """The folder of the bed: logs/, kubeconfig, shared/."""
        return self.layout.run

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.layout.kubeconfig

    @property
    def host_ip(self) -> str:
        """Where pods reach servers of this machine that listen on it or on all addresses."""
        return self.layout.host_ip

    @property
    def shared(self) -> Path:
        """Mounts made below this folder here also show on the node, at the same path."""
        return self.layout.shared

    def down(self) -> None:
        """Takes the bed away, in whatever state it is."""
        cleanup.remove(self.layout)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """As the admin; raises `RuntimeError` with what it complained of."""
        return kube.kubectl(self.layout, self.binaries, *arguments, stdin=stdin)

    def kubeconfig_for(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of any user; nobody has any right until RBAC gives it."""
        return pki.kubeconfig(self.layout, user, groups=groups)

    def programs(self) -> dict[str, int | None]:
        """Every program of the bed and its process, None when it does not run."""
        return {name: processes.pid_of(self.layout, name) for name in processes.names(self.layout)}

    def stop(self, name: str) -> None:
        """Ends a program in order; the API server without waiting for its watchers, which takes it a minute."""
        how = signal.SIGKILL if name == "kube-apiserver" else signal.SIGTERM
        processes.kill(self.layout, name, how=how)

    def kill(self, name: str) -> None:
        """SIGKILL for a program."""
        processes.kill(self.layout, name)

    def send(self, name: str, how: signal.Signals) -> None:
        """A signal for a program, such as SIGSTOP."""
        processes.send(self.layout, name, how)

    def start(self, name: str, *, seconds: float = 180) -> None:
        """Starts a program again as it was started first, and waits until it is ready."""
        processes.start_again(self.layout, name)
        processes.wait_ready(self.layout, name, seconds=seconds)

    def on_node(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command on the real node, as root there."""
        return node.run(self.layout, *command, check=check)

    def node_path(self, place: str) -> Path:
        """Where a path of the node is found from here."""
        return node.path(self.layout, place)

    def declare_devices(self, counts: Mapping[str, int]) -> None:
        """What GPUs and slices the real node has from now on, by resource name."""
        devices.declare(self.layout, dict(counts))

    def devices(self) -> list[dict[str, object]]:
        """`{resource, uuid, healthy}` of each."""
        return devices.declared(self.layout)

    def withdraw_device(self, uuid: str) -> None:
        """Its health goes, as with an Xid error."""
        devices.set_health(self.layout, uuid, healthy=False)

    def restore_device(self, uuid: str) -> None:
        """And comes back."""
        devices.set_health(self.layout, uuid, healthy=True)

    def add_fake_nodes(self, count: int, resources: Mapping[str, str], *, prefix: str = "fake") -> list[str]:
        """kwok nodes; pods get there with toleration and node selector of `kwok.TOLERATION` and `kwok.LABEL`."""
        return kwok.add_nodes(self.layout, self.binaries, count=count, resources=resources, prefix=prefix)

    def remove_fake_nodes(self, names: list[str]) -> None:
        """Takes them away."""
        kwok.remove_nodes(self.layout, self.binaries, names)

    def environment_image(self, *, project: Path | None = None) -> Image:
        """This Python's environment as an image; see `images.load_environment`."""
        return images.load_environment(self.layout, project=project, report=self._report)


def up(run: Path, *, fast_faults: bool = False, owner: int | None = None, report: Report = print) -> Cluster:
    """Starts a bed in the folder `run` and returns when it takes Jobs; what an earlier one left there is taken away first.

    `fast_faults`: lost nodes are noticed in seconds, for at most some 50 fake nodes. `owner`: a process, such as a test
    run; once it has died the next `up` of anybody takes the bed away.
    """
    _check(run)
    for module in builds.ALL:
        builds.build(module, report=report)
    for gone in cleanup.sweep():
        report(f"took away the bed in {gone}, whose owner is dead")
    start = time.monotonic()
    before = layout.load(run)
    if before:
        cleanup.remove(before)
    cluster = Cluster(layout.choose(run, fast_faults=fast_faults), report=report)
    cleanup.note(cluster.layout, owner=owner)
    builds.gather(cluster.run, report=report)
    try:
        _bring_up(cluster, _stopwatch(report, start))
    except BaseException:
        _say_why(cluster, report)
        cluster.down()
        raise
    return cluster


def attach(run: Path, *, report: Report = print) -> Cluster:
    """The bed that runs in the folder `run`; raises `FileNotFoundError` when there is none."""
    found = layout.load(run)
    if found is None:
        raise FileNotFoundError(
            f"no bed in {run}: start one with `python tests/cluster/bed up --run-dir {run}`"
        )
    return Cluster(found, report=report)


def lacks() -> str:
    """Why no bed can run on this machine, empty when one can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    absent = sorted({package for tool, package in NEEDED.items() if not shutil.which(tool)})
    if not Path(node.PLUGINS, "bridge").exists():
        absent.append("containernetworking-plugins")
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install {' '.join(absent)})"
    return builds.missing()


def _check(run: Path) -> None:
    if why := lacks():
        raise RuntimeError(f"no test cluster can run here: {why}")
    for place in (run.resolve(), layout.CACHE.resolve()):
        if any(place.is_relative_to(top) for top in TAKEN):
            raise RuntimeError(f"{place} cannot hold a bed: the node has {', '.join(TAKEN)} to itself")
    if run.exists() and any(run.iterdir()) and layout.load(run) is None:
        raise RuntimeError(f"{run} holds other things than a bed: name an empty folder")


def _bring_up(cluster: Cluster, report: Report) -> None:
    """What needs nothing first, then side by side what needs the API server, then Volcano in its order."""
    plan, binaries = cluster.layout, cluster.binaries
    pki.make(plan)
    node.start_namespaces(plan)
    control_plane.start_etcd(plan, binaries)
    node.start_containerd(plan)
    processes.wait_ready(plan, "etcd", report=report)
    control_plane.start_api_server(plan, binaries)
    node.wait_containerd(plan)
    images.load_pause(plan, binaries)
    report("etcd, containerd and the pause image")
    processes.wait_ready(plan, "kube-apiserver", report=report)
    report("API server")
    _fill(cluster, report)
    _wait(cluster, report)


def _fill(cluster: Cluster, report: Report) -> None:
    plan, binaries = cluster.layout, cluster.binaries
    control_plane.grant(plan, binaries)
    control_plane.start_controllers(plan, binaries)
    node.start_kubelet(plan, binaries)
    volcano.install(plan, binaries, cluster.share / "volcano")
    report("Volcano's definitions and webhooks")
    volcano.start_webhooks(plan, binaries)
    devices.start(plan, binaries)
    node.start_dns(plan, binaries)
    node.start_proxy(plan, binaries)
    control_plane.start_scheduler(plan, binaries)
    processes.wait_ready(plan, "volcano-webhook-manager", report=report)
    volcano.start_scheduler(plan, binaries)
    volcano.start_controller(plan, binaries)
    kwok.start(plan, binaries, cluster.share / "kwok")


def _wait(cluster: Cluster, report: Report) -> None:
    for name in processes.names(cluster.layout):
        processes.wait_ready(cluster.layout, name, report=report)
    processes.wait_until("the node with its slices", lambda: _node_ready(cluster), seconds=180, report=report)
    processes.wait_until("the queue `default`", lambda: _queue_open(cluster), seconds=180, report=report)
    report("ready")


def _node_ready(cluster: Cluster) -> bool:
    found = kube.get(cluster.layout, cluster.binaries, "nodes")["items"]
    if not found or found[0]["metadata"]["name"] != NODE:
        return False
    status = found[0]["status"]
    ready = [one["status"] for one in status.get("conditions", ()) if one["type"] == "Ready"] == ["True"]
    has = status.get("allocatable", {})
    return ready and all(has.get(one["resource"], "0") != "0" for one in cluster.devices())


def _queue_open(cluster: Cluster) -> bool:
    found = kube.get(cluster.layout, cluster.binaries, "queues.scheduling.volcano.sh")["items"]
    return any(
        one["metadata"]["name"] == "default" and one.get("status", {}).get("state") == "Open" for one in found
    )


def _stopwatch(report: Report, start: float) -> Report:
    return lambda line: report(f"[{time.monotonic() - start:5.1f} s] {line}")


def _say_why(cluster: Cluster, report: Report) -> None:
    for name, pid in cluster.programs().items():
        if pid is None:
            report(f"{name} does not run; the end of its log:\n{processes.log_tail(cluster.layout, name)}")
