"""Why a job waits, each row caused for real: the sentence names what is missing, and by how much."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from kubernetes import client
from slicelift.errors import Refused, Unavailable
from slicelift.models import Status
from slicelift_hub.launcher.backends.volcano.names import parse_handle

GPU = "nvidia.com/gpu"


def test_a_full_queue_its_turn_and_the_latest_start(make_bench: Callable[..., Any], nodes: Any) -> None:
    bench = make_bench(share={GPU: "3"})
    nodes(1)
    first = bench.submit(preset="limited")
    bench.wait_phase(first, "Running")
    handle = bench.submit()
    # whose turn it is may be a second old
    found = bench.wait(handle, lambda found: found.reason == "quota-full" and found.position == 1)
    assert found.status == Status.WAITING
    assert found.message.startswith(
        f"Queue {bench.queue} is full: the gang of 2 needs 2 GPUs, 1 of its 3 GPUs is free, 1 too few; "
        "it starts in at most about "
    )
    # Kubernetes tells when something was made in whole seconds; within one, jobs follow each other by name
    time.sleep(1.1)
    behind = bench.submit(gpus_per_worker=1)
    found = bench.wait(behind, lambda found: found.position == 2)
    assert "1 job is ahead of it" in found.message
    # the first ends: the second gets its place, the third moves up
    bench.end_pods(first)
    bench.wait_phase(handle, "Running")
    bench.wait(behind, lambda found: found.position == 1)


def test_a_quota_that_is_too_small_for_ever(make_bench: Callable[..., Any], nodes: Any) -> None:
    bench = make_bench(share={GPU: "1"})
    nodes(1)
    found = bench.wait_reason(bench.submit(), "quota-too-small")
    assert found.message == (
        f"The gang of 2 needs 2 GPUs, and queue {bench.queue} never gives more than 1 GPU: it cannot start there."
    )


def test_a_queue_above_is_full(make_bench: Callable[..., Any], api: Api, nodes: Any) -> None:
    nodes(1)
    share = {GPU: "2"}
    with (
        _queue(api, "dept", capability=share) as parent,
        _queue(api, "one", parent=parent, capability=share) as one,
        _queue(api, "two", parent=parent, capability=share) as two,
    ):
        first, second = make_bench(queue=one), make_bench(queue=two)
        first.wait_phase(first.submit(workers=1), "Running")
        found = second.wait_reason(second.submit(), "quota-full")
        assert found.message == (
            f"Queue {parent} is full: the gang of 2 needs 2 GPUs, 1 of its 2 GPUs is free, 1 too few."
        )
        with pytest.raises(Refused) as caught:
            first.backend.plan(first.spec(queue=parent), first.attempt())
        assert caught.value.code == "queue-not-leaf"
        with pytest.raises(Refused, match="can only submit job to leaf queue"):
            first.submit(queue=parent)
        first.clear()


def test_a_queue_that_has_forgotten_a_device_does_not_limit_it_and_the_plan_says_so(
    make_bench: Callable[..., Any], api: Api, nodes: Any
) -> None:
    nodes(1)
    with _queue(api, "forgetful", capability={"nvidia.com/mig-1g.10gb": "1"}) as queue:
        bench = make_bench(queue=queue)
        (told,) = [note for note in bench.backend.plan(bench.spec(), bench.attempt()) if "limits" in note]
        assert told == (
            f"The queue {queue} has limits, and none of {GPU}: whoever runs the cluster should list it there."
        )
        bench.wait_phase(bench.submit(), "Running")
        listed = make_bench(share={GPU: "2"})
        assert not [note for note in listed.backend.plan(listed.spec(), listed.attempt()) if "limits" in note]
        bench.clear()


def test_a_quota_that_was_cut_after_the_gang_was_let_in(
    make_bench: Callable[..., Any], own_bed: Cluster, api: Api, nodes: Any
) -> None:
    """The queue is full when the gang would be placed: Volcano then says nothing but how many tasks it could have placed."""
    bench = make_bench(share={GPU: "24"})
    nodes(4, gpus=4), nodes(1)
    bench.wait_phase(bench.submit(workers=1, gpus_per_worker=8), "Running")
    handle = bench.submit(gpus_per_worker=8)
    kit.wait_for("it to be let in", lambda: len(bench.pods(handle)) == 2)
    _give(own_bed, bench.queue, "16")
    nodes(2)
    words = f"Queue {bench.queue} is full: the gang of 2 needs 16 GPUs, 8 of its 16 GPUs are free, 8 too few."
    found = bench.wait(handle, lambda found: found.message == words)
    assert (found.reason, found.position) == ("quota-full", 1)
    kit.wait_for("Volcano's own words", lambda: "1 Schedulable" in _told_of_group(bench, handle))
    assert "nsufficient" not in _told_of_group(bench, handle)
    _give(own_bed, bench.queue, "24")
    bench.wait_phase(handle, "Running")


def _give(bed: Cluster, queue: str, gpus: str) -> None:
    """How many GPUs the queue may give."""
    change = json.dumps({"spec": {"capability": {GPU: gpus}}})
    bed.kubectl("patch", "queues.scheduling.volcano.sh", queue, "--type=merge", "-p", change)


def _told_of_group(bench: Any, handle: str) -> str:
    """The newest of what the scheduler says of a job's PodGroup."""
    _, job = parse_handle(handle) or ("", "")
    name = next(
        each["metadata"]["name"]
        for each in bench.api.custom.list_namespaced_custom_object(
            *kit.SCHEDULING, bench.namespace, "podgroups"
        )["items"]
        if each["metadata"]["name"].startswith(job)
    )
    conditions = bench.custom("podgroups", name).get("status", {}).get("conditions") or [{}]
    return str(max(conditions, key=lambda each: each.get("lastTransitionTime", "")).get("message", ""))


def test_too_few_gpus_are_free(bench: Any, api: Api, nodes: Any) -> None:
    for name in nodes(2, gpus=4):
        api.core.patch_node(name, {"metadata": {"labels": {"nvidia.com/gpu.product": "H100"}}})
    bench.wait_phase(bench.submit(gpus_per_worker=3), "Running")
    words = "Too few GPUs are free: the gang of 2 needs 8, and 2 of 8 GPUs on H100 nodes are free."
    found = bench.wait(bench.submit(gpus_per_worker=4), lambda found: found.message == words)
    assert found.reason == "gpus-short"


def test_what_is_free_was_promised_to_a_gang_that_cannot_be_placed(
    make_bench: Callable[..., Any], nodes: Any
) -> None:
    """Volcano counts a gang that it has let in, placed or not, and says it of the one behind in an event alone."""
    nodes(2, gpus=4)
    bench = make_bench(share={GPU: "1000", "cpu": "60"})
    first = bench.submit(preset="wide", workers=1, gpus_per_worker=8)
    bench.wait_reason(first, "node-too-small")
    kit.wait_for("it to be let in", lambda: bench.pods(first))
    words = f"The cores of queue {bench.queue} are in use or promised to jobs that were let in before; 1 job is ahead of it."
    found = bench.wait(bench.submit(preset="wide", workers=1), lambda found: found.message == words)
    assert (found.reason, found.position) == ("quota-full", 2)


def test_more_is_promised_than_the_cluster_has(bench: Any, nodes: Any) -> None:
    """Gangs for a fifth more than there is are let in, and no more."""
    nodes(1)
    bench.wait_phase(bench.submit(preset="wide", workers=1), "Running")
    words = "The cores of the cluster are in use or promised to jobs that were let in before."
    found = bench.wait(bench.submit(preset="wide", workers=1), lambda found: found.message == words)
    assert found.reason == "gpus-short"


def test_no_node_has_enough_cores(bench: Any, nodes: Any) -> None:
    nodes(2)
    for _ in range(2):
        bench.wait_phase(bench.submit(preset="wide", workers=1), "Running")
    found = bench.wait_reason(bench.submit(preset="wide", workers=1), "nodes-full")
    assert found.message == "No node has 40 cores free for a worker."


def test_a_healthy_gang_is_told_nothing_but_that_it_is_being_placed(bench: Any, nodes: Any) -> None:
    """Volcano's events of it say "unschedulable" twice before it runs."""
    nodes(1)
    handle, reasons = bench.submit(), set()

    def runs(found: Any) -> bool:
        reasons.add(found.reason)
        return bool(found.phase == "Running")

    bench.wait(handle, runs)
    assert reasons <= {"placing", ""}


def test_gpus_that_are_free_but_nowhere_together(bench: Any, nodes: Any) -> None:
    nodes(4, gpus=4)
    taken = [bench.submit(workers=1, gpus_per_worker=3) for _ in range(4)]
    for handle in taken:
        bench.wait_phase(handle, "Running")
    found = bench.wait_reason(bench.submit(workers=1, gpus_per_worker=4), "gpus-fragmented")
    assert "are free, but spread over nodes so that not 1 worker find 4 on one node each" in found.message


def test_a_worker_that_no_node_can_hold_and_a_gang_that_no_cluster_can(bench: Any, nodes: Any) -> None:
    nodes(1, gpus=8)
    found = bench.wait_reason(bench.submit(gpus_per_worker=100), "node-too-small")
    assert found.message.startswith("No node can hold a worker with 100 GPUs: the largest has ")
    found = bench.wait_reason(bench.submit(workers=100, gpus_per_worker=8), "gpus-too-many")
    assert found.message.startswith("The gang of 100 needs 800 GPUs, and the nodes open to it have ")


def test_nodes_that_are_closed_to_it(bench: Any, nodes: Any) -> None:
    nodes(2)
    found = bench.wait_reason(bench.submit(preset="untolerated"), "nodes-closed")
    assert found.message.endswith("is open to this job: its preset asks for others.")


def test_a_queue_is_closed_while_the_job_waits_in_it(bench: Any, api: Api) -> None:
    handle = bench.submit(gpus_per_worker=100)
    bench.wait(handle, lambda found: found.status == Status.WAITING)
    kit.command_queue(api, bench.queue, "CloseQueue")
    found = bench.wait_reason(handle, "queue-closed")
    assert found.message.partition(":")[0] in (
        f"Queue {bench.queue} is {word}" for word in ("closing", "closed")
    )
    kit.command_queue(api, bench.queue, "OpenQueue")
    bench.wait(handle, lambda found: found.reason != "queue-closed")


def test_an_image_that_cannot_be_had_holds_its_place(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    handle = bench.submit(preset="real", gpus_per_worker=0, workers=1, image="127.0.0.1:9/none:1")
    found = bench.wait_reason(handle, "image", seconds=60)
    assert found.status == Status.STARTING
    assert "127.0.0.1:9/none:1 cannot be had on node" in found.message


def test_a_claim_that_is_not_there_and_then_is(make_bench: Callable[..., Any], api: Api, nodes: Any) -> None:
    nodes(1)
    bench = make_bench(checkpoints_claim="ckpt")
    handle = bench.submit()
    found = bench.wait_reason(handle, "claim")
    assert found.message == "The claim ckpt that the job's pods use does not exist."
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
    }
    claim = {"metadata": {"name": "ckpt"}, "spec": spec}
    api.core.create_namespaced_persistent_volume_claim(bench.namespace, claim)
    found = bench.wait(handle, lambda found: "not bound" in found.message)
    assert found.reason == "claim"
    assert found.message.startswith("The claim ckpt is not bound to a volume yet")


def test_a_claim_that_waits_for_a_pod_that_waits_for_the_claim(
    make_bench: Callable[..., Any], api: Api, nodes: Any
) -> None:
    """Of a storage class that binds late and whose driver no node has: Volcano says nothing of it at all."""
    nodes(1)
    bench = make_bench(checkpoints_claim="late")
    storage = client.StorageV1Api(api.raw)
    kind = {"metadata": {"name": bench.namespace}, "provisioner": "nobody.example/csi"}
    storage.create_storage_class({**kind, "volumeBindingMode": "WaitForFirstConsumer"})
    try:
        size = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteMany"], "resources": size, "storageClassName": bench.namespace}
        claim = {"metadata": {"name": "late"}, "spec": spec}
        api.core.create_namespaced_persistent_volume_claim(bench.namespace, claim)
        found = bench.wait_reason(bench.submit(), "claim")
        assert found.message.startswith("The claim late is not bound to a volume yet")
    finally:
        storage.delete_storage_class(bench.namespace)


def test_a_volume_that_cannot_be_mounted(make_bench: Callable[..., Any], image: str) -> None:
    """About 15 s: a kubelet that is only late is given ten."""
    gone = [{"name": "gone", "configMap": {"name": "nobody-made-it"}}]
    bench = make_bench(image=image, volumes=gone, volume_mounts=[{"name": "gone", "mountPath": "/gone"}])
    found = bench.wait_reason(bench.submit(preset="real", gpus_per_worker=0, workers=1), "mount", seconds=60)
    assert found.status == Status.STARTING
    assert "nobody-made-it" in found.message


def test_a_resource_quota_leaves_no_room(bench: Any, api: Api, nodes: Any) -> None:
    nodes(1)
    hard = {"metadata": {"name": "small"}, "spec": {"hard": {"limits.cpu": "100m"}}}
    api.core.create_namespaced_resource_quota(bench.namespace, hard)
    kit.wait_for(
        "the quota", lambda: api.core.read_namespaced_resource_quota("small", bench.namespace).status.hard
    )
    found = bench.wait_reason(bench.submit(), "resource-quota")
    assert "small" in found.message
    assert "limits.cpu=100m" in found.message


def test_a_resource_quota_keeps_the_gang_out_of_its_queue(
    bench: Any, own_bed: Cluster, api: Api, nodes: Any
) -> None:
    """Where Volcano's plugin `resourcequota` is on, it says so of the PodGroup and makes no pods."""
    nodes(1)
    hard = {"metadata": {"name": "small"}, "spec": {"hard": {"limits.cpu": "100m"}}}
    api.core.create_namespaced_resource_quota(bench.namespace, hard)
    with _plugin(own_bed, "resourcequota"):
        handle = bench.submit()
        found = bench.wait(handle, lambda found: "limits.cpu" in found.message)
        assert found.reason == "resource-quota"
        assert found.message.startswith("The namespace's ResourceQuota leaves no room: requested")
        assert bench.pods(handle) == []
        api.core.delete_namespaced_resource_quota("small", bench.namespace)
        bench.wait_phase(handle, "Running")


@contextmanager
def _plugin(bed: Cluster, name: str) -> Iterator[None]:
    """One more plugin of the scheduler, which reads its configuration again whenever it changes."""
    file = bed.layout.run / "volcano-scheduler.yaml"
    before = file.read_text()
    file.write_text(before.replace("  - name: overcommit\n", f"  - name: overcommit\n  - name: {name}\n"))
    try:
        yield
    finally:
        file.write_text(before)


def test_pods_that_kubernetes_refuses(make_bench: Callable[..., Any], api: Api, nodes: Any) -> None:
    nodes(1)
    with kit.namespace(api, labels={"pod-security.kubernetes.io/enforce": "restricted"}) as restricted:
        here = [{"name": "host", "hostPath": {"path": "/"}}]
        bench = make_bench(
            in_namespace=restricted, volumes=here, volume_mounts=[{"name": "host", "mountPath": "/h"}]
        )
        found = bench.wait_reason(bench.submit(), "pods-refused")
        assert "hostPath" in found.message


def test_our_pods_are_restricted_by_themselves(make_bench: Callable[..., Any], api: Api, nodes: Any) -> None:
    nodes(1)
    with kit.namespace(api, labels={"pod-security.kubernetes.io/enforce": "restricted"}) as restricted:
        bench = make_bench(in_namespace=restricted)
        bench.wait_phase(bench.submit(), "Running")


def test_a_plugin_that_cannot_do_its_work(bench: Any, api: Api, nodes: Any, no_services: None) -> None:
    nodes(1)
    found = bench.wait_reason(bench.submit(), "plugin")
    assert found.message.startswith("Volcano cannot prepare the job: ")
    assert "no services here" in found.message


@pytest.mark.drill
def test_the_webhook_is_down(bench: Any, own_bed: Cluster, nodes: Any) -> None:
    nodes(1)
    spec, attempt = bench.spec(), bench.attempt()
    try:
        own_bed.stop("volcano-webhook-manager")
        notes = bench.backend.plan(spec, attempt)
        assert notes[0].startswith(
            "It would wait: The cluster cannot take jobs: its webhook mutatejob.volcano.sh does not answer"
        )
        with pytest.raises(Exception, match="does not answer") as caught:
            bench.backend.submit(spec, attempt)
        assert caught.value.code == "webhook-silent"  # type: ignore[attr-defined]
    finally:
        own_bed.start("volcano-webhook-manager")
    # the API server holds on to its refusal for a moment
    kit.wait_for("the webhook", lambda: _is_taken(bench, spec, attempt))
    bench.wait_phase(bench.backend.submit(spec, attempt), "Running", seconds=60)


@pytest.mark.drill
def test_the_scheduler_is_down(bench: Any, own_bed: Cluster, nodes: Any) -> None:
    nodes(1)
    try:
        own_bed.stop("volcano-scheduler")
        handle = bench.submit()
        found = bench.wait_reason(handle, "scheduler-silent", seconds=60)
        assert found.message.startswith("Volcano's scheduler says nothing of this job")
    finally:
        own_bed.start("volcano-scheduler")
    bench.wait_phase(handle, "Running")


@pytest.mark.drill
def test_the_controller_is_down(bench: Any, own_bed: Cluster, nodes: Any) -> None:
    nodes(1)
    try:
        own_bed.stop("volcano-controller")
        handle = bench.submit()
        found = bench.wait_reason(handle, "controller-silent", seconds=60)
        assert found.message.startswith("Volcano's controller has made nothing of the job")
    finally:
        own_bed.start("volcano-controller")
    bench.wait_phase(handle, "Running")


def _is_taken(bench: Any, spec: Any, attempt: Any) -> bool:
    try:
        bench.backend.submit(spec, attempt)
    except Unavailable:
        return False
    return True


@pytest.fixture
def no_services(api: Api, namespace: str) -> Iterator[None]:
    """The API server refuses every Service of the namespace."""
    admission = client.AdmissionregistrationV1Api(api.raw)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no services here"}],
    }
    admission.create_validating_admission_policy({"metadata": {"name": namespace}, "spec": spec})
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": namespace, "validationActions": ["Deny"], "matchResources": here}
    admission.create_validating_admission_policy_binding({"metadata": {"name": namespace}, "spec": binding})
    kit.wait_for("the policy to count", lambda: _is_refused(api, namespace), seconds=20)
    yield
    admission.delete_validating_admission_policy_binding(namespace)
    admission.delete_validating_admission_policy(namespace)


def _is_refused(api: Api, namespace: str) -> bool:
    body = {"metadata": {"generateName": "try-"}, "spec": {"ports": [{"port": 80}]}}
    try:
        api.core.create_namespaced_service(namespace, body, dry_run="All")
    except client.ApiException:
        return True
    return False


@contextmanager
def _queue(api: Api, name: str, *, capability: dict[str, str], parent: str = "") -> Iterator[str]:
    """A queue with a parent or children."""
    full = f"{name}-{secrets.token_hex(3)}"
    spec = {"weight": 1, "reclaimable": False, "capability": capability} | (
        {"parent": parent} if parent else {}
    )
    body = {"apiVersion": "/".join(kit.SCHEDULING), "kind": "Queue", "metadata": {"name": full}, "spec": spec}
    api.custom.create_cluster_custom_object(*kit.SCHEDULING, "queues", body)
    kit.wait_for(f"the queue {full}", lambda: kit.queue_state(api, full) == "Open")
    try:
        yield full
    finally:
        kit.wait_for("the queue to be let go", lambda: _is_deleted(api, full))


def _is_deleted(api: Api, queue: str) -> bool:
    """Volcano lets nobody delete a queue that still has jobs or children."""
    try:
        api.custom.delete_cluster_custom_object(*kit.SCHEDULING, "queues", queue)
    except client.ApiException as refusal:
        return refusal.status == 404
    return True
