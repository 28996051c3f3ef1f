"""The code as a tree: everything that is on disk, nothing of the user's touched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Refused, Unavailable, UserError
from slicelift.models import LinePlace, Script
from slicelift.snapshot import code, git

OURS = {".slicelift/promoted.py", ".slicelift/promoted.map.json"}


def taken(repo: Any, script: Script, extra: dict[str, bytes] | None = None) -> code.Code:
    with code.drafting(repo.project()) as draft:
        return code.write(draft, script=script, extra_files=extra or {})


def test_everything_on_disk_travels_and_nothing_of_the_user_changes(repo: Any, script: Script) -> None:
    repo.write("lib/gone.py", "old")
    repo.write("被 跟踪.txt", "tracked")
    repo.commit()
    (repo.root / "lib/gone.py").unlink()
    repo.write("lib/model.py", "x = 2\n")
    repo.write("新 文件 名.bin", bytes(range(256)))
    repo.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    repo.write("noise.log", "ignored")
    repo.write("staged.py", "staged")
    repo.git("add", "staged.py")
    repo.write("staged.py", "then changed")
    (repo.root / "link").symlink_to("lib/model.py")
    before = repo.state()

    found = taken(repo, script)

    assert repo.state() == before
    assert found.dirty
    assert repo.tree(found.tree) == {item.path: item.mode for item in found.files}
    assert {item.path: item.mode for item in found.files} == {
        ".gitignore": "100644",
        ".slicelift/promoted.map.json": "100644",
        ".slicelift/promoted.py": "100644",
        "lib/model.py": "100644",
        "link": "120000",
        "nb.ipynb": "100644",
        "run.sh": "100755",
        "staged.py": "100644",
        "新 文件 名.bin": "100644",
        "被 跟踪.txt": "100644",
    }
    for item in found.files:
        content = repo.blob(found.tree, item.path)
        assert item.sha256 == hashlib.sha256(content).hexdigest()
        assert item.size_bytes == len(content)
    assert repo.blob(found.tree, "lib/model.py") == b"x = 2\n"
    assert repo.blob(found.tree, "staged.py") == b"then changed"
    assert repo.blob(found.tree, "link") == b"lib/model.py"


def test_the_script_and_its_map_are_in_the_tree(repo: Any) -> None:
    script = Script(
        source="import a\nprint('你好')\n",
        places=(None, LinePlace(cell=2, line=1), LinePlace(cell=0, line=3, file="other.ipynb")),
    )
    repo.write(".slicelift/promoted.py", "somebody's old one")
    repo.write(".slicelift/rubbish", "x")
    repo.commit()
    found = taken(repo, script)
    assert repo.blob(found.tree, found.script).decode() == script.source
    assert found.script_sha256 == hashlib.sha256(script.source.encode()).hexdigest()
    assert json.loads(repo.blob(found.tree, ".slicelift/promoted.map.json")) == [
        None,
        {"cell": 2, "line": 1, "file": None},
        {"cell": 0, "line": 3, "file": "other.ipynb"},
    ]
    assert ".slicelift/rubbish" not in repo.tree(found.tree)
    assert not found.dirty


def test_a_clean_project_is_not_dirty_also_with_files_kept_out(repo: Any, script: Script) -> None:
    repo.write("docs/a.md", "text")
    repo.write(".sliceliftignore", "docs\n")
    repo.commit()
    found = taken(repo, script, {"nb.ipynb": b"{}"})
    assert not found.dirty
    assert "docs/a.md" not in repo.tree(found.tree)
    assert taken(repo, script, {"nb.ipynb": b"{ }"}).dirty
    (repo.root / "lib/model.py").unlink()
    assert taken(repo, script).dirty


def test_the_notebook_is_what_was_given_whatever_the_disk_says(repo: Any, script: Script) -> None:
    repo.write(".gitattributes", "*.ipynb filter=strip\n")
    repo.git("config", "filter.strip.clean", "cat >/dev/null; echo stripped")
    repo.write("nb.ipynb", "saved meanwhile")
    frozen = b'{"cells": []}\r\n'
    found = taken(repo, script, {"nb.ipynb": frozen})
    assert repo.blob(found.tree, "nb.ipynb") == frozen
    (repo.root / "nb.ipynb").unlink()
    assert taken(repo, script, {"nb.ipynb": frozen}).tree == found.tree
    repo.write(".gitignore", "*.ipynb\n")
    assert repo.blob(taken(repo, script, {"nb.ipynb": frozen}).tree, "nb.ipynb") == frozen


def test_a_change_within_the_clock_tick_of_the_index_is_seen(repo: Any, script: Script) -> None:
    """Same size, same time, same inode: only the age of the index file tells git to look inside."""
    repo.git("config", "core.trustctime", "false")
    file, tick = repo.root / "lib/model.py", (1_700_000_000 * 10**9,) * 2
    file.write_text("y = 1\n")
    os.utime(file, ns=tick)
    repo.git("add", "lib/model.py")
    os.utime(repo.root / ".git/index", ns=tick)
    file.write_text("z = 9\n")
    os.utime(file, ns=tick)
    assert repo.blob(taken(repo, script).tree, "lib/model.py") == b"z = 9\n"


def test_flags_that_hide_a_file_from_git_do_not_hide_it_here(repo: Any, script: Script) -> None:
    for name in ("assumed.py", "skipped.py", "absent.py"):
        repo.write(name, "committed")
    repo.commit()
    repo.git("update-index", "--assume-unchanged", "assumed.py")
    repo.git("update-index", "--skip-worktree", "skipped.py", "absent.py")
    repo.write("assumed.py", "changed 1")
    repo.write("skipped.py", "changed 2")
    (repo.root / "absent.py").unlink()
    repo.write("intended.py", "new")
    repo.git("add", "--intent-to-add", "intended.py")
    before = repo.state()
    tree = taken(repo, script).tree
    assert repo.blob(tree, "assumed.py") == b"changed 1"
    assert repo.blob(tree, "skipped.py") == b"changed 2"
    assert repo.blob(tree, "intended.py") == b"new"
    assert "absent.py" not in repo.tree(tree)
    assert repo.state() == before


def test_in_the_middle_of_a_merge_the_files_travel_as_they_are(repo: Any, script: Script) -> None:
    repo.git("checkout", "--quiet", "-b", "side")
    repo.write("lib/model.py", "x = 'side'\n")
    repo.commit()
    repo.git("checkout", "--quiet", "main")
    repo.write("lib/model.py", "x = 'main'\n")
    repo.commit()
    with pytest.raises(AssertionError):
        repo.git("merge", "side")
    before = repo.state()
    content = repo.blob(taken(repo, script).tree, "lib/model.py")
    assert b"<<<<<<<" in content
    assert b"side" in content
    assert repo.state() == before


def test_a_file_that_became_a_folder_and_the_other_way_round(repo: Any, script: Script) -> None:
    repo.write("a", "file")
    repo.write("b/c", "folder")
    repo.commit()
    (repo.root / "a").unlink()
    repo.write("a/inside", "1")
    (repo.root / "b/c").unlink()
    (repo.root / "b").rmdir()
    repo.write("b", "2")
    assert {"a/inside", "b"} < set(repo.tree(taken(repo, script).tree))


def test_line_ends_are_as_git_says(repo: Any, script: Script) -> None:
    repo.git("config", "core.autocrlf", "true")
    repo.git("config", "core.safecrlf", "true")
    repo.write("dos.txt", b"a\r\nb\n")
    assert repo.blob(taken(repo, script).tree, "dos.txt") == b"a\nb\n"


def test_hooks_of_the_repository_do_not_run(repo: Any, script: Script) -> None:
    for name in ("post-index-change", "reference-transaction", "pre-commit"):
        repo.write(f".git/hooks/{name}", f"#!/bin/sh\ntouch {repo.root}/hook-ran\n").chmod(0o755)
    found = taken(repo, script)
    code.keep(repo.project(), found.tree, snapshot_id="ab" * 32, notebook="nb.ipynb")
    assert not (repo.root / "hook-ran").exists()


def test_lfs_pointers_are_refused_every_time_unless_ignored(repo: Any, script: Script) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    repo.write("weights.pt", pointer)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            taken(repo, script)
        assert caught.value.code == "lfs-pointer"
        assert "weights.pt" in caught.value.message
    repo.write(".sliceliftignore", "*.pt\n")
    taken(repo, script)


def test_the_commit_hangs_on_a_ref_of_ours_and_is_made_once(repo: Any, script: Script) -> None:
    project, found = repo.project(), taken(repo, script)
    identity = hashlib.sha256(b"some").hexdigest()
    before = repo.state()
    commit = code.keep(project, found.tree, snapshot_id=identity, notebook="笔记 本.ipynb")
    assert code.keep(project, found.tree, snapshot_id=identity, notebook="笔记 本.ipynb") == commit
    assert repo.state() == before
    assert repo.git("rev-parse", f"refs/slicelift/{identity[:12]}").strip() == commit
    assert repo.git("log", "-1", "--format=%T|%P|%an|%ce|%s|%(trailers)", commit).strip() == (
        f"{found.tree}|{project.head}|Slicelift|slicelift@localhost|Snapshot of 笔记 本.ipynb"
        f"|Slicelift-Snapshot: {identity}"
    )
    other = taken(repo, Script(source="2\n", places=()))
    assert code.keep(project, other.tree, snapshot_id=identity, notebook="nb.ipynb") != commit


def test_a_worktree_beside_the_main_one(repo: Any, script: Script, tmp_path: Path) -> None:
    side = type(repo)(tmp_path / "side tree")
    repo.git("worktree", "add", "--quiet", "-b", "side", str(side.root))
    side.write("only here.txt", "1")
    before, before_side = repo.state(), side.state()
    found = taken(side, script)
    assert "only here.txt" in side.tree(found.tree)
    assert (repo.state(), side.state()) == (before, before_side)


def test_many_at_once_neither_disturb_each_other_nor_the_user(repo: Any, script: Script) -> None:
    for number in range(50):
        repo.write(f"lib/m{number}.py", f"x = {number}\n")
    before = repo.state()
    trees: list[str] = []
    commits: list[str] = []

    def one() -> None:
        found = taken(repo, script)
        trees.append(found.tree)
        commits.append(code.keep(repo.project(), found.tree, snapshot_id="cd" * 32, notebook="nb.ipynb"))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(trees)) == 1
    assert len(commits) == 6
    assert repo.state() == before
    assert repo.git("rev-parse", "refs/slicelift/cdcdcdcdcdcd").strip() in commits


def test_an_unchanged_tree_reads_no_file_and_starts_few_processes(
    repo: Any, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        repo.write(f"lib/m{number}.py", f"x = {number}\n")
    first = taken(repo, script)
    started: list[str] = []
    real_process, real_batch = git._process, git.start_batch

    def process(folder: Path, args: tuple[str, ...], **rest: Any) -> Any:
        started.append(args[0])
        return real_process(folder, args, **rest)

    def batch(folder: Path, oids: list[str]) -> Any:
        started.append("cat-file")
        return real_batch(folder, oids)

    monkeypatch.setattr(git, "_process", process)
    monkeypatch.setattr(git, "start_batch", batch)
    project = repo.project()
    started.clear()
    with code.drafting(project) as draft:
        assert code.write(draft, script=script, extra_files={}) == first
    assert started == [
        "ls-files",
        "hash-object",
        "update-index",
        "update-index",
        "write-tree",
        "ls-tree",
        "diff-index",
    ]


@pytest.mark.parametrize("damage", ["rubbish", "folder", "wrong table", "read-only home"])
def test_a_useless_memory_of_digests_costs_nothing_but_time(repo: Any, script: Script, damage: str) -> None:
    first = taken(repo, script)
    memory = Path.home() / ".cache/slicelift/blobs.sqlite"
    assert memory.is_file()
    memory.unlink()
    if damage == "rubbish":
        memory.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    elif damage == "folder":
        memory.mkdir()
    elif damage == "wrong table":
        import sqlite3

        with sqlite3.connect(memory) as connection:
            connection.execute("CREATE TABLE blobs (other TEXT)")
        connection.close()
    else:
        memory.parent.rmdir()
        memory.parent.write_text("a file where the folder should be")
    assert taken(repo, script) == first
    assert taken(repo, script) == first


def test_what_git_cannot_do_is_said_in_its_words(repo: Any, script: Script) -> None:
    project = repo.project()
    (repo.root / ".git/index").write_bytes(b"rubbish")
    with pytest.raises(UserError) as caught:
        taken(repo, script)
    assert caught.value.code == "git-failed"
    assert "index file" in caught.value.message
    with pytest.raises(UserError) as lost:
        code.list_files(project, "1" * 40)
    assert lost.value.code == "git-failed"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Three megabytes and no more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "slicelift-test", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.needs_root
def test_a_full_disk_is_said_and_nothing_is_half_done(
    repo: Any, small_disk: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = type(repo)(small_disk / "project")
    full.root.mkdir()
    full.git("init", "--quiet")
    full.write("nb.ipynb", "{}")
    full.commit()
    full.write("big.bin", os.urandom(2 * 1024**2))
    with pytest.raises(Unavailable) as caught:
        taken(full, script)
    assert caught.value.code == "disk-full"
    full.write("filler.bin", b"")
    with contextlib.suppress(OSError), open(full.root / "filler.bin", "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(Unavailable) as own:
        taken(repo, script)
    assert own.value.code == "disk-full"
    with pytest.raises(Unavailable) as reading:
        git.start_batch(repo.root, ["0" * 40] * 1000)
    assert reading.value.code == "disk-full"
    (full.root / "filler.bin").unlink()
    (full.root / "big.bin").unlink()
    assert "nb.ipynb" in full.tree(taken(full, script).tree)


@pytest.mark.parametrize(
    ("complaint", "kind", "expected"),
    [
        ("error: unable to write file x: No space left on device\nfatal: y", Unavailable, "disk-full"),
        ('error: open("a b"): Permission denied\nfatal: adding files failed', Refused, "file-unreadable"),
        ("fatal: strange", UserError, "git-failed"),
    ],
)
def test_complaints_of_git(complaint: str, kind: type[Exception], expected: str) -> None:
    error = git.translate(Path("/p"), ("add",), complaint)
    assert isinstance(error, kind)
    assert error.code == expected
    assert error.hint


def test_a_repository_with_sha256_object_names(
    make_repo: Callable[..., Any], tmp_path: Path, script: Script
) -> None:
    repo = type(make_repo())(tmp_path / "modern")
    repo.root.mkdir()
    repo.git("init", "--quiet", "--object-format=sha256")
    repo.write("nb.ipynb", "{}")
    repo.write(".sliceliftignore", "gone.py\n")
    repo.write("gone.py", "1")
    repo.commit()
    found = taken(repo, script)
    assert len(found.tree) == 64
    assert {item.path for item in found.files} == OURS | {"nb.ipynb", ".sliceliftignore"}
