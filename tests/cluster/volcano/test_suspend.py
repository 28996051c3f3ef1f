"""A real gang is suspended: it saves, its pods and its quota are given back, and it goes on where it stood."""

from __future__ import annotations

import launching
import pytest
from bed import kit
from bed.kit import Api
from launching import Launcher
from slicelift.models import Status

pytestmark = pytest.mark.drill
PROGRAM = """
import time
import slicelift, torch, torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    state, start = found if found else ({"total": torch.zeros(1)}, 0)
    total = state["total"]
    print("from step", start, flush=True)
    for step in range(start, 60):
        one = torch.ones(1)
        dist.all_reduce(one)
        total = total + one
        slicelift.log(step=step, total=float(total))
        slicelift.checkpoint({"total": total}, step=step + 1)
        time.sleep(0.3 if not start else 0.05)
"""


# two attempts of two pods import torch: about two minutes
def test_a_suspended_gang_saves_gives_back_its_quota_and_goes_on(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    run = launcher.submit(PROGRAM, workers=2, queue=queue)
    launcher.until(run, lambda view: "total" in view.latest and view.latest["total"][0] >= 3)
    launcher.client.suspend(run)
    suspended = launcher.until(run, lambda view: view.status.terminal)
    assert suspended.suspended, suspended
    assert suspended.checkpoint is not None
    # every rank left at a checkpoint: the steps that were logged are all in it
    assert suspended.checkpoint == suspended.latest["total"][0] + 1
    assert launching.running(api, namespace, run) == []
    kit.wait_for("the quota to be given back", lambda: _allocated(api, queue) in ("0", ""))
    resumed = launcher.client.retry(run)
    assert (resumed.attempt, resumed.checkpoint) == (2, suspended.checkpoint)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.attempt, done.latest["total"]) == (Status.FINISHED, 2, (59, 120.0))
    log, _ = launcher.client.logs(run, rank=0, attempt=2)
    assert f"from step {suspended.checkpoint}" in log.decode()


def _allocated(api: Api, queue: str) -> str:
    """What the queue counts as used of CPU."""
    found = api.custom.get_cluster_custom_object(*kit.SCHEDULING, "queues", queue)
    return str(((found.get("status") or {}).get("allocated") or {}).get("cpu", ""))
