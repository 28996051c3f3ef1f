"""JuiceFS mounted for real, and volumes on it for the pods of a namespace: what a CSI driver would make, by hand.

Metadata in SQLite, objects in a folder, FUSE on this machine below `bed.shared`, where the node sees it, too.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from bed.layout import NODE
from bed.processes import MARK
from kubernetes.client import ApiException

DATA, CHECKPOINTS, SHARED = "data", "checkpoints", "shared"
SIZE = "10Gi"
MODES = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Names of PersistentVolumeClaims; `folder` holds a folder of each one's name, as this machine sees it."""

    folder: Path
    data: str = DATA
    checkpoints: str = CHECKPOINTS
    # for what sessions and jobs both see, such as a directory remote of DVC
    shared: str = SHARED

    def views(self, owner_hash: str) -> Path:
        """The data sets of one owner."""
        return self.folder / self.data / owner_hash / "views"


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A mounted JuiceFS."""

    mount: Path
    objects: Path

    @contextmanager
    def claims(
        self, api: Api, namespace: str, *, names: Sequence[str] = (DATA, CHECKPOINTS, SHARED)
    ) -> Iterator[Claims]:
        """The claims of a namespace, each bound to a folder of its own in which everybody may write."""
        folder = self.mount / namespace
        for name in names:
            place = folder / name
            place.mkdir(parents=True)
            place.chmod(0o777)
            _bind(api, namespace, name, place)
        try:
            kit.wait_for("the claims", lambda: all(_is_bound(api, namespace, name) for name in names))
            yield Claims(folder=folder)
        finally:
            for name in names:
                _release(api, namespace, name)


@contextmanager
def mounted(bed: Cluster, folder: Path) -> Iterator[Storage]:
    """A JuiceFS of its own; metadata, objects and cache below `folder`, which holds nothing else."""
    mount = bed.shared / f"juicefs-{secrets.token_hex(4)}"
    mount.mkdir()
    meta, objects = f"sqlite3://{folder / 'meta.db'}", folder / "objects"
    program = str(Path(sysconfig.get_path("scripts")) / "juicefs")
    subprocess.run(
        [program, "format", "--storage", "file", "--bucket", f"{objects}/", meta, "bed"],
        check=True,
        capture_output=True,
    )
    options = ("--no-usage-report", "--cache-dir", str(folder / "cache"), "--log", str(folder / "log"))
    options += ("--backup-meta", "0", "-o", "allow_other")
    # it ends with this process, however that ends, and the bed knows it as its own
    command = ["setpriv", "--pdeathsig", "TERM", program, "mount", *options, meta, str(mount)]
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=os.environ | {MARK: str(bed.run)},
            start_new_session=True,
        )
    try:
        kit.wait_for(f"JuiceFS ({folder / 'log'})", lambda: _is_mounted(mount, process), seconds=60)
        yield Storage(mount=mount, objects=objects)
    finally:
        _unmount(mount, process)


def _is_mounted(mount: Path, process: subprocess.Popen[bytes]) -> bool:
    """Before it is, what is written there goes to the bare folder, without a word."""
    assert process.poll() is None, "juicefs mount ended"
    rows = (line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines())
    return any(place == str(mount) and kind == "fuse.juicefs" for _, place, kind in rows)


def _unmount(mount: Path, process: subprocess.Popen[bytes]) -> None:
    subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        # a pod that is not gone yet still has it
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
    mount.rmdir()


def _bind(api: Api, namespace: str, name: str, folder: Path) -> None:
    """A local volume and the claim that gets this one."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    volume = {
        **MODES,
        "capacity": {"storage": SIZE},
        "claimRef": {"namespace": namespace, "name": name},
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    api.core.create_persistent_volume({"metadata": {"name": f"{name}-{namespace}"}, "spec": volume})
    asked = {**MODES, "resources": {"requests": {"storage": SIZE}}, "volumeName": f"{name}-{namespace}"}
    body = {"metadata": {"name": name}, "spec": asked}
    api.core.create_namespaced_persistent_volume_claim(namespace, body)


def _is_bound(api: Api, namespace: str, name: str) -> bool:
    found = api.core.read_namespaced_persistent_volume_claim(name, namespace)
    return bool(found.status.phase == "Bound")


def _release(api: Api, namespace: str, name: str) -> None:
    """Both are deleted; one that a pod still uses goes with the pod."""
    with suppress(ApiException):
        api.core.delete_namespaced_persistent_volume_claim(name, namespace)
    with suppress(ApiException):
        api.core.delete_persistent_volume(f"{name}-{namespace}")
