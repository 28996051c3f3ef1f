"""The snapshot as a whole: one identity for one content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from slicelift.errors import Refused, UserError
from slicelift.models import DataRef, Environment, Script, Snapshot, from_dict, to_dict
from slicelift.snapshot import snapshot_id, take


def snap(repo: Any, script: Script, environment: Environment, notebook: str = "nb.ipynb") -> Snapshot:
    path = repo.root / notebook
    return take(path, script=script, environment=environment, notebook_bytes=path.read_bytes())


def test_a_snapshot_says_everything(
    make_repo: Callable[..., Any], script: Script, environment: Environment
) -> None:
    repo = make_repo(files={"sub 目录/笔记.ipynb": "{}", "sub 目录/own.py": "1"})
    repo.write("new.py", "2")
    found = snap(repo, script, environment, "sub 目录/笔记.ipynb")
    assert dataclasses.replace(found, files=()) == Snapshot(
        id=found.id,
        tree=found.tree,
        commit=repo.git("rev-parse", f"refs/slicelift/{found.id[:12]}").strip(),
        base_commit=repo.git("rev-parse", "HEAD").strip(),
        branch="main",
        dirty=True,
        notebook="sub 目录/笔记.ipynb",
        cwd="sub 目录",
        script=".slicelift/promoted.py",
        script_sha256=hashlib.sha256(script.source.encode()).hexdigest(),
        lock_sha256=hashlib.sha256(environment.lock.encode()).hexdigest(),
    )
    assert repo.blob(found.tree, ".slicelift/environment.lock").decode() == environment.lock
    assert found.lock_sha256 in {item.sha256 for item in found.files}
    assert snap(repo, script, environment).cwd == "."
    assert from_dict(Snapshot, to_dict(found)) == found


def test_outputs_do_not_travel_and_make_no_other_snapshot(
    make_repo: Callable[..., Any], script: Script, environment: Environment
) -> None:
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["x"], "outputs": []}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell | {"execution_count": None}]}
    repo = make_repo(files={"nb.ipynb": json.dumps(whole)})
    repo.commit()
    before = snap(repo, script, environment)
    stream = {"output_type": "stream", "name": "stdout", "text": ["a card"]}
    run = whole | {"cells": [cell | {"execution_count": 7, "outputs": [stream]}]}
    repo.write("nb.ipynb", json.dumps(run, indent=2))
    after = snap(repo, script, environment)
    assert (after.id, after.files, after.commit) == (before.id, before.files, before.commit)
    assert not before.dirty
    assert not after.dirty
    assert b"a card" not in repo.blob(after.tree, "nb.ipynb")
    repo.write("nb.ipynb", json.dumps(run | {"cells": [cell | {"source": "y"}]}))
    changed = snap(repo, script, environment)
    assert changed.id != before.id
    assert changed.dirty


def test_the_same_content_has_the_same_id_elsewhere_and_later(
    make_repo: Callable[..., Any], tmp_path: Any, script: Script, environment: Environment
) -> None:
    repo = make_repo(files={"a.py": "1", "run.sh": "x"})
    (repo.root / "run.sh").chmod(0o755)
    repo.commit()
    first = snap(repo, script, environment)
    other = type(repo)(tmp_path / "其他 机器" / "copy")
    other.root.parent.mkdir()
    repo.git("clone", "--quiet", str(repo.root), str(other.root))
    other.git("commit", "--quiet", "--allow-empty", "-m", "a commit more")
    for path in other.root.glob("*"):
        os.utime(path, (1, 1))
    again = snap(other, script, environment)
    assert again.id == first.id
    assert again.files == first.files
    assert again.commit != first.commit
    assert snap(repo, script, environment) == first


def test_any_content_changes_the_id(repo: Any, script: Script, environment: Environment) -> None:
    ids = [snap(repo, script, environment).id]
    repo.write("untracked.txt", "1")
    ids.append(snap(repo, script, environment).id)
    repo.write("untracked.txt", "1").chmod(0o755)
    ids.append(snap(repo, script, environment).id)
    ids.append(snap(repo, Script(source="2\n", places=()), environment).id)
    ids.append(snap(repo, script, dataclasses.replace(environment, packages={"torch": "2.7.0"})).id)
    assert len(set(ids)) == len(ids)


def test_the_id_holds_the_data_but_not_where_it_lies() -> None:
    ref = DataRef(path="d", dvc_file="d.dvc", md5="a" * 32, size_bytes=1, nfiles=1, remote="s")
    rest = {"tree": "t", "script_sha256": "s", "lock_sha256": "l"}
    plain = snapshot_id(**rest, data=[ref])
    moved = dataclasses.replace(ref, remote="other", remote_config={"url": "/elsewhere"})
    assert snapshot_id(**rest, data=[moved]) == plain
    second = dataclasses.replace(ref, path="e")
    assert snapshot_id(**rest, data=[ref, second]) == snapshot_id(**rest, data=[second, ref])
    for change in ({"md5": "b" * 32}, {"path": "e"}, {"size_bytes": 2}):
        assert snapshot_id(**rest, data=[dataclasses.replace(ref, **change)]) != plain
    assert len(plain) == 64


def test_errors_come_through_and_nothing_is_left(
    repo: Any, script: Script, environment: Environment, tmp_path: Any
) -> None:
    with pytest.raises(UserError) as caught:
        take(tmp_path / "nb.ipynb", script=script, environment=environment, notebook_bytes=b"{}")
    assert caught.value.code == "no-git"
    with open(repo.write("x.bin"), "wb") as file:
        file.truncate(5 * 1024**3)
    with pytest.raises(Refused) as large:
        snap(repo, script, environment)
    assert large.value.code == "snapshot-too-large"
    assert repo.git("for-each-ref", "refs/slicelift") == ""


def test_killed_at_any_moment_the_repository_is_as_it_was(repo: Any, tmp_path: Any) -> None:
    """Needs some seconds: it kills a process that takes snapshots without end, eight times."""
    for number in range(100):
        repo.write(f"src/m{number}.py", f"x = {number}\n")
    program = tmp_path / "endless.py"
    program.write_text(
        "import sys, itertools\n"
        "from slicelift.models import Environment, Script\n"
        "from slicelift.snapshot import take\n"
        "environment = Environment(python='p', python_version='3.12', platform='l')\n"
        "for number in itertools.count():\n"
        "    script = Script(source=f'print({number})', places=())\n"
        "    take(sys.argv[1], script=script, environment=environment, notebook_bytes=b'{}')\n"
        "    print(number, flush=True)\n"
    )
    before = repo.state()
    for number in range(8):
        with subprocess.Popen(
            [sys.executable, str(program), str(repo.root / "nb.ipynb")], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline()
            time.sleep(0.013 * number)
            child.kill()
        assert repo.state() == before
    environment = Environment(python="p", python_version="3.12", platform="l")
    assert snap(repo, Script(source="after\n", places=()), environment).dirty
    assert repo.git("fsck", "--no-dangling", "--strict") == ""
