"""An elastic gang gets more workers, and fewer: on fake nodes, and as real pods that train."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launching
import pytest
from bed import kit
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from slicelift.errors import Refused
from slicelift.models import Status

PRESETS = """
presets:
  - name: torch
    display_name: Torch
    launcher: torchrun
    workers: 1
    min_workers: 1
    max_workers: 2
    cluster: {attempts: 10, grace_seconds: 20, cpu: 0.7, memory: 1Gi, shm: 64Mi, disk: 512Mi, min_success: 1}
"""
PROGRAM = """
import time
import slicelift, torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    start = found[1] if found else 0
    for step in range(start, 2000):
        slicelift.log(step=step, world=float(dist.get_world_size()))
        slicelift.checkpoint({}, step=step + 1)
        dist.barrier()
        time.sleep(0.2)
"""


def test_workers_come_and_go_and_the_gang_is_not_started_again(bench: Any, nodes: Any) -> None:
    nodes(1)
    # the preset has no max_workers: up to what it was submitted with
    handle = bench.submit(workers=3, min_workers=1)
    bench.wait_phase(handle, "Running")
    first = {pod.metadata.name: pod.metadata.uid for pod in bench.pods(handle)}
    assert len(first) == 3
    bench.backend.scale(handle, 1)
    kit.wait_for("two workers to go", lambda: len(bench.pods(handle)) == 1)
    (left,) = bench.pods(handle)
    assert left.metadata.name.endswith("-worker-0")
    assert left.metadata.uid == first[left.metadata.name]
    kit.wait_for("their quota", lambda: bench.allocated() == "1")
    assert bench.backend.status(handle).restarts == 0
    bench.backend.scale(handle, 2)
    kit.wait_for(
        "one to come back", lambda: len([1 for pod in bench.pods(handle) if pod.spec.node_name]) == 2
    )
    assert bench.backend.status(handle).restarts == 0
    with pytest.raises(Refused, match="from 1 to 3 workers"):
        bench.backend.scale(handle, 4)
    bench.end_pods(handle, only=0)
    assert bench.wait(handle, lambda found: found.status.terminal).status == Status.FINISHED


@pytest.fixture
def launcher(bed: Place, api: Api, namespace: str, image: str, tmp_path: Path) -> Iterator[Launcher]:
    with (
        launching.checkpoints(api, bed, namespace) as claim,
        launching.serving(
            tmp_path / "home", bed, namespace=namespace, image=image, claim=claim, presets=PRESETS
        ) as made,
    ):
        yield made


def test_a_gang_that_has_another_number_than_the_ledger_follows_it(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    """As after a call that was given up on, or a launcher that was killed between ledger and cluster."""
    run = launcher.submit(PROGRAM, workers=2, min_workers=1, queue=queue)
    launcher.until(run, lambda view: view.handle)
    place = (*kit.BATCH, namespace, "jobs", f"{run}-1")

    def replicas() -> int:
        return int(api.custom.get_namespaced_custom_object(*place)["spec"]["tasks"][0]["replicas"])

    change = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 1}]
    api.custom.patch_namespaced_custom_object(*place, change, _content_type="application/json-patch+json")
    kit.wait_for("the number of the ledger", lambda: replicas() == 2)
    # and what is asked for stays
    assert launcher.client.scale(run, 1).spec.workers == replicas() == 1
    time.sleep(6)
    assert (launcher.client.job(run).spec.workers, replicas()) == (1, 1)
    with pytest.raises(Refused, match="at most 2 worker"):
        launcher.client.scale(run, 3)
    launcher.client.cancel(run)


# every change of the gang is a new meeting, for which torchrun waits half a minute: about four minutes
@pytest.mark.drill
@pytest.mark.timeout(900)
def test_a_gang_that_trains_takes_a_new_worker_in_and_goes_on_without_it(
    launcher: Launcher, queue: str
) -> None:
    """From two to one and back: the preset bounds it to two, and a single one would be no elastic gang at its submit."""
    run = launcher.submit(PROGRAM, workers=2, min_workers=1, queue=queue)
    for workers in (2, 1, 2):
        if workers != launcher.client.job(run).spec.workers:
            launcher.client.scale(run, workers)
        before = launcher.client.job(run).latest.get("world", (0, 0.0))[0]
        view = launcher.until(
            run,
            lambda view, n=workers, step=before: (
                view.latest.get("world", (0, 0.0))[1] == n and view.latest["world"][0] > step
            ),
            seconds=240,
        )
        assert (view.status, view.attempt) == (Status.RUNNING, 1)
    told = [change.message for change in view.history if change.reason == "scaled"]
    assert told == [f"scaled from 2 to 1 by {view.owner}", f"scaled from 1 to 2 by {view.owner}"]
    launcher.client.cancel(run)
    assert launcher.until(run, lambda view: view.status.terminal).status == Status.KILLED
