"""Drills on what the cluster is made of: etcd, API server, Volcano's parts, quotas, tokens, and two who act at once."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import accounts
import launching
import oracle
import pytest
import scenes
import yaml
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from scenes import AWAY_SECONDS, PROGRAM, SLICE, Scene
from slicelift.errors import Conflict
from slicelift.models import RunView, Status
from slicelift.sentences import remarks, sentence

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900), pytest.mark.usefixtures("own_bed")]


@pytest.fixture(scope="module")
def scene(api: Api, bed: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """With the rights of hub/deploy/rbac alone: an API server that has just started knows no roles for a moment."""
    home = tmp_path_factory.mktemp("cluster-drills") / "home"
    with scenes.opened(api, bed, image, home, restricted=True) as found:
        yield found


@contextmanager
def away(bed: Cluster, *programs: str) -> Iterator[None]:
    """Killed meanwhile; started again in the opposite order."""
    for name in programs:
        bed.kill(name)
    try:
        yield
    finally:
        for name in reversed(programs):
            bed.start(name)


def test_etcd_and_the_api_server_are_restarted(scene: Scene, api: Api, namespace: str) -> None:
    """What runs goes on; a submit meanwhile is taken and waits with the reason; both come to their end."""
    # it outlives the outage: Volcano's controller takes half a minute to find the API server again
    run = scene.under_way(PROGRAM.replace("sleep(0.25)", "sleep(1.5)"), workers=2)
    with away(scene.bed, "kube-apiserver", "etcd"):
        late = scene.submit()
        view = scene.until(late, lambda view: view.reason == "cluster-away", seconds=30)
        assert view.status is Status.WAITING
        assert "The cluster's API server does not answer" in sentence(view)
        before = scenes.step_of(scene.launcher.client.job(run))
        # agents call the launcher, not the cluster
        told = scene.until(run, lambda view: view.reason == "cluster-away", seconds=30)
        assert told.status is Status.RUNNING
        assert any("the job goes on meanwhile" in remark for remark in remarks(told))
        assert scenes.step_of(told) >= before
    scene.until(late, lambda view: view.reason != "cluster-away", seconds=oracle.SECONDS)
    assert scene.agree(run).attempt == 1
    assert scene.finish(run).attempt == 1
    assert scene.finish(late).attempt == 1
    assert [len(scene.jobs(each)) for each in (run, late)] == [1, 1]


def test_volcanos_controller_is_down_for_a_minute(scene: Scene, api: Api, namespace: str) -> None:
    run = scene.under_way()
    with away(scene.bed, "volcano-controller"):
        began = time.monotonic()
        late = scene.submit()
        view = scene.until(late, lambda view: view.reason == "controller-silent", seconds=40)
        assert view.status is Status.WAITING
        assert "Volcano's controller has made nothing of the job" in sentence(view)
        # the program comes to its last step without it; that it has ended is the controller's word
        scene.until(run, lambda view: scenes.step_of(view) == scenes.STEPS - 1, seconds=60)
        time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
        assert not scene.launcher.client.job(run).status.terminal
    scene.until(run, lambda view: view.status is Status.FINISHED, seconds=oracle.SECONDS)
    scene.finish(run)
    scene.until(late, lambda view: view.reason != "controller-silent", seconds=oracle.SECONDS)
    scene.finish(late)


def test_volcanos_webhook_is_down_for_a_minute(scene: Scene, api: Api, namespace: str) -> None:
    """The cluster then takes no job at all: the submit is kept, told, and tried again."""
    run = scene.under_way(workers=2)
    with away(scene.bed, "volcano-webhook-manager"):
        began = time.monotonic()
        late = scene.submit()
        view = scene.until(late, lambda view: view.reason == "webhook-silent", seconds=oracle.SECONDS)
        assert view.status is Status.WAITING
        assert "The cluster cannot take jobs: its webhook" in sentence(view)
        assert scene.jobs(late) == []
        time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
        assert scene.launcher.client.job(late).reason == "webhook-silent"
    scene.until(late, lambda view: view.reason != "webhook-silent", seconds=oracle.SECONDS)
    assert scene.finish(run).attempt == 1
    scene.finish(late)
    assert len(scene.jobs(late)) == 1


def test_a_quota_is_cut_while_one_runs_and_one_waits(scene: Scene, api: Api, namespace: str) -> None:
    """What has its place keeps it; what waits is told that it never starts there, until somebody gives more."""
    first = scene.under_way(slice="1g.10gb")
    waiting = scene.submit(slice="1g.10gb")
    scene.until(waiting, lambda view: view.reason == "quota-full")
    _give(scene, "0")
    try:
        view = scene.until(waiting, lambda view: view.reason == "quota-too-small", seconds=oracle.SECONDS)
        assert "never gives more than 0 slices 1g.10gb: it cannot start there" in sentence(view)
        assert scene.agree(waiting).status is Status.WAITING
        assert scene.finish(first).attempt == 1
        assert scene.launcher.client.job(waiting).status is Status.WAITING
    finally:
        _give(scene, "1")
    scene.until(waiting, lambda view: view.status is not Status.WAITING, seconds=oracle.SECONDS)
    scene.finish(waiting)


def test_two_submit_one_id_at_the_same_time(scene: Scene, api: Api, namespace: str) -> None:
    """Eight calls make one job; of a changed spec under the same id none does."""
    client = scene.launcher.client
    same = launching.upload(client, PROGRAM, workers=1, queue=scene.queue)
    other = launching.upload(client, PROGRAM, workers=2, queue=scene.queue)
    promotion = launching.make_promotion_id()

    def submit(number: int) -> str:
        try:
            return client.submit(promotion, other if number == 7 else same).run_id
        except Conflict as conflict:
            return conflict.code

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(submit, range(8)))
    runs = {each for each in told if each.startswith("r-")}
    assert len(runs) == 1, told
    (run,) = runs
    assert set(told) - runs == {"promotion-differs"}, told
    view = scene.finish(run)
    assert (view.attempt, scene.jobs(run)) == (1, [f"{run}-1"])


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda view: True, id="at once"),
        pytest.param(lambda view: bool(view.reason) or view.status is not Status.WAITING, id="submitted"),
        pytest.param(lambda view: view.status is Status.STARTING, id="placed"),
        pytest.param(lambda view: bool(view.ranks) or view.status is Status.RUNNING, id="preparing"),
    ],
)
def test_a_cancel_during_the_start_leaves_nothing(
    scene: Scene, api: Api, namespace: str, moment: Callable[[RunView], bool]
) -> None:
    run = scene.submit(workers=2)
    scene.until(run, moment)
    scene.launcher.client.cancel(run)
    view = scene.agree(run)
    assert view.status is Status.KILLED
    assert "Cancelled: cancelled by" in sentence(view)
    kit.wait_for("all of it to be gone", lambda: scene.left(run) == [], seconds=oracle.SECONDS)


def test_the_launchers_own_token_is_revoked_and_renewed(
    api: Api, bed: Cluster, image: str, tmp_path: Path
) -> None:
    """Nobody's job fails for it: who submits waits and is told, and the next token in the file is found without a restart."""
    kubeconfig = tmp_path / f"{accounts.LAUNCHER}.kubeconfig"
    with scenes.opened(api, bed, image, tmp_path / "home", restricted=True) as scene:
        run = scene.under_way()
        name, here = _account_of(kubeconfig), scene.namespace
        # the same name again: what it may do is bound to the name, and its tokens are not
        api.core.delete_namespaced_service_account(name, here)
        api.core.create_namespaced_service_account(here, {"metadata": {"name": name}})
        # the API server remembers a token that was good for ten seconds
        time.sleep(12)
        late = scene.submit()
        view = scene.until(late, lambda view: view.reason == "cluster-token", seconds=30)
        assert view.status is Status.WAITING
        assert "The cluster does not accept the launcher's own token" in sentence(view)
        _renew(api, kubeconfig, name, here)
        scene.until(late, lambda view: view.reason != "cluster-token", seconds=oracle.SECONDS)
        for each in (run, late):
            assert scene.finish(each).attempt == 1


def _give(scene: Scene, slices: str) -> None:
    """How many slices the queue may give."""
    change = json.dumps({"spec": {"capability": {SLICE: slices}}})
    scene.bed.kubectl("patch", "queues.scheduling.volcano.sh", scene.queue, "--type=merge", "-p", change)


def _account_of(kubeconfig: Path) -> str:
    """The name of the service account whose token it holds, by the token's own word."""
    payload = _user(kubeconfig)["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["sub"]).rpartition(":")[2]


def _renew(api: Api, kubeconfig: Path, name: str, namespace: str) -> None:
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = api.core.create_namespaced_service_account_token(name, namespace, asked)
    old = _user(kubeconfig)["token"]
    kubeconfig.write_text(kubeconfig.read_text().replace(old, made.status.token))


def _user(kubeconfig: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    return found
