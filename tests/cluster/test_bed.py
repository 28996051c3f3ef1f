"""The bed does what a cluster does: gangs on slices and on fake nodes, names, services, logs, rights, refusals."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from bed import kit, kwok
from bed.cluster import Cluster
from bed.kit import Api
from bed.layout import NODE
from kubernetes.client import ApiException

SLICE = "nvidia.com/mig-1g.10gb"


@pytest.fixture
def fake_nodes(own_bed: Cluster) -> Iterator[list[str]]:
    names = own_bed.add_fake_nodes(4, {"nvidia.com/gpu": "8"}, prefix="fake-test")
    yield names
    own_bed.remove_fake_nodes(names)


def test_two_pods_on_slices_find_each_other_and_complete(
    own_bed: Cluster, api: Api, namespace: str, queue: str, image: str
) -> None:
    program = (
        "import os, socket, time; job, me = os.environ['JOB'], int(os.environ['VC_TASK_INDEX'])\n"
        "for attempt in range(100):\n"
        "    try: address = socket.gethostbyname(f'{job}-worker-{1 - me}.{job}'); break\n"
        "    except socket.gaierror: time.sleep(0.2)  # the other one has no address yet\n"
        "print(address, os.environ['NVIDIA_VISIBLE_DEVICES'])"
    )
    job = kit.gang(
        "pair", queue=queue, image=image, command=["python", "-c", program], resources={SLICE: "1"}
    )
    worker = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    worker["env"] = [{"name": "JOB", "value": "pair"}]
    kit.submit(api, namespace, job)
    assert kit.wait_phase(api, namespace, "pair", "Completed", "Failed", "Terminated") == "Completed"
    told = [kit.logs(api, namespace, f"pair-worker-{index}").split() for index in (0, 1)]
    pods = api.core.list_namespaced_pod(namespace).items
    assert {pod.spec.node_name for pod in pods} == {NODE}
    declared = {one["uuid"] for one in own_bed.devices() if one["resource"] == SLICE}
    assert len({uuid for _, uuid in told}) == 2
    assert {uuid for _, uuid in told} <= declared


def test_a_gang_of_fake_pods_ends_as_it_was_told(api: Api, namespace: str, fake_nodes: list[str]) -> None:
    where = {"nodeSelector": kwok.LABEL, "tolerations": [kwok.TOLERATION]}
    # the queue of the fixture was made before these nodes: it knows nothing of their GPUs
    with kit.queue(api) as queue:
        for name, exit_code in (("good", 0), ("bad", 78)):
            ends = kwok.pod_ends(after="1s", exit_code=exit_code)
            job = kit.gang(
                name,
                queue=queue,
                image="none",
                command=["none"],
                replicas=4,
                resources={"nvidia.com/gpu": "4"},
                pod=where,
                annotations=ends,
            )
            kit.submit(api, namespace, job)
        assert kit.wait_phase(api, namespace, "good", "Completed", "Failed", "Terminated") == "Completed"
        assert kit.wait_phase(api, namespace, "bad", "Completed", "Failed", "Terminated") == "Terminated"


def test_the_webhook_refuses_what_cannot_be(api: Api, namespace: str, queue: str) -> None:
    job = kit.gang("toomany", queue=queue, image="none", command=["none"])
    job["spec"]["minAvailable"] = 3
    with pytest.raises(ApiException, match="should not be greater than total replicas"):
        kit.submit(api, namespace, job)


def test_nobody_may_anything_until_a_role_says_so(own_bed: Cluster, api: Api, namespace: str) -> None:
    stranger = kit.connect(own_bed.kubeconfig_for("stranger"))
    with pytest.raises(ApiException, match=r"stranger.*cannot list resource"):
        stranger.core.list_namespaced_pod(namespace)
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    own_bed.kubectl(
        "create",
        "rolebinding",
        "-n",
        namespace,
        "look",
        f"--clusterrole={role['name']}",
        f"--user={subject['name']}",
    )
    kit.wait_for("the role to count", lambda: _may_list(stranger, namespace), seconds=10)
    with pytest.raises(ApiException, match="cannot deletecollection resource"):
        stranger.core.delete_collection_namespaced_pod(namespace)
    stranger.raw.close()


def test_logs_and_exec_reach_a_running_pod(api: Api, running_pod: str, namespace: str) -> None:
    kit.wait_for("its line", lambda: "begun" in kit.logs(api, namespace, running_pod))
    assert kit.execute(api, namespace, running_pod, "id", "-u").strip() == "1000"
    assert kit.execute(api, namespace, running_pod, "printenv", "NVIDIA_VISIBLE_DEVICES").startswith("MIG-")


def test_a_pods_token_reaches_the_api_through_its_service_and_opens_nothing(
    api: Api, running_pod: str, namespace: str
) -> None:
    program = (
        "import ssl, urllib.request, urllib.error; here = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "url = f'https://kubernetes.default.svc/api/v1/namespaces/{open(here + \"namespace\").read()}/pods'\n"
        "ask = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + open(here + 'token').read()})\n"
        "try: urllib.request.urlopen(ask, context=ssl.create_default_context(cafile=here + 'ca.crt'), timeout=5)\n"
        "except urllib.error.HTTPError as refusal: print(refusal.code)"
    )
    assert kit.execute(api, namespace, running_pod, "python", "-c", program).strip() == "403"


def test_this_machine_and_pods_reach_each_other(
    own_bed: Cluster, api: Api, running_pod: str, namespace: str
) -> None:
    address = api.core.read_namespaced_pod(running_pod, namespace).status.pod_ip
    kit.wait_for("its server", lambda: _connects(address, 8080))
    with socket.create_server((own_bed.host_ip, 0)) as server:
        server.settimeout(10)
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('host.bed.test', {port}), 5).close()"
        kit.execute(api, namespace, running_pod, "python", "-c", program)
        connection, (peer, _) = server.accept()
        connection.close()
    assert peer == address


def test_a_service_answers_pods_and_this_machine(api: Api, running_pod: str, namespace: str) -> None:
    ports = [{"port": 80, "targetPort": 8080}]
    made = api.core.create_namespaced_service(
        namespace, {"metadata": {"name": "front"}, "spec": {"selector": {"app": running_pod}, "ports": ports}}
    )
    kit.wait_for("the service, from here", lambda: _connects(made.spec.cluster_ip, 80), seconds=20)
    program = "import urllib.request; print(urllib.request.urlopen('http://front/', timeout=5).status)"
    assert kit.execute(api, namespace, running_pod, "python", "-c", program).strip() == "200"


def test_a_restricted_namespace_takes_the_image_and_no_host_path(api: Api, image: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with kit.namespace(api, labels=labels) as restricted:
        pod = _pod("careful", image, ["sleep", "60"])
        pod["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        pod["spec"]["containers"][0]["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        api.core.create_namespaced_pod(restricted, pod)
        kit.wait_for("the pod", lambda: _is_running(api, restricted, "careful"))
        pod["metadata"]["name"] = "careless"
        pod["spec"]["volumes"] = [{"name": "root", "hostPath": {"path": "/"}}]
        with pytest.raises(ApiException, match="restricted volume types"):
            api.core.create_namespaced_pod(restricted, pod)


def test_a_withdrawn_slice_is_missing_from_the_node_and_comes_back(own_bed: Cluster, api: Api) -> None:
    before = _allocatable(api, SLICE)
    lost = next(str(one["uuid"]) for one in own_bed.devices() if one["resource"] == SLICE)
    own_bed.withdraw_device(lost)
    kit.wait_for("the node to have one less", lambda: _allocatable(api, SLICE) == before - 1, seconds=30)
    own_bed.restore_device(lost)
    kit.wait_for("the node to have it again", lambda: _allocatable(api, SLICE) == before, seconds=30)


def test_a_killed_kubelet_hears_of_its_slices_again(own_bed: Cluster, api: Api) -> None:
    before = _allocatable(api, SLICE)
    lost = next(str(one["uuid"]) for one in own_bed.devices() if one["resource"] == SLICE)
    own_bed.kill("kubelet")
    own_bed.withdraw_device(lost)
    own_bed.start("kubelet")
    kit.wait_for("the news", lambda: _allocatable(api, SLICE) == before - 1 and _is_node_ready(api))
    own_bed.restore_device(lost)
    kit.wait_for("the node to have it again", lambda: _allocatable(api, SLICE) == before)
    assert all(own_bed.programs().values())


@pytest.fixture
def running_pod(api: Api, namespace: str, queue: str, image: str) -> str:
    """A pod of one slice that Volcano placed; it serves HTTP at 8080 and has the namespace's default token."""
    pod = _pod("web", image, ["sh", "-c", "echo begun; exec python -m http.server 8080"])
    pod["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": queue}
    pod["spec"]["schedulerName"] = "volcano"
    pod["spec"]["containers"][0]["resources"]["limits"][SLICE] = "1"
    api.core.create_namespaced_pod(namespace, pod)
    kit.wait_for("the pod to run", lambda: _is_running(api, namespace, "web"))
    return "web"


def _pod(name: str, image: str, command: list[str]) -> dict:
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "resources": {"limits": {"cpu": "200m", "memory": "128Mi"}},
    }
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def _is_running(api: Api, namespace: str, pod: str) -> bool:
    return api.core.read_namespaced_pod(pod, namespace).status.phase == "Running"


def _is_node_ready(api: Api) -> bool:
    conditions = api.core.read_node(NODE).status.conditions
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def _allocatable(api: Api, resource: str) -> int:
    return int(api.core.read_node(NODE).status.allocatable.get(resource, "0"))


def _may_list(who: Api, namespace: str) -> bool:
    try:
        who.core.list_namespaced_pod(namespace)
    except ApiException:
        return False
    return True


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True
