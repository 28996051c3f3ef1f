"""The launcher's rights in the cluster: all that its code calls, and nothing besides. Asked of the API server itself."""

from __future__ import annotations

import importlib.util
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import accounts
import httpx
import pytest
import yaml
from bed import kit
from bed.kit import Api
from kubernetes import client
from kubernetes.client import ApiException
from slicelift.backends.base import Attempt
from slicelift.errors import Refused, SliceliftError, Unavailable
from slicelift.models import DataRef, JobSpec, Status
from slicelift_hub.launcher.backends.volcano import ending
from slicelift_hub.launcher.backends.volcano.backend import Volcano
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.names import parse_handle
from traitlets.config import Config

RBAC = Path(__file__).resolve().parents[2] / "hub" / "deploy" / "rbac"
BATCH, SCHEDULING, CORE, PLAIN_BATCH = "batch.volcano.sh", "scheduling.volcano.sh", "", "batch"

SMALL = """\
presets:
  - name: torchrun
    display_name: Small
    launcher: torchrun
    workers: 1
    cluster: {cpu: 0.1, memory: 64Mi, shm: 16Mi, disk: 100Mi, topology: {mode: soft, highest_tier: 1}}
"""

CONFIG = """\
c.Launcher.backend = "slicelift_hub.launcher.backends.volcano.Volcano"
c.Launcher.address = "0.0.0.0"
c.Launcher.public_url = "http://launcher.example:8765"
c.Launcher.tracker = "none"
c.Launcher.ledger = "{ledger}"
c.Launcher.policy_file = "{folder}/policy.yaml"
c.Volcano.kubeconfig = "{launcher.kubeconfig}"
c.Volcano.namespace = "{launcher.jobs}"
c.Volcano.image = "127.0.0.1:9/none@sha256:{digest}"
c.Volcano.presets_file = "{folder}/presets.yaml"
""".replace("{digest}", "0" * 64)

# (API group, resource, verb)
Right = tuple[str, str, str]
OF_THE_CLUSTER: set[Right] = {
    (SCHEDULING, "queues", "list"),
    (SCHEDULING, "queues", "watch"),
    ("topology.volcano.sh", "hypernodes", "list"),
    *((CORE, "nodes", verb) for verb in ("get", "list", "watch")),
}
OF_A_NAMESPACE: set[Right] = {
    *((BATCH, "jobs", verb) for verb in ("create", "get", "list", "watch", "delete", "patch")),
    *((PLAIN_BATCH, "jobs", verb) for verb in ("create", "list", "delete")),
    *((SCHEDULING, "podgroups", verb) for verb in ("list", "watch")),
    *((CORE, "pods", verb) for verb in ("list", "watch", "delete")),
    *((CORE, "events", verb) for verb in ("list", "watch")),
    (CORE, "secrets", "create"),
    *((CORE, "configmaps", verb) for verb in ("create", "list", "delete")),
    (CORE, "persistentvolumeclaims", "get"),
}


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A service account with the rights of hub/deploy/rbac, as the launcher has it."""

    api: Api
    kubeconfig: Path
    home: str
    jobs: str


@pytest.fixture
def home(api: Api) -> Iterator[str]:
    """The launcher's own namespace, in which no jobs run."""
    with kit.namespace(api) as name:
        yield name


@pytest.fixture
def launcher(api: Api, namespace: str, home: str, tmp_path: Path) -> Iterator[Launcher]:
    """The manifests as they are, but for names: tests may run beside a real installation."""
    suffix = secrets.token_hex(3)
    bodies = [
        _renamed(body, home=home, suffix=suffix)
        for file in ("launcher.yaml", "jobs-namespace.yaml")
        for body in yaml.safe_load_all((RBAC / file).read_text())
    ]
    made = [undo for body in bodies if (undo := _create(api, body, namespace))]
    path = accounts.kubeconfig(
        api, tmp_path / "launcher.kubeconfig", account=f"slicelift-launcher-{suffix}", namespace=home
    )
    clients = kit.connect(path)
    yield Launcher(api=clients, kubeconfig=path, home=home, jobs=namespace)
    clients.raw.close()
    for undo in reversed(made):
        undo()


def test_the_rights_are_those_listed_here_and_no_more(api: Api, launcher: Launcher, tmp_path: Path) -> None:
    nobody = kit.connect(
        accounts.kubeconfig(api, tmp_path / "nobody", account="default", namespace=launcher.home)
    )
    anyone = accounts.rights(nobody, launcher.jobs)
    assert accounts.rights(launcher.api, launcher.jobs) - anyone == OF_THE_CLUSTER | OF_A_NAMESPACE
    for elsewhere in (launcher.home, "kube-system", "default"):
        assert accounts.rights(launcher.api, elsewhere) - anyone == OF_THE_CLUSTER
    # who has no account of the launcher's can only ask what they may do
    assert {resource for _, resource, _ in anyone} <= {
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
        "clustertrustbundles",
    }
    nobody.raw.close()


def test_what_the_code_calls_is_what_is_granted(
    api: Api, launcher: Launcher, queue: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The life of a job by the launcher's own account, with every call noted: none is refused, no right is idle."""
    presets = tmp_path / "presets.yaml"
    presets.write_text(SMALL)
    calls = _noted(monkeypatch)
    backend = Volcano(
        config=Config(
            Volcano={
                "kubeconfig": str(launcher.kubeconfig),
                "namespace": launcher.jobs,
                "image": "127.0.0.1:9/none@sha256:" + "0" * 64,
                "checkpoints_claim": "not-there",
                "data_claim": "not-there-either",
                "presets_file": str(presets),
            }
        )
    )
    spec, attempt = _make_spec(queue), _make_attempt()
    cold = replace(spec, data=(_make_data(),))
    assert "Fetching the data" in backend.prepare(cold, attempt).message
    backend.abandon(cold, attempt)
    backend.plan(spec, attempt)
    handle = backend.submit(spec, attempt)
    assert backend.submit(spec, attempt) == handle
    backend.scale(handle, 1)
    backend.scale(handle, 2)
    kit.wait_for("the pods", lambda: api.core.list_namespaced_pod(launcher.jobs).items)
    kit.wait_for("the claim's name in the reason", lambda: "not-there" in backend.status(handle).message)
    assert backend.status(handle).status == Status.WAITING
    backend.capacity()
    _leave_an_orphan(api, launcher.jobs)
    assert backend.sweep() == ["configmap slicelift-runtime-old"]
    assert backend.cancel(handle, reason="test", grace_seconds=1).gone
    assert backend.discard(handle)
    # asked only when a node does not answer, which a test of rights need not cause
    ending._answers(Client(kubeconfig=str(launcher.kubeconfig)), "no-such-node")
    backend.close()
    assert parse_handle(handle) == (launcher.jobs, attempt.attempt_id)
    assert calls == OF_THE_CLUSTER | OF_A_NAMESPACE


@pytest.mark.parametrize("there", [True, False])
def test_where_the_launcher_has_no_rights_a_job_waits_for_them(
    launcher: Launcher, queue: str, tmp_path: Path, there: bool
) -> None:
    """A namespace without `jobs-namespace.yaml`, or none at all: with these rights the two look the same."""
    presets = tmp_path / "presets.yaml"
    presets.write_text(SMALL)
    words = {"kubeconfig": str(launcher.kubeconfig), "image": "127.0.0.1:9/none@sha256:" + "0" * 64}
    words |= {"namespace": launcher.home if there else "nobody-lives-here", "presets_file": str(presets)}
    backend = Volcano(config=Config(Volcano=words))
    spec, attempt = _make_spec(queue), _make_attempt()
    with closing(backend):
        assert backend.plan(spec, attempt)[0].startswith("It would wait: The launcher may not do this")
        for ask in (
            lambda: backend.submit(spec, attempt),
            lambda: backend.abandon(spec, attempt),
            lambda: backend.status(f"volcano://{backend.namespace}/r-a-1"),
            lambda: backend.cancel(f"volcano://{backend.namespace}/r-a-1", reason="test"),
        ):
            with pytest.raises(Unavailable) as caught:
                ask()
            assert caught.value.code == "cluster-denied"
        assert backend.sweep() == []


def test_everything_else_is_denied_by_the_server(api: Api, launcher: Launcher) -> None:
    """Some of what an attacker with the launcher's token would try."""
    core, custom = launcher.api.core, launcher.api.custom
    rights = client.RbacAuthorizationV1Api(launcher.api.raw)
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    job = {"apiVersion": f"{BATCH}/v1alpha1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    here, home = launcher.jobs, launcher.home
    secret = {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    core.create_namespaced_secret(here, secret)
    tries: list[Callable[[], Any]] = [
        lambda: core.read_namespaced_secret("s", here),
        lambda: core.list_namespaced_secret(here),
        lambda: core.delete_namespaced_secret("s", here),
        lambda: core.create_namespaced_secret(home, secret),
        lambda: core.create_namespaced_pod(here, pod),
        lambda: core.read_namespaced_pod("p", here),
        lambda: core.list_pod_for_all_namespaces(),
        lambda: core.connect_get_namespaced_pod_exec("p", here, command=["id"]),
        lambda: core.read_namespaced_pod_log("p", here),
        lambda: core.list_namespaced_pod(home),
        lambda: core.list_namespace(),
        lambda: core.create_namespaced_service_account_token("default", here, {"spec": {}}),
        lambda: core.patch_node("n", {}),
        lambda: core.delete_node("n"),
        lambda: custom.create_namespaced_custom_object(BATCH, "v1alpha1", home, "jobs", job),
        lambda: custom.patch_namespaced_custom_object(BATCH, "v1alpha1", home, "jobs", "j", {}),
        lambda: custom.list_cluster_custom_object(BATCH, "v1alpha1", "jobs"),
        lambda: custom.patch_cluster_custom_object(SCHEDULING, "v1beta1", "queues", "default", {}),
        lambda: custom.delete_cluster_custom_object(SCHEDULING, "v1beta1", "queues", "default"),
        lambda: rights.create_cluster_role_binding({"metadata": {"name": "x"}, "roleRef": admin}),
        lambda: rights.list_namespaced_role_binding(here),
    ]
    for number, attempt in enumerate(tries):
        with pytest.raises(ApiException) as refusal:
            attempt()
        assert refusal.value.status == 403, f"try {number}: {refusal.value.status} {refusal.value.reason}"
    api.core.delete_namespaced_secret("s", here)


def test_what_users_start_has_no_token_of_the_cluster(api: Api, launcher: Launcher, tmp_path: Path) -> None:
    """Also a pod whose author forgot to say so; and a token of its account opens nothing."""
    spec = {"containers": [{"name": "c", "image": "registry.example/none:1"}], "schedulerName": "nobody"}
    made = api.core.create_namespaced_pod(launcher.jobs, {"metadata": {"name": "forgetful"}, "spec": spec})
    assert not made.spec.volumes
    path = accounts.kubeconfig(api, tmp_path / "user", account="default", namespace=launcher.jobs)
    user = kit.connect(path)
    for attempt in (
        lambda: user.core.list_namespaced_pod(launcher.jobs),
        lambda: user.core.list_namespaced_secret(launcher.jobs),
        lambda: user.custom.list_namespaced_custom_object(BATCH, "v1alpha1", launcher.jobs, "jobs"),
        lambda: user.core.list_node(),
    ):
        with pytest.raises(ApiException) as refusal:
            attempt()
        assert refusal.value.status == 403
    user.raw.close()


@pytest.fixture
def serving(launcher: Launcher, queue: str, tmp_path: Path) -> Iterator[Any]:
    """A launcher process with these rights and a ledger on PostgreSQL, as docs/launcher-on-a-cluster.md sets one up."""
    server = _load("conftest")
    with _load("postgres").serving() as postgres:
        home = tmp_path / "home"
        home.mkdir()
        (tmp_path / "presets.yaml").write_text(SMALL)
        (tmp_path / "policy.yaml").write_text(
            f"rules:\n  - name: team\n    queues: [{queue}]\n    max_workers: 2\n"
        )
        (home / "launcher_config.py").write_text(
            CONFIG.format(launcher=launcher, folder=tmp_path, ledger=postgres.make_database())
        )
        made = server.Launcher(home, "--port", "0")
        try:
            yield made.start()
        finally:
            made.close()


@pytest.mark.drill
def test_a_launcher_with_these_rights_plans_submits_cancels_and_survives_kills(
    api: Api, launcher: Launcher, queue: str, serving: Any
) -> None:
    """Every job is one Job of Volcano's, whenever the launcher is killed; nothing serves its image, so it never runs."""
    spec = serving.spec(workers=2, queue=queue)
    plan = serving.client.plan(spec)
    assert (plan["position"], plan["manifest"]["kind"]) == (None, "Job")
    assert any("Rule team (policy.yaml:2)" in note for note in plan["notes"])
    assert queue in serving.client.capacity()["queues"]
    for changes in ({"workers": 3}, {"queue": "default"}):
        with pytest.raises(Refused, match=r"Rule team \(policy.yaml:"):
            serving.submit(**({"workers": 2, "queue": queue} | changes))
    promotions = [f"p-{'abcd'[number] * 20}" for number in range(4)]
    for number, promotion_id in enumerate(promotions):
        killer = threading.Timer(0.05 * 3**number, serving.kill)
        killer.start()
        with suppress(SliceliftError, httpx.TransportError):
            serving.client.submit(promotion_id, spec)
        killer.join()
        serving.start()
    runs = [serving.client.submit(promotion_id, spec).run_id for promotion_id in promotions]
    kit.wait_for(
        "one Job each", lambda: _jobs(api, launcher.jobs) == sorted(f"{run_id}-1" for run_id in runs)
    )
    kit.wait_for("the image's name", lambda: "127.0.0.1:9/none" in serving.client.job(runs[0]).message)
    for run_id in runs:
        assert serving.client.cancel(run_id).status == Status.KILLED
    assert _jobs(api, launcher.jobs) == []
    assert api.core.list_namespaced_pod(launcher.jobs).items == []


def _load(name: str) -> Any:
    """A module of the server's tests: the launcher as a process, a PostgreSQL of one's own."""
    path = Path(__file__).resolve().parents[1] / "server" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"slicelift_server_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _jobs(api: Api, namespace: str) -> list[str]:
    found = api.custom.list_namespaced_custom_object(BATCH, "v1alpha1", namespace, "jobs")["items"]
    return sorted(item["metadata"]["name"] for item in found)


def _renamed(body: Any, *, home: str, suffix: str) -> Any:
    """A manifest with its own names made unique and the launcher's namespace replaced."""
    if isinstance(body, dict):
        return {key: _renamed(value, home=home, suffix=suffix) for key, value in body.items()}
    if isinstance(body, list):
        return [_renamed(item, home=home, suffix=suffix) for item in body]
    if isinstance(body, str) and body.startswith("slicelift-launcher"):
        return f"{body}-{suffix}"
    return home if body == "slicelift" else body


def _create(api: Api, body: dict[str, Any], namespace: str) -> Callable[[], Any] | None:
    """What `kubectl apply` does; how to take it back, for what no namespace takes with it."""
    rights = client.RbacAuthorizationV1Api(api.raw)
    name, here = body["metadata"]["name"], body["metadata"].get("namespace", namespace)
    if body["kind"] == "ClusterRole":
        rights.create_cluster_role(body)
        return lambda: rights.delete_cluster_role(name)
    if body["kind"] == "ClusterRoleBinding":
        rights.create_cluster_role_binding(body)
        return lambda: rights.delete_cluster_role_binding(name)
    if body["kind"] == "RoleBinding":
        rights.create_namespaced_role_binding(here, body)
    elif name == "default":
        api.core.patch_namespaced_service_account(name, here, body)
    else:
        api.core.create_namespaced_service_account(here, body)
    return None


def _noted(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    """A set that gets the right which each call of the launcher's client needs."""
    calls: set[Right] = set()
    send = Client._send

    def noting(self: Client, method: str, path: str, **words: Any) -> Any:
        calls.add(_right(method, path, words.get("query") or {}))
        return send(self, method, path, **words)

    monkeypatch.setattr(Client, "_send", noting)
    return calls


def _right(method: str, path: str, query: Any) -> Right:
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    rest = rest[2:] if rest[0] == "namespaces" else rest
    if method != "GET":
        return (group, rest[0], {"POST": "create", "DELETE": "delete", "PATCH": "patch"}.get(method, method))
    return (group, rest[0], "watch" if "watch" in query else "get" if len(rest) > 1 else "list")


def _leave_an_orphan(api: Api, namespace: str) -> None:
    """What an earlier launcher may have left: a runtime of another version."""
    labels = {"app.kubernetes.io/managed-by": "slicelift"}
    api.core.create_namespaced_config_map(
        namespace, {"metadata": {"name": "slicelift-runtime-old", "labels": labels}}
    )


def _make_spec(queue: str) -> JobSpec:
    words = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "/usr/bin/python3"}
    return JobSpec(name="rights", snapshot_id="0" * 64, queue=queue, workers=2, min_workers=1, **words)


def _make_data() -> DataRef:
    return DataRef(
        path="data", dvc_file="data.dvc", md5="0" * 32 + ".dir", size_bytes=1, nfiles=1, remote="r"
    )


def _make_attempt() -> Attempt:
    run_id = f"r-{secrets.token_hex(6)}"
    return Attempt(
        attempt_id=f"{run_id}-1",
        run_id=run_id,
        promotion_id="p-" + "a" * 20,
        attempt=1,
        launcher_url="http://launcher.example:8765",
        token="a-" + "0" * 64,
        owner="ann",
    )
