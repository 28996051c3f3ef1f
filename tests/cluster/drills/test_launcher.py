"""Drills on the launcher and what it needs: killed in the middle, MLflow and PostgreSQL away, a store full or damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import launching
import oracle
import pytest
import scenes
from bed import kit
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from scenes import OUTAGE_SECONDS, PROGRAM, STEPS, Scene
from slicelift.errors import SliceliftError, Unavailable
from slicelift.models import Status
from slicelift.sentences import remarks, sentence

from tests.server import postgres

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
# the launcher of this scene kills itself before or after a call of the cluster's, once, when a file asks for it
SELF_KILLING = """
import os, signal
from pathlib import Path
from slicelift_hub.launcher.backends.volcano.client import Client

wish, create = Path({wish!r}), Client.create

def die_at(moment):
    if wish.exists() and wish.read_text() == moment:
        wish.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def create_or_die(self, path, body, *, dry_run=False):
    kind = "dry run" if dry_run else path.rpartition("/")[2]
    die_at(f"before {{kind}}")
    made = create(self, path, body, dry_run=dry_run)
    die_at(f"after {{kind}}")
    return made

Client.create = create_or_die
"""
# two kilobytes a step: more than the rest of a page that is taken already
TALKING = PROGRAM.replace(
    "        slicelift.log(",
    '        print(f"step {step} " + "." * 2000, flush=True)\n        slicelift.log(',
)


BRIEF = """
import time
import slicelift

if __name__ == "__main__":
    slicelift.log(step=1, loss=1.0)
    time.sleep(15)
    slicelift.log(step=2, loss=0.5)
"""


@pytest.fixture(scope="module")
def wish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is written when the launcher is to die."""
    return tmp_path_factory.mktemp("wish") / "moment"


@pytest.fixture(scope="module")
def scene(
    api: Api, bed: Place, image: str, wish: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """With a store of 16 MiB."""
    home = tmp_path_factory.mktemp("launcher") / "home"
    more = SELF_KILLING.format(wish=str(wish))
    with _small_store(home), scenes.opened(api, bed, image, home, more=more) as found:
        yield found


def test_a_launcher_that_is_away_for_too_long_says_what_is_lost(
    api: Api, bed: Place, image: str, namespace: str, queue: str, tmp_path: Path
) -> None:
    more = "c.Volcano.patience_seconds = 3\n"
    with launching.serving(tmp_path / "home", bed, namespace=namespace, image=image, more=more) as launcher:
        run = launcher.submit(BRIEF, workers=1, queue=queue)
        launcher.until(run, lambda view: "loss" in view.latest)
        launcher.kill()
        kit.wait_phase(api, namespace, f"{run}-1", "Completed", seconds=90)
        launcher.restart()
        done = launcher.until(run, lambda view: view.status.terminal)
    assert (done.status, done.reason, done.latest["loss"][0]) == (Status.FINISHED, "undelivered", 1)
    (told,) = remarks(done)
    assert f"what {run}-1-worker-0 had not sent is lost" in told


@contextmanager
def _small_store(home: Path) -> Iterator[None]:
    store = home / "store"
    store.mkdir(parents=True)
    home.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "drill", str(store)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)


@pytest.mark.parametrize("moment", ["before jobs", "after jobs", "after secrets"])
def test_the_launcher_is_killed_in_the_middle_of_a_submit(
    scene: Scene, api: Api, namespace: str, wish: Path, moment: str
) -> None:
    """Before the cluster has the job, with the job there and not what its pods read, and before the ledger has the handle."""
    client = scene.launcher.client
    spec = launching.upload(client, PROGRAM, workers=2, queue=scene.queue)
    promotion = launching.make_promotion_id()
    wish.write_text(moment)
    with suppress(Unavailable):
        client.submit(promotion, spec)
    assert scene.launcher.process.wait(60) == -signal.SIGKILL
    scene.launcher.restart()
    # as a client does that had no answer
    run = client.submit(promotion, spec).run_id
    scene.agree(run)
    assert scene.finish(run).attempt == 1
    assert scene.jobs(run) == [f"{run}-1"]


class Dying:
    """The content of a blob; the launcher is killed when half of it has been read."""

    def __init__(self, content: bytes, launcher: Launcher) -> None:
        self._content, self._launcher, self._at = content, launcher, 0

    def read(self, size: int = -1) -> bytes:
        """The next piece."""
        piece = self._content[self._at :] if size < 0 else self._content[self._at : self._at + size]
        self._at += len(piece)
        if self._at > len(self._content) // 2 and self._launcher.process.poll() is None:
            self._launcher.kill()
        return piece


def test_the_launcher_is_killed_in_the_middle_of_an_upload(scene: Scene, api: Api, namespace: str) -> None:
    """What has come in half is not there; the same call again brings it all, and the job runs."""
    program = PROGRAM + f"\n# {'x' * 3_000_000}\n"
    snapshot, (digest, size, content) = launching.make_snapshot(program)
    client = scene.launcher.client
    assert client.offer_snapshot(snapshot) == [digest]
    assert isinstance(content, bytes)
    with pytest.raises(Unavailable):
        client.send_blobs(iter([(digest, size, Dying(content, scene.launcher))]))
    scene.launcher.restart()
    assert client.offer_snapshot(snapshot) == [digest]
    run = scene.submit(program)
    scene.finish(run)
    assert not list(scene.launcher.home.glob("store/*/blobs/tmp/*"))


def test_mlflow_is_down_for_two_minutes(scene: Scene, api: Api, namespace: str) -> None:
    """Jobs run and end without it, the card shows every point at once, and MLflow has them all afterwards."""
    kit.wait_for("MLflow", lambda: _tracker(scene) == "up", seconds=oracle.EXPORT_SECONDS)
    first = scene.under_way(workers=2)
    stopped = _mlflow_of(scene.launcher)
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        kit.wait_for("the word that it is down", lambda: _tracker(scene) == "down", seconds=oracle.SECONDS)
        second = scene.submit()
        for run in (first, second):
            view = scene.until(run, lambda view: view.status.terminal)
            assert view.status is Status.FINISHED
            assert scenes.step_of(view) == STEPS - 1
        time.sleep(max(0.0, began + OUTAGE_SECONDS - time.monotonic()))
        assert scene.launcher.client.job(first).tracker == "down"
    finally:
        os.kill(stopped, signal.SIGCONT)
    for run in (first, second):
        assert scene.finish(run).attempt == 1


def test_the_store_is_full_for_a_while(scene: Scene, api: Api, namespace: str) -> None:
    """Points go on, logs wait in the pod, a promotion is told so; with room again all of it is there."""
    run = scene.under_way(TALKING)
    ballast = scene.launcher.home / "store" / "ballast"
    _fill(ballast)
    try:
        before = scenes.step_of(scene.launcher.client.job(run))
        with pytest.raises(SliceliftError) as refusal:
            scene.submit(PROGRAM + f"\n# {'y' * 200_000}\n")
        assert refusal.value.code == "store-full"
        assert "Free some space and repeat" in refusal.value.hint
        view = scene.until(run, lambda view: view.reason == "store-full", seconds=oracle.SECONDS)
        assert any("store is full" in remark for remark in remarks(view))
        scene.until(run, lambda view: scenes.step_of(view) > before, seconds=30)
        # it cannot end before all that it printed is kept
        scene.until(run, lambda view: scenes.step_of(view) == STEPS - 1, seconds=60)
        time.sleep(5)
        assert scene.launcher.client.job(run).status is Status.RUNNING
    finally:
        ballast.unlink()
    scene.until(run, lambda view: view.reason != "store-full", seconds=oracle.SECONDS)
    scene.agree(run)
    assert scene.finish(run).attempt == 1
    log, _ = scene.launcher.client.logs(run, rank=0)
    assert [line.split()[1] for line in log.decode().splitlines()] == [str(step) for step in range(STEPS)]


def test_a_file_in_the_store_is_damaged(scene: Scene, api: Api, namespace: str) -> None:
    """No other code than was promoted runs; the job says which file it is, and the next promotion brings it again."""
    program = PROGRAM + "\n# of this drill\n"
    scene.finish(scene.submit(program))
    _, (digest, size, _) = launching.make_snapshot(program)
    (blob,) = scene.launcher.home.glob(f"store/*/blobs/*/{digest}")
    blob.write_bytes(program.replace("0.25", "9.99").encode())
    assert blob.stat().st_size == size
    run = scene.submit(program)
    view = scene.until(run, lambda view: view.status.terminal)
    assert (view.status, view.reason, view.attempt) == (Status.FAILED, "snapshot-incomplete", 1)
    assert "damaged there: promoted.py" in sentence(view)
    assert scene.agree(run).status is Status.FAILED
    scene.finish(scene.submit(program))


@pytest.fixture
def on_postgresql(
    api: Api, bed: Place, image: str, tmp_path: Path
) -> Iterator[tuple[Scene, postgres.Postgres]]:
    """A scene whose ledger is on a PostgreSQL of its own."""
    with (
        postgres.serving() as server,
        scenes.opened(api, bed, image, tmp_path / "home", ledger=server.make_database()) as scene,
    ):
        yield scene, server


def test_postgresql_is_down_for_two_minutes(on_postgresql: tuple[Scene, postgres.Postgres]) -> None:
    """The gang trains on and ends in its pods; callers are told to come again; what was acknowledged is there."""
    scene, server = on_postgresql
    run = scene.under_way(workers=2)
    known = scene.look(run).steps
    server.kill()
    try:
        began = time.monotonic()
        for call in (lambda: scene.launcher.client.job(run), scene.submit):
            with pytest.raises(Unavailable) as refusal:
                call()
            assert refusal.value.code == "ledger-away"
        assert scene.launcher.client.health()["version"]
        time.sleep(max(0.0, began + OUTAGE_SECONDS - time.monotonic()))
    finally:
        server.start()
    # a call that comes too early is one that is repeated
    kit.wait_for("the ledger", lambda: _answers(scene, run), seconds=oracle.SECONDS)
    assert scene.agree(run).status in (Status.RUNNING, Status.FINISHED)
    assert set(known) <= set(scene.look(run).steps)
    assert scene.finish(run).attempt == 1
    # what was refused meanwhile made no job
    assert [each.run_id for each in scene.launcher.client.jobs()] == [run]
    assert scene.jobs(run) == [f"{run}-1"]


def _answers(scene: Scene, run: str) -> bool:
    try:
        scene.launcher.client.job(run)
    except Unavailable:
        return False
    return True


def _tracker(scene: Scene) -> Any:
    return scene.launcher.client.health()["tracker"]["status"]


def _mlflow_of(launcher: Launcher) -> int:
    """The process of the launcher's MLflow server."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _is_mlflow(folder, launcher.process.pid):
            return int(folder.name)
    raise AssertionError("the launcher has no MLflow server")


def _is_mlflow(folder: Path, parent: int) -> bool:
    try:
        above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        return above == parent and b"mlflow_process.py" in (folder / "cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _fill(path: Path) -> None:
    """To the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
