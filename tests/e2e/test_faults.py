"""Kills and outages: whatever dies, the truth about the run survives, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SLOW = """
import time, slicelift
for step in range({steps}):
    slicelift.log(step=step, loss=1.0 / (step + 1))
    time.sleep(0.02)
print("trained to the end")
"""


def marked(run_id: str) -> list[int]:
    """Every live process that carries the marker of one of the run's attempts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"SLICELIFT_ATTEMPT={run_id}-".encode() in environment:
            found.append(int(folder.name))
    return found


def ranks(run_id: str) -> list[int]:
    """Those of them that are ranks."""
    return [pid for pid in marked(run_id) if b"runtime/rank.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def start(desk: Any, name: str, source: str, *options: str) -> str:
    done = desk.slicelift("promote", desk.notebook(name, *source.split("\n# cell\n")), *options, "--json")
    assert done.code == 0, done
    return str(done.json["run_id"])


def loss_steps(desk: Any, run_id: str) -> list[int]:
    """Steps of rank 0's loss in MLflow, in order, with repeats if any."""
    rows = desk.mlflow(
        "select m.step from metrics m join tags t on t.run_uuid = m.run_uuid "
        "where m.key = 'loss' and t.key = 'slicelift.run_id' and t.value = ? order by m.step",
        run_id,
    )
    return [row[0] for row in rows]


def wait_closed(desk: Any, run_id: str, status: str, seconds: float = 60) -> None:
    """MLflow has the run's end."""
    query = "select r.status from runs r join tags t on t.run_uuid = r.run_uuid where t.key = 'slicelift.run_id' and t.value = ?"
    rows = partial(desk.mlflow, query, run_id)
    wait_for(
        "its end", lambda: rows() == [(status,)], seconds=seconds, why=lambda: (rows(), desk.run(run_id))
    )


def test_cancel_takes_the_whole_tree(desk: Any) -> None:
    runaway = """
import os, sys, subprocess, time
code = "import os,time; os.fork() and os._exit(0); open('outputs-%d' % os.getpid(), 'w'); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={"PATH": os.environ["PATH"]})
time.sleep(600)
"""
    run_id = start(desk, "runaway.ipynb", runaway, "--workers", "2")
    desk.wait_for_status(run_id, "RUNNING")
    folder = desk.home / "attempts" / f"{run_id}-1" / "workspace" / "notebooks"
    wait_for("two strays", lambda: len(list(folder.glob("outputs-*"))) >= 2, seconds=30)
    strays = [int(path.name.split("-")[1]) for path in folder.glob("outputs-*")]
    assert all(Path(f"/proc/{pid}").exists() for pid in strays)
    done = desk.slicelift("cancel", run_id, "--json")
    assert done.code == 0, done
    assert done.json["status"] == "KILLED"
    assert marked(run_id) == []
    assert [pid for pid in strays if Path(f"/proc/{pid}").exists()] == []
    wait_closed(desk, run_id, "KILLED")


def test_a_killed_worker_ends_the_gang(desk: Any) -> None:
    run_id = start(desk, "victim.ipynb", SLOW.format(steps=3000), "--workers", "2")
    desk.wait_for_status(run_id, "RUNNING")
    wait_for("two ranks", lambda: len(ranks(run_id)) >= 2, seconds=30)
    os.kill(ranks(run_id)[0], signal.SIGKILL)
    view = desk.wait_for_status(run_id, "FAILED", seconds=60)
    assert view["failure"]["exit_code"] == -9
    assert "SIGKILL" in view["failure"]["message"]
    assert marked(run_id) == []
    wait_closed(desk, run_id, "FAILED")


def test_retry_is_the_same_run(desk: Any) -> None:
    run_id = start(
        desk,
        "flaky.ipynb",
        "import slicelift, os\nslicelift.log(step=0, loss=1.0)\nassert os.environ['SLICELIFT_ATTEMPT'].endswith('-2')",
    )
    assert desk.wait_for_status(run_id, "FAILED", "FINISHED")["status"] == "FAILED"
    wait_closed(desk, run_id, "FAILED")
    done = desk.slicelift("retry", run_id, "--wait", "--json")
    assert done.code == 0, done
    assert (done.json["run_id"], done.json["status"]) == (run_id, "FINISHED")
    assert desk.run(run_id)["attempt"] == 2
    wait_closed(desk, run_id, "FINISHED")


def mlflow_pid(desk: Any) -> int:
    """The MLflow server is a child of the launcher."""
    command = ["pgrep", "-P", str(desk.launcher_pid), "-f", "mlflow_process"]

    def found() -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()

    return int(wait_for("MLflow's process", found)[0])


def test_mlflow_stopped_in_mid_job_loses_nothing(own_desk: Any) -> None:
    own_desk.start("--no-demo")
    own_desk.wait_for_tracker()
    pid = mlflow_pid(own_desk)
    run_id = start(own_desk, "outage.ipynb", SLOW.format(steps=600), "--workers", "2")
    own_desk.wait_for_status(run_id, "RUNNING")
    wait_for("a point in MLflow", lambda: loss_steps(own_desk, run_id))
    os.kill(pid, signal.SIGSTOP)
    try:
        view = own_desk.wait_for_status(run_id, "FINISHED", seconds=90)
        assert view["latest"]["loss"][0] == 599
        frozen = len(loss_steps(own_desk, run_id))
        assert frozen < 600
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_closed(own_desk, run_id, "FINISHED")
    assert loss_steps(own_desk, run_id) == list(range(600))
    assert own_desk.mlflow(
        "select count(*) from tags where key = 'slicelift.run_id' and value = ?", run_id
    ) == [(1,)]


def test_the_launcher_killed_again_and_again(own_desk: Any) -> None:
    """SIGKILL at random moments over upload, submit, training and end; every job once, every exit code right."""
    own_desk.start("--no-demo")
    dice = random.Random(20261130)
    jobs = {
        f"p-{'b' * 18}{index:02d}".replace("0", "a").replace("1", "c"): (
            "raise SystemExit(3)" if index == 2 else SLOW.format(steps=150)
        )
        for index in range(4)
    }
    clients = []
    for index, (promotion, source) in enumerate(jobs.items()):
        path = own_desk.notebook(f"kill{index}.ipynb", source, f"data = {dice.random()}")
        command = [
            sys.executable,
            "-m",
            "slicelift",
            "promote",
            str(path),
            "--promotion-id",
            promotion,
            "--json",
        ]
        clients.append((promotion, command))
    running = [
        (p, c, subprocess.Popen(c, cwd=own_desk.project, env=own_desk.variables, stdout=subprocess.DEVNULL))
        for p, c in clients
    ]
    for _ in range(6):
        time.sleep(dice.uniform(0.3, 3.0))
        own_desk.kill_launcher()
        if own_desk.up is None:
            own_desk.start("--no-demo")
    for promotion, command, process in running:
        if process.wait(120) != 0:
            again = subprocess.run(
                command,
                cwd=own_desk.project,
                env=own_desk.variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert again.returncode == 0, (promotion, again.stdout, again.stderr)
    for promotion, source in jobs.items():
        wanted = "FAILED" if "SystemExit" in source else "FINISHED"
        view = own_desk.wait_for_status(promotion, "FINISHED", "FAILED", "KILLED", seconds=180)
        assert view["status"] == wanted, view
        if wanted == "FAILED":
            assert view["failure"]["exit_code"] == 3
        wait_closed(own_desk, view["run_id"], wanted, seconds=120)
        if wanted == "FINISHED":
            assert loss_steps(own_desk, view["run_id"]) == list(range(150))
    rows = Counter(row[0] for row in own_desk.ledger("select promotion_id from runs"))
    assert rows == Counter(dict.fromkeys(jobs, 1))
    tagged = Counter(
        row[0] for row in own_desk.mlflow("select value from tags where key = 'slicelift.promotion_id'")
    )
    assert tagged == Counter(dict.fromkeys(jobs, 1))
    assert {row[0] for row in own_desk.ledger("select attempt from attempts")} == {1}


def test_ctrl_c_ends_jobs_with_a_reason_and_the_next_up_finds_them(own_desk: Any) -> None:
    own_desk.start("--no-demo")
    run_id = start(own_desk, "long.ipynb", SLOW.format(steps=100_000))
    own_desk.wait_for_status(run_id, "RUNNING")
    assert own_desk.stop() in (0, 130)
    assert marked(run_id) == []
    away = own_desk.slicelift("jobs", "--json")
    assert (away.code, away.json["code"]) == (3, "launcher-not-running")
    own_desk.start("--no-demo")
    view = own_desk.run(run_id)
    assert view["status"] == "KILLED"
    assert "stopped" in view["reason"] + view["message"]
    assert own_desk.slicelift("retry", run_id, "--json").code == 0
    own_desk.wait_for_status(run_id, "RUNNING")
    assert own_desk.slicelift("cancel", run_id, "--json").json["status"] == "KILLED"
    assert own_desk.slicelift("jobs", "--json").json["jobs"][0]["attempt"] == 2


def test_first_in_first_out_with_the_position_shown(desk: Any) -> None:
    capacity = max(2, os.cpu_count() or 1)
    first = start(desk, "holds.ipynb", SLOW.format(steps=100_000), "--workers", str(capacity))
    desk.wait_for_status(first, "RUNNING")
    second = start(desk, "waits.ipynb", "print('second')", "--workers", "2")
    third = start(desk, "waits too.ipynb", "print('third')")
    assert (desk.run(second)["status"], desk.run(second)["position"]) == ("WAITING", 1)
    assert (desk.run(third)["status"], desk.run(third)["position"]) == ("WAITING", 2)
    assert desk.slicelift("cancel", second, "--json").json["status"] == "KILLED"
    assert desk.run(third)["position"] == 1
    assert desk.slicelift("cancel", first, "--json").json["status"] == "KILLED"
    desk.wait_for_status(third, "FINISHED")
