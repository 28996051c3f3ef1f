"""DVC data by reference, and the proof, against a real DVC with a directory remote.

DVC's import takes a second and each of its commands a tenth; the commands run in this process.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Refused, SliceliftError, UserError
from slicelift.models import DataRef, Environment, Script
from slicelift.snapshot import DataProof, data, find_project, take

FILES = {"data/train/a.csv": "1,2\n", "data/train/b.csv": "3,4\n", "data/名 字.csv": "5,6\n"}


class DataRepo:
    """A git repository with one or more DVC projects and a directory remote beside it."""

    def __init__(self, repo: Any, remote: Path) -> None:
        self.repo, self.root, self.remote = repo, repo.root, remote

    def dvc(self, *args: str, folder: str = "") -> None:
        """One DVC command, as its command line runs it."""
        from dvc.cli import main

        with contextlib.chdir(self.root / folder):
            assert main([*args, "--quiet"]) == 0, args

    def init(self, folder: str = "") -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.dvc("init", *(["--subdir"] if folder else []), folder=folder)
        url = os.path.relpath(self.remote, self.root / folder)
        self.dvc("remote", "add", "-d", "store", url, folder=folder)

    def add(self, *paths: str, folder: str = "", push: bool = True) -> None:
        self.dvc("add", *paths, folder=folder)
        if push:
            self.dvc("push", folder=folder)

    def refs(self, notebook: str = "nb.ipynb") -> tuple[DataRef, ...]:
        return data.check(self.project(notebook), notebook)[0]

    def check(self, notebook: str = "nb.ipynb") -> DataProof:
        return data.check(self.project(notebook), notebook)[1]

    def project(self, notebook: str = "nb.ipynb") -> Any:
        return find_project(self.root / notebook)

    def refused(self, code: str, notebook: str = "nb.ipynb") -> SliceliftError:
        with pytest.raises(SliceliftError) as caught:
            self.check(notebook)
        assert caught.value.code == code
        assert caught.value.hint
        return caught.value

    def blob(self, md5: str) -> Path:
        return self.remote / "files/md5" / md5[:2] / md5[2:]

    def md5s(self, ref: DataRef) -> dict[str, str]:
        return {item["relpath"]: item["md5"] for item in json.loads(self.blob(ref.md5).read_text())}


@pytest.fixture(scope="session")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a folder and a file tracked and pushed, made once and copied for each test."""
    import subprocess

    base = tmp_path_factory.mktemp("pushed")
    root = base / "project"
    root.mkdir()
    for path, content in {"nb.ipynb": "{}", **FILES, "weights.bin": "w" * 1000}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(root)], check=True)

    class Plain:
        def __init__(self) -> None:
            self.root = root

    made = DataRepo(Plain(), base / "remote")
    made.init()
    made.add("data", "weights.bin")
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run(["git", "-C", str(root), "add", "--all"], check=True)
    subprocess.run(["git", "-C", str(root), *identity, "commit", "--quiet", "-m", "data"], check=True)
    return base


@pytest.fixture
def tracked(pushed: Path, tmp_path: Path, make_repo: Callable[..., Any]) -> DataRepo:
    shutil.copytree(pushed, tmp_path / "copy", symlinks=True)
    plain = make_repo("plain")
    return DataRepo(type(plain)(tmp_path / "copy/project"), tmp_path / "copy/remote")


def test_a_project_without_dvc_has_no_data_and_imports_no_dvc(repo: Any) -> None:
    found, proof = data.check(repo.project(), "nb.ipynb")
    assert (found, proof.checked) == ((), 0)


def test_references_say_path_version_size_and_remote(tracked: DataRepo) -> None:
    folder, file = tracked.refs()
    assert folder == DataRef(
        path="data",
        dvc_file="data.dvc",
        md5=folder.md5,
        size_bytes=12,
        nfiles=3,
        remote="store",
        remote_config={"url": str(tracked.remote)},
    )
    assert folder.md5.endswith(".dir")
    assert file == DataRef(
        path="weights.bin",
        dvc_file="weights.bin.dvc",
        md5=file.md5,
        size_bytes=1000,
        nfiles=1,
        remote="store",
        remote_config={"url": str(tracked.remote)},
    )


def test_the_proof_counts_every_blob_and_changes_nothing(tracked: DataRepo) -> None:
    tracked.check()
    before = tracked.repo.state()
    proof = tracked.check()
    assert (proof.checked, proof.size_bytes, proof.secrets) == (5, 1012, ())
    assert proof.seconds > 0
    state = tracked.repo.state()
    assert state["status"] == before["status"]
    assert state["git"] == before["git"]


def test_one_changed_byte_is_refused_naming_the_file(tracked: DataRepo) -> None:
    tracked.check()
    (tracked.root / "data/train/b.csv").write_text("3,5\n")
    error = tracked.refused("data-modified")
    assert error.detail == {"paths": ["data/train/b.csv"]}
    assert "data/train/b.csv" in error.message
    assert "dvc push" in error.hint
    assert "dvc checkout" in error.hint
    (tracked.root / "weights.bin").write_text("v" * 1000)
    (tracked.root / "data/new 文件.csv").write_text("7")
    (tracked.root / "data/名 字.csv").unlink()
    assert tracked.refused("data-modified").detail == {
        "paths": ["data/new 文件.csv", "data/train/b.csv", "data/名 字.csv", "weights.bin"]
    }


def test_a_renamed_file_is_named(tracked: DataRepo) -> None:
    (tracked.root / "data/train/b.csv").rename(tracked.root / "data/train/c.csv")
    assert "data/train/c.csv" in tracked.refused("data-modified").message


def test_a_version_not_committed_to_git_is_fine_once_pushed(tracked: DataRepo) -> None:
    before = tracked.refs()[0].md5
    (tracked.root / "data/train/b.csv").write_text("3,5\n")
    tracked.add("data", push=False)
    error = tracked.refused("data-not-pushed")
    assert error.detail == {"paths": ["data/"]}
    tracked.dvc("push")
    assert tracked.check().checked == 5
    assert tracked.refs()[0].md5 != before


def test_one_missing_blob_is_named_though_dvc_says_up_to_date(tracked: DataRepo) -> None:
    folder, file = tracked.refs()
    tracked.blob(tracked.md5s(folder)["train/b.csv"]).unlink()
    error = tracked.refused("data-not-pushed")
    assert error.detail == {"paths": ["data/train/b.csv"]}
    assert "'store' lacks 1 file" in error.message
    tracked.dvc("push")
    assert tracked.refused("data-not-pushed").detail == {"paths": ["data/train/b.csv"]}
    # the repair that the hint gives works
    listing = tracked.blob(folder.md5)
    assert f"rm -f '{listing}' && dvc push" in error.hint
    listing.unlink()
    tracked.dvc("push")
    assert tracked.check().checked == 5
    tracked.blob(file.md5).unlink()
    error = tracked.refused("data-not-pushed")
    assert error.detail == {"paths": ["weights.bin"]}
    assert error.hint == "Run `dvc push`."


def test_a_blob_that_is_not_in_the_cache_either(tracked: DataRepo) -> None:
    folder = tracked.refs()[0]
    md5 = tracked.md5s(folder)["train/b.csv"]
    tracked.blob(md5).unlink()
    (tracked.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    error = tracked.refused("data-not-pushed")
    assert "`dvc add` again first: data/train/b.csv" in error.hint


def test_a_listing_that_lies_or_is_gone(tracked: DataRepo) -> None:
    listing = tracked.blob(tracked.refs()[0].md5)
    listing.chmod(0o644)
    listing.write_text("[]")
    error = tracked.refused("data-not-pushed")
    assert error.detail == {"paths": ["data/"]}
    assert str(listing) in error.hint
    listing.unlink()
    assert tracked.refused("data-not-pushed").hint == "Run `dvc push`."


def test_a_blob_cut_short_is_found_by_its_size(tracked: DataRepo) -> None:
    folder, file = tracked.refs()
    for md5 in (file.md5, tracked.md5s(folder)["train/a.csv"]):
        tracked.blob(md5).chmod(0o644)
        os.truncate(tracked.blob(md5), 1)
    error = tracked.refused("data-damaged")
    assert error.detail == {"paths": ["data/train/a.csv", "weights.bin"]}
    assert str(tracked.blob(file.md5)) in error.hint
    shutil.rmtree(tracked.root / ".dvc/cache")
    assert tracked.refused("data-damaged").detail == {"paths": ["data", "weights.bin"]}


def test_data_that_is_only_in_the_remote_is_fine(tracked: DataRepo, tmp_path: Path) -> None:
    shutil.rmtree(tracked.root / "data")
    (tracked.root / "weights.bin").unlink()
    assert tracked.check().checked == 5
    shutil.rmtree(tracked.root / ".dvc/cache")
    assert tracked.check().checked == 5
    clone = tmp_path / "copy/clone"
    tracked.repo.git("clone", "--quiet", str(tracked.root), str(clone))
    found, proof = data.check(find_project(clone / "nb.ipynb"), "nb.ipynb")
    assert found == tracked.refs()
    assert proof.checked == 5


def test_no_remote_and_a_remote_that_is_away(tracked: DataRepo) -> None:
    tracked.remote.rename(tracked.remote.with_name("unmounted"))
    error = tracked.refused("dvc-remote-missing")
    assert str(tracked.remote) in error.message
    tracked.dvc("remote", "remove", "store")
    error = tracked.refused("dvc-remote-missing")
    assert "dvc remote add" in error.hint
    (tracked.root / ".dvc/config").write_text("[core]\n    remote = nowhere\n")
    tracked.refused("dvc-remote-missing")


def test_dvc_not_installed(tracked: DataRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "dvc" else found(name, *rest)
    )
    assert "pip install" in tracked.refused("dvc-missing").hint
    shutil.rmtree(tracked.root / ".dvc")
    assert "data.dvc" in tracked.refused("dvc-missing").message


def test_dvc_files_without_a_dvc_project(tracked: DataRepo) -> None:
    shutil.rmtree(tracked.root / ".dvc")
    assert "dvc init" in tracked.refused("dvc-not-initialised").hint
    (tracked.root / "data.dvc").write_text("no data at all")
    (tracked.root / "weights.bin.dvc").unlink()
    assert tracked.refs() == ()


def test_a_broken_dvc_file_is_named(tracked: DataRepo) -> None:
    (tracked.root / "data.dvc").write_text("outs: [")
    error = tracked.refused("dvc-failed")
    assert isinstance(error, UserError)
    assert "data.dvc" in error.message


def test_what_cannot_travel_by_reference_says_why(tracked: DataRepo) -> None:
    file = tracked.root / "weights.bin.dvc"
    text = file.read_text()
    file.write_text(text.replace("  hash: md5\n", ""))
    assert "dvc cache migrate" in tracked.refused("dvc-format-old").hint
    file.write_text(text + "  push: false\n")
    tracked.check()
    tracked.blob(tracked.refs()[1].md5).unlink()
    assert "`push: false`" in tracked.refused("data-not-pushed").hint
    file.write_text("outs:\n- path: weights.bin\n  hash: md5\n")
    assert tracked.refused("data-modified").detail == {"paths": ["weights.bin"]}
    (tracked.root / "weights.bin").unlink()
    assert [ref.path for ref in tracked.refs()] == ["data"]
    file.write_text(text + "  cache: false\n")
    assert [ref.path for ref in tracked.refs()] == ["data"]


def test_data_of_dvc_import_is_in_another_remote(tracked: DataRepo, pushed: Path) -> None:
    tracked.dvc("import", str(pushed / "project"), "weights.bin", "--out", "imported.bin")
    error = tracked.refused("data-imported")
    assert "imported.bin" in error.message
    assert "dvc add imported.bin" in error.hint


def test_pipelines_and_import_url(tracked: DataRepo, tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_text("9,9\n")
    (tracked.root / "prep").mkdir()
    tracked.dvc("import-url", str(source), "prep/imported.csv")
    (tracked.root / "dvc.yaml").write_text(
        "stages:\n  clean:\n    cmd: tr 9 8 < prep/imported.csv > prep/clean.csv\n"
        "    deps: [prep/imported.csv]\n    outs: [prep/clean.csv]\n"
        "  later:\n    cmd: 'true'\n    outs: [prep/not made.csv]\n"
    )
    tracked.dvc("repro", "clean")
    assert tracked.refused("data-not-pushed").detail == {"paths": ["prep/clean.csv", "prep/imported.csv"]}
    tracked.dvc("push")
    found = {ref.path: ref.dvc_file for ref in tracked.refs()}
    assert found == {
        "data": "data.dvc",
        "prep/clean.csv": "dvc.lock",
        "prep/imported.csv": "prep/imported.csv.dvc",
        "weights.bin": "weights.bin.dvc",
    }
    assert tracked.check().checked == 7
    (tracked.root / "prep/clean.csv").write_text("0,0\n")
    assert tracked.refused("data-modified").detail == {"paths": ["prep/clean.csv"]}


def test_dvc_projects_around_and_below_the_notebook(make_repo: Callable[..., Any], tmp_path: Path) -> None:
    repo = make_repo(files={"team a/nb.ipynb": "{}", "team b/nb.ipynb": "{}", "plain/nb.ipynb": "{}"})
    made = DataRepo(repo, tmp_path / "remote")
    for folder in ("team a", "team a/sub", "team b"):
        made.init(folder)
        repo.write(f"{folder}/d.csv", folder)
        made.add("d.csv", folder=folder)

    def paths(notebook: str) -> list[str]:
        return [ref.path for ref in made.refs(notebook)]

    assert paths("team a/nb.ipynb") == ["team a/d.csv", "team a/sub/d.csv"]
    assert paths("team a/sub/nb.ipynb") == ["team a/d.csv", "team a/sub/d.csv"]
    assert paths("team b/nb.ipynb") == ["team b/d.csv"]
    assert paths("plain/nb.ipynb") == ["team a/d.csv", "team a/sub/d.csv", "team b/d.csv"]
    assert made.refs("team b/nb.ipynb")[0].dvc_file == "team b/d.csv.dvc"
    assert made.check("team a/sub/nb.ipynb").checked == 2
    assert made.check("plain/nb.ipynb").checked == 3
    repo.write("team a/sub/d.csv", "changed")
    assert made.refused("data-modified", "team a/nb.ipynb").detail == {"paths": ["team a/sub/d.csv"]}
    assert made.check("team b/nb.ipynb").checked == 1


@pytest.fixture
def served(tracked: DataRepo) -> Iterator[str]:
    """The directory remote over HTTP: a remote that is no folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nothing."""

    handler = functools.partial(Quiet, directory=str(tracked.remote))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_remote_that_is_no_folder_and_its_secrets(tracked: DataRepo, served: str) -> None:
    url = served.replace("://", "://ann:pass-in-url@")
    tracked.dvc("remote", "modify", "store", "url", url)
    tracked.dvc("remote", "modify", "--local", "store", "password", "hidden-word")
    tracked.dvc("remote", "modify", "store", "ask_password", "false")
    folder, file = tracked.refs()
    assert folder.remote_config["url"] == served
    assert folder.remote_config["ask_password"] == "false"
    assert "hidden-word" not in str(folder) + str(file)
    assert "pass-in-url" not in str(folder) + str(file)
    proof = tracked.check()
    assert proof.secrets == ("store.password", "store.url's password", "store.url's user")
    assert proof.checked == 4
    tracked.blob(tracked.md5s(folder)["train/b.csv"]).unlink()
    tracked.blob(file.md5).unlink()
    error = tracked.refused("data-not-pushed")
    assert error.detail == {"paths": ["data/train/b.csv", "weights.bin"]}


def test_a_snapshot_holds_the_references_and_tells_of_the_proof(
    tracked: DataRepo, script: Script, environment: Environment
) -> None:
    proofs: list[DataProof] = []
    before = tracked.repo.state()
    path = tracked.root / "nb.ipynb"
    found = take(
        path,
        script=script,
        environment=environment,
        notebook_bytes=path.read_bytes(),
        on_proof=proofs.append,
    )
    assert found.data == tracked.refs()
    assert [proof.checked for proof in proofs] == [5]
    assert not [item.path for item in found.files if item.path.startswith(("data/", "weights.bin/"))]
    assert {"data.dvc", ".dvc/config", ".gitignore"} < {item.path for item in found.files}
    assert tracked.repo.state()["status"] == before["status"]
    with open(tracked.root / "data/train/b.csv", "a") as file:
        file.write("x")
    with pytest.raises(Refused) as caught:
        take(path, script=script, environment=environment, notebook_bytes=b"{}")
    assert caught.value.code == "data-modified"
    tracked.repo.write(".sliceliftignore", "data.dvc\n")
    less = take(path, script=script, environment=environment, notebook_bytes=b"{}")
    assert [ref.path for ref in less.data] == ["weights.bin"]
    assert "data.dvc" not in {item.path for item in less.files}
