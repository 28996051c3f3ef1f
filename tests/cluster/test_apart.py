"""What a user's pod reaches of the cluster, of its neighbours and of the launcher: nothing. And no word becomes a manifest."""

from __future__ import annotations

import base64
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import launching
import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from slicelift.backends.base import Attempt
from slicelift.errors import SliceliftError
from slicelift.models import JobSpec, Status, to_dict
from slicelift_hub.launcher.backends.volcano import Volcano
from slicelift_hub.launcher.backends.volcano.manifest import make_secret
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_profiles import presets
from traitlets.config import Config

PROGRAM = """
import time
import slicelift

if __name__ == "__main__":
    slicelift.log(step=0, loss=1.0)
    time.sleep(600)
"""
SMALL = """
presets:
  - name: torch
    display_name: Torch
    launcher: torchrun
    workers: 1
    cluster: {attempts: 1, grace_seconds: 15, cpu: 0.4, memory: 512Mi, shm: 16Mi, disk: 64Mi}
"""
# runs in the pod, as the job's own code: what each call answers, or why none came
PROBE = """
import json, ssl, sys, urllib.error, urllib.request

trusting = ssl._create_unverified_context()

def call(method, url, token="", body=None):
    data = None if body is None else body.encode()
    asked = urllib.request.Request(url, data=data, method=method)
    if token:
        asked.add_header("Authorization", token)
    try:
        with urllib.request.urlopen(asked, timeout=5, context=trusting) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError as fault:
        return f"{type(getattr(fault, 'reason', fault)).__name__}"

print(json.dumps([call(**asked) for asked in json.loads(sys.argv[1])]))
"""
ABOUT_ITSELF = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "token": os.path.exists("/var/run/secrets"),
    "sockets": [path for path in ("/run/containerd", "/var/run/docker.sock", "/var/lib/kubelet") if os.path.exists(path)],
    "written": [path for path in ("/slicelift/request/x", "/slicelift/start/runtime.pyz", "/etc/x") if writes(path)],
    "services": [name for name in os.environ if name.endswith("_SERVICE_HOST") and not name.startswith("KUBERNETES_")],
    "processes": sorted(pid for pid in os.listdir("/proc") if pid.isdigit())[:1],
}))
"""
# whatever a user, or a notebook that somebody sent, may write where a word is free
NASTY = [
    '"; kubectl delete ns --all #',
    "a\nlabels: {slicelift.io/owner-hash: root}",
    "---\napiVersion: v1\nkind: Pod",
    "}}, {{ .Values.x }} {% raw %}",
    "$(VC_TASK_INDEX) ${HOME} `id` $(id)",
    "'; rm -rf / #",
    "\x1b[31m\r\x7f",
    "&anchor *anchor !!python/object/apply:os.system [id]",
    "../../../kube-system/secrets",
    "名前 🚀 \u202egnp",
    "x" * 5000,
    '\\u0022}, "spec": {"hostNetwork": true}, "y": "',
    "<script>alert(1)</script>",
    "half a pair \ud800",
    "%s%n%(x)s",
    "~ null true 0x1 1e3 2026-01-01",
]


@pytest.fixture(scope="module")
def place(api: Api) -> Iterator[tuple[str, str]]:
    """(namespace, queue) of this module."""
    with kit.queue(api) as queue, kit.namespace(api) as namespace:
        yield namespace, queue


@pytest.fixture(scope="module")
def launcher(
    bed: Place, image: str, place: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launcher]:
    home = tmp_path_factory.mktemp("apart") / "home"
    with launching.serving(home, bed, namespace=place[0], image=image, presets=SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def runs(launcher: Launcher, place: tuple[str, str]) -> tuple[str, str]:
    """A job of somebody, and another one from whose pod everything is tried."""
    made = [launcher.submit(PROGRAM, workers=1, queue=place[1]) for _ in range(2)]
    for run in made:
        launcher.until(run, lambda view: view.status is Status.RUNNING and "loss" in view.latest)
    return made[0], made[1]


@pytest.fixture
def namespace(place: tuple[str, str]) -> str:
    """For the report of a failure."""
    return place[0]


@pytest.fixture
def inside(api: Api, runs: tuple[str, str], namespace: str) -> Callable[..., Any]:
    """Runs a program in the pod of the second job, and gives back the JSON that it prints."""

    def run(program: str, *arguments: str) -> Any:
        told = kit.execute(
            api, namespace, f"{runs[1]}-1-worker-0", f"{sys.prefix}/bin/python", "-c", program, *arguments
        )
        return json.loads(told)

    return run


def test_a_pod_has_no_credentials_no_powers_and_no_place_of_the_nodes(inside: Callable[..., Any]) -> None:
    assert inside(ABOUT_ITSELF) == {
        "uid": 1000,
        "capabilities": 0,
        "no_new_privileges": "1",
        "seccomp": "2",
        "token": False,
        "sockets": [],
        "written": [],
        "services": [],
        "processes": ["1"],
    }


def test_the_api_server_gives_nothing_to_what_a_pod_has(
    inside: Callable[..., Any], api: Api, runs: tuple[str, str], place: tuple[str, str]
) -> None:
    """Neither to nobody nor to the job's own token: not to look, not to change, in no namespace."""
    here, queue = place
    victim, token = f"{runs[0]}-1", _token(api, here, runs[1])
    batch, core = "/apis/batch.volcano.sh/v1alpha1", "/api/v1"
    calls = [
        ("GET", f"{core}/{what}")
        for what in ("namespaces", "nodes", "pods", "secrets", "configmaps", "services")
    ]
    for where in (here, "kube-system", "default"):
        kinds = (
            "pods",
            "secrets",
            "configmaps",
            "services",
            "events",
            "persistentvolumeclaims",
            "serviceaccounts",
        )
        calls += [("GET", f"{core}/namespaces/{where}/{kind}") for kind in kinds]
        calls += [("GET", f"{batch}/namespaces/{where}/jobs")]
    pod = f"{core}/namespaces/{here}/pods/{victim}-worker-0"
    calls += [
        ("GET", f"{core}/namespaces/{here}/secrets/{victim}"),
        ("GET", f"{pod}/log"),
        ("POST", f"{pod}/exec?command=id&stdout=1"),
        ("POST", f"{pod}/eviction"),
        ("DELETE", pod),
        ("POST", f"{core}/namespaces/{here}/pods"),
        ("POST", f"{core}/namespaces/{here}/secrets"),
        ("POST", f"{core}/namespaces/{here}/serviceaccounts/default/token"),
        ("POST", f"{batch}/namespaces/{here}/jobs"),
        ("DELETE", f"{batch}/namespaces/{here}/jobs/{victim}"),
        ("PATCH", f"{batch}/namespaces/{here}/jobs/{victim}"),
        ("POST", f"/apis/bus.volcano.sh/v1alpha1/namespaces/{here}/commands"),
        ("PATCH", f"/apis/scheduling.volcano.sh/v1beta1/queues/{queue}"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
        ("GET", f"{core}/nodes/bed-node/proxy/pods"),
        ("GET", "/metrics"),
        ("GET", "/logs/"),
    ]
    asked = [
        {"method": method, "url": f"https://kubernetes.default.svc{path}", "token": word}
        for word in ("", f"Bearer {token}")
        for method, path in calls
    ]
    told = inside(PROBE, json.dumps(asked))
    let_in = [
        (each["method"], each["url"])
        for each, code in zip(asked, told, strict=True)
        if code not in (401, 403)
    ]
    assert let_in == []


def test_nor_do_the_kubelet_and_the_other_programs_of_the_cluster(
    inside: Callable[..., Any], own_bed: Cluster, api: Api, runs: tuple[str, str], namespace: str
) -> None:
    node = api.core.read_namespaced_pod(f"{runs[1]}-1-worker-0", namespace).status.host_ip
    paths = (
        "pods",
        "runningpods/",
        "metrics",
        "logs/",
        f"exec/{namespace}/{runs[0]}-1-worker-0/worker?command=id",
    )
    kubelet = [{"method": "GET", "url": f"https://{node}:10250/{path}"} for path in paths]
    read_only = [{"method": "GET", "url": f"http://{node}:10255/pods"}]
    others = [
        {"method": "GET", "url": f"{scheme}://{own_bed.host_ip}:{port}/"}
        for name, port in own_bed.layout.ports.items()
        if name != "kube-apiserver"
        for scheme in ("http", "https")
    ]
    told = inside(PROBE, json.dumps(kubelet + read_only + others))
    assert set(told[: len(kubelet)]) <= {401, 403}
    # closed: nobody listens there
    assert set(told[len(kubelet) :]) == {"ConnectionRefusedError"}


def test_a_jobs_token_opens_its_own_attempt_and_nothing_else_of_the_launcher(
    inside: Callable[..., Any], api: Api, runs: tuple[str, str], namespace: str, launcher: Launcher
) -> None:
    """From the pod, at the address that the pod was given; what is malformed or too large is refused as such."""
    theirs, mine = runs
    request = _request(api, namespace, mine)
    base, token = f"{request['launcher_url']}/api/v1", f"token {request['token']}"
    other = f"{base}/attempts/{theirs}-1"
    own = f"{base}/attempts/{mine}-1"
    points = json.dumps({"streams": []})
    refused = [
        ("GET", f"{base}/jobs"),
        ("GET", f"{base}/jobs/{theirs}"),
        ("GET", f"{base}/jobs/{mine}"),
        ("POST", f"{base}/jobs/{theirs}/cancel"),
        ("GET", f"{base}/events"),
        ("GET", f"{base}/secrets"),
        ("PUT", f"{base}/secrets/KEY"),
        ("GET", f"{base}/mlflow/"),
        ("POST", f"{base}/shutdown"),
        ("GET", f"{other}/snapshot"),
        ("GET", f"{other}/secrets"),
        ("POST", f"{other}/events"),
        ("POST", f"{other}/state"),
        ("POST", f"{other}/logs?rank=0&offset=0"),
        ("PUT", f"{other}/outputs/x?sha256={'0' * 64}"),
        ("GET", f"{base}/attempts/{mine}-99/snapshot/../../../jobs"),
    ]
    asked = [{"method": method, "url": url, "token": token, "body": points} for method, url in refused]
    asked += [{"method": "GET", "url": f"{base}/jobs"}, {"method": "GET", "url": f"{own}/snapshot"}]
    told = inside(PROBE, json.dumps(asked))
    let_in = [
        (each["url"], code) for each, code in zip(asked, told, strict=True) if code not in (401, 403, 404)
    ]
    assert let_in == []
    digest = "0" * 64
    faulty = [
        {"method": "PUT", "url": f"{own}/outputs/..%2f..%2fidentity.json?sha256={digest}", "body": "x"},
        {"method": "PUT", "url": f"{own}/outputs/%2fetc%2fpasswd?sha256={digest}", "body": "x"},
        {"method": "PUT", "url": f"{own}/outputs/fine?sha256={digest}", "body": "x"},
        {"method": "PUT", "url": f"{own}/outputs/fine?sha256=../../x", "body": "x"},
        {"method": "POST", "url": f"{own}/events", "body": "{"},
        {"method": "POST", "url": f"{own}/events", "body": json.dumps({"streams": [{"rank": 10**9}]})},
        {"method": "POST", "url": f"{own}/events", "body": "[" * 5_000},
        {"method": "POST", "url": f"{own}/logs?rank=..%2f..&offset=0", "body": "x"},
        {"method": "POST", "url": f"{own}/logs?rank=0&offset=-1", "body": "x"},
        {
            "method": "POST",
            "url": f"{own}/models",
            "body": json.dumps({"name": "m", "files": [{"path": "../m"}]}),
        },
    ]
    told = inside(PROBE, json.dumps([{**each, "token": token} for each in faulty]))
    assert [code for code in told if not 400 <= code < 500] == []
    # and A's job, and the launcher, are as they were
    assert launcher.client.job(theirs).status is Status.RUNNING
    assert launcher.client.series(theirs, keys=["loss"])[0]["count"] == 1
    assert launcher.client.outputs(mine) == []


def test_a_word_that_a_user_wrote_stays_a_word(api: Api, backend: Volcano, namespace: str) -> None:
    """The API server itself reads each manifest, and gives back what was meant: the same as for a plain name."""
    plain = _skeleton(backend.render(_spec(), _attempt()))
    for word in NASTY:
        spec = _spec(
            name=word,
            notebook=f"{word}.ipynb",
            cwd=word,
            parameters={word: word},
            tags={word: word},
            experiment=word,
            model_name=word,
        )
        attempt = _attempt(owner=word)
        job = backend.render(spec, attempt)
        assert _skeleton(job) == plain, word
        made = api.custom.create_namespaced_custom_object(
            *kit.BATCH, namespace, "jobs", job, dry_run="All", field_validation="Strict"
        )
        assert made["spec"] == job["spec"]
        assert made["metadata"]["annotations"].items() >= job["metadata"]["annotations"].items()
        secret = make_secret(made, spec, attempt, preset=presets.get("torchrun"), site=Site())
        kept = api.core.create_namespaced_secret(namespace, secret, dry_run="All", field_validation="Strict")
        assert json.loads(base64.b64decode(kept.data["agent.json"]))["spec"] == to_dict(spec)


def test_a_users_namespace_is_always_one_of_ours(api: Api, backend: Volcano) -> None:
    backend.namespace = "sl-{owner}"
    for word in [*NASTY, "kube-system", "../kube-system", "a.b", "Root", ""]:
        found = backend.render(_spec(), _attempt(owner=word))["metadata"]["namespace"]
        assert re.fullmatch(r"sl-[a-z0-9]([-a-z0-9]*[a-z0-9])?", found), word
        api.core.create_namespace({"metadata": {"name": found}}, dry_run="All")


@pytest.mark.parametrize(
    "asked",
    [
        *(
            {"image": image}
            for image in ("a b", "a\nb", "$(IMAGE)", "../x", "http://x/y", "x; id", "A/b", "x:$(y)")
        ),
        *({"queue": queue} for queue in ('"', "a/../b", "root", "队列", "$(q)", "x\ny")),
        *({"slice": name} for name in ("1g.10gb; id", "../gpu", "1g.10gb\n", "$(s)")),
        {"preset": "../presets"},
    ],
    ids=repr,
)
def test_what_must_name_something_is_refused_unless_it_does(backend: Volcano, asked: dict[str, Any]) -> None:
    with pytest.raises(SliceliftError):
        backend.submit(_spec(gpus_per_worker=0, **asked), _attempt())


@pytest.mark.parametrize(
    "name", ["r-x\n-1", "R-x-1", "../r-x-1", "r_x-1", "r.x-1", "1-x", "$(x)-1", "r-x" * 30, ""]
)
def test_no_other_name_becomes_a_jobs(backend: Volcano, name: str) -> None:
    with pytest.raises(SliceliftError, match="cannot be the name"):
        backend.render(_spec(), replace(_attempt(), attempt_id=name))


def test_a_commands_words_are_taken_literally(launcher: Launcher, place: tuple[str, str]) -> None:
    """Kubernetes replaces $(NAME) in a command, and no shell sees it: what is told is what was asked."""
    python = "/nowhere/$(VC_TASK_INDEX)/`id`/'python'"
    run = launcher.submit(PROGRAM, workers=1, queue=place[1], python=python)
    view = launcher.until(run, lambda view: view.status.terminal)
    assert view.status is Status.FAILED
    assert python in (view.failure.message if view.failure else view.message)


@pytest.fixture
def backend(kubeconfig: Path, namespace: str) -> Iterator[Volcano]:
    words = {"kubeconfig": str(kubeconfig), "namespace": namespace}
    words["image"] = "registry.example/none@sha256:" + "0" * 64
    made = Volcano(config=Config(Volcano=words))
    yield made
    made.close()


def _spec(**asked: Any) -> JobSpec:
    words = {"name": "plain", "notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "queue": "default"}
    return JobSpec(**{"snapshot_id": "0" * 64, "python": "/usr/bin/python3", "workers": 1, **words, **asked})


def _attempt(owner: str = "ada") -> Attempt:
    run = f"r-{secrets.token_hex(6)}"
    ids = {"attempt_id": f"{run}-1", "run_id": run, "promotion_id": "p-" + "a" * 20, "attempt": 1}
    return Attempt(**ids, launcher_url="http://127.0.0.1:9", token="secret", owner=owner)


def _skeleton(job: dict[str, Any]) -> dict[str, Any]:
    """A manifest without what tells jobs and owners apart, and without the values of its notes."""
    text = json.dumps(job["spec"])
    spec = json.loads(text.replace(job["metadata"]["name"], "NAME"))
    labels = spec["tasks"][0]["template"]["metadata"]["labels"]
    for name in ("slicelift.io/run", "slicelift.io/owner-hash"):
        assert re.fullmatch(r"[-a-z0-9]{1,63}", labels[name])
        labels[name] = ""
    metadata = job["metadata"]
    notes = sorted(metadata["annotations"])
    assert all(isinstance(each, str) and len(each) <= 1024 for each in metadata["annotations"].values())
    return {"spec": spec, "keys": sorted(metadata), "labels": sorted(metadata["labels"]), "notes": notes}


def _request(api: Api, namespace: str, run: str) -> dict[str, Any]:
    """What the pods of a run read."""
    secret = api.core.read_namespaced_secret(f"{run}-1", namespace)
    found: dict[str, Any] = json.loads(base64.b64decode(secret.data["agent.json"]))
    return found


def _token(api: Api, namespace: str, run: str) -> str:
    return str(_request(api, namespace, run)["token"])
