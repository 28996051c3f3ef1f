"""First process of the node's namespaces: lays out the folders that the kubelet and containerd insist on, then reaps.

Run as a file by node.py, in new mount, network and process namespaces. What it mounts, it mounts for the node alone:
when it is killed, every process of the node ends and every mount is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

# fixed in the kubelet, in containerd's shims, in the CNI plugins: laid over by folders of the bed
FIXED = {
    "/var/lib/kubelet": "kubelet",
    "/var/lib/containerd": "containerd",
    "/var/lib/cni": "cni-state",
    "/var/log/pods": "pod-logs",
    "/var/log/containers": "container-logs",
    "/run/containerd": "containerd-run",
    "/run/netns": "netns",
}
# the kubelet sets these for the whole machine unless they read as it wants them
SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main(run: Path) -> None:
    """Never returns."""
    _lay_out(run)
    _pretend_settings(run)
    # volumes that a pod mounts reach other pods, and nobody outside the node
    _mount("--make-rshared", "/")
    (run / "node.ready").touch()
    _reap()


def _lay_out(run: Path) -> None:
    """Mount points are made on an overlay: no folder is made on the machine itself."""
    points = run / "points"
    points.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(points))
    for top in ("/var/lib", "/var/log", "/run"):
        upper, work = points / top.replace("/", "-") / "upper", points / top.replace("/", "-") / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        _mount("-t", "overlay", "-o", f"lowerdir={top},upperdir={upper},workdir={work}", "overlay", top)
    for fixed, ours in FIXED.items():
        source = run / "node" / ours
        source.mkdir(parents=True, exist_ok=True)
        Path(fixed).mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(source), fixed)


def _pretend_settings(run: Path) -> None:
    for name, value in SETTINGS.items():
        stand_in = run / "points" / name.replace("/", "-")
        stand_in.write_text(value + "\n")
        if Path("/proc/sys", name).exists():
            _mount("--bind", str(stand_in), f"/proc/sys/{name}")


def _reap() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.5)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


main(Path(sys.argv[1]))
