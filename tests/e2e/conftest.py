"""Everything from outside: a real project, a real `slicelift up`, the real command line, MLflow's own database."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Done
from tests.demo import make_project
from tests.notebooks import write_notebook
from tests.waiting import free_port, wait_for

SLICELIFT = [sys.executable, "-m", "slicelift"]


@dataclass
class Desk:
    """A user's desk: a project folder, a home of one's own, and the command line."""

    project: Path
    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    up: subprocess.Popen[str] | None = None

    def slicelift(
        self, *arguments: str | Path, cwd: Path | None = None, stdin: str | None = None, timeout: float = 180
    ) -> Done:
        """Run one command to its end."""
        done = subprocess.run(
            [*SLICELIFT, *map(str, arguments)],
            cwd=cwd or self.project,
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | {"SLICELIFT_HOME": str(self.home)} | self.environment

    def start(self, *options: str, wait_seconds: float = 90) -> None:
        """`slicelift up` without a hub on a free port, until the launcher answers."""
        with (self.home.parent / "up.log").open("a") as log:
            self.up = subprocess.Popen(
                [*SLICELIFT, "up", "--no-hub", "--port", str(free_port()), *options],
                cwd=self.project,
                env=self.variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        wait_for(
            "the launcher",
            lambda: (self.home / "launcher.json").exists() and self.slicelift("jobs", "--json").code == 0,
            seconds=wait_seconds,
        )

    def stop(self, how: signal.Signals = signal.SIGINT, timeout: float = 60) -> int:
        """Ctrl-C of `up`; its exit status."""
        assert self.up is not None
        if self.up.poll() is None:
            self.up.send_signal(how)
        code = self.up.wait(timeout)
        self.up = None
        return code

    def wait_for_tracker(self) -> None:
        """Until MLflow answers the launcher."""
        url = json.loads((self.home / "launcher.json").read_text())["url"]

        def up() -> bool:
            with urllib.request.urlopen(f"{url}/api/v1/health", timeout=10) as answer:
                return bool(json.load(answer)["tracker"]["status"] == "up")

        wait_for("MLflow", up, seconds=120)

    @property
    def launcher_pid(self) -> int:
        return int(json.loads((self.home / "launcher.json").read_text())["pid"])

    def kill_launcher(self) -> None:
        """SIGKILL. `up` ends with its launcher; one that a promotion had started may be followed by that of `up`."""
        killed, up = self.launcher_pid, self.up
        os.kill(killed, signal.SIGKILL)

        def settled() -> bool:
            if up is None or up.poll() is not None:
                self.up = None
                return True
            return (self.home / "launcher.json").exists() and self.launcher_pid != killed

        wait_for("`up` to end or a launcher to follow", settled)

    def run(self, run_id: str) -> dict[str, Any]:
        """The run's view, as the launcher tells it."""
        return self.slicelift("status", run_id, "--json").json

    def wait_for_status(self, run_id: str, *statuses: str, seconds: float = 90) -> dict[str, Any]:
        """Poll until the run stands at one of the statuses; the view at that moment."""
        seen: dict[str, Any] = {}

        def there() -> bool:
            seen.update(self.run(run_id))
            return seen["status"] in statuses

        wait_for(f"{run_id} to be {' or '.join(statuses)}", there, seconds=seconds, why=lambda: seen)
        return seen

    def mlflow(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of MLflow's own database, read only."""
        try:
            return rows(self.home / "mlflow" / "mlflow.db", query, values)
        except sqlite3.OperationalError as error:
            if "no such" in str(error) or "unable to open" in str(error):
                return []  # the server has not come up yet
            raise

    def ledger(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of the ledger, read only."""
        return rows(self.home / "ledger.db", query, values)

    def notebook(self, name: str, *cells: str | tuple[str, str], kernel: str = "python3") -> Path:
        """Write a notebook into the project; a cell is its source, or (source, tag)."""
        return write_notebook(self.project / "notebooks" / name, *cells, kernel=kernel)


def rows(database: Path, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=20)) as connection:
        return connection.execute(query, values).fetchall()


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One running platform for the tests that do it no harm."""
    base = tmp_path_factory.mktemp("desk")
    made = Desk(project=make_project(base / "pro ject 数字"), home=base / "slicelift-home")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def own_desk(desk: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A platform of one's own, for a test that kills parts of it; not started yet."""
    project = tmp_path / "project"
    shutil.copytree(desk.project, project, symlinks=True)
    made = Desk(project=project, home=tmp_path / "slicelift-home")
    yield made
    if made.up is not None:
        made.stop()
    elif (made.home / "launcher.json").exists():  # started by a promotion, not by `up`
        assert made.slicelift("down").code == 0
