"""A small real project, and runs as the launcher tells of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from slicelift.models import Failure, JobSpec, ModelVersionView, RunView, Status

from tests.notebooks import write_notebook


def make_view(**changes: object) -> RunView:
    spec = JobSpec(
        name="digits",
        snapshot_id="9f3c21e0" * 8,
        notebook="训练/train.ipynb",
        script=".slicelift/promoted.py",
        cwd="训练",
        python="/usr/bin/python3",
        workers=2,
        parameters={"lr": 0.1},
    )
    words: dict[str, object] = {
        "promotion_id": "p-" + "a" * 20,
        "run_id": "r-abcdefghij23",
        "name": "digits",
        "owner": "ann",
        "status": Status.RUNNING,
        "spec": spec,
        "created": 1_764_469_000.0,
        "started": 1_764_469_002.0,
        "latest": {
            "accuracy": (40, 0.981),
            "loss": (40, 0.03125),
            "throughput_samples_per_second": (40, 11840.0),
            "peak_host_memory_bytes": (39, 3.0 * 2**30),
            "rank/1/loss": (40, 0.04),
        },
    }
    return RunView(**(words | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def view() -> Callable[..., RunView]:
    """`view(status=..., ...)`: a run with metrics of two ranks."""
    return make_view


@pytest.fixture(scope="session")
def failed() -> RunView:
    """A run that failed in a cell, with names that would be markup if they were not escaped."""
    failure = Failure(
        message="Rank 1 raised ValueError: <b>bad</b>",
        rank=1,
        exit_code=1,
        exception="ValueError",
        cell=4,
        line=2,
        source="raise ValueError('<b>bad</b>')",
        traceback="Traceback:\n  train.ipynb, cell 5, line 2\nValueError: <b>bad</b> <script>alert(1)</script>",
    )
    return make_view(name="<b>bold</b>", status=Status.FAILED, failure=failure, ended=1_764_469_012.0)


@pytest.fixture(scope="session")
def done() -> RunView:
    """A run that registered a model with two aliases."""
    model = ModelVersionView(
        name="digits", version="7", run_id="r-abcdefghij23", aliases=("candidate", "champion")
    )
    return make_view(status=Status.FINISHED, models=(model,), ended=1_764_469_022.0, tracked=True)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with a commit, in a folder with a space and Chinese characters."""
    root = tmp_path_factory.mktemp("desk") / "项目 one"
    root.mkdir()
    write_notebook(root / "train.ipynb", ("steps = 3", "parameters"), "print('trained', steps)")
    write_notebook(root / "broken.ipynb", ("x = 1", "parameters"), "print(y)\n!ls")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *who, *command], cwd=root, check=True)
    return root
