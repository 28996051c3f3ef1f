"""The test bed for benchmarks: fake nodes of a shape, and a launcher whose jobs go there."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.launcher_client import Client, read_state
from slicelift.models import JobSpec, RunView, Snapshot, SnapshotFile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from bed import cluster as beds  # noqa: E402
from bed import kit as kit  # noqa: E402
from bed import kwok as kwok  # noqa: E402
from bed.cluster import Cluster  # noqa: E402
from bed.kit import Api  # noqa: E402

GPU = "nvidia.com/gpu"
# a pod of a fake node: it runs nothing and ends when it is told to
POD: Mapping[str, Any] = {"tolerations": [kwok.TOLERATION], "nodeSelector": kwok.LABEL}
IMAGE = "registry.example/none@sha256:" + "0" * 64
START_SECONDS = 60
PRESETS = """
presets:
  - name: fake
    display_name: Fake nodes
    default: true
    launcher: torchrun
    workers: 1
    cluster: {attempts: 1, grace_seconds: 15, cpu: 0.1, memory: 128Mi, shm: 16Mi, disk: 64Mi, node_selector: {type: kwok},
      tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]}
"""
CONFIG = """
c.Launcher.backend = "slicelift_hub.launcher.backends.volcano.Volcano"
c.Launcher.tracker = "none"
c.Volcano.kubeconfig = {kubeconfig!r}
c.Volcano.namespace = {namespace!r}
c.Volcano.image = {image!r}
c.Volcano.presets_file = {presets!r}
"""
SCRIPT = b"pass\n"


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where one round is run: a namespace and a queue of its own."""

    bed: Cluster
    api: Api
    namespace: str
    queue: str


@contextlib.contextmanager
def fake_nodes(count: int, *, gpus: int) -> Iterator[tuple[Cluster, Api]]:
    """The bed that SLICELIFT_CLUSTER names, or one of our own, with `count` more nodes of `gpus` GPUs each."""
    with contextlib.ExitStack() as stack:
        running = os.environ.get("SLICELIFT_CLUSTER", "")
        if running:
            bed = beds.attach(Path(running), report=_say)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slicelift-bed-"))
            bed = beds.up(Path(folder), owner=os.getpid(), report=_say)
            stack.callback(bed.down)
        api = kit.connect(bed.kubeconfig)
        stack.callback(api.raw.close)
        names = bed.add_fake_nodes(count, {GPU: str(gpus)}, prefix=f"bench-{secrets.token_hex(3)}")
        stack.callback(bed.remove_fake_nodes, names)
        yield bed, api


@contextlib.contextmanager
def field(bed: Cluster, api: Api) -> Iterator[Field]:
    """A round's place; nothing of it is left."""
    with kit.queue(api) as queue, kit.namespace(api) as namespace:
        yield Field(bed=bed, api=api, namespace=namespace, queue=queue)


@contextlib.contextmanager
def launcher(place: Field) -> Iterator[Client]:
    """A real launcher whose jobs go to that namespace, in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="slicelift-bench-") as folder:
        home = Path(folder)
        presets = home / "presets.yaml"
        presets.write_text(PRESETS, encoding="utf-8")
        words = {"kubeconfig": str(place.bed.kubeconfig), "namespace": place.namespace}
        text = CONFIG.format(**words, image=IMAGE, presets=str(presets))
        (home / "launcher_config.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "slicelift_hub.launcher", "--home", folder, "--port", "0"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            client = _client(home, process)
            _offer_code(client)
            yield client
            client.close()
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def submit(client: Client, place: Field, *, workers: int, gpus: int = 1) -> RunView:
    """A gang of that many workers with `gpus` GPUs each."""
    spec = JobSpec(
        name="gang",
        snapshot_id=_snapshot().id,
        notebook="demo.ipynb",
        script="promoted.py",
        cwd=".",
        python=sys.executable,
        workers=workers,
        gpus_per_worker=gpus,
        queue=place.queue,
        preset="fake",
    )
    return client.submit(f"p-{base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]}", spec)


def _client(home: Path, process: subprocess.Popen[bytes]) -> Client:
    until = time.monotonic() + START_SECONDS
    while (state := read_state(home)) is None or state.get("pid") != process.pid:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the launcher did not come up: {(home / 'log').read_text()[-2000:]}")
        time.sleep(0.1)
    return Client(str(state["url"]), str(state["token"]))


def _offer_code(client: Client) -> None:
    snapshot = _snapshot()
    if client.offer_snapshot(snapshot):
        client.send_blobs(iter([(snapshot.files[0].sha256, len(SCRIPT), SCRIPT)]))
        client.offer_snapshot(snapshot)


def _snapshot() -> Snapshot:
    digest = hashlib.sha256(SCRIPT).hexdigest()
    files = (SnapshotFile(path="promoted.py", sha256=digest, size_bytes=len(SCRIPT)),)
    place = {"tree": "t", "commit": "c", "base_commit": "b", "branch": "main", "cwd": "."}
    words = {"notebook": "demo.ipynb", "script": "promoted.py", "script_sha256": digest, "lock_sha256": ""}
    return Snapshot(id=digest, files=files, dirty=False, **place, **words)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
