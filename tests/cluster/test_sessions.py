"""Sessions as pods: what each holds, who is refused and why, whose quota it is, and what outlives the hub.

About three minutes: a hub, five sessions, a job.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accounts
import launching
import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from elsewhere import Place
from members import Person, pod_of
from place import ClusterHub
from slicelift.launcher_client import Client
from slicelift.models import JobSpec, RunView, Status, to_dict

# the first one waits for the bed, the image and the hub
pytestmark = pytest.mark.timeout(600)
SLICE = "nvidia.com/mig-1g.10gb"
OF_THE_CLUSTER = {("", "nodes", "list"), ("", "pods", "list"), ("scheduling.volcano.sh", "queues", "get")}
OF_A_NAMESPACE = {
    *(("", "pods", verb) for verb in ("create", "list", "watch", "delete")),
    *(("", "events", verb) for verb in ("list", "watch")),
    *(("", "persistentvolumeclaims", verb) for verb in ("create", "get")),
}


# runs in a session, as a cell of a notebook could: what its token opens at launcher and hub, as [status, text]
REACH = """
import base64, json, os, ssl, sys, urllib.error, urllib.request
token = os.environ["JUPYTERHUB_API_TOKEN"]
bases = {"launcher": os.environ["SLICELIFT_LAUNCHER_URL"] + "/api/v1", "hub": os.environ["JUPYTERHUB_API_URL"]}
unchecked = ssl._create_unverified_context()

def call(to, method, path, body=None, size=0):
    data = b"x" * size if size else None if body is None else base64.b64decode(body)
    asked = urllib.request.Request(bases.get(to, to) + path, data=data, method=method)
    asked.add_header("Authorization", ("Bearer " if to.startswith("https:") else "token ") + token)
    asked.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(asked, timeout=60, context=unchecked) as answer:
            return [answer.status, answer.read(4000).decode("utf-8", "replace")]
    except urllib.error.HTTPError as refusal:
        return [refusal.code, refusal.read(4000).decode("utf-8", "replace")]
    except OSError as fault:
        return [0, repr(fault)]

print(json.dumps([call(*each) for each in json.loads(sys.argv[1])]))
"""
ANNAS = """
import pathlib
import slicelift

if __name__ == "__main__":
    pathlib.Path("outputs").mkdir(exist_ok=True)
    pathlib.Path("outputs/result.txt").write_text("anna's result")
    print("anna's log", flush=True)
    slicelift.log(step=0, loss=1.0)
"""
Calls = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def queue(api: Api) -> Iterator[str]:
    """A queue that gives one slice of 1g.10gb, and nothing else of a GPU."""
    with kit.queue(api, share={SLICE: "1"}) as name:
        yield name


@pytest.fixture(scope="module")
def namespace(api: Api, queue: str) -> Iterator[str]:
    with kit.namespace(api) as name:
        yield name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def kubeconfigs(api: Api, namespace: str, folder: Path) -> Iterator[dict[str, Path]]:
    """Of the hub's and the launcher's accounts."""
    with (
        accounts.account(api, accounts.HUB, namespace=namespace, folder=folder) as for_hub,
        accounts.account(api, accounts.LAUNCHER, namespace=namespace, folder=folder) as for_launcher,
    ):
        yield {accounts.HUB: for_hub, accounts.LAUNCHER: for_launcher}


@pytest.fixture(scope="module")
def hub(
    bed: Place,
    namespace: str,
    queue: str,
    session_image: str,
    kubeconfigs: dict[str, Path],
    folder: Path,
) -> Iterator[ClusterHub]:
    made = ClusterHub(
        home=folder / "home",
        address=bed.host_ip,
        kubeconfig=kubeconfigs[accounts.HUB],
        launcher_kubeconfig=kubeconfigs[accounts.LAUNCHER],
        namespace=namespace,
        queue=queue,
        image=session_image,
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ben(sign_in: Callable[[str], Person]) -> Person:
    return sign_in("ben")


def test_the_hubs_rights_are_those_listed_here_and_no_more(
    kubeconfigs: dict[str, Path], namespace: str
) -> None:
    mine = kit.connect(kubeconfigs[accounts.HUB])
    assert accounts.rights(mine, namespace) >= OF_THE_CLUSTER | OF_A_NAMESPACE
    everybodys = {right for right in accounts.rights(mine, "default") if right[0].startswith("auth")}
    assert accounts.rights(mine, namespace) - everybodys == OF_THE_CLUSTER | OF_A_NAMESPACE
    assert accounts.rights(mine, "kube-system") - everybodys == OF_THE_CLUSTER
    mine.raw.close()


def test_a_session_without_a_gpu_asks_for_none_and_sees_none(anna: Person, api: Api, namespace: str) -> None:
    anna.spawn("cpu")
    pod = pod_of(api, namespace, "anna")
    resources = pod.spec.containers[0].resources
    assert (resources.requests["nvidia.com/gpu"], resources.limits["nvidia.com/gpu"]) == ("0", "0")
    assert (resources.requests["memory"], resources.limits["memory"]) == (str(2**30), str(2**30))
    assert pod.spec.scheduler_name == "volcano"
    seen = kit.execute(api, namespace, pod.metadata.name, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    assert seen.strip() == "void"
    anna.stop()
    kit.wait_for("the pod to go", lambda: not api.core.list_namespaced_pod(namespace).items)


def test_sessions_and_jobs_share_a_quota_and_what_is_taken_is_refused_at_once(
    anna: Person, ben: Person, api: Api, namespace: str, queue: str, image: str
) -> None:
    assert "1 of 1 free." in anna.form()
    anna.spawn("slice-1g-10gb")
    refused = ben.begin("slice-1g-10gb")
    assert refused.status_code == 503
    assert "No 1g.10gb slice is free. It is in use." in refused.json()["message"]
    assert "CPU only is free now." in refused.json()["message"]
    assert "It is in use." in ben.form()
    # nothing of the refused start is left, and the cluster has more slices than the queue gives
    assert [pod.metadata.name for pod in api.core.list_namespaced_pod(namespace).items] == ["jupyter-anna"]
    job = kit.gang(
        "night", queue=queue, image=image, command=["sleep", "60"], replicas=1, resources={SLICE: "1"}
    )
    kit.submit(api, namespace, job)
    kit.wait_for("the queue's no to the job", lambda: "insufficient" in said(api, namespace), seconds=30)
    assert kit.phase(api, namespace, "night") == "Pending"
    anna.stop()
    kit.wait_phase(api, namespace, "night", "Running", seconds=60)
    kit.wait_for("the form to count the job", lambda: "It is in use." in anna.form(), seconds=20)
    assert anna.begin("slice-1g-10gb").status_code == 503
    api.custom.delete_namespaced_custom_object(*kit.BATCH, namespace, "jobs", "night")
    kit.wait_for("the slice to be free", lambda: "1 of 1 free." in anna.form(), seconds=60)


@pytest.mark.drill
def test_a_start_that_volcano_says_nothing_of_is_told_so_and_goes_on_once_it_does(
    anna: Person, own_bed: Cluster, api: Api, namespace: str
) -> None:
    """Without Volcano's webhook a pod is made and nobody places it: there is no event of it at all."""
    try:
        own_bed.stop("volcano-webhook-manager")
        assert anna.begin("cpu").status_code in (201, 202)
        steps = anna.steps()
        assert any("Volcano or its webhook does not react" in step for step in steps)
        assert pod_of(api, namespace, "anna").spec.node_name is None
    finally:
        own_bed.start("volcano-webhook-manager")
    assert any("A node has a place for the session." in step for step in steps)
    kit.wait_for("the session", anna.is_ready, seconds=120)
    anna.stop()


def said(api: Api, namespace: str) -> str:
    """What the cluster says of PodGroups."""
    events = api.core.list_namespaced_event(namespace).items
    return "\n".join(str(event.message) for event in events if event.involved_object.kind == "PodGroup")


def test_a_session_outlives_its_hub(ben: Person, hub: ClusterHub, api: Api, namespace: str) -> None:
    ben.spawn("slice-1g-10gb")
    before = pod_of(api, namespace, "ben").metadata.uid
    hub.restart()
    kit.wait_for("the session after the restart", ben.is_ready, seconds=60)
    assert ben.http.get("/user/ben/lab").url.path == "/user/ben/lab"
    assert pod_of(api, namespace, "ben").metadata.uid == before
    ben.stop()
    kit.wait_for("the pod to go", lambda: not api.core.list_namespaced_pod(namespace).items)


@pytest.fixture
def annas_client(anna: Person, hub: ClusterHub) -> Iterator[Client]:
    """The launcher with a token of anna's."""
    with Client(f"http://{hub.address}:{hub.launcher_port}", anna.token()) as client:
        yield client


@pytest.fixture
def annas_run(annas_client: Client, queue: str) -> RunView:
    """A run of anna's that has ended, with a log, an output, a secret and a run in MLflow."""
    client = annas_client
    client.set_secret("ANNAS_KEY", "anna's word")
    asked = {"preset": "small", "workers": 1, "queue": queue, "secrets": ("ANNAS_KEY",)}
    run = client.submit(launching.make_promotion_id(), launching.upload(client, ANNAS, **asked)).run_id
    kit.wait_for("anna's job", lambda: client.job(run).status.terminal, seconds=240)
    kit.wait_for("MLflow", lambda: client.job(run).mlflow_run_id, seconds=90)
    assert client.job(run).status is Status.FINISHED
    assert [each.path for each in client.outputs(run)] == ["result.txt"]
    return client.job(run)


def test_a_session_reaches_nothing_of_another_users_work(
    annas_run: RunView, annas_client: Client, anna: Person, ben: Person, api: Api, namespace: str
) -> None:
    """From inside ben's pod with ben's own token; what is malformed or too large is refused as such."""
    anna.spawn("cpu")
    ben.spawn("cpu")
    pod = pod_of(api, namespace, "ben").metadata.name
    annas_lab = f"http://{pod_of(api, namespace, 'anna').status.pod_ip}:8888"

    def reach(calls: Calls) -> list[Any]:
        python = f"{sys.prefix}/bin/python"
        told = kit.execute(api, namespace, pod, python, "-c", REACH, json.dumps(calls), seconds=200)
        return list(json.loads(told))

    # his token is good, and shows him what is his: nothing
    empty = [("launcher", "GET", path) for path in ("/jobs", "/models", "/secrets", "/jobs?everyone=1")]
    told = reach(empty)
    assert [status for status, _ in told] == [200] * 4
    assert [list(json.loads(text).values()) for _, text in told] == [[[]]] * 4
    for calls, wanted in (
        (_of_anna(annas_run), {401, 403, 404, 409, 422}),
        ([(annas_lab, "GET", f"/user/anna/api/{what}") for what in ("contents", "kernels")], {401, 403}),
        (
            [("https://kubernetes.default.svc", "GET", path) for path in _of_the_cluster(namespace)],
            {401, 403},
        ),
        (_malformed(annas_run.spec), {400, 403, 404, 405, 413, 422}),
    ):
        told = reach(calls)
        wrong = [
            (call[:3], answer)
            for call, answer in zip(calls, told, strict=True)
            if answer[0] not in wanted or "anna's" in answer[1]
        ]
        assert wrong == []
    # and anna's work is as it was
    assert annas_client.job(annas_run.run_id).attempt == 1
    assert annas_client.secrets() == ["ANNAS_KEY"]
    anna.stop()
    ben.stop()


def _of_the_cluster(namespace: str) -> list[str]:
    """What a session would find its neighbours by."""
    kinds = ("pods", "secrets", "configmaps", "persistentvolumeclaims")
    return ["/api/v1/nodes", *(f"/api/v1/namespaces/{namespace}/{kind}" for kind in kinds)]


def _json(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def _of_anna(view: RunView) -> Calls:
    """Calls for what is anna's."""
    run, snapshot, new = view.run_id, view.spec.snapshot_id, launching.make_promotion_id()
    theirs, plain = to_dict(view.spec), {**to_dict(view.spec), "secrets": []}
    nothing = _json({})
    paths = [f"/jobs/{run}", f"/jobs/{view.promotion_id}"]
    paths += [f"/jobs/{run}/{what}" for what in ("series", "logs", "attempts", "outputs")]
    paths += [f"/jobs/{run}/outputs/1/result.txt", f"/jobs/{run}/logs?rank=agent", f"/events?runs={run}"]
    paths += [f"/snapshots/{snapshot}", f"/snapshots/{snapshot}/files/promoted.py"]
    paths += [f"/attempts/{run}-1/{what}" for what in ("snapshot", "secrets")]
    paths += [f"/mlflow/api/2.0/mlflow/runs/get?run_id={view.mlflow_run_id}"]
    calls: Calls = [("launcher", "GET", path) for path in paths]
    calls += [("launcher", "POST", f"/jobs/{run}/{what}", nothing) for what in ("cancel", "retry")]
    calls += [
        ("launcher", "POST", "/shutdown", nothing),
        ("launcher", "POST", "/jobs", _json({"promotion_id": view.promotion_id, "spec": theirs})),
        ("launcher", "POST", "/jobs", _json({"promotion_id": new, "spec": plain})),
        ("launcher", "POST", "/models/demo/aliases/best", _json({"version": "1"})),
        ("launcher", "DELETE", "/secrets/ANNAS_KEY"),
        ("launcher", "POST", f"/attempts/{run}-1/state", _json({"state": "ended"})),
        ("hub", "GET", "/users/anna"),
        ("hub", "POST", "/users/anna/server", nothing),
        ("hub", "POST", "/users/anna/tokens", nothing),
        ("hub", "POST", "/shutdown", nothing),
    ]
    return calls


def _malformed(spec: JobSpec) -> Calls:
    """Paths that lead out, archives that are none or far too large, bodies that are no JSON or never end."""
    snapshot, _ = launching.make_snapshot("x")
    files = [{"path": "../../identity.json", "sha256": "0" * 64, "size_bytes": 1}]
    archives = [
        _archive("../../identity.json"),
        _archive("0" * 64, size=2**50),
        _archive("0" * 64, kind=tarfile.SYMTYPE),
        gzip.compress(_archive("0" * 64) + bytes(4 * 2**20)),
        b"no archive" * 100,
    ]
    paths = ["/jobs/..%2f..%2fidentity.json", f"/jobs/{'x' * 5000}", "/secrets/..%2f..%2fidentity.json"]
    paths += [f"/snapshots/{'0' * 64}/files/..%2f..%2fidentity.json", "/mlflow/..%2f..%2fetc%2fpasswd"]
    calls: Calls = [("launcher", "GET", path) for path in paths]
    calls += [("launcher", "POST", "/blobs", base64.b64encode(each).decode()) for each in archives]
    calls += [
        ("launcher", "POST", "/snapshots", _json({"snapshot": {**to_dict(snapshot), "files": files}})),
        ("launcher", "POST", "/jobs", base64.b64encode(b"{").decode()),
        ("launcher", "POST", "/jobs", base64.b64encode(b"[" * 5_000).decode()),
        ("launcher", "POST", "/jobs", _json({"promotion_id": "../x", "spec": to_dict(spec)})),
        ("launcher", "POST", "/jobs", None, 65 * 2**20),
    ]
    return calls


def _archive(name: str, *, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)
