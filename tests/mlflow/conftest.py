"""One real MLflow server for the folder, a real ledger and exporter, and MLflow's own database to count in."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tornado.httpserver
import tornado.netutil
import tornado.web
from slicelift.models import JobStatus, Status, to_dict
from slicelift.runtime.mlflow_loopback import Loopback
from slicelift.tracking import Mlflow
from slicelift.tracking_account import NO_ACCOUNT, Account, make_account
from slicelift_hub.launcher.auth import AttemptTokens, LocalToken
from slicelift_hub.launcher.exporter import Exporter
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_events import Stream
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.mlflow_gate import GateHandler
from slicelift_hub.launcher.mlflow_server import MlflowServer
from slicelift_hub.launcher.passthrough import PassthroughHandler
from slicelift_hub.launcher.services import Limits, call_in

from tests.mlflow.origin import SNAPSHOT, SPEC
from tests.waiting import wait_for

SECRET = "s" * 32


@dataclass
class Server:
    """A supervised MLflow server and its database."""

    supervised: MlflowServer
    mlflow: Mlflow
    account_of: Callable[[str], Account] = lambda _owner: NO_ACCOUNT

    @property
    def url(self) -> str:
        return self.supervised.url

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What MLflow's own database says."""
        path = self.supervised.folder / "mlflow.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20) as database:
            return database.execute(query, values).fetchall()

    def runs_of(self, promotion_id: str) -> list[str]:
        """Ids of all runs of a promotion, deleted ones too."""
        query = "select run_uuid from tags where key = 'slicelift.promotion_id' and value = ?"
        return [row[0] for row in self.rows(query, promotion_id)]


@dataclass
class House:
    """A ledger with the exporter that brings MLflow up to it. `changed` holds what the exporter told."""

    ledger: Ledger
    exporter: Exporter
    blobs: Path
    changed: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def submit(self, **fields: Any) -> Any:
        """A run in the ledger, RUNNING; as `TrackedRun`."""
        number = next(self.numbers)
        name = f"train {number}"
        words = {"parameters": {"lr": 0.1}, "experiment": f"exp {secrets.token_hex(4)}", **fields}
        spec = replace(SPEC, name=name, **words)
        promotion = f"p-{secrets.token_hex(10)}"
        run_id, _ = self.ledger.submit(
            "ann", promotion, spec=spec, snapshot=to_dict(SNAPSHOT), token_of=token_of
        )
        self.ledger.observe(f"{run_id}-1", JobStatus(status=Status.STARTING))
        self.ledger.set_handle(f"{run_id}-1", f"local://{run_id}-1")
        self.ledger.observe(f"{run_id}-1", JobStatus(status=Status.RUNNING))
        return self.tracked(run_id)

    def tracked(self, run_id: str) -> Any:
        found = self.ledger.tracked_run(run_id)
        assert found is not None
        return found

    def append(
        self, run_id: str, lines: list[dict[str, Any]], *, rank: int = 0, process: str = "1-1"
    ) -> None:
        """Spool lines of the current attempt arrive at the launcher."""
        attempt = self.ledger.attempt(f"{run_id}-{self.tracked(run_id).attempt}")
        assert attempt is not None
        self.ledger.append(attempt, [Stream(rank=rank, process=process, lines=lines)], exported=False)

    def end(self, run_id: str, status: Status, reason: str = "") -> None:
        """The last attempt is over and drained."""
        attempt_id = f"{run_id}-{self.tracked(run_id).attempt}"
        self.ledger.observe(attempt_id, JobStatus(status=status, reason=reason))

    def settle(self, seconds: float = 30) -> None:
        """Export rounds until one of them passes."""
        wait_for("a round that passes", lambda: _passes(self.exporter), seconds=seconds)


@dataclass
class Job:
    """A job of one rank that uses mlflow: the loopback, and the launcher's side of it."""

    run_id: str
    loopback: Loopback
    pump: Callable[[], None]
    folder: Path


def token_of(attempt_id: str) -> str:
    return f"a-{attempt_id}"


def _passes(exporter: Exporter) -> bool:
    try:
        exporter.export_runs()
        exporter.export_models()
    except Exception as error:
        if getattr(error, "code", "") not in ("tracker-away", "tracker-fault"):
            raise
        return False
    return True


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """MLflow, started once: 15-20 s, almost all of it its own imports."""
    supervised = MlflowServer(tmp_path_factory.mktemp("slice lift 首页"))
    supervised.start()
    assert supervised.wait_up(240), supervised.state
    mlflow = Mlflow(supervised.url)
    yield Server(supervised, mlflow)
    mlflow.close()
    supervised.stop()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another one that asks who one is; `mlflow` is ann's way to it. Started once: 15-20 s."""
    supervised = MlflowServer(tmp_path_factory.mktemp("guarded"), secret=SECRET)
    supervised.start()
    assert supervised.wait_up(240), supervised.state
    mlflow = Mlflow(supervised.url, make_account(SECRET, "ann"))
    yield Server(supervised, mlflow, lambda owner: make_account(SECRET, owner))
    mlflow.close()
    supervised.stop()


@pytest.fixture(scope="session")
def gate(guarded: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that mlflow clients of ann (token `t-ann`), bob (`t-bob`) and 陈 (`t-chen`) use."""
    ledger = Ledger(tmp_path_factory.mktemp("gate") / "ledger.db")
    launcher = _Launcher(ledger, guarded)
    yield f"{launcher.url}/api/v1/mlflow"
    launcher.stop()
    ledger.close()


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The gate before whatever listens at an address: for what MLflow cannot be made to do."""
    ledger = Ledger(tmp_path / "gate.db")
    made: list[_Launcher] = []

    def make(url: str) -> str:
        server = SimpleNamespace(state=SimpleNamespace(status="up"), url=url)
        made.append(_Launcher(ledger, SimpleNamespace(supervised=server, account_of=lambda _: NO_ACCOUNT)))
        return f"{made[-1].url}/api/v1/mlflow"

    yield make
    for launcher in made:
        launcher.stop()
    ledger.close()


@pytest.fixture
def make_house(server: Server, tmp_path: Path) -> Iterator[Callable[[], House]]:
    """Open the same ledger as often as wanted: what a restarted launcher does."""
    made: list[House] = []

    def make() -> House:
        ledger = Ledger(tmp_path / "ledger.db")
        changed: list[str] = []
        exporter = Exporter(
            ledger,
            tracker=lambda: server.supervised.state,
            blob_path=lambda owner, sha256: tmp_path / "blobs" / sha256,
            changed=changed.append,
            account_of=server.account_of,
        )
        (tmp_path / "blobs").mkdir(exist_ok=True)
        made.append(House(ledger, exporter, tmp_path / "blobs", changed))
        return made[-1]

    yield make
    for house in made:
        house.exporter.stop()
        house.ledger.close()


@pytest.fixture
def house(make_house: Callable[[], House]) -> House:
    return make_house()


@pytest.fixture
def job(house: House, server: Server, tmp_path: Path) -> Iterator[Job]:
    """A running job whose rank 0 talks to a loopback; its spool is pumped into the ledger by `pump`."""
    run = house.submit()
    launcher = _Launcher(house.ledger, server)
    spool = tmp_path / "attempt" / "spool"
    loopback = Loopback(
        spool, lambda: launcher.url, token_of(f"{run.run_id}-1"), f"{run.run_id}-1", run.run_id
    )
    loopback.start()

    def pump() -> None:
        lines = [
            json.loads(text) for path in sorted(spool.glob("*")) for text in path.read_text().splitlines()
        ]
        house.append(run.run_id, lines, process="loopback")

    yield Job(run.run_id, loopback, pump, tmp_path)
    loopback.stop()
    launcher.stop()


@pytest.fixture
def client(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`mlflow` as a rank's code finds it, without anything of an earlier test. Loading it takes 5-8 s once."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    for name, value in job.loopback.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    mlflow.set_tracking_uri(job.loopback.url)
    mlflow.tracking.fluent._active_experiment_id = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield mlflow
        while mlflow.active_run():
            mlflow.end_run()
        mlflow.autolog(disable=True)


async def _as_submitted(submitted: AttemptRow, attempt_id: str) -> AttemptRow:
    """No gang is started again here."""
    assert attempt_id == submitted.attempt_id
    return submitted


class _Launcher:
    """The two routes of the launcher that are tested here, with the real handlers, ledger and tokens of jobs."""

    def __init__(self, ledger: Ledger, server: Any) -> None:
        self._pool = ThreadPoolExecutor(4)
        state = server.supervised
        self._services = SimpleNamespace(
            ledger=ledger,
            limits=Limits(),
            pool=self._pool,
            authenticators=[
                AttemptTokens(ledger.attempt_of_token),
                LocalToken("t-ann", owner="ann"),
                LocalToken("t-bob", owner="bob"),
                LocalToken("t-chen", owner="陈"),
            ],
            hub=None,
            hosts=frozenset(),
            attempt_of=_as_submitted,
            tracker=SimpleNamespace(
                state=lambda: {"status": state.state.status, "url": state.url},
                account_of=server.account_of,
            ),
            call=lambda function, *a, **k: call_in(self._pool, function, *a, **k),
        )
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        routes = [
            (r"/api/v1/attempts/([^/]+)/mlflow/(.*)", PassthroughHandler),
            (r"/api/v1/mlflow/(.*)", GateHandler),
        ]
        application = tornado.web.Application(routes, services=self._services)  # type: ignore[arg-type]
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        server = tornado.httpserver.HTTPServer(application)
        server.add_sockets(sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()
        server.stop()
        await server.close_all_connections()
        for link in application.settings.get("mlflow_links", {}).values():
            await link.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._pool.shutdown()
