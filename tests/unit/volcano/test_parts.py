"""The small parts: amounts, what is kept of objects, what starts a job, capacity, notes of a plan."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.backends.local import Local
from slicelift.models import DataRef, JobSpec
from slicelift_hub.launcher.backends.volcano import kept, parcel
from slicelift_hub.launcher.backends.volcano.amounts import phrase
from slicelift_hub.launcher.backends.volcano.manifest import make_job
from slicelift_hub.launcher.backends.volcano.names import parse_handle
from slicelift_hub.launcher.backends.volcano.picture import Picture, read_fit
from slicelift_hub.launcher.backends.volcano.planning import make_notes
from slicelift_hub.launcher.backends.volcano.quotas import make_capacity
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.turn import duration
from slicelift_hub.launcher.backends.volcano.waiting import Why, explain
from slicelift_profiles import presets
from slicelift_profiles.cluster import Topology


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("nvidia.com/gpu", 1, "1 GPU"),
        ("nvidia.com/gpu", 1200, "1,200 GPUs"),
        ("nvidia.com/mig-1g.10gb", 2, "2 slices 1g.10gb"),
        ("cpu", 0.5, "0.5 cores"),
        ("memory", 2**34, "16.0 GiB of memory"),
        ("rdma/ib", 2, "2 rdma/ib"),
    ],
)
def test_amounts_in_words(name: str, value: float, words: str) -> None:
    assert phrase(name, value) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(1, "1 min"), (3600, "1 h"), (5000, "1 h 24 min"), (200_000, "3 days")]
)
def test_a_time_to_wait_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_schedulers_words_on_nodes() -> None:
    fit = read_fit(
        "x: 0/9 nodes are unavailable: 1 node(s) had untolerated taint {a: b, c}, 3 Insufficient nvidia.com/gpu, "
        "5 node(s) didn't match Pod's node affinity/selector."
    )
    assert fit is not None
    assert (fit.nodes, dict(fit.reasons)) == (
        9,
        {
            "node(s) had untolerated taint {a: b, c}": 1,
            "Insufficient nvidia.com/gpu": 3,
            "node(s) didn't match Pod's node affinity/selector": 5,
        },
    )
    assert read_fit("pod group is not ready") is None


@pytest.mark.parametrize(
    ("handle", "parsed"),
    [
        ("volcano://jobs/r-abc-1", ("jobs", "r-abc-1")),
        ("volcano://sl-ada---12345678/r-abc-1", ("sl-ada---12345678", "r-abc-1")),
        ("volcano://jobs/../secrets", None),
        ("volcano://jobs/a/b", None),
        ("volcano://jobs/", None),
        ("local://r-abc-1", None),
        ("", None),
    ],
)
def test_handles(handle: str, parsed: Any) -> None:
    assert parse_handle(handle) == parsed


def test_what_is_kept_tells_the_same_as_the_whole(scene: Any) -> None:
    for name in "abc":
        scene.add_node(name, product="H100")
    scene.add_queue("other", allocated={"gpu": "6"})
    scene.stuck("2/2 tasks. Origin reason is x: 0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu.")
    scene.add_pod(0, says="0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu.")
    scene.tell("Job", "no", reason="Odd")
    whole = scene.picture
    small = Picture(
        now=whole.now,
        job=kept.keep_job(whole.job),
        group=kept.keep_group(whole.group),
        pods=[kept.keep_pod(pod) for pod in whole.pods],
        events=[event for each in whole.events if (event := kept.keep_event(each))],
        queues={name: kept.keep_queue(queue) for name, queue in whole.queues.items()},
        nodes=[kept.keep_node(node) for node in whole.nodes],
    )
    assert explain(small) == explain(whole)
    assert explain(small).reason == "gpus-fragmented"


def test_an_event_is_found_under_its_job() -> None:
    uid = "f" * 36
    about = [("Job", "r-a-1"), ("PodGroup", f"r-a-1-{uid}"), ("Pod", "r-a-1-worker-12")]
    assert [kept.job_of_event({"involvedObject": {"kind": kind, "name": name}}) for kind, name in about] == [
        "r-a-1"
    ] * 3
    # of sessions, and of whatever else lives there
    for kind, name in (("PodGroup", f"podgroup-{uid}"), ("Pod", "jupyter-ada"), ("Node", "a")):
        assert kept.job_of_event({"involvedObject": {"kind": kind, "name": name}}) == ""


def test_claims_of_a_job(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    claimed = replace(site, checkpoints_claim="ckpt", data_claim="cache")
    job = kept.keep_job(make_job(spec, attempt, preset=presets.get("torchrun"), site=claimed))
    assert kept.claims_of(job) == ["ckpt"]
    ref = DataRef(path="d", dvc_file="d.dvc", md5="0" * 32, size_bytes=1, nfiles=1, remote="r")
    needing = replace(spec, data=(ref,))
    job = kept.keep_job(make_job(needing, attempt, preset=presets.get("torchrun"), site=claimed))
    assert kept.claims_of(job) == ["ckpt", "cache"]


def test_what_starts_a_job_runs_from_its_zip_with_any_python(tmp_path: Path) -> None:
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(parcel.make_parcel())
    names = set(zipfile.ZipFile(archive).namelist())
    assert {
        "__main__.py",
        "slicelift/__init__.py",
        "slicelift/runtime/agent.py",
        "slicelift/errors.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name]
    # a ConfigMap holds 1 MiB
    assert len(parcel.make_parcel()) < 512 * 1024
    code = "import sys; sys.path.insert(0, sys.argv[1]); import slicelift.runtime.agent as agent; print(agent.__file__)"
    told = subprocess.run(
        [sys.executable, "-I", "-c", code, str(archive)], capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith(str(archive))


def test_the_same_runtime_has_the_same_bytes_and_name() -> None:
    before = (parcel.make_parcel(), parcel.parcel_name())
    parcel.make_parcel.cache_clear()
    parcel.parcel_name.cache_clear()
    assert (parcel.make_parcel(), parcel.parcel_name()) == before
    assert before[1].startswith("slicelift-runtime-")


def test_capacity_has_the_keys_of_one_machine_and_the_quotas(scene: Any) -> None:
    scene.add_node("a")
    scene.add_node("b", ready=False)
    scene.nodes[0]["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "4"
    scene.add_queue("team", gpu="4", allocated={"gpu": "3", "mig": "1", "cpu": "10"})
    told = make_capacity(scene.queues, scene.nodes, names=["team", "gone"], waiting={"team": 2})
    assert told == {
        "slots": {"total": 64, "free": 54},
        "gpus": {"total": 8, "free": 5},
        "slices": [{"name": "1g.10gb", "total": 4, "free": 3, "simulated": False}],
        "queues": ["team"],
        "waiting": 2,
        "quotas": [
            {
                "name": "team",
                "state": "Open",
                "waiting": 2,
                "resources": {
                    "nvidia.com/gpu": {"limit": 4, "used": 3},
                    "nvidia.com/mig-1g.10gb": {"limit": None, "used": 1},
                    "cpu": {"limit": None, "used": 10},
                },
            }
        ],
    }


def test_a_preset_that_defeats_its_purpose_is_told_with_the_one_that_does_not(
    spec: JobSpec, site: Site
) -> None:
    notes = make_notes(spec, preset=presets.get("enterprise-ddp"), site=site, wait=None)
    assert len(notes) == 3
    assert "RestartJob never fires" in notes[0]
    assert "--preset torchrun" in notes[0]
    assert "checkpoints_claim" in notes[1]
    assert "torch-train:2.2.0-cuda12.1 is named by a tag" in notes[2]


def test_a_plan_says_what_would_keep_it_waiting_first(spec: JobSpec, site: Site) -> None:
    claimed = replace(site, checkpoints_claim="ckpt", data_claim="cache")
    wait = Why(reason="quota-full", message="Queue team is full.")
    assert make_notes(spec, preset=presets.get("torchrun"), site=claimed, wait=wait) == [
        "It would wait: Queue team is full."
    ]
    near = presets.get("torchrun")
    near = replace(near, cluster=replace(near.cluster, topology=Topology(mode="hard", highest_tier=1)))
    assert make_notes(spec, preset=near, site=claimed, wait=None) == []
    (told,) = make_notes(spec, preset=near, site=claimed, wait=None, flat=True)
    assert told.endswith("the cluster has no HyperNodes to tell which do: Volcano takes any.")
    elastic = replace(spec, min_workers=1)
    (told,) = make_notes(elastic, preset=presets.get("elastic"), site=claimed, wait=None)
    assert told.startswith("The gang starts as soon as 1 of its 2 workers have a place")
    checked = presets.get("torchrun")
    checked = replace(checked, cluster=replace(checked.cluster, check={"all_reduce": {}}))
    assert make_notes(spec, preset=checked, site=claimed, wait=None) == []
    (_, unchecked) = make_notes(elastic, preset=checked, site=claimed, wait=None)
    assert unchecked.startswith(
        "The network between the workers is not checked, as the preset torchrun would have it"
    )


def test_one_machine_says_what_of_a_preset_it_goes_without(
    spec: JobSpec, attempt: Attempt, tmp_path: Path
) -> None:
    local = Local(tmp_path)
    assert local.plan(spec, attempt) == []
    assert local.plan(replace(spec, preset="enterprise-ddp"), attempt) == [
        "One machine goes without what the preset enterprise-ddp asks of a cluster: image, command."
    ]
    assert local.plan(replace(spec, preset="of-somebody-else"), attempt) == []
