"""Another number of workers for an elastic gang: the change that is sent, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.errors import Refused
from slicelift.models import JobSpec, Status
from slicelift_hub.launcher.backends.volcano.manifest import make_job, make_request
from slicelift_hub.launcher.backends.volcano.scaling import make_patch
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.status import fold, restarts
from slicelift_profiles import presets


def job(**notes: str) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "annotations": notes}, "spec": {"minAvailable": 2}}


def test_only_the_number_of_workers_changes_and_only_of_this_job() -> None:
    assert make_patch(job(**{"slicelift.io/most-workers": "4"}), 3) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3},
    ]


@pytest.mark.parametrize("workers", [1, 5, 0, -1])
def test_bounds_are_those_of_the_job(workers: int) -> None:
    with pytest.raises(Refused, match="from 2 to 4 workers") as refusal:
        make_patch(job(**{"slicelift.io/most-workers": "4"}), workers)
    assert refusal.value.code == "bad-workers"


def test_a_fixed_gang_is_not_scaled() -> None:
    with pytest.raises(Refused) as refusal:
        make_patch(job(), 2)
    assert refusal.value.code == "not-elastic"


def test_an_elastic_gang_that_was_scaled_to_its_least_has_not_been_started_again(scene: Any) -> None:
    """Volcano counts each worker that was taken away as a restart."""
    scene.job = scene.make_job(phase="Running", min_workers=1)
    scene.job["spec"]["tasks"][0]["replicas"] = 1
    scene.job["spec"]["policies"] = [{"events": ["PodFailed", "PodEvicted"], "action": "RestartPod"}]
    scene.job["status"]["retryCount"] = 1
    assert restarts(scene.job) == 0
    assert fold(scene.picture).status in (Status.WAITING, Status.STARTING)


def test_torchrun_knows_from_the_start_how_far_an_elastic_gang_may_be_scaled(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    elastic = replace(spec, preset="elastic", min_workers=1)
    wide = replace(presets.get("elastic"), max_workers=12)
    assert make_request(elastic, attempt, preset=wide, site=Site())["nodes"] == 12
    made = make_job(elastic, attempt, preset=wide, site=site)
    assert made["metadata"]["annotations"]["slicelift.io/most-workers"] == "12"
    assert made["spec"]["tasks"][0]["replicas"] == 2
    # a fixed gang is what was asked for, whatever its preset would allow
    assert make_request(spec, attempt, preset=wide, site=Site())["nodes"] == 2


def test_a_run_that_was_scaled_to_its_least_is_elastic_in_its_next_attempt(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    """Where its preset lets it have more; else nobody could ever give it back what it gave up."""
    least = replace(spec, preset="elastic", workers=2, min_workers=2)
    wide = replace(presets.get("elastic"), max_workers=4)
    made = make_job(least, attempt, preset=wide, site=site)
    assert made["metadata"]["annotations"]["slicelift.io/most-workers"] == "4"
    assert made["spec"]["policies"][1]["action"] == "RestartPod"
    told = make_request(least, attempt, preset=wide, site=Site())
    assert (told["min_nodes"], told["nodes"]) == (2, 4)
    narrow = make_job(least, attempt, preset=replace(wide, max_workers=None), site=site)
    assert narrow["spec"]["policies"][1]["action"] == "RestartJob"
