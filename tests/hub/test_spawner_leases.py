"""Sessions and what they hold, with real processes and no hub: who dies, what is freed, what is ended."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from slicelift_hub import homes
from slicelift_hub.database import open_database
from slicelift_hub.leases import Leases, make_inventory
from slicelift_hub.sessions import MARKER, Sessions, make_holder
from slicelift_hub.sessions import sessions as table
from slicelift_hub.spawner import LocalSliceSpawner
from slicelift_hub.starting import is_served, last_words
from sqlalchemy import select

from tests.waiting import wait_for

NEEDS = {"1g.10gb": 1}
# a hub that takes a lease, starts a session, and is gone before it can note its pid
DYING_HUB = """
import os, subprocess, sys
from pathlib import Path
from slicelift_hub.database import open_database
from slicelift_hub.sessions import MARKER, Sessions
session = Sessions(open_database(Path(sys.argv[1]))).begin("session:anna:", {"1g.10gb": 1})
child = subprocess.Popen(["sleep", "600"], env={MARKER: session.session_id}, start_new_session=True)
while MARKER.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes():
    pass
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
# detaches itself in three ways, none with a mark, then says so and goes on
DETACHING = """
setsid env -i sleep {0} &
(setsid env -i sh -c 'sleep {0} & sleep {0} &' &)
nohup env -i sleep {0} > /dev/null 2>&1 &
while [ "$(pgrep -cf '^sleep {0}$')" -lt 4 ]; do sleep 0.05; done
echo here
exec sleep 600
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    Leases(open_database(file)).declare(make_inventory(slots=1, gpus=0, slices=[{"name": "1g.10gb"}]))
    return file


@pytest.fixture
def sessions(file: Path) -> Sessions:
    return Sessions(open_database(file))


@pytest.fixture
def running(sessions: Sessions) -> Iterator[subprocess.Popen[bytes]]:
    """anna's session, with a process of its own."""
    session = sessions.begin("session:anna:", NEEDS)
    assert session is not None
    process = subprocess.Popen(["sleep", "600"], env={MARKER: session.session_id}, start_new_session=True)
    _until_exec(process.pid)
    sessions.started("session:anna:", process.pid)
    yield process
    process.kill()
    process.wait()


def test_a_second_gets_nothing_and_no_place_in_the_queue(
    sessions: Sessions, running: subprocess.Popen[bytes]
) -> None:
    assert sessions.begin("session:ben:", NEEDS) is None
    assert sessions.waiting() == {}
    assert sessions.reconcile() == []
    assert sessions.end("session:anna:") == ()
    assert running.wait(5) == -9
    assert sessions.end("session:anna:") == ()
    assert sessions.begin("session:ben:", NEEDS) is not None


def test_a_job_that_waits_is_not_overtaken(sessions: Sessions, file: Path) -> None:
    jobs = Leases(open_database(file))
    jobs.request("r-1-1", NEEDS)
    jobs.request("r-2-1", NEEDS)
    jobs.release("r-1-1")
    assert sessions.begin("session:ben:", NEEDS) is None
    assert sessions.waiting() == {"1g.10gb": 1}
    assert jobs.request("r-2-1", NEEDS)


def test_a_dead_session_is_found_out_and_what_it_left_is_ended(
    sessions: Sessions, running: subprocess.Popen[bytes]
) -> None:
    marker = Path(f"/proc/{running.pid}/environ").read_bytes().decode().split("\0")[0].split("=")
    left = subprocess.Popen(["sleep", "600"], env={marker[0]: marker[1]}, start_new_session=True)
    _until_exec(left.pid)
    running.kill()
    running.wait()
    assert sessions.reconcile() == ["session:anna:"]
    assert left.wait(5) == -9
    assert sessions.capacity()["1g.10gb"].free == 1


def test_a_hub_killed_in_mid_spawn_leaves_nothing(sessions: Sessions, file: Path) -> None:
    hub = subprocess.Popen([sys.executable, "-c", DYING_HUB, str(file)], stdout=subprocess.PIPE)
    assert hub.stdout is not None
    pid = int(hub.stdout.readline())
    hub.wait(10)
    hub.stdout.close()
    assert sessions.capacity()["1g.10gb"].free == 0
    assert sessions.reconcile() == ["session:anna:"]
    assert sessions.capacity()["1g.10gb"].free == 1
    assert not _lives(pid)


def test_a_lease_without_a_session_is_freed_and_a_jobs_is_not(sessions: Sessions, file: Path) -> None:
    leases = Leases(open_database(file))
    leases.request("session:old:", NEEDS)
    assert sessions.reconcile() == ["session:old:"]
    leases.request("r-1-1", NEEDS)
    assert sessions.reconcile() == []
    assert sessions.capacity()["1g.10gb"].free == 0


def test_a_session_without_a_slice_is_known_as_well(sessions: Sessions) -> None:
    session = sessions.begin("session:anna:", {})
    assert session is not None
    assert session.items == ()
    left = subprocess.Popen(["sleep", "600"], env={MARKER: session.session_id})
    _until_exec(left.pid)
    sessions.end("session:anna:")
    assert left.wait(5) == -9


@pytest.fixture
def detached(sessions: Sessions) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """anna's session as a hub without isolation starts it, and the line of the four sleeps that left it."""
    session = sessions.begin("session:anna:", NEEDS)
    assert session is not None
    line = f"sleep {600 + random.random():.9f}"
    script = DETACHING.format(line.split()[1])
    command = [sys.executable, "-P", "-m", "slicelift_hub.adopter", "sh", "-c", script]
    environment = os.environ | {MARKER: session.session_id}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    sessions.started("session:anna:", process.pid)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    assert len(_running(line)) == 4
    yield process, line
    process.stdout.close()
    process.kill()
    process.wait()
    for pid in _running(line):
        os.kill(pid, signal.SIGKILL)


def test_what_detached_itself_ends_with_the_session(
    sessions: Sessions, detached: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, line = detached
    assert sessions.end("session:anna:") == ()
    assert _running(line) == []
    assert process.wait(5) != 0
    assert sessions.capacity()["1g.10gb"].free == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143)])
def test_what_detached_itself_ends_when_the_server_does(
    detached: tuple[subprocess.Popen[bytes], str], number: signal.Signals, status: int
) -> None:
    """By a kill of its own, or by the hub's signal, which is passed on."""
    process, line = detached
    (server,) = (pid for pid in _running("sleep 600") if _parent(pid) == process.pid)
    os.kill(server if number == signal.SIGKILL else process.pid, number)
    assert process.wait(10) == status
    assert _running(line) == []


def test_what_is_adopted_and_ends_is_collected(tmp_path: Path) -> None:
    script = "(sleep 0 &); (sleep 0 &); sleep 0.3; ps -o stat= --ppid $PPID"
    command = [sys.executable, "-P", "-m", "slicelift_hub.adopter", "sh", "-c", f"{script}; exit 7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert "Z" not in done.stdout


def test_who_has_begun_anew_is_left_alone(sessions: Sessions) -> None:
    """Whoever saw the former session gone, or its lease without one, may be late."""
    former = sessions.begin("session:anna:", NEEDS)
    assert former is not None
    sessions.end("session:anna:")
    assert sessions.begin("session:anna:", NEEDS)
    for seen in (former.session_id, None):
        sessions._end("session:anna:", seen)
        assert sessions.capacity()["1g.10gb"].free == 0


def test_all_sessions_of_one_user_end_and_nobody_elses(sessions: Sessions) -> None:
    for user, server in (("an%na", ""), ("an%na", "second"), ("an%nab", ""), ("anXna", "")):
        assert sessions.begin(make_holder(user, server), {})
    sessions.end_user("an%na")
    with sessions._engine.connect() as connection:
        left = set(connection.scalars(select(table.c.holder)))
    assert left == {"session:an%25nab:", "session:anXna:"}


def test_a_port_counts_once_the_users_own_process_listens() -> None:
    mine = os.getuid()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not is_served(port, mine)
        listener.listen()
        assert is_served(port, mine)
        assert not is_served(port, mine + 1)
        assert not is_served(port, None)
    assert not is_served(port, mine)


def test_the_last_words_of_a_long_log_are_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("x" * 5000 + "\nfirst\nsecond 李\nlast\n")
    assert last_words(log) == "first / second 李 / last"


def test_homes_have_plain_names_that_never_meet() -> None:
    names = ["anna", "Anna", "李雷", "李 雷", "a/../b", "a--b", "..", "", "x" * 300, "a-b", "a_b", "o'neil"]
    slugs = [homes.slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(slug.isascii() and "/" not in slug and not slug.startswith(".") for slug in slugs)
    assert max(map(len, slugs)) <= 48
    assert homes.slug("anna") == "anna"


def test_no_two_sessions_share_a_log(tmp_path: Path) -> None:
    people = [("a", ""), ("a", "b"), ("a.b", ""), ("a.b", "b"), ("a", "b.b"), ("a", "B")]
    sessions = [
        SimpleNamespace(user=SimpleNamespace(name=user), name=name, home=tmp_path) for user, name in people
    ]
    logs = {LocalSliceSpawner._log_path(session) for session in sessions}
    assert len(logs) == len(people)


def test_a_home_is_made_whole_and_left_alone_ever_after(tmp_path: Path) -> None:
    home = homes.prepare(tmp_path, "李雷")
    assert (home.parent, home.stat().st_mode & 0o777) == (tmp_path / "homes", 0o700)
    (home / "mine").write_text("x")
    assert homes.prepare(tmp_path, "李雷", demo=tmp_path / "missing") == home
    assert [path.name for path in home.iterdir()] == ["mine"]
    # a demo that cannot be copied costs the demo, not the home
    assert list(homes.prepare(tmp_path, "ben", demo=tmp_path / "missing").iterdir()) == []


def _until_exec(pid: int) -> None:
    """Until the new program is in place: before that a process shows no environment, on a busy machine for long."""
    environment = Path(f"/proc/{pid}/environ")
    wait_for("the new program", lambda: MARKER.encode() in environment.read_bytes(), seconds=10)


def _running(line: str) -> list[int]:
    wanted = line.replace(" ", "\0").encode() + b"\0"
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [pid for pid in found if _command(pid) == wanted and _lives(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
