"""Each user in a namespace of their own with a home that the hub makes, and sessions that nobody uses end.

About six minutes: a hub, four sessions, a job, and twice the time that it takes to be idle.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import accounts
import launching
import members
import pytest
from bed import kit
from bed.kit import Api
from elsewhere import Place
from members import Person, pod_of
from place import HOME, ClusterHub
from slicelift.launcher_client import Client
from slicelift.models import Status

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
# longer than a kernel takes to start on a busy machine
IDLE_SECONDS = 90
PROFILES = """
profiles:
  - {slug: cpu, display_name: CPU only, cpu: 0.2, memory: 1Gi, default: true, idle_minutes: 120}
  - {slug: short, display_name: Not for long, cpu: 0.2, memory: 1Gi}
"""
# runs in a session: a cell of the kernel with that id that never ends, sent as a notebook sends it
BUSY = """
import sys
from jupyter_client import BlockingKernelClient, find_connection_file
kernel = BlockingKernelClient(connection_file=find_connection_file(f"kernel-{sys.argv[1]}.json"))
kernel.load_connection_file()
kernel.start_channels(hb=False)
kernel.wait_for_ready(timeout=120)
kernel.execute("import time\\nwhile True: time.sleep(0.1)")
while kernel.get_iopub_msg(timeout=120)["header"]["msg_type"] != "execute_input":
    pass
print("begun")
"""
PROGRAM = """
import slicelift

if __name__ == "__main__":
    slicelift.log(step=0, loss=1.0)
"""
PYTHON = f"{sys.prefix}/bin/python"


@pytest.fixture(scope="module")
def prefix() -> str:
    """Of the users' namespaces; ben has none."""
    return f"u-{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def hub(
    api: Api, bed: Place, session_image: str, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterHub]:
    folder = tmp_path_factory.mktemp("places")
    with ExitStack() as stack:
        queue = stack.enter_context(kit.queue(api))
        here = stack.enter_context(kit.namespace(api))
        names = [f"{prefix}-{name}" for name in ("anna", "dora")]
        for name in names:
            stack.enter_context(kit.namespace(api, name=name))
            stack.enter_context(_volume(api, bed, name, claim=f"home-{name.removeprefix(f'{prefix}-')}"))
        for_hub, for_launcher = (
            stack.enter_context(accounts.account(api, who, namespace=here, folder=folder, also=names))
            for who in (accounts.HUB, accounts.LAUNCHER)
        )
        made = ClusterHub(
            home=folder / "home",
            address=bed.host_ip,
            kubeconfig=for_hub,
            launcher_kubeconfig=for_launcher,
            namespace=here,
            queue=queue,
            image=session_image,
            settings={"namespace": f"{prefix}-{{owner}}"},
            session_settings={"namespace": f"{prefix}-{{username}}", **_HOME},
            more={"SLICELIFT_IDLE_SECONDS": str(IDLE_SECONDS), "SLICELIFT_CULL_SECONDS": "1"},
        )
        made.start()
        stack.callback(made.stop)
        (made.home / "profiles.yaml").write_text(PROFILES)
        yield made


# as docs/cluster.md has it
_HOME = {
    "storage_pvc_ensure": True,
    "pvc_name_template": "home-{user_server}",
    "storage_capacity": "1Gi",
    "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}],
    "volume_mounts": [{"name": "home", "mountPath": HOME}],
}


@pytest.fixture(scope="module")
def dora(sign_in: Callable[[str], Person]) -> Person:
    return sign_in("dora")


@pytest.fixture
def namespace(prefix: str) -> str:
    """Anna's, for the report of a failure."""
    return f"{prefix}-anna"


def test_a_session_and_its_jobs_are_in_the_users_namespace_and_the_home_stays(
    anna: Person, hub: ClusterHub, api: Api, namespace: str
) -> None:
    anna.spawn("cpu")
    pod = pod_of(api, namespace, "anna").metadata.name
    claim = api.core.read_namespaced_persistent_volume_claim("home-anna", namespace)
    assert (claim.status.phase, claim.spec.resources.requests) == ("Bound", {"storage": "1Gi"})
    kit.execute(api, namespace, pod, "sh", "-c", f"echo kept > {HOME}/word")
    token = anna.token()
    with Client(f"http://{hub.address}:{hub.launcher_port}", token) as client:
        spec = launching.upload(client, PROGRAM, preset="small", workers=1, queue=hub.queue)
        run = client.submit(launching.make_promotion_id(), spec).run_id
        kit.wait_for("anna's job", lambda: client.job(run).status.terminal, seconds=240)
        done = client.job(run)
    assert (done.status, done.handle) == (Status.FINISHED, f"volcano://{namespace}/{run}-1")
    anna.stop()
    kit.wait_for("the pod to go", lambda: not _sessions(api, namespace))
    anna.spawn("cpu")
    assert kit.execute(api, namespace, pod, "cat", f"{HOME}/word").strip() == "kept"
    anna.stop()


def test_who_has_no_namespace_is_told_which_one_is_missing(
    sign_in: Callable[[str], Person], hub: ClusterHub, prefix: str
) -> None:
    refused = sign_in("ben").begin("cpu")
    assert refused.status_code == 503
    told = refused.json()["message"]
    assert told.startswith(f"The cluster takes no session in the namespace {prefix}-ben: events is forbidden")
    # and the hub does not ask for ever
    assert "cannot watch" not in (hub.home / "hub" / "hub.log").read_text()


def test_a_namespace_without_room_says_so(dora: Person, api: Api, prefix: str) -> None:
    place, quota = f"{prefix}-dora", {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    api.core.create_namespaced_resource_quota(place, quota)
    kit.wait_for("the quota", lambda: api.core.read_namespaced_resource_quota("none", place).status.hard)
    refused = dora.begin("cpu")
    assert refused.status_code == 503
    assert "exceeded quota: none" in refused.json()["message"]
    api.core.delete_namespaced_resource_quota("none", place)


def test_a_session_that_nobody_uses_ends_and_one_with_a_busy_kernel_never(
    anna: Person, dora: Person, api: Api, namespace: str, prefix: str
) -> None:
    dora.spawn("short")
    session = pod_of(api, f"{prefix}-dora", "dora").metadata.name
    kernel = dora.session("POST", "kernels", {"name": "python3"}).json()["id"]
    told = kit.execute(api, f"{prefix}-dora", session, PYTHON, "-c", BUSY, kernel, seconds=180)
    assert told.strip() == "begun"
    anna.spawn("short")
    ready = time.monotonic()
    kit.wait_for("anna's session to be ended", lambda: not anna.is_ready(), seconds=300)
    assert time.monotonic() - ready > IDLE_SECONDS / 2
    kit.wait_for("her pod to go", lambda: not _sessions(api, namespace))
    # busy for longer than that, and nothing else keeps it
    assert dora.is_ready()
    assert dora.session("POST", f"kernels/{kernel}/interrupt").status_code == 204
    kit.wait_for("dora's session to be ended", lambda: not dora.is_ready(), seconds=300)
    kit.wait_for("dora's pod to go", lambda: not _sessions(api, f"{prefix}-dora"))


def _sessions(api: Api, namespace: str) -> list[object]:
    return list(api.core.list_namespaced_pod(namespace, label_selector=members.SESSION).items)


@contextmanager
def _volume(api: Api, bed: Place, namespace: str, *, claim: str) -> Iterator[None]:
    """A volume for a claim that somebody else makes, on a folder that this machine and the node see."""
    folder = bed.shared / f"{claim}-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)
    kept = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    bound = {"claimRef": {"namespace": namespace, "name": claim}, "hostPath": {"path": str(folder)}}
    api.core.create_persistent_volume({"metadata": {"name": folder.name}, "spec": {**kept, **bound}})
    try:
        yield
    finally:
        api.core.delete_persistent_volume(folder.name)
        shutil.rmtree(folder)
