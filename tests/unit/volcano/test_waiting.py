"""Why a job waits: every row of what Volcano says or keeps back becomes one sentence with a stable word."""

from __future__ import annotations

from typing import Any

import pytest
from slicelift_hub.launcher.backends.volcano.quotas import unlimited
from slicelift_hub.launcher.backends.volcano.waiting import explain, foresee

POD_QUOTA = (
    'Error creating pods: pods "r-abcdefghijkl-1-worker-0" is forbidden: exceeded quota: small, requested: '
    "limits.cpu=32, used: limits.cpu=0, limited: limits.cpu=4"
)


def why(scene: Any) -> tuple[str, str]:
    found = explain(scene.picture)
    return found.reason, found.message


def test_a_healthy_job_is_being_placed_whatever_volcano_warns_of(scene: Any) -> None:
    scene.add_node("a")
    scene.add_node("b")
    scene.tell("PodGroup", "0/0 tasks in gang unschedulable: pod group is not ready, 2 minAvailable")
    scene.tell("PodGroup", "0/2 tasks in gang unschedulable: pod group is ready, 2 Binding, 2 minAvailable")
    scene.tell(
        "Job",
        "PodGroup jobs:r-abcdefghijkl-1 unschedulable, reason: 0/0 tasks in gang unschedulable: pod group is not ready",
        reason="PodGroupPending",
    )
    assert why(scene) == ("placing", "Volcano is placing the gang of 2.")


def test_a_full_queue_by_its_numbers(scene: Any) -> None:
    scene.add_queue("team", gpu="24", allocated={"gpu": "12"})
    scene.tell("PodGroup", "queue resource quota insufficient: insufficient nvidia.com/gpu")
    assert why(scene) == (
        "quota-full",
        "Queue team is full: the gang of 2 needs 16 GPUs, 12 of its 24 GPUs are free, 4 too few.",
    )


def test_of_a_quota_that_was_cut_while_in_use_nothing_is_free(scene: Any) -> None:
    scene.add_queue("team", gpu="16", allocated={"gpu": "24"})
    assert why(scene) == (
        "quota-full",
        "Queue team is full: the gang of 2 needs 16 GPUs, 0 of its 16 GPUs are free, 16 too few.",
    )


def test_an_ancestor_may_be_the_one_that_is_full(scene: Any) -> None:
    scene.add_queue("dept", gpu="16", allocated={"gpu": "8"})
    scene.add_queue("team", parent="dept", gpu="16", allocated={"gpu": "0"})
    assert why(scene) == (
        "quota-full",
        "Queue dept is full: the gang of 2 needs 16 GPUs, 8 of its 16 GPUs are free, 8 too few.",
    )


def test_a_quota_that_is_too_small_for_ever(scene: Any) -> None:
    scene.add_queue("team", gpu="8", memory="128Gi")
    assert why(scene) == (
        "quota-too-small",
        "The gang of 2 needs 16 GPUs, and queue team never gives more than 8 GPUs: it cannot start there.",
    )


def test_memory_is_told_in_words(scene: Any) -> None:
    scene.add_queue("team", memory="600Gi", allocated={"memory": "100Gi"})
    reason, message = why(scene)
    assert reason == "quota-full"
    assert message == (
        "Queue team is full: the gang of 2 needs 512 GiB of memory, 500 GiB of memory of its 600 GiB of memory are "
        "free, 12.0 GiB of memory too few."
    )


def test_a_queue_that_is_promised_to_others(scene: Any) -> None:
    scene.add_queue("team", gpu="24", allocated={"gpu": "8"})
    scene.jobs = [scene.make_job("r-aaaaaaaaaaaa-1", age=60, phase="Pending")]
    scene.tell("PodGroup", "queue resource quota insufficient: insufficient nvidia.com/gpu")
    assert why(scene) == (
        "quota-full",
        "The GPUs of queue team are in use or promised to jobs that were let in before; 1 job is ahead of it.",
    )


def test_a_cluster_that_is_promised_to_others(scene: Any) -> None:
    scene.tell("PodGroup", "resource in cluster is overused: overused nvidia.com/gpu")
    assert why(scene) == (
        "gpus-short",
        "The GPUs of the cluster are in use or promised to jobs that were let in before.",
    )


def test_too_few_gpus_are_free_on_which_kind_of_node(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name, product="NVIDIA-H100")
    scene.add_node("c", gpu=0)
    scene.add_queue("team", allocated={"gpu": "5"})
    scene.stuck(
        "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; Pending: 2 Unschedulable. "
        "Origin reason is r-1-worker-0: 0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu."
    )
    assert why(scene) == (
        "gpus-short",
        "Too few GPUs are free: the gang of 2 needs 16, and 11 of 16 GPUs on NVIDIA-H100 nodes are free.",
    )


def test_what_our_pods_hold_is_known_by_node(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
    scene.add_node("c")
    scene.nodes[-1]["spec"]["taints"] = [{"key": "night", "effect": "NoSchedule"}]
    scene.add_queue("team", allocated={"gpu": "4"})
    scene.held = {"a": {"nvidia.com/gpu": 4.0}}
    # eight are free elsewhere, where it cannot go
    assert why(scene) == (
        "gpus-short",
        "Too few GPUs are free: the gang of 2 needs 16, and 12 of 16 GPUs are free.",
    )


def test_gpus_that_are_free_but_nowhere_together(scene: Any) -> None:
    for name in "abc":
        scene.add_node(name)
    scene.add_queue("other", allocated={"gpu": "6"})
    scene.stuck(
        "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; Pending: 1 Schedulable, "
        "1 Unschedulable. Origin reason is r-1-worker-0: 0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu."
    )
    assert why(scene) == (
        "gpus-fragmented",
        "18 GPUs are free, but spread over nodes so that not 2 workers find 8 on one node each.",
    )


def test_no_node_is_large_enough(scene: Any) -> None:
    scene.add_node("a", gpu=4)
    scene.add_node("b", gpu=4)
    assert why(scene) == (
        "node-too-small",
        "No node can hold a worker with 8 GPUs: the largest has 4 GPUs.",
    )


def test_the_cluster_is_too_small(scene: Any) -> None:
    scene.add_node("a")
    assert why(scene) == (
        "gpus-too-many",
        "The gang of 2 needs 16 GPUs, and the nodes open to it have 8 in all.",
    )


def test_a_cluster_without_a_node_that_takes_pods(scene: Any) -> None:
    scene.add_node("a", ready=False)
    scene.add_node("b", cordoned=True)
    scene.add_node("c")
    full = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    scene.nodes[-1]["spec"]["taints"] = [full]
    assert why(scene) == (
        "nodes-closed",
        "None of the cluster's 3 nodes takes pods: they do not answer, are cordoned, or are out of memory or disk.",
    )


def test_a_cordoned_node_does_not_count(scene: Any) -> None:
    scene.add_node("a")
    scene.add_node("b", cordoned=True)
    scene.add_node("c", ready=False)
    assert why(scene)[0] == "gpus-too-many"


def test_nodes_that_are_closed_to_it(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
    scene.stuck(
        "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable. Origin reason is x: "
        "0/2 nodes are unavailable: 2 node(s) had volume node affinity conflict."
    )
    assert why(scene) == (
        "nodes-closed",
        "None of the 2 nodes takes a worker of this job; 2 nodes are closed to it (had volume node affinity conflict).",
    )


def test_only_nodes_that_are_open_to_it_count(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
        scene.nodes[-1]["spec"]["taints"] = [{"key": "night", "value": "only", "effect": "NoSchedule"}]
    wanted = (
        "nodes-closed",
        "None of the cluster's 2 nodes is open to this job: its preset asks for others.",
    )
    assert why(scene) == wanted
    pod = scene.job["spec"]["tasks"][0]["template"]["spec"]
    pod["tolerations"] = [{"key": "night", "operator": "Equal", "value": "only", "effect": "NoSchedule"}]
    assert why(scene)[0] == "placing"
    pod["tolerations"] = [{"key": "night", "operator": "Equal", "value": "other"}]
    assert why(scene) == wanted
    pod["tolerations"] = [{"operator": "Exists"}]
    pod["nodeSelector"] = {"pool": "h100"}
    assert why(scene) == wanted
    scene.nodes[0]["metadata"]["labels"]["pool"] = "h100"
    assert why(scene) == (
        "gpus-too-many",
        "The gang of 2 needs 16 GPUs, and the nodes open to it have 8 in all.",
    )


def test_nodes_without_enough_cores(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
    scene.add_pod(0, says="0/2 nodes are unavailable: 2 Insufficient cpu.")
    assert why(scene) == ("nodes-full", "No node has 32 cores free for a worker.")


@pytest.mark.parametrize("state", ["Closed", "Closing"])
def test_a_closed_queue_of_which_nothing_speaks(state: str, scene: Any) -> None:
    scene.add_queue("dept", state=state)
    scene.add_queue("team", parent="dept")
    assert why(scene) == (
        "queue-closed",
        f"Queue dept is {state.lower()}: it starts no jobs until somebody opens it.",
    )


def test_a_queue_that_is_gone_or_no_leaf(scene: Any) -> None:
    scene.add_queue("child", parent="team")
    assert why(scene) == ("queue-not-leaf", "Queue team has queues below it and takes no jobs itself.")
    del scene.queues["team"]
    assert why(scene) == ("queue-missing", "There is no queue team in the cluster (any more).")


def test_a_resource_quota_at_the_pods_and_at_the_door(scene: Any) -> None:
    scene.tell("Job", POD_QUOTA, reason="FailedCreate")
    wanted = (
        "resource-quota",
        (
            "The namespace's ResourceQuota leaves no room: small, requested: limits.cpu=32, used: limits.cpu=0, "
            "limited: limits.cpu=4."
        ),
    )
    assert why(scene) == wanted
    scene.events.clear()
    scene.tell(
        "PodGroup",
        "resource quota insufficient, requested: map[cpu:64], used: map[cpu:0], limited: map[cpu:4]",
    )
    assert why(scene) == (
        "resource-quota",
        "The namespace's ResourceQuota leaves no room: requested: map[cpu:64], used: map[cpu:0], limited: map[cpu:4].",
    )


def test_pods_that_kubernetes_refuses(scene: Any) -> None:
    scene.tell("Job", 'Error creating pods: violates PodSecurity "restricted"', reason="FailedCreate")
    assert why(scene) == (
        "pods-refused",
        'Kubernetes refuses the job\'s pods: Error creating pods: violates PodSecurity "restricted"',
    )


@pytest.mark.parametrize("word", ["PluginError", "PVCError", "PodGroupError"])
def test_what_volcano_cannot_prepare(word: str, scene: Any) -> None:
    scene.tell("Job", "Execute plugin when job add failed, err: no", reason=word)
    assert why(scene) == (
        "plugin",
        "Volcano cannot prepare the job: Execute plugin when job add failed, err: no",
    )


def test_an_event_of_an_earlier_start_is_not_todays_reason(scene: Any) -> None:
    scene.tell("Job", POD_QUOTA, reason="FailedCreate", ago=300)
    assert why(scene)[0] == "placing"


def test_an_image_that_cannot_be_had(scene: Any) -> None:
    scene.add_pod(0, node="a", waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
    scene.add_pod(1)
    reason, message = why(scene)
    assert reason == "image"
    assert message == (
        "The image img cannot be had on node a (ImagePullBackOff: Back-off pulling image); the gang holds its place "
        "with 1 pod meanwhile."
    )


def test_a_claim_that_is_not_there(scene: Any) -> None:
    scene.stuck(
        "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable. Origin reason is x: "
        '0/2 nodes are unavailable: 2 persistentvolumeclaim "ckpt" not found.'
    )
    assert why(scene) == ("claim", "The claim ckpt that the job's pods use does not exist.")


def test_a_claim_that_waits_for_a_pod_that_waits_for_it(scene: Any) -> None:
    scene.add_node("a")
    scene.add_node("b")
    scene.add_pod(0)
    scene.claims = {"ckpt": {"status": {"phase": "Pending"}}}
    scene.stuck(
        "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending; Pending: 1 Schedulable, 1 Unschedulable"
    )
    reason, message = why(scene)
    assert reason == "claim"
    assert message.startswith("The claim ckpt is not bound to a volume yet")


def test_a_volume_that_cannot_be_mounted(scene: Any, ago: Any) -> None:
    scene.job["metadata"]["creationTimestamp"] = ago(60)
    scene.add_pod(0, node="a", waiting={"reason": "ContainerCreating"})
    name = scene.pods[0]["metadata"]["name"]
    scene.tell("Pod", 'MountVolume.SetUp failed for volume "data": no', reason="FailedMount", name=name)
    reason, message = why(scene)
    assert reason == "mount"
    assert (
        message
        == f'A volume of pod {name} on node a cannot be mounted: MountVolume.SetUp failed for volume "data": no'
    )


def test_a_controller_that_makes_nothing_of_it(scene: Any) -> None:
    scene.job, scene.group = scene.make_job(age=60), None
    reason, message = why(scene)
    assert reason == "controller-silent"
    assert message.startswith("Volcano's controller has made nothing of the job for 60 s")


def test_nobody_is_silent_for_longer_than_a_job_was_seen_however_the_clocks_differ(scene: Any) -> None:
    job, group = scene.make_job(age=60), scene.group
    scene.job, scene.group = job | {"seen": scene.picture.now - 5}, None
    assert why(scene)[0] == "placing"
    # the job was seen for as long, the PodGroup was not
    scene.job |= {"seen": scene.picture.now - 30}
    assert why(scene)[0] == "controller-silent"
    scene.group = group | {"status": {"phase": "Inqueue"}, "seen": scene.picture.now - 5}
    assert why(scene)[0] == "placing"


def test_a_device_that_a_queue_has_forgotten_is_not_limited_there(scene: Any) -> None:
    def forgotten() -> list[tuple[str, str]]:
        return unlimited(scene.job, scene.queues)

    scene.add_queue("dept", gpu="16", mig="4")
    scene.add_queue("team", parent="dept", mig="4")
    assert forgotten() == [("nvidia.com/gpu", "team")]
    scene.add_queue("dept", cpu="64")
    assert forgotten() == [("nvidia.com/gpu", "team"), ("nvidia.com/gpu", "dept")]
    # of a job's devices only, and of no queue that limits nothing
    scene.add_queue("dept")
    scene.add_queue("team", parent="dept", gpu="16")
    assert forgotten() == []


def test_a_controller_that_makes_no_pods(scene: Any, ago: Any) -> None:
    scene.job = scene.make_job(age=60)
    scene.group |= {"status": {"phase": "Inqueue"}}
    scene.group["metadata"]["creationTimestamp"] = ago(60)
    assert why(scene)[0] == "controller-silent"
    # one that tries and fails is not silent
    scene.tell("Job", POD_QUOTA, reason="FailedCreate")
    assert why(scene)[0] == "resource-quota"


def test_a_scheduler_that_says_nothing(scene: Any, ago: Any) -> None:
    scene.job = scene.make_job(age=60)
    scene.group["metadata"]["creationTimestamp"] = ago(60)
    reason, message = why(scene)
    assert reason == "scheduler-silent"
    assert message.startswith("Volcano's scheduler says nothing of this job for 60 s")
    # right after its start a job has a right to wait for the next cycle
    scene.job = scene.make_job(age=5)
    scene.group["metadata"]["creationTimestamp"] = ago(5)
    assert why(scene)[0] == "placing"


def test_a_scheduler_that_stopped_renewing_what_it_said(scene: Any) -> None:
    scene.job = scene.make_job(age=600)
    for name in "abc":
        scene.add_node(name)
    text = "2/2 tasks in gang unschedulable: no. Origin reason is x: 0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu."
    scene.stuck(text, ago=400)
    scene.add_pod(0)
    assert why(scene)[0] == "scheduler-silent"
    scene.stuck(text, ago=80)
    assert why(scene)[0] == "gpus-fragmented"


def test_no_group_of_nodes_is_close_enough(scene: Any) -> None:
    scene.job = scene.make_job(age=60)
    scene.job["spec"]["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
    scene.tell("PodGroup", "something of the topology")
    assert why(scene)[0] == "topology"
    scene.job["spec"]["networkTopology"]["mode"] = "soft"
    assert why(scene)[0] == "placing"


def test_gpus_that_lie_apart_within_a_group_of_nodes(scene: Any) -> None:
    """The scheduler speaks of one group alone, and of the cluster it would not be true."""
    for name in "abc":
        scene.add_node(name)
    scene.job = scene.make_job(age=5)
    scene.stuck(
        "1/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable; Pending: 1 Unschedulable, 2 "
        "Schedulable. Origin reason is x: In hyperNode rack-1: 0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu."
    )
    scene.job["spec"]["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
    assert why(scene)[0] == "topology"


def test_the_turn_and_the_latest_start(scene: Any, ago: Any) -> None:
    scene.add_queue("team", gpu="32", allocated={"gpu": "32"})
    running = [scene.make_job(f"r-{letter * 12}-1", age=600, phase="Running") for letter in "bc"]
    for job, seconds in zip(running, ("3600", "7200"), strict=True):
        job["metadata"]["annotations"]["slicelift.io/max-seconds"] = seconds
    before = scene.make_job("r-aaaaaaaaaaaa-1", age=60, phase="Pending", workers=1)
    after = scene.make_job("r-zzzzzzzzzzzz-1", age=1, phase="Pending")
    elsewhere = scene.make_job("r-yyyyyyyyyyyy-1", age=60, phase="Pending", queue="other")
    scene.jobs = [*running, before, after, elsewhere]
    found = explain(scene.picture)
    assert (found.reason, found.position) == ("quota-full", 2)
    assert found.message == (
        "Queue team is full: the gang of 2 needs 16 GPUs, 0 of its 32 GPUs are free, 16 too few; 1 job is ahead of it; "
        "it starts in at most about 1 h 50 min."
    )
    # without a limit on what runs nothing is promised
    del running[1]["metadata"]["annotations"]["slicelift.io/max-seconds"]
    assert "at most" not in explain(scene.picture).message


def test_foreseen_before_the_submit(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
    scene.group = None
    assert foresee(scene.picture) is None
    scene.add_queue("team", gpu="16", allocated={"gpu": "8"})
    found = foresee(scene.picture)
    assert found is not None
    assert found.reason == "quota-full"


def test_foreseen_that_free_gpus_lie_apart(scene: Any) -> None:
    """By what our own pods hold, before the scheduler was asked."""
    for name in "abc":
        scene.add_node(name)
    scene.group = None
    scene.held = {"a": {"nvidia.com/gpu": 1.0}}
    assert foresee(scene.picture) is None
    scene.held["b"] = {"nvidia.com/gpu": 1.0}
    found = foresee(scene.picture)
    assert found is not None
    assert found.reason == "gpus-fragmented"
    assert found.message.startswith(
        "22 GPUs are free, but spread over nodes so that not 2 workers find 8 on one node each"
    )


def test_foreseen_that_a_claim_is_missing(scene: Any) -> None:
    for name in "ab":
        scene.add_node(name)
    scene.group = None
    scene.claims = {"checkpoints": {}, "data": {"status": {"phase": "Bound"}}}
    found = foresee(scene.picture)
    assert found is not None
    assert (found.reason, found.message) == (
        "claim",
        "The claim checkpoints that the job's pods use does not exist.",
    )
    scene.claims["checkpoints"] = {"status": {"phase": "Pending"}}
    assert foresee(scene.picture) is None
