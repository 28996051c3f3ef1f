"""Drills: a fault while a job runs or waits. Ten seconds after its end kubectl, ledger and card agree, then MLflow, too.

And nothing is lost: every step that the program was to make is there, in the ledger and in MLflow. These are the quick ones,
which run every time; those in the modules beside it take a minute and more each.
"""

from __future__ import annotations

import time
from dataclasses import replace

import oracle
import pytest
from bed import kit
from bed.kit import Api
from scenes import STEPS, Scene
from slicelift.errors import Refused
from slicelift.models import Status
from slicelift.sentences import sentence

# the first one may wait for the bed and the image
pytestmark = [pytest.mark.drill, pytest.mark.quick, pytest.mark.timeout(600)]


def test_a_worker_is_killed(scene: Scene, api: Api, namespace: str) -> None:
    run = scene.under_way(workers=2)
    api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
    scene.until(run, lambda view: view.attempt == 2, seconds=oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 2
    first, second = scene.launcher.client.attempts(run)
    assert (first["status"], second["status"]) == ("FAILED", "FINISHED")
    assert first["reason"] == "worker-lost"
    _check_the_oracle(scene.look(run))


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
    story = scene.look(run)
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


@pytest.mark.usefixtures("own_bed")
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
