"""Notebooks made on the spot, the script that comes of them, and a real IPython to compare with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Script
from slicelift.notebook import read, select, transform, write_script

from tests.notebooks import notebook_bytes

WORKER = Path(__file__).with_name("ipython_worker.py")


@pytest.fixture
def script_of(tmp_path: Path) -> Callable[..., Script]:
    """The script that some cells become."""

    def make(*cells: Any, folder: Path = tmp_path) -> Script:
        notebook = read(folder / "notebook.ipynb", content=notebook_bytes(list(cells)))
        return write_script(transform(notebook, selected=select(notebook), root=tmp_path))

    return make


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """The stdout of a script as one plain process; the test fails when it does."""

    def start(script: Script, *, folder: Path = tmp_path, **environment: str) -> str:
        place = folder / "promoted.py"
        place.write_text(script.source, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", place.name],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr + script.source
        return done.stdout

    return start


@pytest.fixture(scope="session")
def ipython(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[str], Path], str]]:
    """What IPython prints for some cells, its display hook and its magics' own words left out."""
    home = tmp_path_factory.mktemp("ipython")
    worker = subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "IPYTHONDIR": str(home), "HOME": str(home)},
        encoding="utf-8",
    )
    assert worker.stdin is not None
    assert worker.stdout is not None

    def ask(cells: list[str], folder: Path) -> str:
        worker.stdin.write(json.dumps({"cells": cells, "folder": str(folder)}) + "\n")
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        assert answer["error"] is None, (answer["error"], cells)
        return str(answer["stdout"])

    yield ask
    worker.stdin.close()
    worker.wait(timeout=20)
    worker.stdout.close()
