"""A real launcher and real pods: two nodes of torch over gloo, one killed, and the same run goes on from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import launching
import pytest
from bed import kit
from bed.kit import Api
from elsewhere import Place
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
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "from step", start, flush=True)
    for step in range(start, 25):
        one = torch.ones(1)
        dist.all_reduce(one)
        total = total + one
        slicelift.log(step=step, total=float(total))
        slicelift.checkpoint({"total": total}, step=step + 1)
        time.sleep(0.2)
"""


# two pods import torch twice: about a minute
def test_a_killed_worker_starts_the_gang_again_in_the_same_run_from_its_checkpoint(
    launcher: Launcher, api: Api, namespace: str, queue: str
) -> None:
    run = launcher.submit(PROGRAM, workers=2, queue=queue)
    launcher.until(run, lambda view: view.status == Status.RUNNING)
    before = launcher.until(run, lambda view: "total" in view.latest and view.latest["total"][0] >= 3)
    api.core.delete_namespaced_pod(f"{run}-1-worker-1", namespace, grace_period_seconds=0)
    again = launcher.until(run, lambda view: view.attempt == 2)
    assert again.status in (Status.WAITING, Status.STARTING, Status.RUNNING)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.attempt, done.exit_code) == (Status.FINISHED, 2, 0)
    # twenty-five steps of two ranks, none lost and none done twice in the sum
    assert done.latest["total"] == (24, 50.0)
    log, _ = launcher.client.logs(run, rank=0, attempt=2)
    start = int(log.decode().split("from step ")[1].split()[0])
    assert start >= before.latest["total"][0]
    rows = launcher.client.attempts(run)
    assert [row["status"] for row in rows] == ["FAILED", "FINISHED"]


def test_a_job_that_is_cancelled_is_gone(launcher: Launcher, api: Api, namespace: str, queue: str) -> None:
    run = launcher.submit(PROGRAM, workers=2, queue=queue)
    launcher.until(run, lambda view: view.status == Status.RUNNING)
    launcher.client.cancel(run)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert done.status == Status.KILLED
    assert launching.running(api, namespace, run) == []


def test_a_job_whose_wall_time_is_over_ends_with_its_pods(
    api: Api, bed: Place, image: str, namespace: str, queue: str, tmp_path: Path
) -> None:
    """Volcano has none: the launcher ends the job, and says by which rule."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules:\n  - name: short\n    wall_seconds: 40\n")
    more = f'c.Launcher.policy_file = "{policy}"\n'
    words = {"namespace": namespace, "image": image, "more": more}
    with launching.serving(tmp_path / "home", bed, **words) as launcher:
        run = launcher.submit("import time\ntime.sleep(600)\n", workers=1, queue=queue)
        launcher.until(run, lambda view: view.status == Status.RUNNING)
        done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.reason) == (Status.KILLED, "wall time of rule short (40 s) is over")
    assert launching.running(api, namespace, run) == []
    found = api.custom.get_cluster_custom_object(*kit.SCHEDULING, "queues", queue)
    assert str(found.get("status", {}).get("allocated", {}).get("cpu", "0")) in ("0", "0m")
