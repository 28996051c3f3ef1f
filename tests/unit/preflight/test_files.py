"""Paths in the code: inside, outside, absent, tracked, large."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Told = Callable[..., list[tuple[Any, ...]]]
OUT = "from pathlib import Path\nimport os, pandas as pd, numpy as np, torch\n"


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("open('here.csv')", []),
        ("open('gone.csv')", ["missing-file"]),
        ("open('gone.csv', 'w')\nopen('gone.csv')", []),
        ("open('gone.csv', mode='a')", []),
        ("Path('gone.csv').read_text()", ["missing-file"]),
        ("(Path('data') / 'here.csv').read_text()", []),
        ("with Path('gone').joinpath('x').open() as f: ...", ["missing-file"]),
        ("Path('made').mkdir()\nopen('made/x.csv')", []),
        ("pd.read_csv('gone.csv')", ["missing-file"]),
        ("np.load('gone.npy')\ntorch.load('gone.pt')", ["missing-file"] * 2),
        ("open('https://example.org/x.csv')\npd.read_csv('s3://bucket/x')", []),
        ("open('tracked.csv')\nopen('raw/deep/part.csv')\nopen('stage/out.csv')", []),
        ("open(name)\nopen(f'{name}.csv')", []),
        ("if os.path.exists('gone.csv'):\n    open('gone.csv')", []),
        ("try:\n    open('gone.csv')\nexcept FileNotFoundError:\n    pass", []),
        ("BASE = Path('data')\nopen(BASE / 'gone.csv')\nopen(BASE / 'here.csv')", ["missing-file"]),
        ("os.chdir('data')\nopen('here.csv')\nopen('gone.csv')", ["missing-file"]),
        ("%cd data\nopen('here.csv')\n%cd ..\nopen('data/here.csv')", []),
        ("os.chdir(somewhere)\nopen('gone.csv')", []),
        ("open('secret.txt')", ["missing-file"]),
        ("open('/home/ana/x.csv')", ["outside-path"]),
        ("open(file='/home/ana/x.csv', mode='w')", ["outside-path"]),
        ("open('../../x.csv')", ["outside-path"]),
        ("open('./data/../here.csv')", []),
        ("Path('~/x.csv').expanduser().read_text()", ["outside-path"]),
        ("pd.read_csv('~/x.csv')", ["outside-path"]),
        ("open(os.path.expanduser('~/x.csv'))", ["outside-path"]),
        ("label = '/home/ana/x.csv'\nprint(label)", []),
        ("open('/dev/null')\nopen('/tmp/x', 'w')", []),
        ("open('/tmp/x-that-is-not-there')", ["outside-path"]),
        ("open('leaves.csv')", ["outside-path"]),
        ("%cd /home/ana", ["outside-path"]),
        ("%%writefile ../../x.py\nx = 1", ["outside-path"]),
        ("open('large.bin', 'rb')", ["large-file-in-snapshot"]),
    ],
)
def test_paths(source: str, codes: list[str], told: Told, project: Path) -> None:
    project.joinpath("leaves.csv").symlink_to("/etc/hostname")
    files: dict[str, str | bytes] = {
        "here.csv": "1",
        "data/here.csv": "1",
        "large.bin": b"0" * (11 * 2**20),
        "secret.txt": "ignored",
        ".gitignore": "/secret.txt\n/tracked.csv\n",
        "tracked.csv.dvc": "outs:\n- md5: 0\n  path: tracked.csv\n",
        "raw.dvc": "wdir: .\nouts:\n- path: raw\n",
        "broken.dvc": "{",
        "stage/dvc.lock": "stages:\n  make:\n    outs:\n    - path: out.csv\n",
    }
    magic = source if source.startswith("%") else OUT + "name = input\nsomewhere = input\n" + source
    found = [
        code for _, code, _, _ in told(magic, files=files) if code.endswith(("path", "file", "snapshot"))
    ]
    assert found == codes


def test_an_absolute_path_into_the_project_is_outside_in_the_job(told: Told, project: Path) -> None:
    assert told(f"open({os.fspath(project / 'here.csv')!r})", files={"here.csv": ""}) == [
        ("error", "outside-path", 0, 1)
    ]


def test_paths_start_at_the_notebooks_folder(told: Told) -> None:
    files = {"nb/near.csv": "", "top.csv": ""}
    assert told("open('near.csv')\nopen('../top.csv')\nopen('top.csv')", files=files, path="nb/n.ipynb") == [
        ("warning", "missing-file", 0, 3)
    ]


def test_a_repository_named_by_the_environment_is_not_asked(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    files = {"secret.txt": "ignored", ".gitignore": "/secret.txt\n"}
    assert told("open('secret.txt')", files=files) == [("warning", "missing-file", 0, 1)]
