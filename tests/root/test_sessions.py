"""A session of a user who is kept apart ends whole: also what detached itself and cleared its environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicelift.runtime import processes
from slicelift_hub import isolation
from slicelift_hub.database import open_database
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.tables import attempts
from slicelift_hub.leases import Leases, make_inventory
from slicelift_hub.sessions import MARKER, Sessions, make_holder
from slicelift_hub.system_users import SystemUser, remove_all, system_user
from sqlalchemy import insert

from tests.waiting import wait_for

pytestmark = pytest.mark.needs_root

NEEDS = {"1g.10gb": 1}
# three sleeps, of which two have no mark and no parent any more
DETACHING = "setsid env -i sleep 601 &\n(setsid env -i sh -c 'sleep 602 &' &)\nexec sleep 603"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "home 家"
    made.mkdir(mode=0o700)
    tmp_path.chmod(0o711)
    yield made
    wait_for("the accounts to go", lambda: not remove_all(made), why=lambda: remove_all(made))


@pytest.fixture
def sessions(home: Path) -> Sessions:
    Ledger(home / "ledger.db").close()
    engine = open_database(home / "ledger.db")
    Leases(engine).declare(make_inventory(slots=1, gpus=0, slices=[{"name": "1g.10gb"}]))
    return Sessions(engine)


@pytest.fixture
def user(home: Path) -> Iterator[SystemUser]:
    """anna's; at the end nothing of hers lives."""
    made = system_user(home, "anna")
    yield made
    for pid in living(made):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(home: Path, sessions: Sessions, user: SystemUser) -> Iterator[Start]:
    """Starts a session of anna's as the spawner does, and waits for its three sleeps."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(server: str, needs: dict[str, int]) -> subprocess.Popen[bytes]:
        before = set(living(user))
        holder = make_holder("anna", server)
        session = sessions.begin(holder, needs)
        assert session is not None
        command = isolation.enclosed_command(
            "anna", ["sh", "-c", DETACHING], home=home, name=session.session_id
        )
        environment = os.environ | {MARKER: session.session_id}
        made.append(subprocess.Popen(command, env=environment, cwd="/", start_new_session=True))
        sessions.started(holder, made[-1].pid)
        wait_for("three sleeps", lambda: len([pid for pid in set(living(user)) - before if sleeps(pid)]) == 3)
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def living(user: SystemUser) -> list[int]:
    """The processes of that user of the system."""
    pids = (pid for pid in processes.pids() if processes.user_of(pid) == user.uid)
    return [pid for pid in pids if processes.look(pid)]


def sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
    except OSError:  # it has just ended
        return False


def outside(user: SystemUser) -> subprocess.Popen[bytes]:
    """A process of theirs that no view and no mark tells of, as one that took namespaces of its own."""
    return subprocess.Popen(["sleep", "604"], user=user.uid, group=user.gid, env={}, start_new_session=True)


@pytest.mark.parametrize("by", ["end", "kill"])
def test_a_session_leaves_nothing_of_its_user(
    sessions: Sessions, start: Start, user: SystemUser, by: str
) -> None:
    first, stray = start("", NEEDS), outside(user)
    if by == "end":
        assert sessions.end(make_holder("anna")) == ()
    else:
        first.kill()
        first.wait()
        assert sessions.reconcile() == [make_holder("anna")]
    assert stray.wait(10) == -signal.SIGKILL
    assert living(user) == []
    assert sessions.capacity()["1g.10gb"].free == 1


@pytest.mark.parametrize("by", ["end", "kill"])
def test_another_session_of_the_same_user_lives_on(
    sessions: Sessions, start: Start, user: SystemUser, by: str
) -> None:
    second = start("second", {})
    kept = set(living(user))
    first, stray = start("", NEEDS), outside(user)
    if by == "kill":
        first.kill()
        first.wait()
        assert sessions.reconcile() == [make_holder("anna")]
    else:
        assert sessions.end(make_holder("anna")) == ()
    assert set(living(user)) == kept | {stray.pid}
    second.kill()
    second.wait()
    assert sessions.reconcile() == [make_holder("anna", "second")]
    assert stray.wait(10) == -signal.SIGKILL
    assert living(user) == []


@pytest.mark.parametrize(
    ("status", "drained", "spared"),
    [
        ("RUNNING", False, True),
        ("FINISHED", False, True),
        ("FINISHED", True, False),
        ("WAITING", False, False),
    ],
)
def test_a_job_of_the_same_user_lives_on_while_it_runs_or_delivers(
    sessions: Sessions, start: Start, user: SystemUser, status: str, drained: bool, spared: bool
) -> None:
    row = {"attempt_id": "r-a-1", "run_id": "r-a", "attempt": 1, "owner": "anna", "token_hash": "x"}
    row |= {"status": status, "drained": drained, "handle": "local://r-a-1", "created": 0.0}
    with sessions._engine.begin() as connection:
        connection.execute(insert(attempts).values(row))
    start("", NEEDS)
    job = outside(user)
    assert sessions.end(make_holder("anna")) == ()
    assert living(user) == ([job.pid] if spared else [])
    job.kill()
    job.wait()


def test_the_lease_stays_while_something_cannot_be_proved_gone(
    sessions: Sessions, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("", NEEDS)
    monkeypatch.setattr("slicelift_hub.leftovers.KILL_SECONDS", 0.1)
    monkeypatch.setattr(processes, "send", lambda *_: False)
    assert any("sleep" in left for left in sessions.end(make_holder("anna")))
    assert sessions.capacity()["1g.10gb"].free == 0
    monkeypatch.undo()
    assert sessions.end(make_holder("anna")) == ()
    assert sessions.capacity()["1g.10gb"].free == 1
