"""Drills: a fault while a job runs or waits. Ten seconds after its end kubectl, ledger and card agree, then MLflow, too.

And nothing is lost: every step that the program was to make is there, in the ledger and in MLflow. These are the quick ones,
which run every time; those in the modules beside it take a minute and more each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import oracle
import pytest
import scenes
from bed import kit
from bed.kit import Api
from scenes import AWAY_SECONDS, STEPS, Scene
from slicelift.errors import Refused
from slicelift.models import Status
from slicelift.sentences import sentence

# the first one may wait for the bed and the image
pytestmark = [pytest.mark.drill, pytest.mark.quick, pytest.mark.timeout(600)]
# every program of the pod's container that has to do with the training, but for the container's first
KILLING = """
import os, signal
for number in filter(str.isdigit, os.listdir("/proc")):
    if b"promoted.py" in open(f"/proc/{number}/cmdline", "rb").read() and int(number) not in (1, os.getpid()):
        os.kill(int(number), signal.SIGKILL)
"""


def _delete(api: Api, namespace: str, pod: str) -> None:
    api.core.delete_namespaced_pod(pod, namespace, grace_period_seconds=0)


def _kill(api: Api, namespace: str, pod: str) -> None:
    """As the kernel does to a program that takes too much memory."""
    kit.execute(api, namespace, pod, f"{sys.prefix}/bin/python", "-c", KILLING)


@pytest.mark.parametrize(
    ("kill", "reason"),
    [pytest.param(_delete, "worker-lost", id="its pod"), pytest.param(_kill, "gang-failed", id="SIGKILL")],
)
def test_a_worker_is_killed(
    scene: Scene, api: Api, namespace: str, kill: Callable[[Api, str, str], None], reason: str
) -> None:
    """The gang starts again on the same card; what the first attempt printed is kept, although its pods are gone."""
    program = scenes.PROGRAM.replace(
        "        slicelift.log(", '        print("step", step, flush=True)\n        slicelift.log('
    )
    run = scene.under_way(program, workers=2)
    kill(api, namespace, f"{run}-1-worker-1")
    scene.until(run, lambda view: view.attempt == 2, seconds=oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 2
    first, second = scene.launcher.client.attempts(run)
    assert (first["status"], second["status"]) == ("FAILED", "FINISHED")
    assert first["reason"] == reason
    before, after = (_printed(scene, run, attempt) for attempt in (1, 2))
    assert (before[0], after[-1]) == (0, STEPS - 1)
    assert set(before) | set(after) == set(range(STEPS))
    assert before == list(range(len(before)))
    assert after[0] > 0
    _check_the_oracle(scene.look(run))


def _printed(scene: Scene, run: str, attempt: int) -> list[int]:
    """The steps in the log of rank 0."""
    text, _ = scene.launcher.client.logs(run, rank=0, attempt=attempt)
    return [int(line.split()[1]) for line in text.decode().splitlines() if line.startswith("step ")]


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
def test_volcanos_scheduler_is_down_for_a_minute(scene: Scene, api: Api, namespace: str) -> None:
    """It says nothing where others would say that it waits: the launcher says it after 20 s. What runs goes on."""
    running = scene.under_way()
    scene.bed.kill("volcano-scheduler")
    try:
        began = time.monotonic()
        run = scene.submit()
        scene.until(run, lambda view: view.reason == "scheduler-silent", seconds=60)
        view = scene.agree(run)
        assert view.status is Status.WAITING
        assert "Volcano's scheduler says nothing of this job" in sentence(view)
        time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
        assert scene.agree(run).reason == "scheduler-silent"
        # what a queue has given out is the scheduler's to say
        scene.until(running, lambda view: view.status is Status.FINISHED)
    finally:
        scene.bed.start("volcano-scheduler")
    assert scene.finish(running).attempt == 1
    scene.until(run, lambda view: view.status is not Status.WAITING, seconds=oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 1


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
