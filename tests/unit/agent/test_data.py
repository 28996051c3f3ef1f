"""Data by DVC: fetched once, shown read-only, proved at the end."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from slicelift.models import DataRef, Status
from slicelift.runtime import data as data_module
from slicelift.runtime.dataview import View
from slicelift.runtime.folder import AttemptFolder, locked

FILES = {"1.txt": "one", "子/2 b.txt": "two", "子/3.txt": "two"}

# one process: importing DVC takes a second
TRACK = """
from dvc.repo import Repo
repo = Repo(".")
repo.add(["data 数", "one.csv"])
repo.push()
"""
# relative: DVC itself cannot write an address that is not ASCII
CONFIG = """
[core]
    no_scm = True
    remote = store
['remote "store"']
    url = ../../remote
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC project with a folder and a file, pushed to a directory remote (`../remote`). Read only for tests."""
    root = tmp_path_factory.mktemp("dvc 项目") / "project"
    for name, text in FILES.items():
        (root / "data 数" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "data 数" / name).write_text(text)
    (root / "one.csv").write_text("a,b\n")
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text(CONFIG)
    subprocess.run([sys.executable, "-c", TRACK], cwd=root, check=True, stdout=subprocess.DEVNULL)
    return root


@pytest.fixture
def remote(project: Path, tmp_path: Path) -> Path:
    """A copy of the remote that a test may break."""
    copy = tmp_path / "remote"
    subprocess.run(["cp", "-r", str(project.parent / "remote"), str(copy)], check=True)
    return copy


def refs(project: Path, remote: Path) -> tuple[DataRef, ...]:
    found = []
    for path in sorted(project.glob("*.dvc")):
        if path.is_file():
            out = yaml.safe_load(path.read_text())["outs"][0]
            found.append(
                DataRef(
                    path=f"笔记 本/{out['path']}",
                    dvc_file=path.name,
                    md5=out["md5"],
                    size_bytes=out["size"],
                    nfiles=out.get("nfiles", 1),
                    remote="store",
                    remote_config={"url": str(remote)},
                )
            )
    return tuple(found)


READ = """
import pathlib, json
found = {str(p.relative_to("data 数")): p.read_text() for p in sorted(pathlib.Path("data 数").rglob("*")) if p.is_file()}
print(json.dumps([found, pathlib.Path("one.csv").read_text()]))
"""
WRITE = """
import pathlib
for attempt in (lambda: pathlib.Path("data 数/1.txt").write_text("changed"),
                lambda: pathlib.Path("data 数/new.txt").write_text("new"),
                lambda: pathlib.Path("data 数/1.txt").unlink(),
                lambda: pathlib.Path("data 数/1.txt").chmod(0o666),
                lambda: pathlib.Path("one.csv").write_text("changed")):
    try:
        attempt()
        print("could write")
    except OSError as error:
        print("refused", error.errno)
"""


@pytest.mark.needs_root
def test_two_jobs_at_once_see_the_data_read_only_and_it_is_fetched_once(
    bench: Any, launcher: Any, project: Path, remote: Path
) -> None:
    # two agents and one import of DVC
    data = refs(project, remote)
    handles = [bench.submit(READ + WRITE, name=f"r-{name}", data=data) for name in ("one", "two")]
    for handle in handles:
        assert bench.wait_ended(handle).status is Status.FINISHED, bench.log(handle)
        log = (bench.root(handle) / "logs/rank-0.log").read_text()
        assert json.loads(log.splitlines()[0])[0] == FILES
        # EROFS, five times
        assert log.splitlines()[1:] == ["refused 30"] * 5
    assert sum(bench.log(handle).count("Fetching") for handle in handles) == len(data)
    # outside the job's mount namespace its place is an empty folder
    assert not list((bench.root(handles[0]) / "workspace/笔记 本/data 数").iterdir())


def test_a_view_is_hard_links_and_modes_say_read_only(bench: Any, project: Path, remote: Path) -> None:
    data = refs(project, remote)
    bench.wait_ended(bench.submit("pass\n", data=data))
    views = {ref.path.rpartition("/")[2]: View(bench.home / "cache", ref.md5) for ref in data}
    content = views["data 数"].content
    assert {
        p.relative_to(content).as_posix(): p.read_text() for p in content.rglob("*") if p.is_file()
    } == FILES
    assert oct((content / "子").stat().st_mode & 0o777) == "0o555"
    assert oct((content / "1.txt").stat().st_mode & 0o777) == "0o444"
    # one inode: the cache's object and both files with the same bytes
    assert (content / "子/3.txt").stat().st_nlink == 3
    assert views["one.csv"].content.read_text() == "a,b\n"


def test_a_change_behind_a_link_is_a_failure_and_is_mended_by_the_next_job(
    bench: Any, launcher: Any, project: Path, remote: Path
) -> None:
    """Without mounts (not root, or refused) modes are all there is, and root or an owner can get past them."""
    data = refs(project, remote)
    bench.wait_ended(bench.submit("pass\n", name="r-warm", data=data))
    view = View(bench.home / "cache", next(ref.md5 for ref in data if ref.md5.endswith(".dir")))
    script = f"""
import pathlib
place = pathlib.Path({str(bench.home)!r}) / "cache/views/{view.md5}/content/1.txt"
place.chmod(0o644)
place.write_text("two")
"""
    status = bench.wait_ended(bench.submit(script, name="r-bad", data=data))
    assert (status.status, status.reason) == (Status.FAILED, "data-changed")
    assert "笔记 本/data 数/1.txt" in status.message
    handle = bench.submit(READ, name="r-good", data=data)
    assert bench.wait_ended(handle).status is Status.FINISHED
    assert '"1.txt": "one"' in (bench.root(handle) / "logs/rank-0.log").read_text()


def test_a_blob_missing_in_the_remote_is_named(bench: Any, project: Path, remote: Path) -> None:
    md5 = hashlib.md5(b"two").hexdigest()
    (remote / "files/md5" / md5[:2] / md5[2:]).unlink()
    status = bench.wait_ended(bench.submit("pass\n", data=refs(project, remote)))
    assert (status.status, status.reason) == (Status.FAILED, "data-not-in-remote")
    assert "missing 子/2 b.txt, 子/3.txt" in status.message
    assert "dvc push" in status.message


def test_a_blob_with_other_bytes_in_the_remote_is_refused(bench: Any, project: Path, remote: Path) -> None:
    md5 = hashlib.md5(b"one").hexdigest()
    place = remote / "files/md5" / md5[:2] / md5[2:]
    place.chmod(0o644)
    place.write_text("eno")
    status = bench.wait_ended(bench.submit("pass\n", data=refs(project, remote)))
    assert status.status is Status.FAILED
    assert status.reason in ("data-corrupt-in-remote", "data-not-in-remote")
    assert "1.txt" in status.message


def test_a_cancel_ends_the_wait_for_another_jobs_fetch(bench: Any, project: Path, remote: Path) -> None:
    data = refs(project, remote)
    cache = bench.home / "cache"
    (cache / "locks").mkdir(parents=True)
    with locked(View(cache, data[0].md5).lock):
        handle = bench.submit("pass\n", data=data)
        bench.wait(handle, lambda status: status.message.startswith("Preparing"))
        assert bench.local.cancel(handle, reason="stop", grace_seconds=1).gone
    assert bench.local.status(handle).status is Status.KILLED


def test_data_is_a_link_where_mounts_are_refused(
    bench: Any, project: Path, remote: Path, tmp_path: Path
) -> None:
    data = refs(project, remote)
    cache, folder = tmp_path / "cache", AttemptFolder(tmp_path / "attempt")
    folder.workspace.mkdir(parents=True)
    said: list[str] = []
    data_module.prepare(data, cache, folder, environment=dict(os.environ), say=said.append)
    data_module.show(data, cache, folder.workspace, mounts=False)
    shown = folder.workspace / "笔记 本"
    assert (shown / "data 数" / "子" / "2 b.txt").read_text() == "two"
    assert (shown / "one.csv").is_symlink()
    assert data_module.changed(data, cache) == []
    assert [text.partition(" ")[0] for text in said] == ["Preparing", "Fetching"] * 2
