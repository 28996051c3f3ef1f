"""A real launcher process in a home of its own, and what tests do with one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift.launcher_client import Client, find, read_state
from slicelift.models import JobSpec, JobStatus, RunView, Snapshot, Status, to_dict
from slicelift_hub.database import open_database, reading

from tests.promoting import make_promotion_id, make_spec, upload
from tests.server.postgres import serving
from tests.waiting import free_port, wait_for

HERE = Path(__file__).parent
# modules whose tests run twice: the ledger on SQLite, and on PostgreSQL
ON_BOTH = {
    "test_dispatch",
    "test_events",
    "test_ingest",
    "test_jobs",
    "test_leases",
    "test_ledger",
    "test_restart",
    "test_restarts",
}

# where a ledger is, given the path that it has on SQLite
Database = Callable[[Path], Path | str]


class Agent:
    """A job's agent, as far as the launcher can tell: an HTTP client with the job's token."""

    def __init__(self, url: str, token: str, attempt_id: str) -> None:
        self.base = f"{url}/api/v1/attempts/{attempt_id}"
        self.http = httpx.Client(headers={"Authorization": f"token {token}"}, timeout=60, trust_env=False)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(f"{self.base}/{path}", content=json.dumps(body))

    def send(self, lines: list[dict[str, Any]], *, rank: int = 0, process: str = "1-1") -> httpx.Response:
        return self.post("events", {"streams": [{"rank": rank, "process": process, "lines": lines}]})

    def metrics(self, first: int, count: int, **values: float) -> list[dict[str, Any]]:
        """`count` lines from `q` = `first` on, step = q, with the same values."""
        return [{"q": q, "t": 1000.0 + q, "k": "m", "s": q, "m": values} for q in range(first, first + count)]


class Launcher:
    """One launcher process over one home; may be killed and started again."""

    def __init__(
        self, home: Path, *options: str, limit_file_bytes: int | None = None, ledger: Path | str | None = None
    ) -> None:
        self.home = home
        self.ledger = ledger or home / "ledger.db"
        self.options = (*options, f"--Launcher.ledger={ledger}") if isinstance(ledger, str) else options
        self.limit_file_bytes = limit_file_bytes
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self._agents: list[Agent] = []

    def start(self) -> Launcher:
        command = [sys.executable, "-m", "slicelift_hub.launcher", "--home", str(self.home), *self.options]
        if self.limit_file_bytes is not None:
            command = ["prlimit", f"--fsize={self.limit_file_bytes}", *command]
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "test.log").open("ab") as log:
            environment = os.environ | {"PYTHONPATH": str(HERE)}
            self.process = subprocess.Popen(
                command, stderr=log, stdout=log, env=environment, start_new_session=True
            )
        wait_for("the launcher", self._is_up, why=self._log)
        return self

    def kill(self) -> None:
        """As a crash would: SIGKILL, nothing is tidied up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for agent in self._agents:
            agent.http.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()

    @property
    def state(self) -> dict[str, Any]:
        found = read_state(self.home)
        assert found is not None
        return found

    @property
    def url(self) -> str:
        return str(self.state["url"]) + "/api/v1"

    @property
    def client(self) -> Client:
        if not self._clients:
            self._clients.append(find(self.home))
        return self._clients[0]

    def http(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"token {token or self.state['token']}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def snapshot(self, **files: bytes) -> Snapshot:
        """A complete snapshot of these files (`promoted.py` is always there)."""
        return upload(self.client, {"promoted.py": b"print('hi')\n"} | files)

    def spec(self, **changes: Any) -> JobSpec:
        return make_spec(self.snapshot(), **changes)

    def submit(self, **changes: Any) -> RunView:
        return self.client.submit(make_promotion_id(), self.spec(**changes))

    def running(self, **changes: Any) -> RunView:
        """A job under way."""
        return self.until(self.submit(**changes).run_id, Status.RUNNING)

    def until(self, run_id: str, status: Status, seconds: float = 30) -> RunView:
        view = partial(self.client.job, run_id)
        wait_for(status, lambda: view().status == status, seconds=seconds, why=view)
        return view()

    def steer(self, attempt_id: str, status: Status, **changes: Any) -> None:
        """What the backend says of this attempt from now on."""
        path = self.home / "steered" / f"{attempt_id}.status"
        part = path.with_suffix(".new")
        part.write_text(json.dumps(to_dict(JobStatus(status=status, **changes))))
        part.rename(path)

    def agent(self, view: RunView) -> Agent:
        attempt_id = f"{view.run_id}-{view.attempt}"
        path = self.home / "steered" / f"{attempt_id}.json"
        wait_for("the attempt", path.exists)
        self._agents.append(Agent(str(self.state["url"]), json.loads(path.read_text())["token"], attempt_id))
        return self._agents[-1]

    def lines(self, name: str) -> list[str]:
        path = self.home / "steered" / name
        return path.read_text().split() if path.exists() else []

    def rows(self, query: str) -> list[Any]:
        """Straight from the ledger's database."""
        engine = open_database(self.ledger)
        try:
            with reading(engine) as connection:
                return [tuple(row) for row in connection.exec_driver_sql(query)]
        finally:
            engine.dispose()

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it has ended. {self._log()}"
        return (read_state(self.home) or {}).get("pid") == self.process.pid

    def _log(self) -> str:
        return (self.home / "test.log").read_text()


@pytest.fixture(scope="session")
def make_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Launcher]]:
    """Makes launchers over fresh homes, not started yet; ends them all."""
    made: list[Launcher] = []

    def make(
        *options: str,
        home: Path | None = None,
        limit_file_bytes: int | None = None,
        database: Database | None = None,
    ) -> Launcher:
        root = home or tmp_path_factory.mktemp("launcher 发射") / "home"
        # not the usual port, which other tests may want
        defaults = {"--tracker": "none", "--port": str(free_port()), "--slots": "4"}
        defaults |= {"--backend": "steered.Steered"}
        chosen = [word for name, value in defaults.items() if name not in options for word in (name, value)]
        ledger = database(root / "ledger.db") if database else None
        launcher = Launcher(root, *chosen, *options, limit_file_bytes=limit_file_bytes, ledger=ledger)
        made.append(launcher)
        return launcher

    yield make
    for launcher in made:
        launcher.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server for the whole run; its start takes 2 s. See postgres.py."""
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest) -> Database:
    """A place for one more ledger: on SQLite, in the modules of ON_BOTH also on PostgreSQL."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return lambda path: path
    server = request.getfixturevalue("postgres")
    return lambda _path: str(server.make_database())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what stands on a ledger on both databases, all tests of a module on one first."""
    if "database" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in ON_BOTH:
        postgresql = pytest.param("postgresql", marks=pytest.mark.needs_postgresql)
        metafunc.parametrize("database", ["sqlite", postgresql], indirect=True, scope="module")


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[..., Launcher], database: Database) -> Iterator[Launcher]:
    """A running launcher without a tracker, over the steered backend, shared by the tests of a module."""
    made = make_launcher("--Launcher.poll_seconds=0.05", database=database).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def launcher_with_tracker(make_launcher: Callable[..., Launcher]) -> Iterator[Launcher]:
    """The same with a real MLflow, whose start takes 15 s and is not awaited here."""
    made = make_launcher("--tracker", "mlflow").start()
    yield made
    made.close()
