"""A small real project; no launcher runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nbformat
import pytest


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook with parameters in a git repository; SLICELIFT_HOME is empty."""
    monkeypatch.setenv("SLICELIFT_HOME", str(tmp_path / "home"))
    root = tmp_path / "pro ject 数"
    root.mkdir()
    cells = [
        nbformat.v4.new_code_cell("lr = 0.1\nsteps = 3", id="a", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print(lr, steps)", id="b"),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    path = root / "train: me.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *who, *command], cwd=root, check=True)
    return path
