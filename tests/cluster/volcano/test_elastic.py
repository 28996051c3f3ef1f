"""An elastic gang of real pods: it goes on without a worker that is lost, takes it in again, and makes every step once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launching
import pytest
from bed.cluster import Cluster
from bed.kit import Api
from bed.layout import NODE
from launching import Launcher
from slicelift.models import RunView, Status
from slicelift.sentences import remarks

# each meeting of the gang waits half a minute for more workers
pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
PRESETS = """
presets:
  - name: torch
    display_name: Torch
    launcher: torchrun
    workers: 2
    min_workers: 1
    cluster: {attempts: 10, grace_seconds: 20, cpu: 0.7, memory: 1Gi, shm: 64Mi, disk: 512Mi}
"""
# it ends once it has been two, one and two again; `worlds` has an entry for every step that was made
PROGRAM = """
import itertools, time
import slicelift, torch, torch.distributed as dist

def is_over(worlds):
    parts = [(size, len(list(steps))) for size, steps in itertools.groupby(worlds)]
    return [size for size, _ in parts] == [2, 1, 2] and parts[-1][1] >= 5

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    worlds = found[0]["worlds"] if found else []
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "from step", len(worlds), flush=True)
    while not is_over(worlds):
        step, one = len(worlds), torch.ones(1)
        dist.all_reduce(one)
        worlds = [*worlds, int(one)]
        slicelift.log(step=step, world=float(one), done=float(len(worlds)))
        slicelift.checkpoint({"worlds": worlds}, step=step + 1)
        time.sleep(0.3)
"""


@pytest.fixture
def launcher(bed: Cluster, api: Api, namespace: str, image: str, tmp_path: Path) -> Iterator[Launcher]:
    with (
        launching.checkpoints(api, bed, namespace) as claim,
        launching.serving(
            tmp_path / "home", bed, namespace=namespace, image=image, claim=claim, presets=PRESETS
        ) as made,
    ):
        yield made


def test_a_lost_worker_shrinks_the_gang_a_returned_one_rejoins_and_no_step_is_lost(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    run = launcher.submit(PROGRAM, workers=2, min_workers=1, queue=queue)
    whole = _until_trains(launcher, run, world=2, after=3)
    with _closed(api):
        api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
        fewer = _until_trains(launcher, run, world=1, after=whole.latest["world"][0])
        assert (fewer.status, fewer.attempt, fewer.reason) == (Status.RUNNING, 1, "workers-fewer")
        assert "The gang has 1 of its 2 workers and goes on with these" in remarks(fewer)
    again = _until_trains(launcher, run, world=2, after=fewer.latest["world"][0])
    assert (again.status, again.attempt, again.reason) == (Status.RUNNING, 1, "workers-all")
    assert "The gang has all of its workers" in remarks(again)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.attempt, done.exit_code) == (Status.FINISHED, 1, 0)
    _check_steps(launcher, run)


def _until_trains(launcher: Launcher, run: str, *, world: int, after: int) -> RunView:
    """The card once a gang of that size has made a step after that one."""

    def trains(view: RunView) -> bool:
        step, size = view.latest.get("world", (0, 0.0))
        return size == world and step > after

    return launcher.until(run, trains, seconds=300)


def _check_steps(launcher: Launcher, run: str) -> None:
    """Each was made, and counted in the state that the next start went on from: none is lost, none counted twice."""
    (row,) = launcher.client.series(run, keys=["done"], rank=0, points=5000)
    made = {int(step): int(value) for step, _, value in row["points"]}
    assert made == {step: step + 1 for step in range(len(made))}


@contextmanager
def _closed(api: Api) -> Iterator[None]:
    """The node takes no new pods: a worker that is lost cannot come back at once."""
    api.core.patch_node(NODE, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        api.core.patch_node(NODE, {"spec": {"unschedulable": None}})
