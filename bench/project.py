"""Projects to promote: real git repositories with real DVC data, as large as asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GIT = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"]


def make(root: Path, *, files: int = 0, data_files: int = 0) -> Path:
    """A committed repository of `files` small sources and, if asked, a DVC folder that is pushed to its remote."""
    root.mkdir(parents=True, exist_ok=True)
    _git(root, "init", "-q", "-b", "main")
    write_sources(root, files, salt="first")
    if data_files:
        _add_data(root, data_files)
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "--allow-empty", "-m", "start")
    return root


def write_sources(root: Path, files: int, *, salt: str) -> None:
    """`files` sources of about 2 KB in folders of 50; another salt makes every one of them new."""
    for number in range(files):
        path = root / f"package_{number // 50:02d}" / f"module_{number:04d}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {salt} {number}\n" + f"VALUE_{number} = {number}\n" * 90, encoding="utf-8")


def write_notebook(path: Path, cells: Sequence[str], *, parameters: str = "") -> Path:
    """A notebook of code cells that were never run; `parameters` becomes the tagged first cell."""
    tagged = [_cell(0, parameters, tags=["parameters"])] if parameters else []
    body = [*tagged, *(_cell(number + 1, text) for number, text in enumerate(cells))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": body,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook, indent=1), encoding="utf-8")
    return path


def commit(root: Path) -> None:
    """Commit everything, so that the next promotion starts from a clean tree."""
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "--allow-empty", "-m", "next")


def _add_data(root: Path, data_files: int) -> None:
    folder, remote = root / "data", root.parent / f"{root.name}-remote"
    folder.mkdir()
    remote.mkdir()
    for number in range(data_files):
        (folder / f"part-{number:04d}.bin").write_bytes(number.to_bytes(4, "big") * 4096)
    for arguments in (
        ["init", "-q"],
        ["config", "-q", "core.analytics", "false"],
        ["remote", "add", "-q", "-d", "store", str(remote)],
        ["add", "-q", "data"],
        ["push", "-q"],
    ):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=root, check=True)


def _git(root: Path, *arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=root, check=True)


def _cell(number: int, text: str, *, tags: Sequence[str] = ()) -> dict[str, object]:
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "metadata": {"tags": list(tags)} if tags else {},
        "execution_count": None,
        "outputs": [],
        "source": text,
    }
