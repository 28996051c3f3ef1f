"""A hub whose sessions are pods, as docs/cluster.md sets one up, and what a person has in its home there."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from bed.kit import Api
from elsewhere import Place

from tests.browser import projects
from tests.browser.places import ROOT, SLICELIFT, RunningHub
from tests.waiting import wait_for

FILES, POINTS = 24, 1536
HOME = "/home/user"
UID = 1000
# small enough for two of them and a session on a node of two cores
PROFILES = """
profiles:
  - slug: cpu
    display_name: CPU only
    cpu: 0.2
    memory: 1Gi
    default: true
    idle_minutes: 120
  - slug: slice-1g-10gb
    display_name: 1g.10gb slice
    description: Develop and debug a model that fits in 9 GiB.
    product: H100-80GB
    slice: 1g.10gb
    cpu: 0.2
    memory: 2Gi
    idle_minutes: 45
    max_hours: 12
"""
PRESETS = """
presets:
  - name: small
    display_name: Small gang
    description: One process per worker, started together or not at all.
    default: true
    launcher: torchrun
    workers: 1
    cluster: {{attempts: 3, grace_seconds: 20, cpu: 0.5, memory: 1536Mi, shm: 128Mi, disk: 512Mi, queue: {queue}}}
"""
LAUNCHER = """
c.Launcher.backend = "slicelift_hub.launcher.backends.volcano.Volcano"
c.Launcher.address = "{address}"
c.Launcher.public_url = "http://{address}:{port}"
c.Volcano.kubeconfig = "{launcher_kubeconfig}"
c.Volcano.namespace = "{namespace}"
c.Volcano.image = "{image}"
c.Volcano.queues = ["{queue}"]
c.Volcano.presets_file = "{home}/presets.yaml"
"""
SESSIONS = """
c.SliceSpawner.namespace = "{namespace}"
c.SliceSpawner.image = "{image}"
c.SliceSpawner.queue = "{queue}"
c.SliceSpawner.profiles_file = "{home}/profiles.yaml"
c.SliceSpawner.volumes = {volumes}
c.SliceSpawner.volume_mounts = {mounts}
c.SliceSpawner.environment = {environment}
"""


@dataclass(kw_only=True)
class ClusterHub(RunningHub):
    """`slicelift up` with sessions in pods. `claims`: what a session has mounted, by claim.

    `shown`: the name of a ConfigMap by which sessions know the presets, where there is one. `settings` of the backend,
    `session_settings` of the spawner and `more` variables of the hub win over ours.
    """

    address: str
    kubeconfig: Path
    launcher_kubeconfig: Path
    namespace: str
    queue: str
    image: str
    claims: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    session_settings: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)
    shown: str = ""

    @property
    def variables(self) -> dict[str, str]:
        ours = {"SLICELIFT_SESSIONS": "pods", "SLICELIFT_ADDRESS": self.address}
        return {**super().variables, **ours, "KUBECONFIG": str(self.kubeconfig), **self.more}

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        ports = ["--hub-port", str(self.port), "--port", str(self.launcher_port)]
        self.up = self.run([*SLICELIFT, "up", *ports, "--no-demo"], cwd=ROOT, log="up.log", more={})
        wait_for(f"the hub ({self.home.parent / 'up.log'})", self.is_up, seconds=240)

    def log(self) -> str:
        """The end of what hub and launcher have said."""
        files = [self.home / "hub" / "hub.log", self.home / "launcher.log"]
        return "\n".join(file.read_text()[-6000:] for file in files if file.exists())

    def _write_settings(self) -> None:
        words = {"address": self.address, "port": self.launcher_port, "namespace": self.namespace}
        words |= {"image": self.image, "queue": self.queue, "home": self.home}
        words["launcher_kubeconfig"] = self.launcher_kubeconfig
        volumes = [{"persistentVolumeClaim": {"claimName": claim}} for claim in self.claims]
        paths = [*self.claims.values()]
        words["environment"] = {}
        if self.shown:
            volumes.append({"configMap": {"name": self.shown}})
            paths.append("/etc/slicelift")
            words["environment"] = {"SLICELIFT_PRESETS": "/etc/slicelift/presets.yaml"}
        words["volumes"] = [{"name": f"v-{number}", **volume} for number, volume in enumerate(volumes)]
        words["mounts"] = [{"name": f"v-{number}", "mountPath": path} for number, path in enumerate(paths)]
        jobs = "".join(f"c.Volcano.{name} = {value!r}\n" for name, value in self.settings.items())
        sessions = "".join(
            f"c.SliceSpawner.{name} = {value!r}\n" for name, value in self.session_settings.items()
        )
        for name, text in (
            ("profiles.yaml", PROFILES),
            ("presets.yaml", PRESETS.format(**words)),
            ("launcher_config.py", LAUNCHER.format(**words) + jobs),
            ("jupyterhub_config.py", SESSIONS.format(**words) + sessions),
        ):
            (self.home / name).write_text(text, encoding="utf-8")


@contextmanager
def claim(api: Api, bed: Place, namespace: str, name: str) -> Iterator[Path]:
    """A claim of that name on a folder of this machine and the node; the folder."""
    folder = bed.shared / f"{name}-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)
    size, modes = {"storage": "1Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bound = {"claimRef": {"namespace": namespace, "name": name}, "hostPath": {"path": str(folder)}}
    volume = f"{name}-{namespace}"
    api.core.create_persistent_volume(
        {"metadata": {"name": volume}, "spec": {**modes, "capacity": size, **bound}}
    )
    asked = {**modes, "resources": {"requests": size}, "volumeName": volume}
    api.core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": name}, "spec": asked})
    try:
        yield folder
    finally:
        api.core.delete_persistent_volume(volume)
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def show_presets(api: Api, namespace: str, *, queue: str) -> str:
    """The presets as a ConfigMap that sessions mount; its name."""
    body = {"metadata": {"name": "presets"}, "data": {"presets.yaml": PRESETS.format(queue=queue)}}
    api.core.create_namespaced_config_map(namespace, body)
    return "presets"


@contextmanager
def serving(folder: Path, *, address: str) -> Iterator[str]:
    """A folder over HTTP, for pods to read; its URL."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer((address, 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_port}"
        server.shutdown()


def make_project(folder: Path, *cells: str, remote: Path, url: str) -> None:
    """A git repository with the notebook train.ipynb and data in a remote, owned by the session's user.

    `remote` is the folder on this machine that everybody reads at `url`.
    """
    (folder / "data" / "points").mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(FILES):
        inputs = rng.normal(size=(POINTS // FILES, 4)).astype(np.float32)
        targets = inputs @ np.array([[1.0], [-2.0], [0.5], [3.0]], dtype=np.float32)
        np.save(folder / "data" / "points" / f"{number:02d}.npy", np.hstack([inputs, targets]))
    projects.write_notebook(folder / "train.ipynb", *cells)
    (folder / ".gitignore").write_text("outputs/\n.ipynb_checkpoints/\n")
    _do(folder, "git", "init", "--quiet", "--initial-branch=main")
    dvc = (sys.executable, "-m", "dvc")
    _do(folder, *dvc, "init", "--quiet")
    _do(folder, *dvc, "config", "core.analytics", "false")
    _do(folder, *dvc, "add", "--quiet", "data/points")
    _do(folder, *dvc, "remote", "add", "--default", "store", url)
    _do(folder, *dvc, "remote", "modify", "--local", "store", "url", str(remote))
    _do(folder, *dvc, "push", "--quiet")
    (folder / ".dvc" / "config.local").unlink()
    _do(folder, "git", "add", "--all")
    _do(folder, "git", "commit", "--quiet", "--message", "points")
    _do(folder.parent, "chown", "-R", f"{UID}:{UID}", str(folder))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """A test's output is for its own words."""


def _do(folder: Path, *command: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "anna", "GIT_AUTHOR_EMAIL": "anna@example.org"}
    identity |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in identity.items()}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | identity, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
