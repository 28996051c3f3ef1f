"""Two real pods check the network between them before they train: in the card, and as a reason not to begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import launching
import pytest
from elsewhere import Place
from launching import Launcher
from slicelift.models import Status

PRESETS = """
presets:
  - name: checked
    display_name: Checked
    launcher: torchrun
    workers: 2
    cluster:
      {{attempts: 2, grace_seconds: 20, cpu: 0.7, memory: 1Gi, shm: 64Mi, disk: 512Mi,
        check: {{all_reduce: {{bytes: 4194304, least_gbit: {least}, on_slow: fail}}}}}}
"""
PROGRAM = """
import slicelift, torch, torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    slicelift.log(step=1, total=float(one))
    dist.destroy_process_group()
"""


@pytest.fixture
def launcher(
    request: pytest.FixtureRequest, bed: Place, namespace: str, image: str, tmp_path: Path
) -> Iterator[Launcher]:
    """With a preset that expects `request.param` Gbit/s."""
    presets = PRESETS.format(least=request.param)
    with launching.serving(tmp_path / "home", bed, namespace=namespace, image=image, presets=presets) as made:
        yield made


# two pods load torch four times each: about a minute and a half
@pytest.mark.parametrize("launcher", [0.001], indirect=True)
def test_a_gang_that_passes_trains_and_the_card_says_what_was_measured(
    launcher: Launcher, queue: str
) -> None:
    run = launcher.submit(PROGRAM, workers=2, queue=queue, preset="checked")
    told = launcher.until(run, lambda view: "Checking the network" in view.message)
    assert told.status == Status.STARTING
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.latest["total"]) == (Status.FINISHED, (1, 2.0))
    assert done.network.startswith("All-reduce: ")
    assert done.network.endswith("the preset expects 0.001 Gbit/s")


# twice as long: it is tried on a second placement
@pytest.mark.parametrize("launcher", [100000], indirect=True)
def test_a_gang_on_a_slow_network_is_placed_again_and_then_ended(launcher: Launcher, queue: str) -> None:
    run = launcher.submit(PROGRAM, workers=2, queue=queue, preset="checked")
    done = launcher.until(run, lambda view: view.status.terminal, seconds=300)
    assert (done.status, done.reason, done.attempt) == (Status.FAILED, "network-slow", 2)
    assert done.message.startswith("The network between the workers is too slow: all-reduce reaches ")
    assert "total" not in done.latest
    assert [row["status"] for row in launcher.client.attempts(run)] == ["FAILED", "FAILED"]
