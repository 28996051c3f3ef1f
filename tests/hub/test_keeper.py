"""Who keeps the hub's processes: back when they die, gone when the hub is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_for

KEEPER = [sys.executable, "-m", "slicelift_hub.keeper"]
CHILD = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_is_killed_is_back_and_sigterm_ends_both(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    keeper = subprocess.Popen(
        [*KEEPER, "keep", "--log", tmp_path / "log", "--", sys.executable, "-c", CHILD, file]
    )
    for count in (1, 2, 3):
        wait_for(f"start {count}", lambda count=count: len(pids(file)) == count)
        os.kill(pids(file)[-1], signal.SIGKILL)
    wait_for("start 4", lambda: len(pids(file)) == 4)
    keeper.terminate()
    assert keeper.wait(10) == 0
    assert all(gone(pid) for pid in pids(file))


def test_who_cannot_start_at_all_is_not_tried_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no such home'); sys.exit(3)"]
    done = subprocess.run(
        [*KEEPER, "keep", "--log", tmp_path / "log", "--", *command], timeout=20, check=False
    )
    assert done.returncode == 3
    assert (tmp_path / "log").read_text() == "no such home\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_both_ways_end_with_a_hub_that_is_killed(tmp_path: Path) -> None:
    for way in (["keep"], ["tie"]):
        file = tmp_path / way[0]
        command = [*KEEPER, *way, "--", sys.executable, "-c", CHILD, str(file)]
        # a hub, in short: it starts the keeper and waits
        hub = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"])
        wait_for("its start", lambda file=file: bool(pids(file)))
        hub.kill()
        hub.wait()
        wait_for("its end", lambda file=file: gone(pids(file)[0]))


def test_who_comes_too_late_to_see_the_hub_die_ends_at_once(tmp_path: Path) -> None:
    for way in ("keep", "tie"):
        command = [*KEEPER, way, "--parent", "1", "--", sys.executable, "-c", CHILD, str(tmp_path / way)]
        assert subprocess.run(command, timeout=20, check=False).returncode == -signal.SIGTERM
        assert not (tmp_path / way).exists()
