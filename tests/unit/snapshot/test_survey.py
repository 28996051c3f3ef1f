"""What is refused by names and sizes, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Refused
from slicelift.models import Script
from slicelift.snapshot import code, survey


def looked(repo: Any, **options: Any) -> survey.Survey:
    with code.drafting(repo.project(), **options) as draft:
        return draft.survey


def refused(repo: Any, **options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        looked(repo, **options)
    return caught.value


def test_five_gigabytes_are_refused_before_hashing_with_names_and_ways_out(repo: Any) -> None:
    with open(repo.write("raw/huge video.mp4"), "wb") as file:
        file.truncate(5 * 1024**3)
    with open(repo.write("raw/small.mp4"), "wb") as file:
        file.truncate(3 * 1024**2)
    before, objects = repo.state(), repo.git("count-objects")
    error = refused(repo)
    assert error.code == "snapshot-too-large"
    assert "raw/huge video.mp4 (5.0 GiB); raw/small.mp4 (3.0 MiB)" in error.message
    assert "raw/ (5.0 GiB)" in error.message
    assert all(way in error.hint for way in ("dvc add", ".gitignore", ".sliceliftignore"))
    assert error.detail["files"][0] == ("raw/huge video.mp4", 5 * 1024**3)
    assert repo.state() == before
    assert repo.git("count-objects") == objects  # nothing was hashed


def test_a_tracked_file_that_grew_counts_as_it_is_on_disk(repo: Any) -> None:
    with open(repo.root / "lib/model.py", "wb") as file:
        file.truncate(2 * 1024**2)
    assert refused(repo, limit_bytes=1024**2).detail["files"][0][0] == "lib/model.py"


def test_the_limit_comes_from_the_environment(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(repo.write("x.bin"), "wb") as file:
        file.truncate(2 * 1024**2)
    monkeypatch.setenv("SLICELIFT_SNAPSHOT_LIMIT_MIB", "1")
    assert refused(repo).code == "snapshot-too-large"
    monkeypatch.setenv("SLICELIFT_SNAPSHOT_LIMIT_MIB", "3")
    assert looked(repo).size_bytes > 2 * 1024**2
    monkeypatch.setenv("SLICELIFT_SNAPSHOT_LIMIT_MIB", "lots")
    assert refused(repo).code == "snapshot-limit-invalid"


def test_git_ignored_and_own_files_are_not_measured(repo: Any) -> None:
    with open(repo.write("x.log"), "wb") as file:
        file.truncate(5 * 1024**3)
    repo.write(".slicelift/promoted.py", "mine")
    assert set(looked(repo).paths) == {"nb.ipynb", "lib/model.py", ".gitignore"}


def test_by_products_of_running_and_saving_do_not_travel_unless_tracked(repo: Any) -> None:
    repo.write("lib/__pycache__/kept.pyc", "tracked on purpose")
    repo.commit()
    repo.write("lib/__pycache__/model.pyc", "1")
    repo.write(".ipynb_checkpoints/nb-checkpoint.ipynb", "{}")
    assert set(looked(repo).paths) == {"nb.ipynb", "lib/model.py", ".gitignore", "lib/__pycache__/kept.pyc"}


def test_sliceliftignore_has_the_syntax_and_the_places_of_gitignore(make_repo: Callable[..., Any]) -> None:
    repo = make_repo(
        files={
            # the rule of .gitignore that takes all .py back in must not bring slow.py back
            ".gitignore": "*\n!*.py\n!*/\n!.*ignore\n!*.md\n!*.ipynb\n",
            ".sliceliftignore": "slow.py\n/doc/\n!doc/kept.py\n*.md\n!keep.md\n",
            "sub/.sliceliftignore": "local.py\n",
            "slow.py": "1",
            "sub/slow.py": "2",
            "sub/local.py": "3",
            "local.py": "4",
            "doc/a.py": "5",
            "doc/kept.py": "6",
            "deep/doc/a.py": "7",
            "read.md": "8",
            "keep.md": "9",
        }
    )
    repo.write("new/slow.py", "untracked")
    found = looked(repo)
    assert set(found.paths) == {
        ".gitignore",
        ".sliceliftignore",
        "sub/.sliceliftignore",
        "local.py",
        "deep/doc/a.py",
        "keep.md",
        "nb.ipynb",
    }
    assert found.excluded == {
        "slow.py", "sub/slow.py", "sub/local.py", "doc/a.py", "doc/kept.py", "read.md", "new/slow.py",
    }  # fmt: skip


def test_a_clone_inside_the_project_is_refused_unless_ignored(repo: Any, make_repo: Any) -> None:
    make_repo("project/third party", files={"a.py": "1"})
    error = refused(repo)
    assert error.code == "submodule-not-supported"
    assert "third party is a repository" in error.message
    assert ".sliceliftignore" in error.hint
    repo.write(".sliceliftignore", "third party/\n")
    assert "third party" not in looked(repo).paths


def test_a_submodule_is_refused_unless_ignored(repo: Any, make_repo: Any) -> None:
    inner = make_repo("inner", files={"a.py": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.root), "inner")
    repo.commit()
    assert refused(repo).detail == {"paths": ["inner"]}
    repo.write(".sliceliftignore", "/inner\n")
    assert looked(repo).removals == ("inner",)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("out", "../secret.txt"),
        ("sub/out", "../../secret.txt"),
        ("out", "/etc/hostname"),
        ("out", "nowhere/../../secret.txt"),
        ("round", "round"),
    ],
)
def test_links_out_are_refused(repo: Any, path: str, target: str) -> None:
    repo.write("sub/x.py")
    (repo.root / path).symlink_to(target)
    error = refused(repo)
    assert error.code == "link-outside"
    assert f"{path} -> {target}" in error.message
    repo.write(".sliceliftignore", path)
    assert path not in looked(repo).paths


def test_a_link_out_by_way_of_another_link_is_refused(repo: Any) -> None:
    repo.write("a/b/c.py")
    (repo.root / "up").symlink_to("a/..")
    (repo.root / "in").symlink_to("a/b/../b/c.py")
    (repo.root / "out").symlink_to("up/up/../x")
    assert refused(repo).detail == {"links": {"out": "up/up/../x"}}


def test_links_inside_travel_and_a_folder_that_became_a_link_is_one(repo: Any) -> None:
    repo.write("data/v1.csv", "1")
    repo.write("old/x.py", "1")
    repo.commit()
    (repo.root / "latest.csv").symlink_to("data/v1.csv")
    (repo.root / "lib/dangling").symlink_to("../not made yet")
    (repo.root / "old" / "x.py").unlink()
    (repo.root / "old").rmdir()
    (repo.root / "old").symlink_to("lib")
    found = looked(repo)
    assert {"latest.csv", "lib/dangling", "old"} <= set(found.paths)
    assert found.removals == ("old/x.py",)


def test_a_name_that_is_no_utf8_is_refused(repo: Any) -> None:
    with open(os.fsencode(repo.root) + b"/caf\xe9.txt", "w"):
        pass
    error = refused(repo)
    assert error.code == "path-not-utf8"
    assert "caf\\xe9.txt" in error.message


@pytest.mark.parametrize("name", ["two\nlines.txt", "tab\t.txt", "back\\slash.txt", "next\x85line"])
def test_a_name_that_no_launcher_takes_is_refused(repo: Any, name: str) -> None:
    repo.write(f"新/{name}")
    error = refused(repo)
    assert error.code == "path-not-portable"
    assert repr(f"新/{name}") in error.message
    repo.write(".sliceliftignore", "新/\n")
    assert not any(path.startswith("新/") for path in looked(repo).paths)


@pytest.mark.parametrize("name", ["no\u00a0break.txt", "全 角.txt", "e\u0301.txt", "\u200bzero.txt"])
def test_an_unusual_name_travels(repo: Any, name: str) -> None:
    repo.write(name)
    assert name in looked(repo).paths


def test_sockets_and_pipes_are_passed_over(repo: Any, script: Script) -> None:
    os.mkfifo(repo.root / "pipe")
    (repo.root / "lib/model.py").unlink()
    os.mkfifo(repo.root / "lib/model.py")
    found = looked(repo)
    assert "pipe" not in found.paths
    assert found.removals == ("lib/model.py",)
    with code.drafting(repo.project()) as draft:
        assert "lib/model.py" not in repo.tree(code.write(draft, script=script, extra_files={}).tree)


def test_a_long_list_is_cut() -> None:
    assert survey.named([str(n) for n in range(7)]) == "0, 1, 2, 3, 4 and 2 more"


def test_a_draft_leaves_no_folder_behind(repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    looked(repo)
    assert list(scratch.iterdir()) == []
