"""Finding the repository around a notebook, and making one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import NotFound, Refused, UserError
from slicelift.snapshot import Candidate, find_project, git, init_project

LIMIT = 10 * 1024**2


def test_a_project_is_the_git_top_level(make_repo: Callable[..., Any]) -> None:
    repo = make_repo("我的 项目", files={"笔记 本/nb.ipynb": "{}"})
    project = find_project(repo.root / "笔记 本" / "nb.ipynb")
    assert project.root == repo.root
    assert project.git_dir == repo.root / ".git"
    assert project.head == repo.git("rev-parse", "HEAD").strip()
    assert project.branch == "main"
    assert project.relative(repo.root / "笔记 本" / "nb.ipynb") == "笔记 本/nb.ipynb"


def test_a_worktree_has_its_own_index_and_a_detached_head_no_branch(
    make_repo: Callable[..., Any], tmp_path: Path
) -> None:
    repo = make_repo()
    repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "side"))
    project = find_project(tmp_path / "side" / "nb.ipynb")
    assert project.root == tmp_path / "side"
    assert project.git_dir == repo.root / ".git" / "worktrees" / "side"
    assert project.branch == ""


def test_a_folder_reached_by_a_link_is_the_same_project(
    make_repo: Callable[..., Any], tmp_path: Path
) -> None:
    repo = make_repo(files={"deep/nb.ipynb": "{}"})
    (tmp_path / "short").symlink_to(repo.root / "deep")
    project = find_project(tmp_path / "short" / "nb.ipynb")
    assert project.root == repo.root
    assert project.relative(tmp_path / "short" / "nb.ipynb") == "deep/nb.ipynb"
    with pytest.raises(UserError) as caught:
        project.relative(tmp_path / "elsewhere.ipynb")
    assert caught.value.code == "outside-project"


def test_no_repository_offers_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_project(tmp_path / "nb.ipynb")
    assert caught.value.code == "no-git"
    assert str(tmp_path) in caught.value.message
    assert "--init-git" in caught.value.hint


def test_a_repository_without_commit_offers_to_make_it(tmp_path: Path) -> None:
    git.run(tmp_path, "init", "--quiet")
    with pytest.raises(UserError) as caught:
        find_project(tmp_path / "nb.ipynb")
    assert caught.value.code == "no-commit"
    assert "--init-git" in caught.value.hint


def test_a_bare_repository_has_nothing_to_take(tmp_path: Path) -> None:
    git.run(tmp_path, "init", "--quiet", "--bare")
    with pytest.raises(UserError) as caught:
        find_project(tmp_path / "nb.ipynb")
    assert caught.value.code == "no-git"
    assert "worktree" in caught.value.message


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        find_project(tmp_path / "gone" / "nb.ipynb")
    assert caught.value.code == "notebook-not-found"


def test_git_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        find_project(tmp_path / "nb.ipynb")
    assert caught.value.code == "git-missing"
    assert "PATH" in caught.value.message


@pytest.mark.needs_root
def test_a_repository_of_somebody_else(make_repo: Callable[..., Any]) -> None:
    repo = make_repo()
    for path in (repo.root, repo.root / ".git"):
        os.chown(path, 12345, 12345)
    with pytest.raises(UserError) as caught:
        find_project(repo.root / "nb.ipynb")
    assert caught.value.code == "git-dubious-ownership"
    assert f"safe.directory {repo.root}" in caught.value.hint


def test_a_repository_named_by_the_environment_is_not_taken(
    make_repo: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = make_repo("here"), make_repo("other")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.root))
    assert find_project(here.root / "nb.ipynb").root == here.root


def test_git_in_another_language_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setenv("LANGUAGE", "zh_CN:de")
    with pytest.raises(UserError) as caught:
        find_project(tmp_path / "nb.ipynb")
    assert caught.value.code == "no-git"


def test_init_makes_a_repository_and_lists_it_first(tmp_path: Path) -> None:
    root = tmp_path / "新 项目"
    root.mkdir()
    (root / "nb.ipynb").write_text("{}")
    (root / "big.csv").write_text("1,2\n" * 100)
    (root / ".env").write_text("KEY=secret")
    (root / "outputs").mkdir()
    (root / "outputs" / "old.pt").write_text("x")
    seen: list[Candidate] = []

    def confirm(held: Sequence[Candidate]) -> bool:
        seen.extend(held)
        return True

    project = init_project(root, limit_bytes=LIMIT, confirm=confirm)
    assert seen[0].path == "big.csv"
    assert {item.path for item in seen} == {"nb.ipynb", "big.csv", ".gitignore"}
    assert git.run(root, "ls-tree", "-r", "--name-only", "HEAD").decode().split() == [
        ".gitignore",
        "big.csv",
        "nb.ipynb",
    ]
    assert git.run(root, "log", "-1", "--format=%an").decode().strip() == "Slicelift"
    assert init_project(root, limit_bytes=LIMIT).head == project.head


def test_init_in_a_repository_without_commit_commits_its_top(tmp_path: Path) -> None:
    git.run(tmp_path, "init", "--quiet")
    git.run(tmp_path, "config", "user.name", "Ann")
    git.run(tmp_path, "config", "user.email", "ann@example.org")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "nb.ipynb").write_text("{}")
    (tmp_path / ".gitignore").write_text("home\n")
    project = init_project(tmp_path / "sub", limit_bytes=LIMIT)
    assert project.root == tmp_path
    assert (tmp_path / ".gitignore").read_text() == "home\n"
    assert git.run(tmp_path, "log", "-1", "--format=%an").decode().strip() == "Ann"


def test_init_declined_commits_nothing(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    (root / "nb.ipynb").write_text("{}")
    with pytest.raises(Refused) as caught:
        init_project(root, limit_bytes=LIMIT, confirm=lambda held: False)
    assert caught.value.code == "init-declined"
    with pytest.raises(UserError) as again:
        find_project(root / "nb.ipynb")
    assert again.value.code == "no-commit"


def test_init_of_too_much_is_refused_before_hashing(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    with open(root / "data.bin", "wb") as file:
        file.truncate(5 * 1024**3)
    with pytest.raises(Refused) as caught:
        init_project(root, limit_bytes=LIMIT)
    assert caught.value.code == "snapshot-too-large"
    assert "data.bin (5.0 GiB)" in caught.value.message
