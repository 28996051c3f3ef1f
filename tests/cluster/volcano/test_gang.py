"""A real launcher and real pods: two nodes of torch over gloo, one killed, and the same run goes on from its checkpoint."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from slicelift.launcher_client import Client, find, read_state
from slicelift.models import JobSpec, RunView, Snapshot, SnapshotFile, Status

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = b"""
import time
import slicelift, torch, torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    state, start = found if found else ({"total": torch.zeros(1)}, 0)
    total = state["total"]
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "from step", start, flush=True)
    for step in range(start, 40):
        one = torch.ones(1)
        dist.all_reduce(one)
        total = total + one
        slicelift.log(step=step, total=float(total))
        slicelift.checkpoint({"total": total}, step=step + 1)
        time.sleep(0.2)
"""
CONFIG = """
c.Launcher.backend = "slicelift_hub.launcher.backends.volcano.Volcano"
c.Launcher.address = "0.0.0.0"
c.Launcher.public_url = "http://{host}:{port}"
c.Launcher.tracker = "none"
c.Volcano.kubeconfig = "{kubeconfig}"
c.Volcano.namespace = "{namespace}"
c.Volcano.image = "{image}"
c.Volcano.presets_file = "{presets}"
c.Volcano.checkpoints_claim = "{claim}"
"""


class Launcher:
    """The launcher as a process, and a client of it."""

    def __init__(self, home: Path, *, port: int) -> None:
        self.home = home
        self._log = (home / "test.log").open("ab")
        command = [sys.executable, "-m", "slicelift_hub.launcher", "--home", str(home), "--port", str(port)]
        paths = os.pathsep.join(str(ROOT / name) for name in ("extension", "hub", "spawner_profiles"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([paths, *sys.path])}
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment)
        kit.wait_for(
            "the launcher", lambda: (read_state(home) or {}).get("pid") == self.process.pid, seconds=60
        )
        self.client: Client = find(home)

    def submit(self, **asked: Any) -> str:
        """The program as a job; its run id."""
        digest = hashlib.sha256(PROGRAM).hexdigest()
        files = (SnapshotFile(path="promoted.py", sha256=digest, size_bytes=len(PROGRAM)),)
        words = {"tree": "t", "commit": "c", "base_commit": "b", "branch": "main", "dirty": False, "cwd": "."}
        words |= {"notebook": "n.ipynb", "script": "promoted.py", "script_sha256": "", "lock_sha256": ""}
        snapshot = Snapshot(id=hashlib.sha256(b"id" + PROGRAM).hexdigest(), files=files, **words)
        if self.client.offer_snapshot(snapshot):
            self.client.send_blobs(iter([(digest, len(PROGRAM), PROGRAM)]))
            self.client.offer_snapshot(snapshot)
        place = {
            "notebook": "n.ipynb",
            "script": "promoted.py",
            "cwd": ".",
            "python": f"{sys.prefix}/bin/python",
        }
        spec = JobSpec(name="demo", snapshot_id=snapshot.id, preset="torch", **place, **asked)
        promotion = "p-" + base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]
        return self.client.submit(promotion, spec).run_id

    def until(self, run: str, check: Callable[[RunView], bool], *, seconds: float = 120) -> RunView:
        """The first view that meets it."""
        end = time.monotonic() + seconds
        while not check(view := self.client.job(run)):
            assert time.monotonic() < end, (view, (self.home / "test.log").read_text()[-3000:])
            time.sleep(0.2)
        return view

    def close(self) -> None:
        """As a crash would end it: the jobs are the cluster's."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self._log.close()


@pytest.fixture
def claim(api: Api, bed: Cluster, namespace: str) -> Iterator[str]:
    """A claim on a folder of the node, in which everybody may write."""
    folder = bed.shared / f"checkpoints-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": "checkpoints"},
        "hostPath": {"path": str(folder)},
    }
    api.core.create_persistent_volume({"metadata": {"name": f"checkpoints-{namespace}"}, "spec": volume})
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
    }
    body = {"metadata": {"name": "checkpoints"}, "spec": {**spec, "volumeName": f"checkpoints-{namespace}"}}
    api.core.create_namespaced_persistent_volume_claim(namespace, body)
    yield "checkpoints"
    api.core.delete_persistent_volume(f"checkpoints-{namespace}")


@pytest.fixture
def launcher(
    bed: Cluster, namespace: str, image: str, claim: str, kubeconfig: Path, tmp_path: Path
) -> Iterator[Launcher]:
    with socket.socket() as probe:
        probe.bind((bed.host_ip, 0))
        port = probe.getsockname()[1]
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    presets = tmp_path / "presets.yaml"
    presets.write_text(
        "presets:\n  - {name: torch, display_name: Torch, launcher: torchrun, workers: 2, cluster: {attempts: 3, "
        "grace_seconds: 15, cpu: 0.5, memory: 1Gi, shm: 64Mi, disk: 512Mi}}\n",
        encoding="utf-8",
    )
    words = {"host": bed.host_ip, "port": port, "kubeconfig": kubeconfig, "namespace": namespace}
    text = CONFIG.format(**words, image=image, presets=presets, claim=claim)
    (home / "launcher_config.py").write_text(text, encoding="utf-8")
    made = Launcher(home, port=port)
    yield made
    made.close()


def test_a_killed_worker_starts_the_gang_again_in_the_same_run_from_its_checkpoint(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    run = launcher.submit(workers=2, queue=queue)
    launcher.until(run, lambda view: view.status == Status.RUNNING)
    before = launcher.until(run, lambda view: "total" in view.latest and view.latest["total"][0] >= 5)
    api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
    again = launcher.until(run, lambda view: view.attempt == 2)
    assert again.status in (Status.WAITING, Status.STARTING, Status.RUNNING)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.attempt, done.exit_code) == (Status.FINISHED, 2, 0)
    # forty steps of two ranks, none lost and none done twice in the sum
    assert done.latest["total"] == (39, 80.0)
    log, _ = launcher.client.logs(run, rank=0, attempt=2)
    start = int(log.decode().split("from step ")[1].split()[0])
    assert start >= before.latest["total"][0]
    rows = launcher.client.attempts(run)
    assert [row["status"] for row in rows] == ["FAILED", "FINISHED"]


def test_a_job_that_is_cancelled_is_gone(launcher: Launcher, api: Api, namespace: str, queue: str) -> None:
    run = launcher.submit(workers=2, queue=queue)
    launcher.until(run, lambda view: view.status == Status.RUNNING)
    launcher.client.cancel(run)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert done.status == Status.KILLED
    pods = api.core.list_namespaced_pod(namespace).items
    assert [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")] == []
