"""Jobs, queues, nodes and pods as the API server gives them, short enough to be written in a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.models import JobSpec
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.feeds import Feed
from slicelift_hub.launcher.backends.volcano.manifest import make_job
from slicelift_hub.launcher.backends.volcano.picture import Picture
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.turn import make_lines
from slicelift_profiles import presets

from tests.unit.volcano import scripted
from tests.unit.volcano.scripted import Script

NOW = 1_800_000_000.0
SPEC = JobSpec(
    name="train",
    snapshot_id="0" * 64,
    notebook="train.ipynb",
    script=".slicelift/promoted.py",
    cwd=".",
    python="/opt/conda/bin/python",
    workers=2,
    gpus_per_worker=8,
    queue="team",
)
ATTEMPT = Attempt(
    attempt_id="r-abcdefghijkl-1",
    run_id="r-abcdefghijkl",
    promotion_id="p-aaaaaaaaaaaaaaaaaaaa",
    attempt=1,
    launcher_url="http://launcher:8765",
    token="very-secret",
    owner="ada",
)
SITE = Site(
    namespace="jobs",
    image="registry.example/lab@sha256:" + "a" * 64,
    runtime="slicelift-runtime-0123456789ab",
)


def stamp(seconds_ago: float) -> str:
    """A time of Kubernetes."""
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat().replace("+00:00", "Z")


class Scene:
    """A small cluster: change its parts, then take the `picture`."""

    def __init__(self) -> None:
        self.job = self.make_job()
        self.group: dict[str, Any] | None = {
            "metadata": {"name": "g", "creationTimestamp": stamp(5)},
            "status": {"phase": "Pending", "conditions": []},
        }
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.queues: dict[str, dict[str, Any]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.claims: dict[str, dict[str, Any]] = {}
        self.held: dict[str, dict[str, float]] = {}
        self.add_queue("team")

    def make_job(
        self, name: str = "r-abcdefghijkl-1", *, age: float = 5, phase: str = "", **spec: Any
    ) -> dict[str, Any]:
        """A job as the cluster has it, `age` seconds old and as long in its phase."""
        attempt = replace(ATTEMPT, attempt_id=name)
        made = make_job(replace(SPEC, **spec), attempt, preset=presets.get("torchrun"), site=SITE)
        made["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": stamp(age)}
        made["status"] = {"state": {"phase": phase, "lastTransitionTime": stamp(age)}} if phase else {}
        return made

    def add_queue(
        self, name: str, *, state: str = "Open", parent: str = "", allocated: Any = None, **limits: str
    ) -> None:
        """Limits and use by short names: `gpu`, `cpu`, `memory`."""
        self.queues[name] = {
            "metadata": {"name": name},
            "spec": {"capability": _long(limits)} | ({"parent": parent} if parent else {}),
            "status": {"state": state, "allocated": _long(allocated or {})},
        }

    def add_node(
        self, name: str, *, gpu: int = 8, ready: bool = True, cordoned: bool = False, product: str = ""
    ) -> None:
        """A node of 64 cores."""
        labels = {"nvidia.com/gpu.product": product} if product else {}
        self.nodes.append(
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"unschedulable": cordoned},
                "status": {
                    "allocatable": {
                        "cpu": "64",
                        "memory": "512Gi",
                        **({"nvidia.com/gpu": str(gpu)} if gpu else {}),
                    },
                    "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
                },
            }
        )

    def add_pod(
        self, index: int, *, node: str = "", phase: str = "Pending", says: str = "", **container: Any
    ) -> None:
        """A pod of the job; `says` is the scheduler's word on it, `container` the state of its container."""
        placed = [] if node else [{"type": "PodScheduled", "status": "False", "message": says}]
        requests = self.job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
        states = [{"image": "img", "state": container}] if container else []
        self.pods.append(
            {
                "metadata": {
                    "name": f"{self.job['metadata']['name']}-worker-{index}",
                    "creationTimestamp": stamp(4),
                },
                "spec": {"containers": [{"resources": requests}]} | ({"nodeName": node} if node else {}),
                "status": {"phase": phase, "conditions": placed, "containerStatuses": states},
            }
        )

    def tell(
        self, kind: str, message: str, *, reason: str = "Unschedulable", name: str = "", ago: float = 1
    ) -> None:
        """An event."""
        about = {"kind": kind, "name": name or self.job["metadata"]["name"]}
        self.events.append(
            {
                "metadata": {"name": f"e{len(self.events)}", "creationTimestamp": stamp(ago)},
                "involvedObject": about,
                "reason": reason,
                "message": message,
                "lastTimestamp": stamp(ago),
            }
        )

    def stuck(self, message: str, *, ago: float = 1) -> None:
        """The PodGroup was let in and does not fit."""
        assert self.group is not None
        condition = {
            "type": "Unschedulable",
            "status": "True",
            "reason": "NotEnoughResources",
            "message": message,
        }
        self.group["status"] = {
            "phase": "Inqueue",
            "conditions": [condition | {"lastTransitionTime": stamp(ago)}],
        }

    @property
    def picture(self) -> Picture:
        return Picture(
            now=NOW,
            job=self.job,
            group=self.group,
            pods=self.pods,
            events=self.events,
            queues=self.queues,
            nodes=self.nodes,
            lines=make_lines([self.job, *self.jobs]),
            claims=self.claims,
            held=self.held,
        )


def _long(short: dict[str, str]) -> dict[str, str]:
    return {
        {"gpu": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.10gb"}.get(name, name): value
        for name, value in short.items()
    }


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def spec() -> JobSpec:
    return SPEC


@pytest.fixture
def attempt() -> Attempt:
    return ATTEMPT


@pytest.fixture
def site() -> Site:
    return SITE


@pytest.fixture
def ago() -> Callable[[float], str]:
    """A time of Kubernetes, so many seconds before the scene's now."""
    return stamp


@pytest.fixture
def server() -> Iterator[Script]:
    """An API server of this test's."""
    with scripted.serving() as script:
        yield script


@pytest.fixture
def client(server: Script, tmp_path: Path) -> Iterator[Client]:
    """Of that server, by a kubeconfig in the test's folder."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "the-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    made = Client(kubeconfig=str(path), qps=0)
    yield made
    made.close()


@pytest.fixture
def follow(client: Client) -> Iterator[Callable[..., tuple[Feed, list[str]]]]:
    """A feed of /x, and the names that it told of."""
    feeds = []

    def make(**more: Any) -> tuple[Feed, list[str]]:
        told: list[str] = []
        feed = Feed(
            client,
            "/x",
            keep=lambda each: {"name": each["metadata"]["name"], "status": dict(each.get("status", {}))},
            owner_of=lambda each: str(each.get("owner", each["metadata"]["name"])),
            told=told.append,
            **more,
        )
        feeds.append(feed)
        return feed, told

    yield make
    for feed in feeds:
        feed.stop()
