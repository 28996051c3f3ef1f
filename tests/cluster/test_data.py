"""Data of gangs on a real cluster with a real JuiceFS: fetched once, seen read-only by its owner alone, or a clear no."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import launching
import pytest
import remotes
import yaml
from bed import kit
from bed.kit import Api
from elsewhere import Place
from kubernetes import client
from launching import Launcher
from remotes import Pushed, Remote
from shared_storage import Claims
from slicelift.backends.base import Attempt
from slicelift.errors import SliceliftError
from slicelift.models import DataRef, JobSpec, RunView, Status
from slicelift_hub.launcher.auth import whoami
from slicelift_hub.launcher.backends.volcano import Volcano
from slicelift_hub.launcher.backends.volcano.names import owner_hash
from slicelift_hub.launcher.backends.volcano.preparing import Preparing
from traitlets.config import Config

STORAGE = Path(__file__).resolve().parents[2] / "hub" / "deploy" / "storage"
READ_ONLY = 30
# what a worker sees of the cache, and what it may do there
PROBE = """
import errno, hashlib, json, os
root, told = "/slicelift/data/views", {"sets": {}, "writes": []}
for name in sorted(os.listdir(root)):
    files = told["sets"][name] = {}
    for folder, _, names in os.walk(f"{root}/{name}/content"):
        for each in names:
            path = os.path.join(folder, each)
            files[os.path.relpath(path, f"{root}/{name}/content")] = hashlib.md5(open(path, "rb").read()).hexdigest()
        for act in (
            lambda: open("/slicelift/data/new", "w"),
            lambda: open(os.path.join(folder, "new"), "w"),
            *(lambda: os.unlink(os.path.join(folder, each)) for each in names[:1]),
            *(lambda: os.chmod(os.path.join(folder, each), 0o666) for each in names[:1]),
        ):
            try:
                act()
                told["writes"].append(0)
            except OSError as error:
                told["writes"].append(error.errno)
told["beside"] = sorted(os.listdir("/slicelift/data"))
print(json.dumps(told))
"""
PROGRAM = """
import hashlib, os, pathlib, time
import slicelift

if __name__ == "__main__":
    folder = pathlib.Path("data")
    digest = hashlib.md5()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    print("read", digest.hexdigest(), flush=True)
    slicelift.checkpoint({"digest": digest.hexdigest()}, step=1)
    slicelift.log(step=1, files=len(list(folder.rglob("*.bin"))))
"""


class Bench:
    """The backend over one namespace, and what a test does with it."""

    def __init__(self, api: Api, *, kubeconfig: Path, namespace: str, queue: str, image: str) -> None:
        self.api, self.namespace, self.queue, self.image = api, namespace, queue, image
        self._kubeconfig = kubeconfig
        self._made: list[Volcano] = []
        self.backend = self.make()

    def make(self, **more: Any) -> Volcano:
        """One more launcher's backend, as after a crash."""
        words = {"kubeconfig": str(self._kubeconfig), "namespace": self.namespace, "image": self.image}
        words |= {"data_claim": "data", "checkpoints_claim": "checkpoints", **more}
        self._made.append(Volcano(config=Config(Volcano=words)))
        return self._made[-1]

    def spec(self, *data: DataRef, workers: int = 2) -> JobSpec:
        """A gang without GPUs."""
        place = {"notebook": "n.ipynb", "script": "s.py", "cwd": ".", "python": f"{sys.prefix}/bin/python"}
        words = {"name": "test", "snapshot_id": "0" * 64, "queue": self.queue, "workers": workers}
        return JobSpec(**words, **place, data=data)

    def attempt(self, owner: str = "ada") -> Attempt:
        """The first one of a run of its own."""
        run = f"r-{secrets.token_hex(6)}"
        ids = {"attempt_id": f"{run}-1", "run_id": run, "promotion_id": f"p-{run}", "attempt": 1}
        return Attempt(**ids, launcher_url="http://127.0.0.1:9", token="secret", owner=owner)

    def prepare(self, spec: JobSpec, attempt: Attempt, *, backend: Volcano | None = None) -> list[str]:
        """Until the data is there; what was said meanwhile. Raises what the backend raises."""
        told: list[str] = []
        end = time.monotonic() + 120
        while (found := (backend or self.backend).prepare(spec, attempt)) is not None:
            assert (found.status, found.reason) == (Status.WAITING, "data")
            assert time.monotonic() < end, found
            if found.message not in told:
                told.append(found.message)
            time.sleep(0.3)
        return told

    def warm_ups(self) -> list[Any]:
        """The Jobs that fetch data, ended ones too."""
        return list(client.BatchV1Api(self.api.raw).list_namespaced_job(self.namespace).items)

    def gang(self, spec: JobSpec, attempt: Attempt) -> list[dict[str, Any]]:
        """Run the rendered gang with the probe in place of the agent; what each worker saw."""
        job = self.backend.render(spec, attempt)
        pod = job["spec"]["tasks"][0]["template"]["spec"]
        worker = pod["containers"][0]
        worker["command"] = [spec.python, "-c", PROBE]
        worker["workingDir"] = "/"
        small = {"cpu": "100m", "memory": "128Mi"}
        worker["resources"] = {"requests": small, "limits": small}
        # what the agent would read
        for group in (pod["volumes"], worker["volumeMounts"]):
            group[:] = [each for each in group if each["name"] != "request"]
        kit.submit(self.api, self.namespace, job)
        name = attempt.attempt_id
        ended = kit.wait_phase(
            self.api, self.namespace, name, "Completed", "Failed", "Terminated", seconds=90
        )
        logs = [kit.logs(self.api, self.namespace, f"{name}-worker-{index}") for index in range(spec.workers)]
        assert ended == "Completed", logs
        return [json.loads(log) for log in logs]

    def close(self) -> None:
        for each in self._made:
            each.close()


def _files(seed: int, count: int = 24, size: int = 40_000) -> dict[str, bytes]:
    made = random.Random(seed)
    return {f"part-{number % 3}/{number:03}.bin": made.randbytes(size) for number in range(count)}


@pytest.fixture(scope="session")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    """`data`, 24 files of close to a megabyte, and two smaller sets, in a remote that no test writes to."""
    sets = {"data": _files(1), "other": _files(2, count=3), "labels": _files(3, count=2)}
    return remotes.push(tmp_path_factory.mktemp("dvc"), sets)


@pytest.fixture
def remote(bed: Place, pushed: Pushed, tmp_path: Path) -> Iterator[Remote]:
    """A copy that a test may break."""
    shutil.copytree(pushed.folder, tmp_path / "remote")
    with remotes.serving(tmp_path / "remote", bed.host_ip) as found:
        yield found


@pytest.fixture
def train(remote: Remote, pushed: Pushed) -> DataRef:
    return pushed.reference("data", remote)


@pytest.fixture
def bench(
    api: Api, kubeconfig: Path, namespace: str, queue: str, image: str, claims: Claims
) -> Iterator[Bench]:
    made = Bench(api, kubeconfig=kubeconfig, namespace=namespace, queue=queue, image=image)
    yield made
    made.close()


def test_four_workers_and_two_jobs_have_it_for_one_fetch_and_cannot_write(
    bench: Bench, remote: Remote, train: DataRef, claims: Claims
) -> None:
    first, second = bench.attempt(), bench.attempt()
    spec = bench.spec(train, workers=4)
    remote.gate.clear()
    other = bench.make()
    for backend, attempt in ((bench.backend, first), (other, second), (bench.backend, first)):
        found = backend.prepare(spec, attempt)
        assert found is not None
        assert found.message.startswith("Fetching the data data (24 files, 938 KiB) into the shared cache")
        time.sleep(1)  # longer than a look at the cluster is remembered
    assert len(bench.warm_ups()) == 1
    remote.gate.set()
    bench.prepare(spec, first)
    bench.prepare(spec, second, backend=other)
    listing = remote.listing(train)
    for worker in bench.gang(spec, first) + bench.gang(replace(spec, workers=1), second):
        assert worker["sets"] == {train.md5: listing}
        assert set(worker["writes"]) == {READ_ONLY}
        assert worker["beside"] == ["files", "locks", "views"]
    blobs = {md5: remote.sent[md5] for md5 in listing.values()}
    assert set(blobs.values()) == {40_000}, "every file left the remote once"
    assert sum(remote.sent.values()) < 1.02 * train.size_bytes
    assert len(bench.warm_ups()) == 1
    # one copy on the disk as well: the view is made of links
    root = claims.views(owner_hash("ada")) / train.md5
    found = {path: (root / "content" / path).stat() for path in listing}
    assert {each.st_nlink for each in found.values()} == {2}
    # what proves an untouched view without reading it holds on this file system, too
    stamped = json.loads((root / "view.json").read_text())["files"]
    assert {path: entry["stat"] for path, entry in stamped.items()} == {
        path: [each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns] for path, each in found.items()
    }


def test_a_team_sees_its_own_sets_only_and_a_hash_is_no_key(
    bench: Bench, remote: Remote, train: DataRef, pushed: Pushed, claims: Claims
) -> None:
    theirs = pushed.reference("other", remote)
    spec, others = bench.spec(train, workers=1), bench.spec(theirs, workers=1)
    ada, bob = bench.attempt("ada"), bench.attempt("bob")
    bench.prepare(spec, ada)
    bench.prepare(others, bob)
    (worker,) = bench.gang(others, bob)
    assert worker["sets"] == {theirs.md5: remote.listing(theirs)}
    # a link to what is ada's, laid into the cache by bob's own program, leads nowhere in his pods
    lure = replace(theirs, md5="e" * 32 + ".dir")
    trap = claims.views(owner_hash("bob")) / lure.md5
    trap.symlink_to(f"../../{owner_hash('ada')}/views/{train.md5}")
    assert (trap / "view.json").exists()
    (worker,) = bench.gang(bench.spec(lure, workers=1), bench.attempt("bob"))
    assert worker["sets"] == {theirs.md5: remote.listing(theirs), lure.md5: {}}
    # who knows the hash of what somebody else has needs a remote that gives it
    for md5 in remote.listing(train).values():
        remote.object(md5).unlink()
    with pytest.raises(SliceliftError) as caught:
        bench.prepare(spec, bench.attempt("bob"))
    assert caught.value.code == "data-not-in-remote"
    # and ada goes on with what she has
    assert bench.prepare(spec, bench.attempt("ada")) == []


@pytest.mark.drill
def test_of_several_sets_each_is_fetched_by_a_job_of_its_own(
    bench: Bench, remote: Remote, train: DataRef, pushed: Pushed
) -> None:
    labels = pushed.reference("labels", remote)
    spec, attempt = bench.spec(train, labels, workers=1), bench.attempt()
    told = bench.prepare(spec, attempt)
    assert told[0].endswith("(0 of 2 data sets are there)")
    assert len(bench.warm_ups()) == 2
    (worker,) = bench.gang(spec, attempt)
    assert set(worker["sets"]) == {train.md5, labels.md5}


@pytest.mark.drill
def test_who_waits_for_somebody_elses_fetch_goes_on_when_that_one_is_called_off(
    bench: Bench, remote: Remote, train: DataRef
) -> None:
    spec, first, second = bench.spec(train), bench.attempt(), bench.attempt()
    remote.gate.clear()
    assert bench.backend.prepare(spec, first) is not None
    kit.wait_for("the fetch", lambda: remote.asked)
    assert bench.backend.prepare(spec, second) is not None
    (theirs,) = bench.warm_ups()
    bench.backend.abandon(spec, first)
    remote.gate.set()
    bench.prepare(spec, second)
    (own,) = bench.warm_ups()
    assert own.metadata.name.startswith(second.attempt_id)
    assert own.metadata.uid != theirs.metadata.uid


@pytest.mark.drill
def test_a_launcher_that_was_killed_between_two_calls_goes_on(
    bench: Bench, train: DataRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Job is there, what its pod reads is not; and then all is there, but that launcher never knew."""
    spec, attempt = bench.spec(train), bench.attempt()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Preparing, "_give", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.backend.prepare(spec, attempt)
    (half,) = bench.warm_ups()
    bench.prepare(spec, attempt, backend=bench.make())
    assert bench.prepare(spec, attempt, backend=bench.make()) == []
    assert [job.metadata.uid for job in bench.warm_ups()] == [half.metadata.uid]


@pytest.mark.drill
def test_a_remote_that_is_away_is_told_from_one_that_lacks_data(bench: Bench, train: DataRef) -> None:
    """The pod's own word; the Job tries three times, which takes half a minute."""
    away = replace(train, remote_config={"url": train.remote_config["url"].rpartition(":")[0] + ":9"})
    with pytest.raises(SliceliftError) as caught:
        bench.prepare(bench.spec(away), bench.attempt())
    assert caught.value.code == "data-remote-away"
    (job,) = bench.warm_ups()
    assert job.status.failed == 3


@pytest.mark.drill
def test_a_fetch_that_hangs_is_ended_and_the_next_one_goes_on(
    bench: Bench, remote: Remote, train: DataRef
) -> None:
    spec, hasty = bench.spec(train), bench.make(data_hours=0.01)
    remote.gate.clear()
    with pytest.raises(SliceliftError) as caught:
        bench.prepare(spec, bench.attempt(), backend=hasty)
    assert (caught.value.code, "c.Volcano.data_hours" in caught.value.hint) == ("data-too-slow", True)
    remote.gate.set()
    bench.prepare(spec, bench.attempt())


@pytest.mark.drill
def test_a_fetch_that_the_namespace_has_no_room_for_is_not_left_for_others_to_wait_for(
    bench: Bench, api: Api, namespace: str, train: DataRef
) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/secrets": "0"}}}
    api.core.create_namespaced_resource_quota(namespace, quota)

    def counts() -> bool:
        status = api.core.read_namespaced_resource_quota("few", namespace).status
        return bool(status and status.used)

    kit.wait_for("the quota", counts)
    with pytest.raises(SliceliftError) as caught:
        bench.prepare(bench.spec(train), bench.attempt())
    assert caught.value.code == "resource-quota"
    kit.wait_for("the Job to go", lambda: not bench.warm_ups())
    api.core.delete_namespaced_resource_quota("few", namespace)
    bench.prepare(bench.spec(train), bench.attempt())


@pytest.fixture
def launcher(bed: Place, namespace: str, image: str, claims: Claims, tmp_path: Path) -> Iterator[Launcher]:
    more = 'c.Volcano.data_claim = "data"\n'
    with launching.serving(
        tmp_path / "home", bed, namespace=namespace, image=image, claim=claims.checkpoints, more=more
    ) as found:
        yield found


def _waits(message: str) -> Callable[[RunView], bool]:
    return lambda view: view.status == Status.WAITING and view.reason == "data" and message in view.message


def test_a_job_waits_for_its_data_through_a_kill_reads_it_and_a_retry_mends_it(
    launcher: Launcher, api: Api, namespace: str, queue: str, remote: Remote, train: DataRef, claims: Claims
) -> None:
    remote.gate.clear()
    run = launcher.submit(PROGRAM, workers=1, queue=queue, data=(train,))
    launcher.until(run, _waits("Fetching the data data (24 files"))
    assert _gangs(api, namespace) == []
    launcher.kill()
    launcher.restart()
    launcher.until(run, _waits("Fetching the data data (24 files"))
    kit.wait_for("the fetch", lambda: remote.asked)
    remote.gate.set()
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.latest["files"][0:2]) == (Status.FINISHED, (1, 24.0)), launcher.log()[-3000:]
    log, _ = launcher.client.logs(run, rank=0, attempt=1)
    assert f"read {_digest(_files(1))}" in log.decode()
    jobs = client.BatchV1Api(api.raw).list_namespaced_job(namespace).items
    assert len(jobs) == 1
    mine = owner_hash(whoami())
    assert [path.name for path in (claims.folder / "checkpoints" / mine).iterdir()] == [run]
    # somebody cleans up in the cache between two jobs
    view = claims.views(mine) / train.md5
    gone = next(view.rglob("000.bin"))
    gone.parent.chmod(0o755)
    gone.unlink()
    again = launcher.submit(PROGRAM, workers=1, queue=queue, data=(train,))
    failed = launcher.until(again, lambda view: view.status.terminal)
    assert (failed.status, failed.attempt) == (Status.FAILED, 1)
    assert "not whole in the shared cache any more" in failed.message
    launcher.client.retry(again)
    mended = launcher.until(again, lambda view: view.status.terminal and view.attempt == 2)
    assert mended.status == Status.FINISHED


def test_a_missing_blob_fails_the_job_before_it_takes_a_place(
    launcher: Launcher, api: Api, namespace: str, queue: str, remote: Remote, train: DataRef
) -> None:
    gone = "part-1/007.bin"
    remote.object(remote.listing(train)[gone]).unlink()
    run = launcher.submit(PROGRAM, workers=2, queue=queue, data=(train,))
    done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.reason) == (Status.FAILED, "data-not-in-remote")
    assert f"missing {gone}" in done.message
    assert "dvc push" in done.message
    assert _gangs(api, namespace) == []
    events = api.core.list_namespaced_event(namespace).items
    assert [each for each in events if each.involved_object.kind == "PodGroup"] == []


@pytest.mark.drill
def test_a_cancel_ends_the_fetch(
    launcher: Launcher, api: Api, namespace: str, queue: str, remote: Remote, train: DataRef
) -> None:
    remote.gate.clear()
    run = launcher.submit(PROGRAM, workers=2, queue=queue, data=(train,))
    launcher.until(run, _waits("Fetching"))
    kit.wait_for("the fetch", lambda: remote.asked)
    launcher.client.cancel(run)
    done = launcher.until(run, lambda view: view.status.terminal)
    assert done.status == Status.KILLED
    kit.wait_for("the pod to go", lambda: not api.core.list_namespaced_pod(namespace).items)
    assert client.BatchV1Api(api.raw).list_namespaced_job(namespace).items == []
    assert _gangs(api, namespace) == []


@pytest.mark.parametrize("name", ["juicefs", "cephfs", "claims"])
def test_the_api_server_takes_the_storage_that_is_written_out(api: Api, namespace: str, name: str) -> None:
    makers = {
        "Secret": api.core.create_namespaced_secret,
        "PersistentVolumeClaim": api.core.create_namespaced_persistent_volume_claim,
    }
    bodies = list(yaml.safe_load_all((STORAGE / f"{name}.yaml").read_text(encoding="utf-8")))
    checked = {"dry_run": "All", "field_validation": "Strict"}
    for body in bodies:
        if body["kind"] == "StorageClass":
            made = client.StorageV1Api(api.raw).create_storage_class(body, **checked)
            assert made.volume_binding_mode == "Immediate"
        else:
            here = body["metadata"].get("namespace", namespace)
            made = makers[body["kind"]](here, body, **checked)
        assert made.metadata.name == body["metadata"]["name"]
    classes = {body["metadata"]["name"] for body in bodies if body["kind"] == "StorageClass"}
    asked = {body["spec"]["storageClassName"] for body in bodies if body["kind"] == "PersistentVolumeClaim"}
    assert classes | asked == {"slicelift-shared"}


def _gangs(api: Api, namespace: str) -> list[Any]:
    found = api.custom.list_namespaced_custom_object(*kit.BATCH, namespace, "jobs")["items"]
    return list(found)


def _digest(files: dict[str, bytes]) -> str:
    return hashlib.md5(b"".join(content for _, content in sorted(files.items()))).hexdigest()
