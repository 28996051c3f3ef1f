"""The command line in this process, and a small real project."""

from __future__ import annotations

import contextlib
import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from slicelift.cli.faults import run

from tests.commands import Done
from tests.notebooks import write_notebook


def call(*arguments: str | Path) -> Done:
    """One command in this process: the whole line but the interpreter's start."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(argument) for argument in arguments])
        out.flush()
    text = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return Done(code, text, err.getvalue())


@pytest.fixture(scope="session")
def cli() -> Any:
    """`cli("jobs", "--json")` -> Done."""
    return call


@pytest.fixture(scope="session")
def notebook_at() -> Any:
    """`notebook_at(path, "x = 1", ("y = 2", "parameters"))` writes a notebook."""
    return write_notebook


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with a commit, in a folder with a space and Chinese characters."""
    root = tmp_path_factory.mktemp("desk") / "项目 one"
    root.mkdir()
    (root / ".gitignore").write_text("outputs/\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *command], cwd=root, check=True)
    return root


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where no launcher runs."""
    home = tmp_path / "no launcher"
    monkeypatch.setenv("SLICELIFT_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def failed_run(launcher: Path, project: Path) -> dict[str, Any]:
    """A run of one worker that wrote a file, printed, and raised: the answer of `promote --wait --json`."""
    path = write_notebook(
        project / "笔 记" / "it fails.ipynb",
        ("rate = 0.5\nname = 'a'", "parameters"),
        "from pathlib import Path\nPath('outputs/deep').mkdir(parents=True)\n"
        "Path('outputs/deep/结 果.txt').write_text('made by ' + name)",
        "def halve(x):\n    return x / 0\n\nprint('rate is', rate)\nhalve(rate)",
    )
    done = call("promote", path, "-p", "rate=0.25", "-p", "name=b=c", "--wait", "--json")
    assert done.code == 1, done
    return done.json
