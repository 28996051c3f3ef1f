"""An attempt that nobody wants any more: what the cluster has of it is found, and nothing else is touched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.errors import Refused
from slicelift.models import DataRef, JobSpec
from slicelift_hub.launcher.backends.volcano import Volcano, paths
from slicelift_hub.launcher.backends.volcano.client import Client
from traitlets.config import Config

from tests.unit.volcano.scripted import Script, item

REF = DataRef(path="data", dvc_file="data.dvc", md5="0" * 32, size_bytes=1, nfiles=1, remote="store")
NAME = "r-abcdefghijkl-1"
HANDLE = f"volcano://jobs/{NAME}"


@pytest.fixture
def backend(server: Script, client: Client, tmp_path: Path) -> Iterator[Volcano]:
    words = {
        "kubeconfig": str(tmp_path / "kubeconfig"),
        "namespace": "jobs",
        "data_claim": "data",
        "qps": 0.0,
    }
    server.say("GET", paths.pods("jobs"), (200, {"items": [], "metadata": {"resourceVersion": "5"}}))
    with closing(Volcano(config=Config(Volcano=words | {"image": "img@sha256:" + "0" * 64}))) as made:
        yield made


def test_the_job_of_a_submit_that_nobody_was_told_of_is_found(
    backend: Volcano, server: Script, scene: Any, spec: JobSpec, attempt: Attempt
) -> None:
    assert backend.abandon(spec, attempt) == ""
    server.say("GET", paths.jobs("jobs", NAME), (200, scene.make_job()))
    assert backend.abandon(spec, attempt) == HANDLE


def test_the_job_of_somebody_else_is_left_alone(
    backend: Volcano, server: Script, scene: Any, spec: JobSpec, attempt: Attempt
) -> None:
    server.say("GET", paths.jobs("jobs", NAME), (200, scene.make_job()))
    assert backend.abandon(spec, replace(attempt, promotion_id="p-bbbbbbbbbbbbbbbbbbbb")) == ""


def test_pods_whose_job_is_gone_are_to_be_ended(
    backend: Volcano, server: Script, spec: JobSpec, attempt: Attempt
) -> None:
    server.say("GET", paths.pods("jobs"), (200, {"items": [item("w-0", 1, status={"phase": "Running"})]}))
    assert backend.abandon(spec, attempt) == HANDLE


def test_a_warm_up_under_way_ends_and_one_that_is_over_can_be_looked_at(
    backend: Volcano, server: Script, spec: JobSpec, attempt: Attempt
) -> None:
    def warm_up(name: str, asker: str, *conditions: str) -> dict[str, Any]:
        found = item(
            name, 1, status={"conditions": [{"type": each, "status": "True"} for each in conditions]}
        )
        found["metadata"] |= {"namespace": "jobs", "annotations": {"slicelift.io/attempt": asker}}
        return found

    jobs = [warm_up("mine", NAME), warm_up("failed", NAME, "Failed"), warm_up("theirs", "r-b-1")]
    server.say("GET", paths.plain_jobs("jobs"), (200, {"items": jobs}))
    server.say("DELETE", paths.plain_jobs("jobs", "mine"), (200, {}))
    backend.abandon(replace(spec, data=(REF,)), attempt)
    assert [path for method, path, _, _ in server.calls if method == "DELETE"] == [
        paths.plain_jobs("jobs", "mine")
    ]


@pytest.mark.parametrize("answer", [(404, "not found"), (403, "forbidden: because it is being terminated")])
def test_a_namespace_that_is_not_there_or_goes_is_missing(
    backend: Volcano, server: Script, spec: JobSpec, attempt: Attempt, answer: tuple[int, str]
) -> None:
    for path in (paths.config_maps("jobs"), paths.plain_jobs("jobs")):
        server.say("POST", path, (answer[0], {"message": answer[1]}))
    server.say("GET", paths.plain_jobs("jobs"), (200, {"items": []}))
    for ask, needs in ((backend.submit, spec), (backend.prepare, replace(spec, data=(REF,)))):
        with pytest.raises(Refused, match="in the namespace jobs") as caught:
            ask(needs, attempt)
        assert (caught.value.code, "session" in caught.value.hint) == ("namespace-missing", False)


def test_a_job_that_no_watch_has_told_of_yet_is_quite_new(
    backend: Volcano, server: Script, scene: Any
) -> None:
    """By our clock, which may be ahead of the cluster's."""
    for path in (
        paths.jobs("jobs"),
        paths.groups("jobs"),
        paths.events("jobs"),
        paths.queues(),
        paths.nodes(),
    ):
        server.say("GET", path, (200, {"items": [], "metadata": {"resourceVersion": "5"}}))
    job = scene.make_job()
    job["metadata"]["creationTimestamp"] = datetime.fromtimestamp(time.time() - 60, UTC).isoformat()
    server.say("GET", paths.jobs("jobs", NAME), (200, job))
    assert "silent" not in backend.status(HANDLE).reason


def test_what_no_secret_could_hold_is_refused_before_anything_is_made(
    backend: Volcano, server: Script, spec: JobSpec, attempt: Attempt
) -> None:
    """Each part within the policy's limits: 100 tags of 8000 characters of six bytes each, or 10,000 data sets."""
    tags = {f"t{number}": "\u00e9" * 8000 for number in range(100)}
    for large in (replace(spec, tags=tags), replace(spec, data=(REF,) * 10_000)):
        for ask in (backend.render, backend.plan, backend.submit):
            with pytest.raises(Refused) as caught:
                ask(large, attempt)
            assert (caught.value.code, caught.value.detail["most"]) == ("spec-too-large", 1_000_000)
    assert server.calls == []
