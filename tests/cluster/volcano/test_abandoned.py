"""What nobody wants any more leaves nothing in the cluster: a submit refused halfway, one that nobody was told of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launching
import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from slicelift.backends.base import Proof
from slicelift.errors import Refused
from slicelift.models import Status

NO_IMAGE = "registry.example/none@sha256:" + "0" * 64


@pytest.fixture
def no_secrets(api: Api, namespace: str) -> None:
    """The namespace has no room for the Secret of a job."""
    body = {"metadata": {"name": "small"}, "spec": {"hard": {"count/secrets": "0"}}}
    api.core.create_namespaced_resource_quota(namespace, body)
    kit.wait_for("the quota", lambda: api.core.read_namespaced_resource_quota("small", namespace).status.hard)


@pytest.fixture
def launcher(bed: Place, namespace: str, tmp_path: Path) -> Iterator[Launcher]:
    with launching.serving(tmp_path / "home", bed, namespace=namespace, image=NO_IMAGE) as made:
        yield made


def test_a_submit_that_is_refused_halfway_holds_no_gpus(
    launcher: Launcher, api: Api, namespace: str, queue: str, no_secrets: None
) -> None:
    run = launcher.submit("print(1)", workers=2, queue=queue)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.reason) == (Status.FAILED, "resource-quota")
    assert "count/secrets" in done.message
    assert launching.running(api, namespace, run) == []
    kit.wait_for("what belonged to it", lambda: _left(api, namespace) == [])


def test_the_gang_of_a_submit_that_nobody_was_told_of_is_found_and_ended(bench: Any, nodes: Any) -> None:
    nodes(1)
    spec, attempt = bench.spec(), bench.attempt()
    assert bench.backend.abandon(spec, attempt) == ""
    handle = bench.backend.submit(spec, attempt)
    bench.wait_phase(handle, "Running")
    assert bench.backend.abandon(spec, attempt) == handle
    assert bench.backend.cancel(handle, reason="test", grace_seconds=1) == Proof(gone=True, killed=2)
    assert bench.backend.abandon(spec, attempt) == ""


def test_a_refused_secret_leaves_the_job_to_be_found(bench: Any, nodes: Any, no_secrets: None) -> None:
    nodes(1)
    spec, attempt = bench.spec(), bench.attempt()
    with pytest.raises(Refused) as caught:
        bench.backend.submit(spec, attempt)
    assert caught.value.code == "resource-quota"
    handle = bench.backend.abandon(spec, attempt)
    assert handle.endswith(attempt.attempt_id)
    assert bench.backend.cancel(handle, reason="test", grace_seconds=1).gone
    assert bench.backend.abandon(spec, attempt) == ""


@pytest.mark.drill
def test_kubernetes_itself_collects_what_belongs_to_a_job(
    bench: Any, own_bed: Cluster, api: Api, nodes: Any
) -> None:
    """So nobody has to sweep PodGroups, Secrets and pods: Volcano's controller, which might, is down."""
    nodes(1)
    handle = bench.submit()
    bench.wait_phase(handle, "Running")
    name = handle.rpartition("/")[2]
    assert len(_left(api, bench.namespace)) == 5
    own_bed.stop("volcano-controller")
    try:
        api.custom.delete_namespaced_custom_object(*kit.BATCH, bench.namespace, "jobs", name)
        kit.wait_for("all of it to go", lambda: _left(api, bench.namespace) == [])
    finally:
        own_bed.start("volcano-controller")


def _left(api: Api, namespace: str) -> list[str]:
    """Jobs, PodGroups, pods and Secrets."""
    custom = api.custom.list_namespaced_custom_object
    found = [
        *custom(*kit.BATCH, namespace, "jobs")["items"],
        *custom(*kit.SCHEDULING, namespace, "podgroups")["items"],
    ]
    core = [
        *api.core.list_namespaced_pod(namespace).items,
        *api.core.list_namespaced_secret(namespace).items,
    ]
    return [each["metadata"]["name"] for each in found] + [each.metadata.name for each in core]
