"""An elastic gang of real pods: it goes on without a worker that is lost, takes it in again, and makes every step once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import launching
import pytest
from bed.kit import Api
from bed.layout import NODE
from elsewhere import Place
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
    cluster: {attempts: 2, grace_seconds: 20, cpu: 0.7, memory: 1Gi, shm: 64Mi, disk: 512Mi}
"""
# it ends once its gang was of these sizes, in so many starts; `worlds` has an entry for every step that was made: which
# start made it, and with how many
PROGRAM = """
import itertools, time
import slicelift, torch, torch.distributed as dist

SIZES, STARTS = {sizes}, {starts}

def is_over(worlds):
    sizes = [size for size, _ in itertools.groupby(size for _, size in worlds)]
    return sizes == SIZES and worlds[-1][0] + 1 >= STARTS and worlds[-5] == worlds[-1]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    worlds = found[0]["worlds"] if found else []
    start = worlds[-1][0] + 1 if worlds else 0
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "from step", len(worlds), flush=True)
    while not is_over(worlds):
        step, one = len(worlds), torch.ones(1)
        dist.all_reduce(one)
        worlds = [*worlds, (start, int(one))]
        slicelift.log(step=step, world=float(one), done=float(len(worlds)))
        slicelift.checkpoint({"worlds": worlds}, step=step + 1)
        time.sleep(0.3)
"""


@pytest.fixture
def launcher(bed: Place, api: Api, namespace: str, image: str, tmp_path: Path) -> Iterator[Launcher]:
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
    run = launcher.submit(_program(sizes=[2, 1, 2], starts=3), workers=2, min_workers=1, queue=queue)
    whole = _until_trains(launcher, run, world=2, after=3)
    with _closed(api):
        api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
        fewer = _until_trains(launcher, run, world=1, after=whole.latest["world"][0])
        assert (fewer.status, fewer.attempt, fewer.reason) == (Status.RUNNING, 1, "workers-fewer")
        assert "The gang has 1 of its 2 workers and goes on with these" in remarks(fewer)
    again = _until_trains(launcher, run, world=2, after=fewer.latest["world"][0])
    assert (again.status, again.attempt, again.reason) == (Status.RUNNING, 1, "workers-all")
    assert "The gang has all of its workers" in remarks(again)
    _check_end(launcher, run)


def test_without_its_first_worker_the_gang_waits_for_it_and_goes_on_from_its_checkpoint(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    """torchrun's store is there: the others cannot go on without it, and nothing says that they do.

    Each of them fails once for it, which alone must not use up what `attempts` allows.
    """
    run = launcher.submit(_program(sizes=[2], starts=2), workers=2, min_workers=1, queue=queue)
    whole = _until_trains(launcher, run, world=2, after=3)
    with _closed(api):
        api.core.delete_namespaced_pod(f"{run}-1-worker-0", namespace, grace_period_seconds=0)
        told = launcher.until(run, lambda view: view.reason == "first-worker-gone", seconds=60)
        (said,) = remarks(told)
        assert said.startswith("The gang has 1 of its 2 workers, and goes on once the first one is back")
    again = _until_trains(launcher, run, world=2, after=whole.latest["world"][0] + 1)
    assert (again.status, again.attempt) == (Status.RUNNING, 1)
    _check_end(launcher, run)


def _program(*, sizes: list[int], starts: int) -> str:
    return PROGRAM.replace("{sizes}", str(sizes)).replace("{starts}", str(starts))


def _until_trains(launcher: Launcher, run: str, *, world: int, after: int) -> RunView:
    """The card once a gang of that size has made a step after that one."""

    def trains(view: RunView) -> bool:
        step, size = view.latest.get("world", (0, 0.0))
        return size == world and step > after

    return launcher.until(run, trains, seconds=300)


def _check_end(launcher: Launcher, run: str) -> None:
    """Every step was made, and counted in the state that the next start went on from: none is lost, none counted twice."""
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.attempt, done.exit_code) == (Status.FINISHED, 1, 0)
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
