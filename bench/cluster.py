"""The test bed for benchmarks: fake nodes of a shape, and a launcher whose jobs go there."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.launcher_client import Client
from slicelift.models import RunView

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import launching as launching  # noqa: E402
import remotes as remotes  # noqa: E402
import shared_storage as shared_storage  # noqa: E402
from bed import cluster as beds  # noqa: E402
from bed import kit as kit  # noqa: E402
from bed import kwok as kwok  # noqa: E402
from bed.cluster import Cluster  # noqa: E402
from bed.kit import Api  # noqa: E402
from remotes import Remote as Remote  # noqa: E402

GPU = "nvidia.com/gpu"
# a pod of a fake node: it runs nothing and ends when it is told to
POD: Mapping[str, Any] = {"tolerations": [kwok.TOLERATION], "nodeSelector": kwok.LABEL}
IMAGE = "registry.example/none@sha256:" + "0" * 64
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
PROGRAM = "pass\n"


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where one round is run: a namespace and a queue of its own."""

    bed: Cluster
    api: Api
    namespace: str
    queue: str


@contextlib.contextmanager
def bed() -> Iterator[tuple[Cluster, Api]]:
    """The bed that SLICELIFT_CLUSTER names, or one of our own."""
    with contextlib.ExitStack() as stack:
        running = os.environ.get("SLICELIFT_CLUSTER", "")
        if running:
            found = beds.attach(Path(running), report=_say)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slicelift-bed-"))
            found = beds.up(Path(folder), owner=os.getpid(), report=_say)
            stack.callback(found.down)
        api = kit.connect(found.kubeconfig)
        stack.callback(api.raw.close)
        yield found, api


@contextlib.contextmanager
def fake_nodes(count: int, *, gpus: int) -> Iterator[tuple[Cluster, Api]]:
    """The bed with `count` more nodes of `gpus` GPUs each."""
    with bed() as (found, api):
        names = found.add_fake_nodes(count, {GPU: str(gpus)}, prefix=f"bench-{secrets.token_hex(3)}")
        try:
            yield found, api
        finally:
            found.remove_fake_nodes(names)


@contextlib.contextmanager
def field(found: Cluster, api: Api) -> Iterator[Field]:
    """A round's place; nothing of it is left."""
    with kit.queue(api) as queue, kit.namespace(api) as namespace:
        yield Field(bed=found, api=api, namespace=namespace, queue=queue)


@contextlib.contextmanager
def launcher(place: Field) -> Iterator[Client]:
    """A real launcher whose jobs go to that namespace, in a home of its own; it has the program that `submit` names."""
    words = {"namespace": place.namespace, "image": IMAGE, "presets": PRESETS}
    with (
        tempfile.TemporaryDirectory(prefix="slicelift-bench-") as folder,
        launching.serving(Path(folder), place.bed, **words) as made,
    ):
        launching.upload(made.client, PROGRAM)
        yield made.client


def submit(client: Client, place: Field, *, workers: int, gpus: int = 1) -> RunView:
    """A gang of that many workers with `gpus` GPUs each."""
    words = {"workers": workers, "gpus_per_worker": gpus, "queue": place.queue, "preset": "fake"}
    return client.submit(launching.make_promotion_id(), launching.make_spec(PROGRAM, **words))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
