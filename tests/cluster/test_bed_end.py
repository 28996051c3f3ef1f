"""A bed beside another one, ended in every way: nothing of it stays on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import cleanup, cluster, kit, layout, processes
from bed.cluster import Cluster

BED = Path(__file__).parent / "bed"
# where a kubelet, a container runtime and network plugins write unless they are kept from it
FIXED = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
)


@pytest.fixture
def place(tmp_path: Path, own_bed: Cluster) -> Iterator[Path]:
    """A folder for a second bed while the first one runs; whatever a failed test left there is taken away."""
    yield tmp_path / "second"
    if left := layout.load(tmp_path / "second"):
        cleanup.remove(left)


# starts a whole cluster: about 20 s
def test_up_and_down_by_command_leave_nothing(place: Path) -> None:
    before = _traces()
    assert "ready" in _command("up", place)
    second = cluster.attach(place)
    api = kit.connect(second.kubeconfig)
    image = second.environment_image().name
    api.core.create_namespace({"metadata": {"name": "full"}})
    kit.submit(api, "full", kit.gang("pair", queue="default", image=image, command=["sleep", "300"]))
    kit.wait_phase(api, "full", "pair", "Running")
    api.raw.close()
    # pods run, volumes are mounted, names are served: all that could stay
    assert _traces() - before
    assert "gone" in _command("down", place)
    kit.wait_for("the machine to be as it was", lambda: not _traces() - before, seconds=20)
    assert not place.exists()


# starts a whole cluster: about 20 s
def test_a_bed_that_was_killed_whole_is_swept_away(place: Path) -> None:
    before = _traces()
    with subprocess.Popen(["sleep", "600"]) as owner:
        second = cluster.up(place, owner=owner.pid)
        for pid in processes.marked(second.run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        owner.kill()
    assert cleanup.sweep() == [str(place)]
    kit.wait_for("the machine to be as it was", lambda: not _traces() - before, seconds=20)
    assert cleanup.sweep() == []


def _command(action: str, place: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(BED), action, "--run-dir", str(place)],
        capture_output=True,
        text=True,
        check=False,
        # the tests' home is an empty one: there, all programs would be built again
        env=os.environ | {"SLICELIFT_CLUSTER_CACHE": str(layout.CACHE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _traces() -> set[str]:
    """Mounts, links, routes, namespaces, rules, cgroups, settings, fixed folders and programs of this machine."""
    found = {f"mount {line.split()[1]}" for line in Path("/proc/self/mounts").read_text().splitlines()}
    found |= {f"link {line.split(': ')[1].split('@')[0]}" for line in _told("ip", "-o", "link")}
    found |= {f"route {line}" for line in _told("ip", "route", "show", "table", "all")}
    found |= {f"netns {line}" for line in _told("ip", "netns")}
    for tool in ("iptables-save", "ip6tables-save"):
        found |= {
            re.sub(r"\[\d+:\d+\]", "", f"{tool} {line}") for line in _told(tool) if not line.startswith("#")
        }
    found |= {f"cgroup {folder}" for folder, _, _ in os.walk("/sys/fs/cgroup")}
    for setting in ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"):
        found.add(f"{setting} {Path('/proc/sys', setting).read_text().strip()}")
    found |= {f"file {one}" for one in FIXED if Path(one).exists()}
    return found | {f"program {name}" for name in _programs()}


def _programs() -> Iterator[str]:
    """By number and name, but for kernel threads and what other tests start."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            name = Path(words[0].decode()).name
            if name.startswith(
                ("kube", "etcd", "containerd", "volcano", "coredns", "kwok", "pause", "stand-in", "nsenter")
            ):
                yield f"{folder.name} {name}"


def _told(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
