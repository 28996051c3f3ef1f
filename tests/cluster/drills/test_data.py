"""Drills on what a job reads and keeps: data that the remote lost, checkpoints that were being written when everything ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oracle
import pytest
import remotes
import scenes
from bed.kit import Api
from elsewhere import Place
from remotes import Pushed, Remote
from scenes import STEPS, Scene
from shared_storage import Claims, Storage
from slicelift.models import Status
from slicelift_hub.launcher.auth import whoami
from slicelift_hub.launcher.backends.volcano.names import owner_hash

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
# it says where it begins, beside what all programs of the drills do
READING = scenes.PROGRAM.replace(
    "    for step in", '    print("begins at", found[1] if found else 0, flush=True)\n    for step in'
)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    return remotes.push(
        tmp_path_factory.mktemp("dvc"), {"data": {"a.bin": b"a" * 1000, "b.bin": b"b" * 1000}}
    )


@pytest.fixture
def remote(bed: Place, pushed: Pushed) -> Iterator[Remote]:
    with remotes.serving(pushed.folder, bed.host_ip) as found:
        yield found


@pytest.fixture(scope="module")
def scene(
    api: Api, bed: Place, image: str, juicefs: Storage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """With a shared cache of data on JuiceFS."""
    home = tmp_path_factory.mktemp("data-drills") / "home"
    more = 'c.Volcano.data_claim = "data"\n'
    with scenes.opened(api, bed, image, home, more=more) as found:
        yield found


@pytest.fixture(scope="module")
def claims(scene: Scene, juicefs: Storage, api: Api) -> Iterator[Claims]:
    """Of the scene's namespace, but for its checkpoints, which have a claim already."""
    with juicefs.claims(api, scene.namespace, names=("data", "shared")) as found:
        yield found


def test_a_blob_is_missing_in_the_remote_until_somebody_pushes_it(
    scene: Scene, api: Api, namespace: str, remote: Remote, pushed: Pushed, claims: Claims
) -> None:
    """The job ends with the file's name before it takes a place; pushed again, a retry of the same run reads it."""
    reference = pushed.reference("data", remote)
    blob = remote.object(remote.listing(reference)["b.bin"])
    content = blob.read_bytes()
    blob.unlink()
    run = scene.submit(data=(reference,))
    view = scene.until(run, lambda view: view.status.terminal)
    assert (view.status, view.reason) == (Status.FAILED, "data-not-in-remote")
    assert "missing b.bin" in view.message
    assert scene.agree(run).status is Status.FAILED
    assert scene.left(run) == []
    blob.write_bytes(content)
    scene.launcher.client.retry(run)
    scene.until(run, lambda view: view.attempt == 2, seconds=oracle.SECONDS)
    assert scene.finish(run).attempt == 2


def test_the_newest_checkpoint_was_half_written(scene: Scene, api: Api, namespace: str) -> None:
    """The newest whole one counts: neither one without its file, nor one that the disk has cut short."""
    run = scene.under_way(READING)
    scene.until(run, lambda view: scenes.step_of(view) >= 10)
    scene.launcher.client.cancel(run)
    assert scene.agree(run).status is Status.KILLED
    home = scene.bed.shared / f"checkpoints-{namespace}" / owner_hash(whoami()) / run
    *_, whole, newest = sorted(home.iterdir(), key=lambda folder: folder.name)
    _cut_short(newest / "state.pkl")
    begun = home / f"0001-{900_000}-step{STEPS}"
    begun.mkdir()
    begun.chmod(0o777)
    (begun / ".state.pkl.0a1b2c3d").write_bytes(b"half")
    scene.launcher.client.retry(run)
    assert scene.finish(run, again=2).attempt == 2
    log, _ = scene.launcher.client.logs(run, rank=0, attempt=2)
    lines = log.decode().splitlines()
    assert [newest.name in line for line in lines if "is damaged and passed over" in line] == [True]
    assert f"begins at {whole.name.rpartition('step')[2]}" in lines


def _cut_short(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 5)
