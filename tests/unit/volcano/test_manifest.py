"""The manifest of an attempt, compared whole; and that nothing a user types can change its shape."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from slicelift.backends.base import Attempt
from slicelift.errors import Refused
from slicelift.models import JobSpec
from slicelift_hub.launcher.backends.volcano.backend import Volcano
from slicelift_hub.launcher.backends.volcano.manifest import make_job, make_request, make_runtime, make_secret
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_profiles import presets
from slicelift_profiles.cluster import ClusterSettings, Topology, make_settings
from traitlets.config import Config

from tests.unit.volcano.contexts import CONTAINER_SECURITY, POD_SECURITY

SEED = yaml.safe_load((Path(__file__).parent / "seed-vcjob.yaml").read_text(encoding="utf-8"))

LABELS = {
    "app.kubernetes.io/managed-by": "slicelift",
    "slicelift.io/run": "r-abcdefghijkl",
    "slicelift.io/owner-hash": "fdee430d40bd57de",
}
SIZES = {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}
CONTAINER = {
    "name": "worker",
    "image": "registry.example/lab@sha256:" + "a" * 64,
    "imagePullPolicy": "IfNotPresent",
    "command": ["/opt/conda/bin/python", "-P", "/slicelift/start/runtime.pyz"],
    "workingDir": "/slicelift/attempt",
    "env": [
        {
            "name": "SLICELIFT_POD_IP",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
        },
        {
            "name": "SLICELIFT_NODE_NAME",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
        },
        {
            "name": "SLICELIFT_RESTARTS",
            "valueFrom": {
                "fieldRef": {
                    "apiVersion": "v1",
                    "fieldPath": "metadata.annotations['volcano.sh/job-retry-count']",
                }
            },
        },
        {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
        {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
    ],
    "resources": {"requests": SIZES, "limits": SIZES},
    "securityContext": CONTAINER_SECURITY,
    "volumeMounts": [
        {"name": "start", "mountPath": "/slicelift/start", "readOnly": True},
        {"name": "request", "mountPath": "/slicelift/request", "readOnly": True},
        {"name": "attempt", "mountPath": "/slicelift/attempt"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "checkpoints", "mountPath": "/slicelift/checkpoints"},
        {"name": "data", "mountPath": "/slicelift/data"},
    ],
}
POD = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 120,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": POD_SECURITY,
    "containers": [CONTAINER],
    "volumes": [
        {
            "name": "start",
            "configMap": {"name": "slicelift-runtime-0123456789ab", "defaultMode": 0o444, "optional": False},
        },
        {
            "name": "request",
            "secret": {"secretName": "r-abcdefghijkl-1", "defaultMode": 0o440, "optional": False},
        },
        {"name": "attempt", "emptyDir": {"sizeLimit": "50Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        {"name": "checkpoints", "emptyDir": {}},
        {"name": "data", "emptyDir": {}},
    ],
}
FIXED_GANG = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {
        "name": "r-abcdefghijkl-1",
        "namespace": "jobs",
        "labels": LABELS,
        "annotations": {
            "slicelift.io/promotion": "p-aaaaaaaaaaaaaaaaaaaa",
            "slicelift.io/attempt": "r-abcdefghijkl-1",
            "slicelift.io/owner": "ada",
            "slicelift.io/name": "train",
            "slicelift.io/preset": "torchrun",
        },
    },
    "spec": {
        "schedulerName": "volcano",
        "queue": "team",
        "minAvailable": 2,
        "maxRetry": 3,
        "ttlSecondsAfterFinished": 604800,
        "plugins": {
            "env": [],
            "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
        },
        "policies": [
            {"exitCode": 78, "action": "TerminateJob"},
            {"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"},
        ],
        "tasks": [
            {
                "name": "worker",
                "replicas": 2,
                "minAvailable": 2,
                "maxRetry": 3,
                "template": {
                    "metadata": {
                        "labels": LABELS,
                        "annotations": {
                            "sidecar.istio.io/inject": "false",
                            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                        },
                    },
                    "spec": POD,
                },
            }
        ],
    },
}


def test_a_fixed_gang_whole(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    assert make_job(spec, attempt, preset=presets.get("torchrun"), site=site) == FIXED_GANG


def test_an_elastic_gang_whole(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    elastic = replace(spec, preset="elastic", min_workers=1, gpus_per_worker=1)
    made = make_job(elastic, attempt, preset=presets.get("elastic"), site=site)
    sizes = {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}
    environment = [
        {"name": "SLICELIFT_RESTARTS", "value": ""} if each["name"] == "SLICELIFT_RESTARTS" else each
        for each in CONTAINER["env"]  # type: ignore[attr-defined]
    ]
    container = CONTAINER | {"env": environment, "resources": {"requests": sizes, "limits": sizes}}
    task = FIXED_GANG["spec"]["tasks"][0]  # type: ignore[index]
    template = task["template"] | {"spec": POD | {"containers": [container]}}
    metadata = FIXED_GANG["metadata"]
    notes = metadata["annotations"] | {
        "slicelift.io/preset": "elastic",
        "slicelift.io/most-workers": "2",
    }  # type: ignore[index]
    assert made == FIXED_GANG | {
        "metadata": metadata | {"annotations": notes},  # type: ignore[operator]
        "spec": FIXED_GANG["spec"]  # type: ignore[operator]
        | {
            "minAvailable": 1,
            "maxRetry": 20,
            "minSuccess": 1,
            "policies": [
                {"exitCode": 78, "action": "TerminateJob"},
                {"events": ["PodFailed", "PodEvicted"], "action": "RestartPod"},
            ],
            "tasks": [task | {"minAvailable": 1, "maxRetry": 10, "template": template}],
        },
    }


def test_the_loss_of_one_worker_does_not_use_up_the_starts_of_a_large_elastic_gang(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    """Without the first one all others fail once, and Volcano counts each of them."""
    preset = replace(presets.get("elastic"), max_workers=32)
    large = replace(spec, preset="elastic", workers=20, min_workers=1, gpus_per_worker=1)
    made = make_job(large, attempt, preset=preset, site=site)["spec"]
    assert (made["maxRetry"], made["tasks"][0]["maxRetry"]) == (10 * 32, 10)
    rigid = make_job(replace(large, min_workers=None), attempt, preset=preset, site=site)["spec"]
    assert rigid["maxRetry"] == 10


def test_gpus_are_watched_where_the_preset_limits_their_rest(spec: JobSpec, attempt: Attempt) -> None:
    plain = presets.get("torchrun")
    watched = replace(plain, cluster=replace(plain.cluster, idle_minutes=30))
    whole, cpu = replace(spec, gpus_per_worker=2), replace(spec, gpus_per_worker=0)
    asked = [
        make_request(each, attempt, preset=preset, site=Site()).get("watch_gpus")
        for each, preset in ((whole, watched), (whole, plain), (cpu, watched))
    ]
    assert asked == [True, None, None]


def test_the_platform_teams_template_comes_out_field_by_field(spec: JobSpec, attempt: Attempt) -> None:
    preset = presets.get("enterprise-ddp")
    asked = replace(
        spec,
        workers=preset.workers,
        gpus_per_worker=preset.gpus_per_worker,
        queue=preset.queue,
        preset=preset.name,
    )
    named = replace(attempt, attempt_id="distributed-training-job")
    made = make_job(asked, named, preset=preset, site=Site(namespace="ai-platform", image="unused/image"))
    assert list(_differences(SEED, made)) == []
    # what the template leaves out ("...") starts our agent, by the words that it begins with
    command = made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert command[2] == (
        "python3 -m torch.distributed.run --nnodes=1 --nproc-per-node=1 --standalone --no-python "
        "python3 -P /slicelift/start/runtime.pyz"
    )
    # and what it lacks is there
    container = made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert made["spec"]["tasks"][0]["minAvailable"] == 2
    assert made["spec"]["plugins"]["svc"] == [
        "--publish-not-ready-addresses=true",
        "--disable-network-policy=true",
    ]


def test_an_admin_can_have_volcano_close_the_network_of_each_gang(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    preset = presets.get("torchrun")
    closed = make_job(spec, attempt, preset=preset, site=replace(site, network_policy=True))
    assert closed["spec"]["plugins"] == {
        "env": [],
        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=false"],
    }


def _differences(wanted: Any, found: Any, place: str = "") -> Any:
    """Where `found` lacks a value of `wanted`; lists are compared entry by entry and by length."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            yield from _differences(
                value, found.get(key) if isinstance(found, dict) else None, f"{place}.{key}"
            )
    elif isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            yield f"{place}: {wanted!r} != {found!r}"
            return
        for index, value in enumerate(wanted):
            yield from _differences(value, found[index], f"{place}[{index}]")
    elif isinstance(wanted, str) and wanted.endswith("..."):
        if not str(found).startswith(wanted.removesuffix("...")):
            yield f"{place}: {wanted!r} != {found!r}"
    elif wanted != found or type(wanted) is not type(found):
        yield f"{place}: {wanted!r} != {found!r}"


def test_a_slice_is_asked_for_by_its_resource(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    sliced = replace(spec, workers=1, gpus_per_worker=0, slice="1g.10gb+me", preset="slice")
    made = make_job(sliced, attempt, preset=presets.get("slice"), site=site)
    resources = made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    amounts = {"cpu": "4", "memory": "24Gi", "nvidia.com/mig-1g.10gb.me": "1"}
    assert resources == {"requests": amounts, "limits": amounts}


def test_who_asks_for_no_gpu_sees_none_of_its_node(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    """Many images say NVIDIA_VISIBLE_DEVICES=all. Who asks for one is told by the device plugin which one it is."""

    def seen(settings: ClusterSettings, **changes: Any) -> list[str]:
        preset = replace(presets.get("torchrun"), cluster=settings)
        made = make_job(replace(spec, **changes), attempt, preset=preset, site=site)
        container = made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        return [each["value"] for each in container["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"]

    plain = ClusterSettings()
    assert seen(plain, gpus_per_worker=0) == ["void"]
    assert seen(ClusterSettings(resources={"rdma/ib": 1}), gpus_per_worker=0) == ["void"]
    assert seen(plain, gpus_per_worker=1) == []
    assert seen(plain, gpus_per_worker=0, slice="1g.10gb", workers=1) == []
    for share in ("nvidia.com/gpu.shared", "volcano.sh/vgpu-number"):
        assert seen(ClusterSettings(resources={share: 1}), gpus_per_worker=0) == []
    known = ClusterSettings(environment={"NVIDIA_VISIBLE_DEVICES": "none"})
    assert seen(known, gpus_per_worker=0) == ["none"]


def test_what_a_preset_says_of_the_cluster_is_in_the_pod(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    settings = ClusterSettings(
        cpu=0.5,
        environment={"NCCL_IB_HCA": "mlx5", "ODD": "$(TOKEN)"},
        resources={"rdma/ib": 1},
        capabilities=("IPC_LOCK",),
        topology=Topology(mode="hard", highest_tier=2),
        priority_class="night",
        node_selector={"pool": "h100"},
        tolerations=({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},),
        max_hours=1.5,
    )
    preset = replace(presets.get("torchrun"), cluster=settings)
    made = make_job(replace(spec, gpus_per_worker=0), attempt, preset=preset, site=site)
    pod = made["spec"]["tasks"][0]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "16Gi", "rdma/ib": "1"}
    assert {"name": "NCCL_IB_HCA", "value": "mlx5"} in container["env"]
    # Kubernetes would put a variable in its place
    assert {"name": "ODD", "value": "$$(TOKEN)"} in container["env"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert made["spec"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 2}
    assert (made["spec"]["priorityClassName"], pod["priorityClassName"]) == ("night", "night")
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "h100"}, [dict(settings.tolerations[0])])
    assert made["metadata"]["annotations"]["slicelift.io/max-seconds"] == "5400"


def test_checkpoints_are_mounted_by_owner(spec: JobSpec, attempt: Attempt, site: Site) -> None:
    claimed = replace(site, checkpoints_claim="ckpt")
    job = make_job(spec, attempt, preset=presets.get("torchrun"), site=claimed)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    volume, mount = (
        next(each for each in found if each["name"] == "checkpoints")
        for found in (pod["volumes"], pod["containers"][0]["volumeMounts"])
    )
    assert volume["persistentVolumeClaim"] == {"claimName": "ckpt", "readOnly": False}
    assert mount == {
        "name": "checkpoints",
        "mountPath": "/slicelift/checkpoints",
        "subPath": "fdee430d40bd57de",
    }


def test_the_secret_holds_the_request_and_goes_with_the_job(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    preset = presets.get("torchrun")
    job = make_job(spec, attempt, preset=preset, site=site)
    job["metadata"]["uid"] = "the-uid"
    secret = make_secret(job, spec, attempt, preset=preset, site=site)
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == ("r-abcdefghijkl-1", "jobs")
    assert [(each["kind"], each["uid"]) for each in secret["metadata"]["ownerReferences"]] == [
        ("Job", "the-uid")
    ]
    request = json.loads(base64.b64decode(secret["data"]["agent.json"]))
    assert request == make_request(spec, attempt, preset=preset, site=site)
    assert request["patience_seconds"] == 1800
    hasty = replace(site, patience_seconds=60)
    assert make_request(spec, attempt, preset=preset, site=hasty)["patience_seconds"] == 60
    told = {
        key: request[key]
        for key in (
            "token",
            "nodes",
            "min_nodes",
            "nproc",
            "master",
            "master_port",
            "checkpoints",
            "grace_seconds",
        )
    }
    assert told == {
        "token": "very-secret",
        "nodes": 2,
        "min_nodes": 2,
        "nproc": 8,
        "master": "r-abcdefghijkl-1-worker-0.r-abcdefghijkl-1",
        "master_port": 29500,
        "checkpoints": "/slicelift/checkpoints/r-abcdefghijkl",
        "grace_seconds": 110,
    }
    # it is nowhere else
    assert "very-secret" not in json.dumps(job)


def test_the_runtime_never_changes_under_its_name(site: Site) -> None:
    made = make_runtime(b"zip", name=site.runtime, namespace="jobs")
    assert made["immutable"] is True
    assert base64.b64decode(made["binaryData"]["runtime.pyz"]) == b"zip"


@pytest.mark.parametrize(
    ("attempt_id", "workers", "fits"),
    [
        ("r-abc-1", 1, True),
        ("a" * 54, 10, True),
        ("a" * 54, 11, False),
        ("a" * 55, 1, False),
        ("1-abc", 1, False),
        ("r.abc", 1, False),
        ("R-abc", 1, False),
        ("r-abc-", 1, False),
        ("", 1, False),
    ],
)
def test_every_name_that_volcano_makes_of_it_has_63_characters(
    attempt_id: str, workers: int, fits: bool, spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    asked, named = replace(spec, workers=workers), replace(attempt, attempt_id=attempt_id)
    if fits:
        make_job(asked, named, preset=presets.get("torchrun"), site=site)
        return
    with pytest.raises(Refused, match="cannot be the name"):
        make_job(asked, named, preset=presets.get("torchrun"), site=site)


@pytest.mark.parametrize("image", ["", "$(TOKEN)", "a b", "reg/x:tag;rm", "reg/x@sha256:12", "UPPER/x"])
def test_an_image_that_is_none_is_refused(image: str, spec: JobSpec, attempt: Attempt, site: Site) -> None:
    with pytest.raises(Refused) as caught:
        make_job(
            replace(spec, image=image), attempt, preset=presets.get("torchrun"), site=replace(site, image="")
        )
    assert caught.value.code == "bad-image"


def test_a_job_runs_in_its_presets_image_else_in_its_sessions_else_in_the_one_for_all(
    spec: JobSpec, attempt: Attempt, site: Site
) -> None:
    found = {}
    for name, image in (("torchrun", ""), ("torchrun", "reg/session:1"), ("enterprise-ddp", "reg/session:1")):
        made = make_job(replace(spec, image=image), attempt, preset=presets.get(name), site=site)
        (task,) = made["spec"]["tasks"]
        found[name, image] = task["template"]["spec"]["containers"][0]["image"]
    assert found == {
        ("torchrun", ""): site.image,
        ("torchrun", "reg/session:1"): "reg/session:1",
        ("enterprise-ddp", "reg/session:1"): presets.get("enterprise-ddp").cluster.image,
    }


ANY = st.text(st.characters(exclude_categories=()), max_size=300)
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@settings(deadline=None)  # the first call reads the presets
@given(owner=ANY, name=ANY, python=ANY, run=ANY, value=ANY)
def test_nothing_typed_gets_out_of_its_place(
    owner: str, name: str, python: str, run: str, value: str
) -> None:
    site = Site(namespace="sl-{owner}", image="registry.example/lab:1")
    spec = JobSpec(
        name=name,
        snapshot_id="0" * 64,
        notebook=value,
        script=value,
        cwd=value,
        python=python,
        workers=2,
        parameters={value: value},
    )
    attempt = Attempt(
        attempt_id="r-a-1",
        run_id=run,
        promotion_id="p-a",
        attempt=1,
        launcher_url="http://l",
        token="t",
        owner=owner,
    )
    made = make_job(spec, attempt, preset=presets.get("torchrun"), site=site)
    assert _shape(made) == _shape(
        make_job(
            JobSpec(name="n", snapshot_id="0" * 64, notebook="n", script="s", cwd="c", python="p", workers=2),
            Attempt(attempt_id="r-a-1", run_id="r", promotion_id="p", attempt=1, launcher_url="u", token="t"),
            preset=presets.get("torchrun"),
            site=site,
        )
    )
    for label in made["metadata"]["labels"].values():
        assert LABEL.fullmatch(label), label
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", made["metadata"]["namespace"])
    for note in made["metadata"]["annotations"].values():
        assert not {unicodedata.category(mark) for mark in note} & {"Cc", "Cs"}
    command = made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert command[0].replace("$$", "") == python.replace("$", "")
    secret = make_secret(_with_uid(made), spec, attempt, preset=presets.get("torchrun"), site=site)
    assert json.loads(json.dumps(secret))


@given(first=ANY, second=ANY)
def test_two_owners_never_share_a_namespace_or_a_label(first: str, second: str) -> None:
    from slicelift_hub.launcher.backends.volcano.names import namespace_of, owner_hash

    if first != second:
        assert namespace_of("sl-{owner}", first) != namespace_of("sl-{owner}", second)
        assert owner_hash(first) != owner_hash(second)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"workers": 2}, True),
        ({"workers": 1}, False),
        ({"workers": 4, "min_workers": 2}, False),
        ({"workers": 2, "min_workers": 2}, True),
    ],
)
def test_a_gang_is_told_to_check_its_network_where_it_has_one(
    spec: JobSpec, attempt: Attempt, asked: dict[str, int], told: bool
) -> None:
    check = {"all_reduce": {"least_gbit": 20}}
    preset = presets.get("torchrun")
    checked = replace(preset, cluster=replace(preset.cluster, check=check))
    request = make_request(replace(spec, **asked), attempt, preset=checked, site=Site())
    assert request.get("check") == (check if told else None)
    assert "check" not in make_request(replace(spec, **asked), attempt, preset=preset, site=Site())


def test_the_settings_of_a_file_are_those_of_the_manifest() -> None:
    made = make_settings(
        {"topology": {"mode": "soft", "highest_tier": 1}, "command": ["sh", "..."], "cpu": 2}
    )
    assert (made.topology, made.command, made.cores(0)) == (
        Topology(mode="soft", highest_tier=1),
        ("sh", "..."),
        2,
    )


def _with_uid(job: dict[str, Any]) -> dict[str, Any]:
    return job | {"metadata": job["metadata"] | {"uid": "u"}}


def _shape(value: Any) -> Any:
    """Keys and kinds, without texts."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return type(value).__name__


def test_half_a_save_of_the_presets_fails_no_job(spec: JobSpec, attempt: Attempt, tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    text = "presets: [{name: torchrun, display_name: A, launcher: torchrun, workers: 1, cluster: {attempts: %s}}]"
    path.write_text(text % 2)
    words = {"presets_file": str(path), "image": "lab@sha256:" + "0" * 64}
    with closing(Volcano(config=Config(Volcano=words))) as backend:
        assert backend.render(replace(spec, preset="torchrun"), attempt)["spec"]["maxRetry"] == 2
        path.write_text("presets: [")
        assert backend.render(replace(spec, preset="torchrun"), attempt)["spec"]["maxRetry"] == 2
        path.write_text(text % 7)
        assert backend.render(replace(spec, preset="torchrun"), attempt)["spec"]["maxRetry"] == 7
