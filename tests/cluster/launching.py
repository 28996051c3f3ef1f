"""A real launcher over a cluster, for tests: its process, jobs whose program is a few lines, a claim for their checkpoints."""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from bed import kit
from bed.kit import Api
from elsewhere import Place
from slicelift.launcher_client import Blob, Client, find, read_state
from slicelift.models import JobSpec, RunView, Snapshot, SnapshotFile

from tests.promoting import make_promotion_id
from tests.waiting import free_port

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
c.Launcher.backend = "slicelift_hub.launcher.backends.volcano.Volcano"
c.Launcher.address = "0.0.0.0"
c.Launcher.public_url = "http://{host}:{port}"
c.Launcher.tracker = "{tracker}"
c.Volcano.kubeconfig = "{kubeconfig}"
c.Volcano.namespace = "{namespace}"
c.Volcano.image = "{image}"
c.Volcano.presets_file = "{presets}"
c.Volcano.checkpoints_claim = "{claim}"
"""
# two of them, with what torch needs to be imported, have to fit on a node of two cores
PRESETS = """
presets:
  - name: torch
    display_name: Torch
    launcher: torchrun
    workers: 2
    cluster: &small {attempts: 3, grace_seconds: 20, cpu: 0.7, memory: 1Gi, shm: 64Mi, disk: 512Mi}
  - name: slice
    display_name: Slice
    launcher: torchrun
    workers: 1
    max_workers: 1
    slice: required
    cluster: *small
"""


class Launcher:
    """The launcher as a process that may be killed and started again, and a client of it."""

    def __init__(self, home: Path, *, port: int, ledger: str = "") -> None:
        self.home = home
        self._port = port
        self._ledger = ledger
        self._clients: list[Client] = []
        self.process = self._begin()

    @property
    def client(self) -> Client:
        """The user's."""
        if not self._clients:
            self._clients.append(find(self.home))
        return self._clients[0]

    @property
    def url(self) -> str:
        """Where this machine calls it, and the user's token."""
        return str(self._state()["url"])

    def submit(self, program: str, **asked: Any) -> str:
        """A program as a job; its run id."""
        spec = upload(self.client, program, **asked)
        return self.client.submit(make_promotion_id(), spec).run_id

    def until(self, run: str, check: Callable[[RunView], bool], *, seconds: float = 180) -> RunView:
        """The first view that meets it."""
        end = time.monotonic() + seconds
        while not check(view := self.client.job(run)):
            assert time.monotonic() < end, (view, self.log()[-3000:])
            time.sleep(0.1)
        return view

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Straight from the ledger's database."""
        if self._ledger:
            return _select_postgresql(self._ledger, query, *values)
        return _select(self.home / "ledger.db", query, *values)

    def mlflow_rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Straight from MLflow's database."""
        return _select(self.home / "mlflow" / "mlflow.db", query, *values)

    def log(self) -> str:
        """What it has printed."""
        return (self.home / "test.log").read_text()

    def kill(self) -> None:
        """As a crash would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """After a kill."""
        self.process = self._begin()

    def close(self) -> None:
        """Jobs are the cluster's: they are left alone."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "slicelift_hub.launcher", "--home", str(self.home)]
        with (self.home / "test.log").open("ab") as log:
            made = subprocess.Popen([*command, "--port", str(self._port)], stdout=log, stderr=log)

        def serves() -> bool:
            assert made.poll() is None, self.log()[-3000:]
            return (read_state(self.home) or {}).get("pid") == made.pid

        kit.wait_for("the launcher", serves, seconds=120)
        return made

    def _state(self) -> dict[str, Any]:
        return read_state(self.home) or {}


@contextmanager
def serving(
    home: Path,
    bed: Place,
    *,
    namespace: str,
    image: str,
    claim: str = "",
    tracker: str = "none",
    presets: str = PRESETS,
    more: str = "",
    ledger: str = "",
) -> Iterator[Launcher]:
    """A launcher on this machine whose jobs run in `namespace`; `more` is added to its configuration.

    `ledger`: the address of a PostgreSQL in place of SQLite.
    """
    port = free_port(bed.host_ip)
    home.mkdir(mode=0o700, exist_ok=True)
    file = home / "presets.yaml"
    file.write_text(presets, encoding="utf-8")
    words = {"host": bed.host_ip, "port": port, "kubeconfig": bed.kubeconfig, "namespace": namespace}
    text = CONFIG.format(**words, image=image, presets=file, claim=claim, tracker=tracker)
    if ledger:
        more += f'c.Launcher.ledger = "{ledger}"\n'
    (home / "launcher_config.py").write_text(text + more, encoding="utf-8")
    made = Launcher(home, port=port, ledger=ledger)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def checkpoints(api: Api, bed: Place, namespace: str) -> Iterator[str]:
    """A claim on a folder of the node in which everybody may write."""
    name, folder = f"checkpoints-{namespace}", bed.shared / f"checkpoints-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)
    size, modes = {"storage": "1Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bound = {
        "claimRef": {"namespace": namespace, "name": "checkpoints"},
        "hostPath": {"path": str(folder)},
    }
    volume = {"metadata": {"name": name}, "spec": {**modes, "capacity": size, **bound}}
    api.core.create_persistent_volume(volume)
    asked = {**modes, "resources": {"requests": size}, "volumeName": name}
    api.core.create_namespaced_persistent_volume_claim(
        namespace, {"metadata": {"name": "checkpoints"}, "spec": asked}
    )
    try:
        yield "checkpoints"
    finally:
        api.core.delete_persistent_volume(name)


def make_snapshot(program: str) -> tuple[Snapshot, Blob]:
    """A program as a snapshot of one file, and what there is to send for it."""
    content = program.encode()
    digest = hashlib.sha256(content).hexdigest()
    files = (SnapshotFile(path="promoted.py", sha256=digest, size_bytes=len(content)),)
    words = {"tree": "t", "commit": "c", "base_commit": "b", "branch": "main", "dirty": False, "cwd": "."}
    words |= {"notebook": "n.ipynb", "script": "promoted.py", "script_sha256": "", "lock_sha256": ""}
    snapshot = Snapshot(id=hashlib.sha256(b"id" + content).hexdigest(), files=files, **words)
    return snapshot, (digest, len(content), content)


def upload(client: Client, program: str, **asked: Any) -> JobSpec:
    """The program in the store of whoever calls, and the spec of a job with it."""
    snapshot, blob = make_snapshot(program)
    if client.offer_snapshot(snapshot):
        client.send_blobs(iter([blob]))
        client.offer_snapshot(snapshot)
    return make_spec(program, **asked)


def make_spec(program: str, **asked: Any) -> JobSpec:
    """Of a job with a program that the store has."""
    place = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": f"{sys.prefix}/bin/python"}
    snapshot, _ = make_snapshot(program)
    preset = "slice" if asked.get("slice") else "torch"
    return JobSpec(snapshot_id=snapshot.id, **{"name": "demo", "preset": preset, **place, **asked})


def running(api: Api, namespace: str, run: str) -> list[Any]:
    """The pods of a run that are not over."""
    found = api.core.list_namespaced_pod(namespace, label_selector=f"slicelift.io/run={run}").items
    return [pod for pod in found if pod.status.phase not in ("Succeeded", "Failed")]


def _select(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return [tuple(row) for row in connection.execute(query, values)]
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []  # MLflow still makes its tables while the launcher serves already


def _select_postgresql(address: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    plain = address.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain) as connection:
        return [tuple(row) for row in connection.execute(query.replace("?", "%s"), values)]
