"""What nodes have and pods hold, as sessions and jobs both count it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from slicelift_hub.allocatable import count
from slicelift_hub.counting import held, held_by_node, is_usable, offered, quantity
from slicelift_hub.launcher.backends.volcano import kept
from slicelift_hub.launcher.backends.volcano.quotas import device_totals

GPU = "nvidia.com/gpu"
SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        (8, 8),
        ("500m", 0.5),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1k", 1000),
        ("3M", 3e6),
        ("16Gi", 16 * 2**30),
        ("4Ki", 4096),
        ("2Mi", 2**21),
        ("1.5", 1.5),
        (" 2 ", 2),
        ("x", 0),
        ("", 0),
    ],
)
def test_quantities_of_kubernetes(text: object, value: float) -> None:
    assert quantity(text) == value


def node(*taints: dict[str, str], state: str | None = None, ready: str = "True", **spec: Any) -> Any:
    labels = {} if state is None else {"nvidia.com/mig.config.state": state}
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {GPU: "4", "cpu": "8"}}
    return {
        "metadata": {"name": "a", "labels": labels},
        "spec": {"taints": list(taints)} | spec,
        "status": status,
    }


@pytest.mark.parametrize(
    ("found", "usable", "gpus"),
    [
        (node(), True, 4),
        (node(state="success"), True, 4),
        # its other pods go on, and what it tells of GPUs is what it had
        (node(state="pending"), True, 0),
        (node(state="failed"), True, 0),
        (node(ready="Unknown"), False, 0),
        (node(unschedulable=True), False, 0),
        (node({"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}), False, 0),
        (node({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}), False, 0),
        (node({"key": "node.kubernetes.io/x", "effect": "PreferNoSchedule"}), True, 4),
        # whoever may come there tolerates it
        (node({"key": "nvidia.com/gpu", "effect": "NoSchedule"}), True, 4),
    ],
)
def test_sessions_and_jobs_count_the_same_of_a_node(found: Any, usable: bool, gpus: int) -> None:
    assert is_usable(found) == usable
    assert offered(found).get("cpu", 0) == (8 if usable else 0)
    counted = count([found], []).get(GPU)
    assert (counted.total if counted else 0) == device_totals([kept.keep_node(found)]).get(GPU, 0) == gpus


def container(gpus: int, **more: str) -> dict[str, Any]:
    return {"resources": {"requests": {GPU: str(gpus)}}, **more}


@pytest.mark.parametrize(
    ("containers", "init", "gpus"),
    [
        ([1, 1], [], 2),
        ([1], [container(2), container(1)], 2),
        ([2], [container(1, **SIDECAR)], 3),
        # it runs beside the one that comes after it
        ([1], [container(1, **SIDECAR), container(3)], 4),
        ([1], [container(3), container(1, **SIDECAR)], 3),
        ([0], [{}], 0),
    ],
)
def test_a_pod_holds_what_its_containers_or_its_greediest_init_container_want(
    containers: Sequence[int], init: Sequence[Any], gpus: int
) -> None:
    spec = {"containers": [container(each) for each in containers], "initContainers": init, "nodeName": "a"}
    pod = {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}}
    assert held(pod).get(GPU, 0) == gpus
    # also of what a watch keeps of it
    assert held_by_node([kept.keep_pod(pod)])["a"].get(GPU, 0) == gpus
    assert held_by_node([pod | {"status": {"phase": "Failed"}}]) == {}
