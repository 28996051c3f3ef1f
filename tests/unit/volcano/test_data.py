"""Data on a cluster: the Job that fetches it, compared whole; what a gang sees of the cache; how a warm-up is read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from slicelift.backends.base import Attempt
from slicelift.errors import Refused, SliceliftError
from slicelift.models import DataRef, JobSpec, from_dict
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.data import data_key, data_sets, gang_mounts, gang_volumes
from slicelift_hub.launcher.backends.volcano.manifest import make_job
from slicelift_hub.launcher.backends.volcano.preparing import Preparing
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.warmup import (
    asker,
    describe,
    make_warm_up,
    make_warm_up_secret,
    read_warm_up,
)
from slicelift_profiles import presets
from slicelift_profiles.cluster import ClusterSettings

from tests.unit.volcano.contexts import CONTAINER_SECURITY, POD_SECURITY
from tests.unit.volcano.scripted import Script

NOW = 1_800_000_000.0
ADA = "fdee430d40bd57de"
REF = DataRef(
    path="data/train",
    dvc_file="data/train.dvc",
    md5="0123456789abcdef0123456789abcdef.dir",
    size_bytes=40 * 2**30,
    nfiles=2000,
    remote="store",
    remote_config={"url": "s3://bucket/data"},
)
IMAGE = "registry.example/lab@sha256:" + "a" * 64
LABELS = {
    "app.kubernetes.io/managed-by": "slicelift",
    "slicelift.io/owner-hash": ADA,
    "slicelift.io/data": data_key("ada", REF),
}
WARM_UP = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "r-abcdefghijkl-1-data-00000000",
        "namespace": "jobs",
        "labels": LABELS,
        "annotations": {
            "slicelift.io/attempt": "r-abcdefghijkl-1",
            "slicelift.io/owner": "ada",
            "slicelift.io/data": "data/train (2000 files, 40.0 GiB)",
        },
    },
    "spec": {
        "backoffLimit": 2,
        "activeDeadlineSeconds": 43_200,
        "ttlSecondsAfterFinished": 120,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "warm-up", "operator": "In", "values": [78]},
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 10,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": POD_SECURITY,
                "containers": [
                    {
                        "name": "warm-up",
                        "image": IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["/opt/conda/bin/python", "-P", "-m", "slicelift.runtime.warming"],
                        "workingDir": "/slicelift/scratch",
                        "env": [
                            {"name": "PYTHONPATH", "value": "/slicelift/start/runtime.pyz"},
                            {"name": "HOME", "value": "/slicelift/scratch"},
                            {"name": "TMPDIR", "value": "/slicelift/scratch"},
                            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
                        ],
                        "resources": {
                            "requests": {"cpu": "100m", "memory": "256Mi"},
                            "limits": {"cpu": "2", "memory": "2Gi"},
                        },
                        "securityContext": CONTAINER_SECURITY,
                        "volumeMounts": [
                            {"name": "start", "mountPath": "/slicelift/start", "readOnly": True},
                            {"name": "request", "mountPath": "/slicelift/request", "readOnly": True},
                            {"name": "scratch", "mountPath": "/slicelift/scratch"},
                            {"name": "data", "mountPath": "/slicelift/data", "subPath": ADA},
                        ],
                    }
                ],
                "volumes": [
                    {
                        "name": "start",
                        "configMap": {
                            "name": "slicelift-runtime-0123456789ab",
                            "defaultMode": 0o444,
                            "optional": False,
                        },
                    },
                    {
                        "name": "request",
                        "secret": {
                            "secretName": "r-abcdefghijkl-1-data-00000000",
                            "defaultMode": 0o440,
                            "optional": False,
                        },
                    },
                    {"name": "scratch", "emptyDir": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "cache", "readOnly": False}},
                ],
            },
        },
    },
}


@pytest.fixture
def asked(spec: JobSpec) -> JobSpec:
    """A job that needs one data set."""
    return replace(spec, data=(REF,))


@pytest.fixture
def cached(site: Site) -> Site:
    """A site with a shared cache."""
    return replace(site, data_claim="cache")


@pytest.fixture
def make(asked: JobSpec, attempt: Attempt, cached: Site) -> Callable[..., dict[str, Any]]:
    """The warm-up, with another site or preset."""

    def make(*, site: Site = cached, cluster: ClusterSettings | None = None) -> dict[str, Any]:
        preset = presets.get("torchrun")
        preset = preset if cluster is None else replace(preset, cluster=cluster)
        name = "r-abcdefghijkl-1-data-00000000"
        return make_warm_up(REF, asked, attempt, name=name, preset=preset, site=site)

    return make


def test_the_job_that_fetches_data_is_this_one(make: Callable[..., dict[str, Any]]) -> None:
    assert make() == WARM_UP


def test_it_can_have_an_image_of_its_own_and_goes_where_gangs_go(
    make: Callable[..., dict[str, Any]], cached: Site
) -> None:
    more = {"volumes": ({"name": "ca", "configMap": {"name": "ca"}},), "mounts": ({"name": "ca"},)}
    site = replace(cached, data_image="registry.example/dvc:3", data_memory="8Gi", data_hours=0.5, **more)
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    job = make(site=site, cluster=ClusterSettings(tolerations=(taint,)))["spec"]
    assert job["activeDeadlineSeconds"] == 1800
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    assert (container["image"], container["command"][0]) == ("registry.example/dvc:3", "python3")
    assert container["resources"]["limits"]["memory"] == "8Gi"
    assert (pod["tolerations"], pod["volumes"][-1], container["volumeMounts"][-1]) == (
        [taint],
        *more["volumes"],
        *more["mounts"],
    )


def test_its_secret_has_what_it_needs_and_goes_with_it(asked: JobSpec, attempt: Attempt) -> None:
    job = {"metadata": {"name": "n", "namespace": "jobs", "uid": "the-uid"}}
    secret = make_warm_up_secret(job, REF, asked, attempt)
    assert secret["metadata"] == {
        "name": "n",
        "namespace": "jobs",
        "labels": LABELS,
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "blockOwnerDeletion": False,
                "controller": True,
                "name": "n",
                "uid": "the-uid",
            }
        ],
    }
    request = json.loads(base64.b64decode(secret["data"]["warmup.json"]))
    assert from_dict(DataRef, request.pop("ref")) == REF
    assert from_dict(JobSpec, request.pop("spec")) == replace(asked, data=())  # of many refs its own
    assert request == {
        "attempt_id": "r-abcdefghijkl-1",
        "launcher_url": "http://launcher:8765",
        "token": "very-secret",
    }


def test_a_gang_sees_its_owners_data_sets_and_cannot_write(
    asked: JobSpec, attempt: Attempt, cached: Site
) -> None:
    other = replace(REF, path="labels.csv", md5="f" * 32)
    both = replace(asked, data=(REF, other, replace(REF, path="data/copy")))
    assert gang_volumes(both, cached) == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "cache", "readOnly": True}}
    ]
    assert data_sets(both) == [REF, other]
    mount = {"name": "data", "mountPath": "/slicelift/data", "subPath": ADA, "readOnly": True}
    assert gang_mounts(both, "ada", cached) == [mount]
    pod = make_job(both, attempt, preset=presets.get("torchrun"), site=cached)["spec"]["tasks"][0]["template"]
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert [each for each in mounts if each["name"] == "data"] == [mount]


def test_a_gang_without_data_or_claim_has_an_empty_cache(asked: JobSpec, spec: JobSpec, cached: Site) -> None:
    for each, site in ((spec, cached), (asked, replace(cached, data_claim=""))):
        assert gang_volumes(each, site) == [{"name": "data", "emptyDir": {}}]
        assert gang_mounts(each, "ada", site) == [{"name": "data", "mountPath": "/slicelift/data"}]


@pytest.mark.parametrize(
    "md5", ["", "../" * 10, "0" * 31, "0" * 32 + ".dir/../x", "0" * 32 + ".DIR", "0" * 32 + "\n", "G" * 32]
)
def test_what_is_no_md5_gets_into_no_path(md5: str, asked: JobSpec, attempt: Attempt, cached: Site) -> None:
    odd = replace(asked, data=(REF, replace(REF, md5=md5)))
    for call in (
        lambda: data_sets(odd),
        lambda: make_job(odd, attempt, preset=presets.get("torchrun"), site=cached),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.code == "bad-data"


def test_whose_data_it_is_makes_the_key() -> None:
    other = replace(REF, md5="f" * 32)
    keys = {data_key(owner, ref) for owner in ("ada", "bob") for ref in (REF, other)}
    assert len(keys) == 4
    assert data_key("ada", replace(REF, path="elsewhere", remote="x")) == data_key("ada", REF)


def _job(
    ago: Callable[[float], str], *conditions: tuple[str, str], age: float = 5, ref: DataRef = REF
) -> dict[str, Any]:
    labels = {**LABELS, "slicelift.io/data": data_key("ada", ref)}
    metadata = {**WARM_UP["metadata"], "labels": labels, "uid": "u", "creationTimestamp": ago(age)}
    told = [{"type": kind, "status": "True", "message": message} for kind, message in conditions]
    return {"metadata": metadata, "status": {"startTime": ago(age), "conditions": told}}


def _pod(ago: Callable[[float], str], *, age: float = 4, uid: str = "u", **state: Any) -> dict[str, Any]:
    identity = {"name": f"p{age}", "creationTimestamp": ago(age), "ownerReferences": [{"uid": uid}]}
    states = [{"image": "img", "state": state}] if state else []
    return {"metadata": identity, "spec": {"nodeName": "a"}, "status": {"containerStatuses": states}}


def test_a_warm_up_on_its_way_and_done(ago: Callable[[float], str]) -> None:
    found = read_warm_up(_job(ago), [], now=NOW)
    assert (found.done, found.error, asker(found.job)) == (False, None, "r-abcdefghijkl-1")
    assert found.message == "Fetching the data data/train (2000 files, 40.0 GiB) into the shared cache"
    found = read_warm_up(_job(ago, age=130), [_pod(ago, running={})], now=NOW)
    assert (
        found.message
        == "Fetching the data data/train (2000 files, 40.0 GiB) into the shared cache, for 3 min so far"
    )
    assert read_warm_up(_job(ago, ("Complete", "")), [], now=NOW).done
    assert read_warm_up(_job(ago, ("SuccessCriteriaMet", "")), [], now=NOW).done
    assert describe(REF) == "data/train (2000 files, 40.0 GiB)"


def test_what_keeps_it_from_starting_is_said(ago: Callable[[float], str]) -> None:
    waiting = {"reason": "ErrImagePull", "message": "no such host"}
    pods = [_pod(ago, age=4, waiting=waiting), _pod(ago, age=9, terminated={"exitCode": 1})]
    found = read_warm_up(_job(ago), pods, now=NOW)
    assert found.message == (
        "The data data/train (2000 files, 40.0 GiB) cannot be fetched yet: "
        "The image img cannot be had on node a (ErrImagePull: no such host)."
    )
    placed = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: Too many pods."}
    pod = _pod(ago)
    pod["spec"], pod["status"]["conditions"] = {}, [placed]
    found = read_warm_up(_job(ago), [pod], now=NOW)
    assert found.message == (
        "The pod that fetches the data data/train (2000 files, 40.0 GiB) has no place: "
        "0/3 nodes are available: Too many pods."
    )
    placed["message"] = 'persistentvolumeclaim "cache" not found'
    found = read_warm_up(_job(ago), [pod], now=NOW)
    assert found.message.endswith("The claim cache that the job's pods use does not exist.")
    # of another Job
    assert "Fetching" in read_warm_up(_job(ago), [_pod(ago, uid="x", waiting=waiting)], now=NOW).message
    creating = _pod(ago, waiting={"reason": "ContainerCreating"})
    assert "Fetching" in read_warm_up(_job(ago), [creating], now=NOW).message
    event = {"involvedObject": {"kind": "Pod", "name": "p4"}, "reason": "FailedMount", "type": "Warning"}
    event |= {"message": 'configmap "runtime" not found', "lastTimestamp": ago(2)}
    found = read_warm_up(_job(ago, age=20), [creating], events=[event], now=NOW)
    assert found.message.endswith(
        'A volume of pod p4 on node a cannot be mounted: configmap "runtime" not found'
    )


def _error(*given: Any, **more: Any) -> SliceliftError:
    error = read_warm_up(*given, now=NOW, **more).error
    assert error is not None
    return error


def test_why_it_failed_is_its_own_last_word(ago: Callable[[float], str]) -> None:
    word = {"code": "data-not-in-remote", "message": "a.csv is missing.", "hint": "Push it."}
    failed = _job(ago, ("Failed", "Container warm-up failed with exit code 78"))
    pods = [
        _pod(ago, age=9, terminated={"message": '{"code": "x", "message": "old", "hint": ""}'}),
        _pod(ago, age=4, terminated={"exitCode": 78, "message": json.dumps(word)}),
    ]
    assert _error(failed, pods).to_dict() == word
    error = _error(failed, [_pod(ago, terminated={"reason": "OOMKilled", "message": ""})])
    assert "data_memory" in error.hint
    half = _error(
        failed, [_pod(ago, terminated={"exitCode": 1, "message": json.dumps({**word, "message": "\udcff"})})]
    )
    assert half.message == "?"
    for text in ("", "no JSON", "[]", '{"code": 1}', "null"):
        error = _error(failed, [_pod(ago, terminated={"exitCode": 1, "message": text})])
        assert (error.code, "exit code 78" in error.message) == ("data-fetch-failed", True)
    assert "left a word" in _error(_job(ago, ("FailureTarget", "")), []).message
    late = _job(ago, ("Failed", "Job was active longer than specified deadline"))
    late["status"]["conditions"][0]["reason"] = "DeadlineExceeded"
    assert "data_hours" in _error(late, pods).hint


@pytest.mark.parametrize("made_before", [False, True])
def test_a_job_whose_secret_is_refused_is_not_left_for_others_to_wait_for(
    made_before: bool,
    server: Script,
    client: Client,
    asked: JobSpec,
    attempt: Attempt,
    cached: Site,
    ago: Callable[[float], str],
) -> None:
    """Its pod would wait for the Secret for ever; also one that a launcher left which was killed in between."""
    jobs, name = "/apis/batch/v1/namespaces/jobs/jobs", WARM_UP["metadata"]["name"]
    server.say("GET", jobs, (200, {"items": [_job(ago)] if made_before else []}))
    server.say("GET", "/api/v1/namespaces/jobs/pods", (200, {"items": []}))
    server.say("POST", jobs, (201, _job(ago)))
    told = {"message": 'secrets "x" is forbidden: exceeded quota: few, used: count/secrets=3', "code": 403}
    server.say("POST", "/api/v1/namespaces/jobs/secrets", (403, told))
    server.say("DELETE", f"{jobs}/{name}", (200, {}))
    preparing = Preparing(client, furnish=lambda _: None)
    with pytest.raises(Refused) as caught:
        preparing.prepare(asked, attempt, preset=presets.get("torchrun"), site=cached)
    assert caught.value.code == "resource-quota"
    deleted = [(path, body["preconditions"]) for method, path, _, body in server.calls if method == "DELETE"]
    assert deleted == [(f"{jobs}/{name}", {"uid": "u"})]


def test_four_data_sets_are_fetched_beside_each_other_and_no_more(
    server: Script,
    client: Client,
    asked: JobSpec,
    attempt: Attempt,
    cached: Site,
    ago: Callable[[float], str],
) -> None:
    refs = tuple(replace(REF, path=f"data/{n}", md5=f"{n:032x}") for n in range(300))
    many = replace(asked, data=refs, tags={"long": "x" * 8000})
    jobs = "/apis/batch/v1/namespaces/jobs/jobs"
    server.say("GET", jobs, (200, {"items": []}))
    server.say("POST", jobs, (201, _job(ago)))
    server.say("POST", "/api/v1/namespaces/jobs/secrets", (201, {}))
    preparing = Preparing(client, furnish=lambda _: None)
    found = preparing.prepare(many, attempt, preset=presets.get("torchrun"), site=cached)
    assert found is not None
    assert found.message.endswith("(0 of 300 data sets are there)")
    assert [path for method, path, _, _ in server.calls if method == "POST"].count(jobs) == 4
    # two have ended: two more are made
    listed = [
        _job(ago, *([("Complete", "")] if number < 2 else []), ref=ref) for number, ref in enumerate(refs[:4])
    ]
    server.say("GET", jobs, (200, {"items": listed}))
    server.say("GET", "/api/v1/namespaces/jobs/pods", (200, {"items": []}))
    found = preparing.prepare(many, attempt, preset=presets.get("torchrun"), site=cached)
    assert found is not None
    assert found.message.endswith("(2 of 300 data sets are there)")
    assert [path for method, path, _, _ in server.calls if method == "POST"].count(jobs) == 6
    # what the pod does not read is not in its Secret
    secret = make_warm_up_secret(_job(ago), refs[0], many, attempt)
    assert len(json.dumps(secret)) < 8000
