"""A command becomes a user's: their rights, their view, nobody between it and who started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.local import Local
from slicelift.errors import SliceliftError
from slicelift_hub import homes, isolation
from slicelift_hub.launcher.backend import make_backend
from slicelift_hub.system_users import remove_all, system_user
from traitlets.config import Config

from tests.waiting import wait_for

pytestmark = pytest.mark.needs_root

Enclosed = Callable[..., list[str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("enclosure 围") / "home"
    made.mkdir(mode=0o700)
    (made / "ledger.db").write_text("secret")
    yield made
    wait_for("the accounts to go", lambda: not remove_all(made), why=lambda: remove_all(made))


@pytest.fixture
def enclosed(home: Path) -> Enclosed:
    def make(*command: str, **words: Any) -> list[str]:
        return isolation.enclosed_command("bob", command, home=home, **words)

    return make


def run(command: list[str], **words: Any) -> subprocess.CompletedProcess[str]:
    words = {"cwd": "/"} | words
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **words)


def test_it_is_possible_here() -> None:
    assert isolation.available() == ""


def test_rights_are_the_users_and_cannot_come_back(enclosed: Enclosed, home: Path) -> None:
    bob = system_user(home, "bob")
    status = run(enclosed("cat", "/proc/self/status")).stdout
    told = {line.partition(":")[0]: line.split()[1:] for line in status.splitlines()}
    assert told["Uid"] == [str(bob.uid)] * 4
    assert told["Gid"] == [str(bob.gid)] * 4
    assert told["Groups"] == [str(bob.gid)]
    assert told["NoNewPrivs"] == ["1"]
    assert (told["CapEff"], told["CapPrm"]) == (["0" * 16], ["0" * 16])


def test_exit_status_and_signals_are_the_commands_own(enclosed: Enclosed) -> None:
    assert run(enclosed("sh", "-c", "exit 7")).returncode == 7
    assert run(enclosed("no-such-program")).returncode == 127
    with subprocess.Popen(
        enclosed("sh", "-c", "echo here; exec sleep 60"), cwd="/", stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM


def test_the_home_is_empty_but_for_what_is_named(enclosed: Enclosed, home: Path) -> None:
    own = home / "homes" / "bob"
    own.mkdir(parents=True, exist_ok=True)
    (own / "of root").write_text("given")
    (home / "homes" / "anna").mkdir(exist_ok=True)
    script = f"find '{home}' && echo new >> 'of root' && pwd"
    lines = run(enclosed("sh", "-c", script, writable=[own]), cwd=own).stdout.splitlines()
    assert lines == [str(home), str(home / "homes"), str(own), str(own / "of root"), str(own)]
    assert (own / "of root").read_text() == "givennew\n"
    assert (own / "of root").stat().st_uid == system_user(home, "bob").uid


def test_a_folder_below_a_closed_one_is_shown_and_not_its_neighbours(
    enclosed: Enclosed, tmp_path: Path
) -> None:
    # as an interpreter below /root, found through links
    closed = tmp_path / "closed"
    program = closed / "versions" / "1.0" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    (closed / "current").symlink_to("versions")
    (closed / "secret").write_text("secret")
    closed.chmod(0o700)
    by_link = closed / "current" / "1.0"
    script = f"'{by_link}/program'; cat '{closed}/secret'; echo x > '{by_link}/program'; ls '{closed}'"
    done = run(enclosed("sh", "-c", script, visible=[by_link]))
    assert done.stdout.split() == ["ran", "current", "versions"]
    assert "secret: No such file" in done.stderr
    assert program.read_text().startswith("#!")


def test_shared_places_are_its_own(enclosed: Enclosed, tmp_path: Path) -> None:
    places = [Path(place) for place in ("/tmp", "/var/tmp", "/dev/shm")]
    outside = [place / f"outside-{os.getpid()}" for place in places]
    inside = [place / f"inside-{os.getpid()}" for place in places]
    for file in (*outside, tmp_path / "hidden"):
        file.write_text("x")
    made = "; ".join(f"echo x > {file}" for file in inside)
    told = run(
        enclosed("sh", "-c", f"{made}; find {' '.join(map(str, places))} -maxdepth 1; ls '{tmp_path}'")
    )
    for file in outside:
        file.unlink()
    # the interpreter itself may lie there
    ways = [way for path in isolation.program_paths() for way in (path, *path.parents)]
    assert {Path(line) for line in told.stdout.splitlines()} - set(ways) == {*places, *inside} - set(ways)
    assert not any(file.exists() for file in inside)


def test_a_folder_to_stand_on_leads_past_no_cover(enclosed: Enclosed, home: Path) -> None:
    """Who starts it may stand in the launcher's home: the command must not."""
    assert run(enclosed("sh", "-c", "pwd; cat ledger.db ../ledger.db"), cwd=home / "hub").stdout == "/\n"


def test_descriptors_are_not_handed_on(enclosed: Enclosed, home: Path) -> None:
    with (home / "ledger.db").open() as file:
        os.set_inheritable(file.fileno(), True)
        done = run(enclosed("ls", "-l", "/proc/self/fd"), pass_fds=[file.fileno()])
    assert "ledger.db" not in done.stdout


def test_without_a_network_there_is_loopback_only(enclosed: Enclosed) -> None:
    script = "import socket; print([name for _, name in socket.if_nameindex()]); socket.create_server(('127.0.0.1', 0))"
    names = run(enclosed(sys.executable, "-S", "-c", script, network=False)).stdout
    assert names == "['lo']\n"


def test_a_user_keeps_the_number_and_nobody_else_gets_it(home: Path) -> None:
    first, other = system_user(home, "dora 多"), system_user(home, "Dora 多")
    assert system_user(home, "dora 多") == first
    assert first.uid != other.uid
    subprocess.run(["userdel", first.name], check=True)
    assert system_user(home, "dora 多") == first
    told = json.loads((home / "hub" / "accounts.json").read_text())
    told["dora 多"][1] = other.uid
    (home / "hub" / "accounts.json").write_text(json.dumps(told))
    with pytest.raises(SliceliftError) as refusal:
        system_user(home, "dora 多")
    assert refusal.value.code == "account-changed"


def test_users_made_at_once_are_made_once(home: Path) -> None:
    program = "import sys; from pathlib import Path; from slicelift_hub.system_users import system_user\n"
    program += "print(system_user(Path(sys.argv[1]), 'erna').uid)"
    command = [sys.executable, "-c", program, str(home)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (child.communicate()[0] for child in both)
    assert first == second != b""


def test_the_switch_says_no(home: Path) -> None:
    program = "from slicelift_hub import isolation; print(isolation.available(), isolation.enclosed_command('bob', ['ls']))"
    done = run([sys.executable, "-c", program], env=os.environ | {"SLICELIFT_ISOLATION": "off"})
    assert done.stdout == "SLICELIFT_ISOLATION switches it off ['ls']\n"


def test_the_demos_data_is_seen_where_its_clone_is_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's first promotion, by root: the clone lies where no other user comes, and /tmp is a job's own."""
    clone = tmp_path / "clone"
    (clone / "notebooks" / ".dvc").mkdir(parents=True)
    (clone / "remote").mkdir()
    (clone / "remote" / "object").write_text("of the demo")
    (clone / "notebooks" / ".dvc" / "config").write_text("['remote \"demo\"']\n    url = ../../remote\n")
    (clone / "secret").write_text("of root")
    attempt = home / "attempts" / "r-demo-1"
    clone.chmod(0o700)
    monkeypatch.setattr(homes, "shipped_demo", lambda: clone / "notebooks")
    words: dict[str, Any] = {"apart": "always", "under_hub": True, "network": "own", "visible": ()}
    backend = make_backend(Local, home, config=Config(), **words)
    script = f"cat {clone}/remote/object; cat {clone}/secret; echo x > {clone}/remote/new"
    enclosure: Any = getattr(backend, "_enclosure")  # noqa: B009 - not part of what a backend promises
    command = enclosure.agent_command(
        "dora", ["sh", "-c", script], writable=[attempt], read_only=[], ranks=False
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "of the demo"
    assert not (clone / "remote" / "new").exists()
