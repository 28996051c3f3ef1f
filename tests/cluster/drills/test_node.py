"""Drills on what is cut off: a node whose kubelet is gone, for a while or until its pods are evicted, and a single worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import oracle
import pytest
import scenes
from bed import cluster as bed_cluster
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from bed.layout import NODE
from scenes import STEPS, Scene
from slicelift.models import Status
from slicelift.sentences import remarks

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900), pytest.mark.usefixtures("own_bed")]
# a minute of steps: it outlasts the time after which a node counts as lost
SLOW = scenes.PROGRAM.replace("0.25", "2.0")
# every step needs all ranks
TOGETHER = f"""
import time
import slicelift
import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = slicelift.resume()
    for step in range(found[1] if found else 0, {STEPS}):
        time.sleep(0.5)
        total = torch.ones(1)
        dist.all_reduce(total)
        slicelift.log(step=step, done=float(step + 1), ranks=float(total))
        slicelift.checkpoint({{"done": step + 1}}, step=step + 1)
    dist.destroy_process_group()
"""
CUT_SECONDS = 20.0


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param("kubelet", "does not answer", id="kubelet stopped"),
        pytest.param("containerd", "is not ready", id="node NotReady"),
    ],
)
def test_a_node_that_is_back_in_time_costs_nothing(
    scene: Scene, api: Api, namespace: str, program: str, says: str
) -> None:
    """It is named, with what is on it; pods and points go on, and it is said when it is back."""
    run = scene.under_way(SLOW)
    scene.bed.kill(program)
    try:
        view = scene.until(run, lambda view: view.reason == "node-lost", seconds=90)
        assert view.status is Status.RUNNING
        lost = f"Node {NODE} {says}, with 1 of 1 workers on it"
        assert any(lost in remark for remark in remarks(view))
        before = scenes.step_of(view)
        scene.until(run, lambda view: scenes.step_of(view) > before, seconds=20)
        assert scene.agree(run).attempt == 1
    finally:
        scene.bed.start(program)
    # a node that says itself that it is not ready says 10 s later that it is
    back = oracle.SECONDS + (10 if program == "containerd" else 0)
    scene.until(run, lambda view: view.reason == "node-back", seconds=back)
    scene.agree(run)
    assert scene.finish(run).attempt == 1


@pytest.fixture(scope="module")
def fast_bed(own_bed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A bed that evicts the pods of a lost node after seconds: the one there is, or one more beside it."""
    with ExitStack() as stack:
        found = own_bed
        if not own_bed.layout.fast_faults:
            found = bed_cluster.up(tmp_path_factory.mktemp("fast"), fast_faults=True, owner=os.getpid())
            stack.callback(found.down)
        # where no node at all is left, Kubernetes takes itself for the lost one and evicts nobody
        stack.callback(found.remove_fake_nodes, found.add_fake_nodes(1, {}, prefix="witness"))
        yield found


@pytest.fixture
def fast_scene(fast_bed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    api = kit.connect(fast_bed.kubeconfig)
    image = fast_bed.environment_image().name
    home = tmp_path_factory.mktemp("fast-scene") / "home"
    with scenes.opened(api, fast_bed, image, home) as found:
        yield found
    api.raw.close()


def test_a_node_is_lost_until_its_pods_are_evicted(fast_scene: Scene) -> None:
    """They cannot be proved gone before the node is back; then the gang starts again from its checkpoint, on the same card."""
    scene = fast_scene
    run = scene.under_way(SLOW, workers=2)
    scene.bed.kill("kubelet")
    try:
        scene.until(run, lambda view: view.reason == "node-lost", seconds=30)
        kit.wait_for("the eviction", lambda: _leaving(scene) == 2, seconds=60)
        view = scene.agree(run)
        assert (view.status, view.attempt, view.reason) == (Status.RUNNING, 1, "node-lost")
    finally:
        scene.bed.start("kubelet")
    # the workers have their time to save first
    scene.until(run, lambda view: view.attempt == 2, seconds=20 + oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 2
    assert scene.jobs(run) == [f"{run}-1"]


def test_a_cancel_on_a_lost_node_is_unproven_until_it_is_back(fast_scene: Scene) -> None:
    scene = fast_scene
    run = scene.under_way(SLOW, slice="1g.10gb")
    scene.bed.kill("kubelet")
    try:
        scene.until(run, lambda view: view.reason == "node-lost", seconds=30)
        view = scene.launcher.client.cancel(run)
        assert view.status is Status.CANCELLING
        assert f"on node {NODE}, which does not answer; 1 slice 1g.10gb still count as used" in view.message
    finally:
        scene.bed.start("kubelet")
    scene.until(run, lambda view: view.status is Status.KILLED, seconds=30 + oracle.SECONDS)
    scene.agree(run)
    kit.wait_for("all of it to be gone", lambda: scene.left(run) == [], seconds=oracle.SECONDS)


def test_a_worker_that_hears_nobody_for_a_while(scene: Scene, api: Api, namespace: str) -> None:
    """Neither its peer nor the launcher: the gang stands still, nothing is lost, and it goes on by itself."""
    run = scene.under_way(TOGETHER, workers=2)
    with _cut_off(scene, f"{run}-1-worker-1"):
        time.sleep(5)
        stopped = scenes.step_of(scene.launcher.client.job(run))
        time.sleep(CUT_SECONDS - 5)
        view = scene.agree(run)
        assert (view.status, view.attempt, scenes.step_of(view)) == (Status.RUNNING, 1, stopped)
    # TCP asks again at ever longer intervals, at most as long as the cut was
    scene.until(run, lambda view: scenes.step_of(view) > stopped, seconds=CUT_SECONDS + oracle.SECONDS)
    scene.agree(run)
    view = scene.finish(run)
    assert (view.attempt, view.latest["ranks"][1]) == (1, 2.0)


def _leaving(scene: Scene) -> int:
    """Pods that are marked for deletion."""
    pods = scene.api.core.list_namespaced_pod(scene.namespace).items
    return sum(1 for pod in pods if pod.metadata.deletion_timestamp)


@contextmanager
def _cut_off(scene: Scene, pod: str) -> Iterator[None]:
    """Nothing comes in and nothing goes out of a pod, by rules in its own network namespace."""
    address = scene.api.core.read_namespaced_pod(pod, scene.namespace).status.pod_ip
    inside = ("nsenter", f"--net=/run/netns/{_network_of(scene.bed, address)}", "iptables", "-w")
    rules = (("INPUT", "!", "-i", "lo", "-j", "DROP"), ("OUTPUT", "!", "-o", "lo", "-j", "DROP"))
    for rule in rules:
        scene.bed.on_node(*inside, "-I", *rule)
    try:
        yield
    finally:
        for rule in rules:
            scene.bed.on_node(*inside, "-D", *rule)


def _network_of(bed: Cluster, address: str) -> str:
    """The name of the network namespace on the node that has this address."""
    for name in bed.on_node("ls", "/run/netns").stdout.split():
        asked = ("nsenter", f"--net=/run/netns/{name}", "ip", "-4", "-oneline", "address")
        if f" {address}/" in bed.on_node(*asked, check=False).stdout:
            return name
    raise AssertionError(f"no pod of the node has the address {address}")
