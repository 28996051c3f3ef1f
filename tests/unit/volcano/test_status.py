"""From Volcano's phases and pods to our status, its restarts and its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slicelift.models import Failure, JobStatus, Status
from slicelift_hub.launcher.backends.volcano.status import fold


def failed(scene: Any, index: int, code: int, *, reason: str = "Error", message: str = "") -> None:
    ended = {"exitCode": code, "reason": reason} | ({"message": message} if message else {})
    scene.add_pod(index, node="a", phase="Failed", terminated=ended)


def test_it_waits_until_every_worker_has_a_node(scene: Any) -> None:
    scene.add_node("a")
    scene.add_node("b")
    found = fold(scene.picture)
    assert (found.status, found.phase, found.reason) == (Status.WAITING, "Pending", "placing")
    scene.add_pod(0, node="a")
    assert fold(scene.picture).status == Status.WAITING
    scene.add_pod(1, node="b")
    assert fold(scene.picture) == JobStatus(status=Status.STARTING, phase="Pending")


def test_that_it_runs_its_agents_say(scene: Any) -> None:
    scene.job = scene.make_job(phase="Running")
    for index in range(2):
        scene.add_pod(index, node="a", phase="Running", running={})
    assert fold(scene.picture) == JobStatus(status=Status.STARTING, phase="Running")


def test_an_image_that_is_missing_on_the_last_node(scene: Any) -> None:
    scene.add_pod(0, node="a", running={})
    scene.add_pod(1, node="b", waiting={"reason": "ErrImagePull", "message": "not found"})
    found = fold(scene.picture)
    assert (found.status, found.reason) == (Status.STARTING, "image")


@pytest.mark.parametrize(
    ("retries", "attempts", "restarts"), [(0, 3, 0), (1, 3, 1), (2, 3, 2), (3, 3, 2), (1, 1, 0), (None, 3, 0)]
)
def test_volcano_counts_the_failure_it_gives_up_at(
    retries: int | None, attempts: int, restarts: int, scene: Any
) -> None:
    scene.job = scene.make_job(phase="Restarting")
    scene.job["spec"]["maxRetry"] = attempts
    scene.job["status"]["retryCount"] = retries
    assert fold(scene.picture).restarts == restarts


def test_replaced_workers_of_an_elastic_gang_are_no_restart(scene: Any) -> None:
    scene.job = scene.make_job(phase="Running", min_workers=1)
    scene.job["status"]["retryCount"] = 2
    assert fold(scene.picture).restarts == 0


def test_an_elastic_gang_says_how_many_workers_it_has(scene: Any) -> None:
    assert fold(scene.picture).workers is None
    scene.job = scene.make_job(phase="Running", min_workers=1)
    scene.add_pod(0, node="a", phase="Running", running={})
    scene.add_pod(1, says="0/1 nodes are unavailable")
    found = fold(scene.picture)
    assert (found.reason, found.message) == (
        "workers-fewer",
        "The gang has 1 of its 2 workers and goes on with these.",
    )
    scene.pods.pop()
    assert fold(scene.picture).reason == "workers-fewer"
    scene.add_pod(1, node="a", phase="Running", running={})
    assert fold(scene.picture) == JobStatus(status=Status.STARTING, phase="Running", workers=2)


def test_without_its_first_worker_an_elastic_gang_does_not_claim_to_go_on(scene: Any) -> None:
    scene.job = scene.make_job(phase="Running", min_workers=1)
    scene.add_pod(1, node="a", phase="Running", running={})
    found = fold(scene.picture)
    assert (found.reason, found.message) == (
        "first-worker-gone",
        "The gang has 1 of its 2 workers, and goes on once the first one is back: the others meet there.",
    )


@pytest.mark.parametrize(("ready", "word"), [("Unknown", "does not answer"), ("False", "is not ready")])
def test_a_lost_node_is_named_with_what_it_holds(scene: Any, ready: str, word: str) -> None:
    """ "False" is its kubelet's own word, as while its container runtime is down."""
    scene.job = scene.make_job(phase="Running")
    scene.add_node("a")
    scene.add_node("b", ready=False)
    scene.nodes[-1]["status"]["conditions"][0]["status"] = ready
    scene.add_pod(0, node="a", phase="Running", running={})
    scene.add_pod(1, node="b", phase="Running", running={})
    assert fold(scene.picture) == JobStatus(
        status=Status.RUNNING,
        phase="Running",
        reason="node-lost",
        message=f"Node b {word}, with 1 of 2 workers on it; 8 GPUs there still count as used.",
    )


def test_completed(scene: Any) -> None:
    scene.job = scene.make_job(phase="Completed")
    assert fold(scene.picture) == JobStatus(status=Status.FINISHED, phase="Completed", exit_code=0)


def test_what_a_gang_could_not_send_before_its_end_is_told(scene: Any) -> None:
    scene.job = scene.make_job(phase="Completed")
    words = [json.dumps({"reason": "", "delivered": delivered}) for delivered in (True, False)]
    for index, word in enumerate([*words, "", "no JSON", "[]"]):
        scene.add_pod(index, node="a", phase="Succeeded", terminated={"exitCode": 0, "message": word})
    found = fold(scene.picture)
    assert (found.status, found.reason, found.exit_code) == (Status.FINISHED, "undelivered", 0)
    assert found.message == (
        "The launcher was away for too long after the end: what r-abcdefghijkl-1-worker-1 had not sent is lost, "
        "models and outputs too."
    )


def test_failed_for_good_with_the_first_workers_words(scene: Any) -> None:
    scene.job = scene.make_job(phase="Failed")
    failed(scene, 0, 137, reason="OOMKilled")
    failed(scene, 1, 1)
    assert fold(scene.picture) == JobStatus(
        status=Status.FAILED,
        phase="Failed",
        reason="worker-failed",
        message="r-abcdefghijkl-1-worker-0 ended with exit code 137 (OOMKilled) and was started 3 times in all.",
        exit_code=137,
        failure=Failure(
            message="r-abcdefghijkl-1-worker-0 ended with exit code 137 (OOMKilled).", exit_code=137
        ),
    )


def test_an_elastic_gang_that_lost_too_many_workers_says_so(scene: Any) -> None:
    scene.job = scene.make_job(phase="Failed", min_workers=1)
    failed(scene, 1, 1)
    found = fold(scene.picture)
    assert found.message == (
        "r-abcdefghijkl-1-worker-1 ended with exit code 1, and 6 lost workers are the most that the gang may have."
    )


def test_a_users_error_is_found_among_its_consequences(scene: Any) -> None:
    scene.job = scene.make_job(phase="Terminated")
    failed(scene, 0, 1)
    failed(scene, 1, 78, message='{"reason": "interpreter-missing", "message": "no such interpreter"}')
    found = fold(scene.picture)
    assert (found.status, found.reason, found.exit_code) == (Status.FAILED, "user-error", 78)
    assert found.message == (
        "r-abcdefghijkl-1-worker-1 ended with exit code 78 (no such interpreter): starting it again would not help."
    )


def test_terminated_because_the_pods_could_not_be_made(scene: Any) -> None:
    scene.job = scene.make_job(phase="Terminated", age=1)
    scene.tell("Job", "exceeded quota: small, limited: limits.cpu=4", reason="FailedCreate", ago=120)
    found = fold(scene.picture)
    assert (found.status, found.reason) == (Status.FAILED, "resource-quota")


def test_aborted_by_somebody(scene: Any) -> None:
    scene.job = scene.make_job(phase="Aborted")
    found = fold(scene.picture)
    assert (found.status, found.reason) == (Status.KILLED, "aborted")


@pytest.mark.parametrize("phase", ["Aborting", "Terminating", "Completing", "Restarting"])
def test_on_its_way(phase: str, scene: Any) -> None:
    scene.job = scene.make_job(phase=phase)
    assert fold(scene.picture) == JobStatus(status=Status.STARTING, phase=phase)


def test_a_gang_that_ran_and_lost_a_worker_is_not_said_to_wait_for_a_place(scene: Any) -> None:
    """Volcano's controller is away, else it would have started it again: no scheduler and no queue is to blame."""
    scene.job = scene.make_job(phase="Running", age=600)
    scene.group["status"]["phase"] = "Unknown"
    scene.add_pod(0, node="a", phase="Running", running={})
    assert fold(scene.picture) == JobStatus(
        status=Status.STARTING,
        phase="Running",
        reason="worker-gone",
        message="The gang lacks 1 of its 2 workers, and the cluster has not started it again yet.",
    )
    scene.add_pod(1, node="a", phase="Running", running={})
    assert fold(scene.picture).reason == ""


@pytest.mark.parametrize(
    ("retries", "status", "reason"),
    [(1, Status.WAITING, "restarting"), (2, Status.WAITING, "restarting"), (3, Status.STARTING, "")],
)
def test_a_gang_that_starts_again_waits_from_the_end_of_the_last_start(
    retries: int, status: Status, reason: str, scene: Any
) -> None:
    """Else it could not be said to wait for a place: the ledger takes no step from STARTING back to WAITING."""
    scene.job = scene.make_job(phase="Restarting")
    scene.job["status"]["retryCount"] = retries
    scene.add_pod(0, node="a", phase="Running", running={})
    found = fold(scene.picture)
    assert (found.status, found.reason, found.restarts) == (status, reason, min(retries, 2))


@pytest.mark.parametrize("phase", ["Restarting", "Terminating", "Aborting"])
def test_what_cannot_end_because_its_node_is_lost_says_so(phase: str, scene: Any) -> None:
    """A worker failed for want of the lost one, and Volcano waits for the lost pod to go: for ever."""
    scene.job = scene.make_job(phase=phase)
    scene.job["status"]["retryCount"] = 1
    scene.add_node("a")
    scene.add_node("b", ready=False)
    failed(scene, 0, 1)
    scene.add_pod(1, node="b", phase="Running", running={})
    found = fold(scene.picture)
    assert found.reason == "node-lost"
    assert found.message == (
        "Node b does not answer, with 1 of 2 workers on it; 8 GPUs there still count as used."
    )


def test_a_phase_of_tomorrow_is_unknown_with_the_raw_word(scene: Any) -> None:
    scene.job = scene.make_job(phase="Hibernating")
    found = fold(scene.picture)
    assert (found.status, found.phase) == (Status.UNKNOWN, "Hibernating")
