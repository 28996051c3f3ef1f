"""Drills: a fault while a job runs or waits. Ten seconds after its end kubectl, ledger and card agree, then MLflow, too.

And nothing is lost: every step that the program was to make is there, in the ledger and in MLflow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import launching
import oracle
import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from launching import Launcher
from slicelift.errors import Refused
from slicelift.models import RunView, Status
from slicelift.sentences import sentence

SLICE = "nvidia.com/mig-1g.10gb"
STEPS = 40
# every rank for itself, rank 0 saves: nothing of it costs anything but the start
PROGRAM = f"""
import time
import slicelift

if __name__ == "__main__":
    found = slicelift.resume()
    for step in range(found[1] if found else 0, {STEPS}):
        time.sleep(0.25)
        slicelift.log(step=step, done=float(step + 1))
        slicelift.checkpoint({{"done": step + 1}}, step=step + 1)
"""
# two pods have to import torch on two cores
START_SECONDS = 150.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A launcher with MLflow, a namespace with a claim for checkpoints, a queue with one slice."""

    api: Api
    bed: Cluster
    launcher: Launcher
    namespace: str
    queue: str

    def submit(self, **asked: object) -> str:
        """The program on CPUs; its run id."""
        return self.launcher.submit(PROGRAM, **{"workers": 1, "queue": self.queue, **asked})

    def under_way(self, **asked: object) -> str:
        """The same, once it has made some steps."""
        run = self.submit(**asked)
        self.until(run, lambda view: view.latest.get(oracle.METRIC, (0, 0.0))[0] >= 3)
        return run

    def until(self, run: str, check: Callable[[RunView], bool], *, seconds: float = START_SECONDS) -> RunView:
        """The first view that meets it."""
        return self.launcher.until(run, check, seconds=seconds)

    def agree(self, run: str, *, seconds: float = oracle.SECONDS) -> RunView:
        """The card, once all four tell the same."""
        return oracle.agree(
            self.bed, self.launcher, run, namespace=self.namespace, queue=self.queue, seconds=seconds
        )

    def finish(self, run: str) -> RunView:
        """Its end, with every step of the program in ledger and MLflow."""
        self.until(run, lambda view: view.status.terminal)
        view = self.agree(run)
        story = oracle.look(self.bed, self.launcher, run, namespace=self.namespace, queue=self.queue)
        assert (view.status, set(story.exported)) == (Status.FINISHED, set(range(STEPS))), sentence(view)
        # what was logged after the last checkpoint of an attempt is done again by the next one
        assert len(story.exported) <= STEPS + view.attempt - 1
        return view


@pytest.fixture(scope="module")
def scene(api: Api, bed: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("drills") / "home"
    with (
        kit.queue(api, share={SLICE: "1"}) as queue,
        kit.namespace(api) as here,
        launching.checkpoints(api, bed, here) as claim,
        launching.serving(home, bed, namespace=here, image=image, claim=claim, tracker="mlflow") as launcher,
    ):
        yield Scene(api=api, bed=bed, launcher=launcher, namespace=here, queue=queue)


@pytest.fixture
def namespace(scene: Scene) -> str:
    """For the report of a failure."""
    return scene.namespace


def test_a_worker_is_killed(scene: Scene, api: Api, namespace: str) -> None:
    run = scene.under_way(workers=2)
    api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
    scene.until(run, lambda view: view.attempt == 2, seconds=oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 2
    first, second = scene.launcher.client.attempts(run)
    assert (first["status"], second["status"]) == ("FAILED", "FINISHED")
    assert first["reason"] == "worker-lost"
    _check_the_oracle(oracle.look(scene.bed, scene.launcher, run, namespace=namespace, queue=scene.queue))


def test_a_pod_is_evicted(scene: Scene, api: Api, namespace: str) -> None:
    """As a node that is drained does: the pod has its time to save."""
    run = scene.under_way(workers=2)
    name = f"{run}-1-worker-0"
    eviction = {"metadata": {"name": name, "namespace": namespace}}
    api.core.create_namespaced_pod_eviction(name, namespace, eviction)
    scene.until(run, lambda view: view.attempt == 2, seconds=40)
    scene.agree(run)
    assert scene.finish(run).attempt == 2
    # what rank 0 had logged when it was told to end is saved: no step is made twice
    story = oracle.look(scene.bed, scene.launcher, run, namespace=namespace, queue=scene.queue)
    assert sorted(story.steps) == list(range(STEPS))


def test_an_image_is_missing(scene: Scene, api: Api, namespace: str) -> None:
    run = scene.submit(image="127.0.0.1:9/none:1", slice="1g.10gb")
    scene.until(run, lambda view: view.reason == "image")
    view = scene.agree(run)
    assert view.status is Status.STARTING
    assert "127.0.0.1:9/none:1 cannot be had on node" in sentence(view)
    scene.launcher.client.cancel(run)
    assert scene.agree(run).status is Status.KILLED


def test_the_queue_is_closed(scene: Scene, api: Api, namespace: str) -> None:
    """What runs goes on, what waits is told why, what comes is refused with the queue's name; then it is open again."""
    first = scene.under_way(slice="1g.10gb")
    waiting = scene.submit(slice="1g.10gb")
    scene.until(waiting, lambda view: view.reason == "quota-full")
    kit.command_queue(api, scene.queue, "CloseQueue")
    try:
        scene.until(waiting, lambda view: view.reason == "queue-closed", seconds=oracle.SECONDS)
        with pytest.raises(Refused, match=rf"Queue {scene.queue} is (closing|closed)") as refusal:
            scene.submit()
        assert scene.queue not in refusal.value.hint
        scene.until(first, lambda view: view.status is Status.FINISHED)
        view = scene.until(waiting, lambda view: view.reason == "queue-closed", seconds=oracle.SECONDS)
        assert view.status is Status.WAITING
    finally:
        kit.command_queue(api, scene.queue, "OpenQueue")
    scene.until(waiting, lambda view: view.status is not Status.WAITING, seconds=oracle.SECONDS)
    scene.finish(waiting)
    scene.agree(first)


def test_the_launcher_is_killed_while_it_watches(scene: Scene, api: Api, namespace: str) -> None:
    run = scene.under_way(workers=2)
    scene.launcher.kill()
    time.sleep(3)
    scene.launcher.restart()
    assert scene.agree(run).status in (Status.RUNNING, Status.FINISHED)
    assert scene.finish(run).attempt == 1


def test_volcanos_scheduler_is_down_for_a_while(scene: Scene, api: Api, namespace: str) -> None:
    """It says nothing where others would say that it waits: the launcher says it after 20 s."""
    scene.bed.stop("volcano-scheduler")
    try:
        run = scene.submit()
        scene.until(run, lambda view: view.reason == "scheduler-silent", seconds=60)
        view = scene.agree(run)
        assert view.status is Status.WAITING
        assert "Volcano's scheduler says nothing of this job" in sentence(view)
    finally:
        scene.bed.start("volcano-scheduler")
    scene.until(run, lambda view: view.status is not Status.WAITING, seconds=oracle.SECONDS)
    scene.agree(run)
    scene.finish(run)


def _check_the_oracle(true: oracle.Story) -> None:
    """Each of the four may lie, and it is noticed."""
    assert oracle.contradictions(true) + oracle.lags(true) == []
    lies = {
        "jobs": {},
        "alive": {"left": True},
        "held": {"cpu": "1"},
        "attempts": true.attempts[:1],
        "run": ("RUNNING", true.card.attempt),
        "tracked": [*true.tracked, "FINISHED"],
        "steps": true.steps[:-1],
        "exported": true.exported[:-1],
        "card": replace(true.card, status=Status.FAILED),
    }
    for name, lie in lies.items():
        told = replace(true, **{name: lie})
        assert oracle.contradictions(told) + oracle.lags(told), name
