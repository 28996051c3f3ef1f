"""Another number of workers for an elastic gang: the change that is sent, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from slicelift.errors import Refused
from slicelift.models import Status
from slicelift_hub.launcher.backends.volcano.scaling import make_patch
from slicelift_hub.launcher.backends.volcano.status import fold, restarts


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
