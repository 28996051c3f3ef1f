"""The life of a job: submitted once, placed, started again, ended, with the proof."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from bed import kit
from bed.kit import Api
from kubernetes import client
from kubernetes.client import ApiException
from slicelift.backends.base import Proof
from slicelift.errors import Conflict, Refused
from slicelift.models import Status
from slicelift_hub.launcher.backends.volcano.names import parse_handle
from slicelift_profiles import presets


def test_submitted_twice_it_is_one_job_and_every_field_is_as_it_was_written(
    bench: Any, api: Api, nodes: Any
) -> None:
    nodes(1)
    spec, attempt = bench.spec(), bench.attempt()
    written = bench.backend.render(spec, attempt)
    handle = bench.backend.submit(spec, attempt)
    assert (
        bench.backend.submit(spec, attempt) == handle == f"volcano://{bench.namespace}/{attempt.attempt_id}"
    )
    found = bench.custom("jobs", attempt.attempt_id)
    # neither Volcano's webhook nor the API server had anything to fill in
    assert found["spec"] == written["spec"]
    assert found["metadata"]["labels"] == written["metadata"]["labels"]
    secret = api.core.read_namespaced_secret(attempt.attempt_id, bench.namespace)
    assert json.loads(base64.b64decode(secret.data["agent.json"]))["token"] == "secret"
    assert [owner.uid for owner in secret.metadata.owner_references] == [found["metadata"]["uid"]]
    maps = api.core.list_namespaced_config_map(
        bench.namespace, label_selector="app.kubernetes.io/managed-by=slicelift"
    ).items
    assert [each.immutable for each in maps] == [True]
    assert "very" not in json.dumps(found)


def test_the_platform_teams_template_is_taken_by_every_webhook(make_bench: Any) -> None:
    """And the plan says which of its own choices defeat its purpose."""
    shipped = make_bench(presets_file=str(presets.SHIPPED))
    preset = presets.get("enterprise-ddp")
    gang = {"workers": preset.workers, "gpus_per_worker": preset.gpus_per_worker, "preset": preset.name}
    notes = shipped.backend.plan(shipped.spec(**gang), shipped.attempt())
    (told,) = [note for note in notes if "RestartJob never fires" in note]
    assert "--preset torchrun" in told
    handle = shipped.submit(**gang)
    _, name = parse_handle(handle)
    found = shipped.custom("jobs", name)
    written = shipped.backend.render(shipped.spec(**gang), shipped.attempt(name.removesuffix("-1")))
    assert found["spec"] == written["spec"]
    (task,) = found["spec"]["tasks"]
    assert task["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize("closed", [False, True])
def test_volcano_closes_the_network_of_a_gang_where_its_admin_wants_that(
    make_bench: Any, api: Api, nodes: Any, closed: bool
) -> None:
    """That there is a policy and what it lets in; the bed's network enforces none."""
    nodes(1)
    bench = make_bench(network_policy=closed)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    _, name = parse_handle(handle)
    found = client.NetworkingV1Api(api.raw).list_namespaced_network_policy(bench.namespace).items
    assert [each.metadata.name for each in found] == ([name] if closed else [])
    for each in found:
        (ingress,) = each.spec.ingress
        (only,) = ingress._from
        assert (each.spec.policy_types, only.namespace_selector, only.ip_block) == (["Ingress"], None, None)
        assert each.spec.pod_selector.match_labels["volcano.sh/job-name"] == name
        assert only.pod_selector.match_labels == each.spec.pod_selector.match_labels


def test_the_name_of_another_job_is_not_taken_over(bench: Any) -> None:
    first, second = bench.attempt(), bench.attempt()
    bench.backend.submit(bench.spec(), first)
    foreign = second.__class__(**{**vars(second), "attempt_id": first.attempt_id})
    with pytest.raises(Conflict, match="that is not this one"):
        bench.backend.submit(bench.spec(), foreign)


def test_placed_running_finished_and_discarded(bench: Any, api: Api, nodes: Any) -> None:
    nodes(1)
    handle = bench.submit()
    found = bench.wait(handle, lambda found: found.status == Status.STARTING)
    assert found.restarts == 0
    bench.wait_phase(handle, "Running")
    assert handle in bench.told
    kit.wait_for("the use of the queue", lambda: bench.allocated() == "2")
    assert not bench.backend.discard(handle)
    bench.end_pods(handle)
    found = bench.wait(handle, lambda found: found.status.terminal)
    assert (found.status, found.phase, found.exit_code) == (Status.FINISHED, "Completed", 0)
    assert bench.backend.cancel(handle, reason="late") == Proof(gone=True)
    assert bench.backend.status(handle).status == Status.FINISHED
    assert bench.backend.discard(handle)
    assert bench.backend.discard(handle)
    assert bench.backend.status(handle).reason == "no-such-job"
    _, name = parse_handle(handle)
    kit.wait_for(
        "its Secret to go with it",
        lambda: _is_gone(lambda: api.core.read_namespaced_secret(name, bench.namespace)),
    )


def test_a_failed_worker_starts_the_whole_gang_again_until_its_attempts_are_used(
    bench: Any, nodes: Any
) -> None:
    nodes(1)
    handle = bench.submit()
    seen = []
    for attempt in range(3):
        bench.wait(handle, lambda found, n=attempt: found.phase == "Running" and found.restarts == n)
        pods = {pod.metadata.uid for pod in bench.pods(handle)}
        retries = {pod.metadata.annotations["volcano.sh/job-retry-count"] for pod in bench.pods(handle)}
        assert retries == {str(attempt)}
        assert not pods & set().union(*seen)
        seen.append(pods)
        bench.end_pods(handle, exit_code=1, only=1)
    found = bench.wait(handle, lambda found: found.status.terminal)
    assert (found.status, found.reason, found.exit_code, found.restarts) == (
        Status.FAILED,
        "worker-failed",
        1,
        2,
    )
    assert found.message.endswith("worker-1 ended with exit code 1 and was started 3 times in all.")


def test_a_users_error_is_not_tried_again(bench: Any, nodes: Any) -> None:
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    bench.end_pods(handle, exit_code=78, only=0)
    found = bench.wait(handle, lambda found: found.status.terminal)
    assert (found.status, found.phase, found.reason) == (Status.FAILED, "Terminated", "user-error")
    assert (found.exit_code, found.restarts) == (78, 0)


def test_an_elastic_gang_starts_with_what_is_free_and_a_lost_worker_comes_back(
    bench: Any, api: Api, nodes: Any
) -> None:
    nodes(1, gpus=1)
    handle = bench.submit(min_workers=1)
    bench.wait(handle, lambda found: found.status == Status.STARTING and found.phase == "Running")
    assert sorted(bool(pod.spec.node_name) for pod in bench.pods(handle)) == [False, True]
    nodes(1, gpus=1)
    kit.wait_for("the second worker", lambda: all(pod.spec.node_name for pod in bench.pods(handle)))
    before = {pod.metadata.name: pod.metadata.uid for pod in bench.pods(handle)}
    lost = next(iter(before))
    api.core.delete_namespaced_pod(lost, bench.namespace, grace_period_seconds=0)
    kit.wait_for("the lost worker", lambda: _uids(bench, handle).get(lost, before[lost]) != before[lost])
    kept = {name: uid for name, uid in _uids(bench, handle).items() if name != lost}
    assert kept == {name: uid for name, uid in before.items() if name != lost}
    # one worker was made anew, the gang was not started again
    assert bench.backend.status(handle).restarts == 0
    bench.end_pods(handle, only=0)
    assert bench.wait(handle, lambda found: found.status.terminal).status == Status.FINISHED


def test_a_cancelled_gang_is_gone_with_the_proof_and_its_quota_is_back(bench: Any, nodes: Any) -> None:
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    kit.wait_for("the use of the queue", lambda: bench.allocated() == "2")
    assert bench.backend.cancel(handle, reason="test", grace_seconds=1) == Proof(gone=True, killed=2)
    assert bench.pods(handle) == []
    kit.wait_for("the quota", lambda: bench.allocated() == "0", seconds=10)
    assert bench.backend.status(handle).reason == "no-such-job"
    # to repeat it is safe
    assert bench.backend.cancel(handle, reason="test", grace_seconds=1) == Proof(gone=True)


def test_a_waiting_gang_is_cancelled_at_once(bench: Any) -> None:
    handle = bench.submit()
    bench.wait(handle, lambda found: found.status == Status.WAITING)
    assert bench.backend.cancel(handle, reason="test", grace_seconds=1).gone


def test_aborted_and_deleted_by_somebody_else(bench: Any, api: Api, nodes: Any) -> None:
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    _, name = parse_handle(handle)
    job = bench.custom("jobs", name)
    target = {"apiVersion": job["apiVersion"], "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"generateName": "stop-"},
        "action": "AbortJob",
        "target": target,
    }
    api.custom.create_namespaced_custom_object(
        "bus.volcano.sh", "v1alpha1", bench.namespace, "commands", command
    )
    found = bench.wait(handle, lambda found: found.status.terminal)
    assert (found.status, found.reason) == (Status.KILLED, "aborted")
    api.custom.delete_namespaced_custom_object(*kit.BATCH, bench.namespace, "jobs", name)
    found = bench.wait(handle, lambda found: found.status == Status.UNKNOWN)
    assert "somebody deleted it" in found.message


def test_however_many_ask_each_kind_is_watched_once(bench: Any, nodes: Any) -> None:
    nodes(1)
    handles = [bench.submit(gpus_per_worker=0) for _ in range(3)]
    for _ in range(100):
        for handle in handles:
            bench.backend.status(handle)
    mine = [thread.name for thread in threading.enumerate() if thread.name.startswith("watch /")]
    assert len([name for name in mine if bench.namespace in name]) == 4
    assert len([name for name in mine if name.endswith(("/queues", "/nodes"))]) == 2


def test_a_plan_goes_through_the_webhooks_and_makes_nothing(bench: Any, api: Api, nodes: Any) -> None:
    nodes(2)
    notes = bench.backend.plan(bench.spec(), bench.attempt())
    assert not any("wait" in note for note in notes), notes
    assert api.custom.list_namespaced_custom_object(*kit.BATCH, bench.namespace, "jobs")["items"] == []
    notes = bench.backend.plan(bench.spec(gpus_per_worker=9), bench.attempt())
    assert notes[0].startswith("It would wait: No node can hold a worker with 9 GPUs")
    with pytest.raises(Refused) as caught:
        bench.backend.plan(bench.spec(queue="nobodys"), bench.attempt())
    assert caught.value.code == "queue-missing"
    assert bench.queue in caught.value.hint


def test_a_namespace_that_is_not_there(make_bench: Callable[..., Any], api: Api) -> None:
    lost = make_bench()
    lost.backend.namespace = "nobody-lives-here"
    for call in (lost.backend.plan, lost.backend.submit):
        with pytest.raises(Refused) as caught:
            call(lost.spec(), lost.attempt())
        assert caught.value.code == "namespace-missing"


def test_capacity_tells_queues_quotas_and_devices(bench: Any, nodes: Any) -> None:
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    kit.wait_for(
        "the use", lambda: _quota(bench)["resources"]["nvidia.com/gpu"] == {"limit": 1000.0, "used": 2.0}
    )
    told = bench.backend.capacity()
    assert bench.queue in told["queues"]
    assert "root" not in told["queues"]
    assert told["gpus"]["total"] >= 8
    assert {each["name"] for each in told["slices"]} >= {"1g.10gb"}


def _quota(bench: Any) -> Any:
    return next(each for each in bench.backend.capacity()["quotas"] if each["name"] == bench.queue)


def _uids(bench: Any, handle: str) -> dict[str, str]:
    return {pod.metadata.name: pod.metadata.uid for pod in bench.pods(handle)}


def _is_gone(read: Callable[[], Any]) -> bool:
    try:
        read()
    except ApiException as refusal:
        return refusal.status == 404
    return False
