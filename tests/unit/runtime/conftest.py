"""An attempt folder, and real ranks and gangs in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUNTIME = Path(__file__).parents[3] / "extension" / "slicelift" / "runtime"


@dataclass(frozen=True)
class Attempt:
    """One attempt: `root` is its folder, `work` where the ranks work, both with a space and Chinese characters."""

    root: Path
    work: Path

    def environment(self, **more: str) -> dict[str, str]:
        """What the agent would give, and `more`."""
        ours = {"SLICELIFT_ATTEMPT": "r-abcdefghijkl-1", "SLICELIFT_ATTEMPT_DIR": str(self.root)}
        return {**os.environ, **ours, **more}

    def start(
        self, source: str, *, nproc: int = 1, arguments: tuple[str, ...] = (), **env: str
    ) -> subprocess.Popen[str]:
        """Start a gang over a script of this source."""
        script = self.work / "promoted.py"
        script.write_text(textwrap.dedent(source), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "slicelift.runtime.gang", "--nproc", str(nproc), "promoted.py"]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.work,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, source: str, **how: Any) -> int:
        """Run a gang to its end; its exit code."""
        process = self.start(source, **how)
        output, _ = process.communicate(timeout=120)
        (self.root / "agent.log").write_text(output, encoding="utf-8")
        return process.returncode

    @property
    def outcome(self) -> dict[str, Any]:
        """gang.json."""
        found: dict[str, Any] = json.loads((self.root / "gang.json").read_text(encoding="utf-8"))
        return found

    def log(self, rank: int = 0) -> str:
        """The rank's log."""
        return (self.root / "logs" / f"rank-{rank}.log").read_text(encoding="utf-8")

    def error(self, rank: int = 0) -> dict[str, Any]:
        """errors/<rank>.json."""
        found: dict[str, Any] = json.loads(
            (self.root / "errors" / f"{rank}.json").read_text(encoding="utf-8")
        )
        return found

    def streams(self) -> dict[str, list[dict[str, Any]]]:
        """The spool by `<rank>-<process>`, segments joined in order."""
        return read_streams(self.root / "spool")

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        """All events of a rank's processes."""
        return [
            event
            for name, events in self.streams().items()
            if name.startswith(f"{rank}-")
            for event in events
        ]


def read_streams(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Whole lines only, as the agent reads them."""
    streams: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        streams.setdefault(path.stem.rpartition("-")[0], []).extend(json.loads(line) for line in lines)
    return streams


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """A fresh attempt folder."""
    return _make(tmp_path)


@pytest.fixture(scope="module")
def shared_attempt(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """One attempt for all tests of a module: a gang over torch takes seconds to start."""
    return _make(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def streams() -> Callable[[Path], dict[str, list[dict[str, Any]]]]:
    """The reader of spool folders."""
    return read_streams


@pytest.fixture
def traveller(tmp_path: Path) -> Path:
    """The files that travel into a job, in a folder of their own, as the local backend copies them."""
    package = tmp_path / "travel" / "slicelift"
    (package / "runtime").mkdir(parents=True)
    sources = [RUNTIME.parent / name for name in ("__init__.py", "_version.py", "errors.py", "models.py")]
    for path in (*sources, *RUNTIME.glob("*.py")):
        (package / path.relative_to(RUNTIME.parent)).write_bytes(path.read_bytes())
    return package.parent


def _make(base: Path) -> Attempt:
    root, work = base / "versuch 一", base / "arbeit 数据"
    work.mkdir(parents=True)
    for name in ("ranks", "errors", "logs", "spool", "scratch", "models"):
        (root / name).mkdir(parents=True)
    return Attempt(root, work)
