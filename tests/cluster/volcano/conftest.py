"""The backend "volcano" on a real cluster: most gangs on fake nodes, whose pods end as an annotation says."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import launching
import pytest
from bed import kit, kwok
from bed.cluster import Cluster
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from slicelift.backends.base import Attempt
from slicelift.models import JobSpec, JobStatus
from slicelift_hub.launcher.backends.volcano import Volcano
from slicelift_hub.launcher.backends.volcano.names import parse_handle
from traitlets.config import Config

GPU = "nvidia.com/gpu"
PRESETS = """
presets:
  - name: {name}
    display_name: Test
    launcher: torchrun
    workers: 1
    cluster: {{attempts: {attempts}, grace_seconds: 15, cpu: {cpu}, memory: 64Mi, shm: 16Mi, disk: 64Mi{more}}}
"""
FAKE = ", node_selector: {type: kwok}, tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]"


class Bench:
    """One backend in one namespace, and what a test does with it."""

    def __init__(
        self, api: Api, *, kubeconfig: Path, namespace: str, queue: str, presets: Path, **settings: Any
    ) -> None:
        self.api, self.namespace, self.queue = api, namespace, queue
        self.told: list[str] = []
        words = {"kubeconfig": str(kubeconfig), "namespace": namespace, "presets_file": str(presets)}
        words |= {"image": "registry.example/none@sha256:" + "0" * 64, **settings}
        self.backend = Volcano(config=Config(Volcano=words))
        self.backend.listen(self.told.append)

    def spec(self, **asked: Any) -> JobSpec:
        """Two workers of one GPU on fake nodes, unless `asked` says else."""
        words = {"workers": 2, "gpus_per_worker": 1, "queue": self.queue, "preset": "fake", **asked}
        place = {"notebook": "n.ipynb", "script": "s.py", "cwd": ".", "python": f"{sys.prefix}/bin/python"}
        return JobSpec(name="test", snapshot_id="0" * 64, **place, **words)

    def attempt(self, name: str = "") -> Attempt:
        """The first attempt of a run of its own."""
        run = name or f"r-{secrets.token_hex(6)}"
        ids = {"attempt_id": f"{run}-1", "run_id": run, "promotion_id": f"p-{run}", "attempt": 1}
        return Attempt(**ids, launcher_url="http://127.0.0.1:9", token="secret", owner="ada")

    def submit(self, **asked: Any) -> str:
        """A job of its own; its handle."""
        return self.backend.submit(self.spec(**asked), self.attempt())

    def wait(self, handle: str, check: Callable[[JobStatus], bool], *, seconds: float = 40) -> JobStatus:
        """The first status that meets it."""
        end = time.monotonic() + seconds
        while True:
            found = self.backend.status(handle)
            if check(found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.1)

    def wait_reason(self, handle: str, reason: str, *, seconds: float = 40) -> JobStatus:
        """The first status with that reason."""
        return self.wait(handle, lambda found: found.reason == reason, seconds=seconds)

    def wait_phase(self, handle: str, phase: str, *, seconds: float = 40) -> JobStatus:
        """The first status with that word of Volcano's."""
        return self.wait(handle, lambda found: found.phase == phase, seconds=seconds)

    def pods(self, handle: str) -> list[Any]:
        """The pods of a job, as they are now."""
        _, job = parse_handle(handle) or ("", "")
        return list(
            self.api.core.list_namespaced_pod(
                self.namespace, label_selector=f"volcano.sh/job-name={job}"
            ).items
        )

    def end_pods(self, handle: str, *, exit_code: int = 0, only: int | None = None) -> None:
        """Have pods on fake nodes end within a second."""
        for pod in self.pods(handle):
            if only is None or pod.metadata.name.endswith(f"-{only}"):
                notes = kwok.pod_ends(after="0s", exit_code=exit_code)
                self.api.core.patch_namespaced_pod(
                    pod.metadata.name, self.namespace, {"metadata": {"annotations": notes}}
                )

    def clear(self) -> None:
        """No job is left in a queue that is about to be deleted."""
        self.backend.close()
        for job in self.api.custom.list_namespaced_custom_object(*kit.BATCH, self.namespace, "jobs")["items"]:
            self.api.custom.delete_namespaced_custom_object(
                *kit.BATCH, self.namespace, "jobs", job["metadata"]["name"]
            )
        kit.wait_for("the pods to go", lambda: not self.api.core.list_namespaced_pod(self.namespace).items)

    def custom(self, kind: str, name: str) -> dict[str, Any]:
        """A Volcano object of the namespace."""
        group = kit.BATCH if kind == "jobs" else kit.SCHEDULING
        found: dict[str, Any] = self.api.custom.get_namespaced_custom_object(
            *group, self.namespace, kind, name
        )
        return found

    def allocated(self, resource: str = GPU) -> str:
        """What the test's queue has given out."""
        found = self.api.custom.get_cluster_custom_object(*kit.SCHEDULING, "queues", self.queue)
        return str(found.get("status", {}).get("allocated", {}).get(resource, "0"))


@pytest.fixture(scope="session")
def presets_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("presets") / "presets.yaml"
    rows = [
        ("fake", 3, FAKE),
        ("once", 1, FAKE),
        ("near", 3, FAKE + ", topology: {mode: hard, highest_tier: 1}"),
    ]
    rows += [
        ("limited", 3, FAKE + ", max_hours: 1"),
        ("real", 3, ""),
        ("untolerated", 3, ", node_selector: {type: kwok}"),
        ("wide", 3, FAKE),
    ]
    texts = [
        PRESETS.format(name=name, attempts=attempts, more=more, cpu=40 if name == "wide" else 0.1)
        for name, attempts, more in rows
    ]
    path.write_text(
        "presets:\n" + "".join(text.replace("\npresets:\n", "") for text in texts), encoding="utf-8"
    )
    return path


@pytest.fixture
def nodes(own_bed: Cluster, api: Api) -> Iterator[Callable[..., list[str]]]:
    """Fake nodes: `nodes(2, gpus=8)`; gone when the test is."""
    made: list[str] = []

    def make(count: int, *, gpus: int = 8) -> list[str]:
        names = own_bed.add_fake_nodes(count, {GPU: str(gpus)}, prefix=f"f-{secrets.token_hex(3)}")
        made.extend(names)
        kit.wait_for("the fake nodes", lambda: set(names) <= _ready(api))
        return names

    yield make
    own_bed.remove_fake_nodes(made)


@pytest.fixture
def make_bench(
    request: pytest.FixtureRequest, api: Api, kubeconfig: Path, namespace: str, presets_file: Path
) -> Iterator[Callable[..., Bench]]:
    """A bench on a queue of its own: `make_bench(share={"nvidia.com/gpu": "4"}, image=...)`."""
    # fake nodes go after the pods on them: nobody would end those else
    if "nodes" in request.fixturenames:
        request.getfixturevalue("nodes")
    with ExitStack() as stack:

        def make(
            *, share: dict[str, str] | None = None, in_namespace: str = "", queue: str = "", **settings: Any
        ) -> Bench:
            name = queue or stack.enter_context(
                kit.queue(api, share={GPU: "1000"} if share is None else share)
            )
            words = {"namespace": in_namespace or namespace, "queue": name, "presets": presets_file}
            bench = Bench(api, kubeconfig=kubeconfig, **words, **settings)
            stack.callback(bench.clear)
            return bench

        yield make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A bench on a queue that may use a thousand GPUs."""
    return make_bench()


@pytest.fixture
def launcher(bed: Place, api: Api, namespace: str, image: str, tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose jobs are pods of the image and keep their checkpoints."""
    with (
        launching.checkpoints(api, bed, namespace) as claim,
        launching.serving(tmp_path / "home", bed, namespace=namespace, image=image, claim=claim) as made,
    ):
        yield made


def _ready(api: Api) -> set[str]:
    """Nodes whose kubelets answer, and from which Kubernetes has taken the mark of a new node: that comes later."""
    return {
        node.metadata.name
        for node in api.core.list_node(label_selector="type=kwok").items
        if any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())
        and not any(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints or ())
    }
