"""Runs over a real launcher: what a user sees, what a script gets, with which exit status."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slicelift.cli import follow, logs
from slicelift.errors import Unavailable
from slicelift.launcher_client import Client, find

SLEEPY = "import time\nprint('awake', flush=True)\ntime.sleep(120)"


def test_a_failed_run_names_cell_and_line(failed_run: dict[str, Any]) -> None:
    assert failed_run["status"] == "FAILED"
    assert (failed_run["model_name"], failed_run["model_version"]) == (None, None)
    failure = failed_run["failure"]
    assert (failure["rank"], failure["cell"], failure["line"]) == (0, 2, 2)
    assert "ZeroDivisionError" in failure["message"] + failure["exception"]
    assert failure["source"].strip() == "return x / 0"


def test_its_logs_lead_back_to_the_notebook(cli: Any, failed_run: dict[str, Any]) -> None:
    done = cli("logs", failed_run["run_id"])
    assert done.code == 0
    assert done.out.startswith("rate is 0.25\n")
    assert re.search(r"it fails\.ipynb, cell 3, line 5, in <module>", done.out), done.out
    assert "promoted.py" not in done.out
    told = cli("logs", failed_run["run_id"], "--json").json
    assert told["ranks"] == [{"rank": "0", "text": done.out}]
    assert (told["run_id"], told["attempt"]) == (failed_run["run_id"], 1)


def test_following_the_logs_of_an_ended_run_ends(cli: Any, failed_run: dict[str, Any]) -> None:
    run = failed_run["run_id"]
    assert cli("logs", run, "-f").out == cli("logs", run).out


@pytest.mark.parametrize("form", ["run_id", "promotion_id", "short", "bare"])
def test_the_ways_to_name_a_run(cli: Any, failed_run: dict[str, Any], form: str) -> None:
    names = {
        **failed_run,
        "short": failed_run["run_id"][:8],
        "bare": failed_run["run_id"][2:9],
    }
    assert cli("status", names[form], "--json").json["run_id"] == failed_run["run_id"]


def test_last_is_the_newest(cli: Any, failed_run: dict[str, Any]) -> None:
    newest = cli("jobs", "--json").json["jobs"][0]
    assert cli("status", "last", "--json").json["run_id"] == newest["run_id"]


def test_a_name_that_fits_nothing_or_too_much(cli: Any, failed_run: dict[str, Any]) -> None:
    done = cli("status", "r-222222222222", "--json")
    assert (done.code, done.json["code"]) == (2, "run-unknown")
    done = cli("status", "zz", "--json")
    assert (done.code, done.json["code"]) == (2, "run-unknown")


def test_status_tells_everything(cli: Any, failed_run: dict[str, Any]) -> None:
    out = cli("status", failed_run["run_id"]).out
    for part in (
        "it fails  Rank 0 failed in cell 3, line 2: ZeroDivisionError",
        failed_run["run_id"],
        failed_run["promotion_id"],
        "1 worker, queue default",
        "parameter  rate = 0.25",
        "parameter  name = 'b=c'",
        "return x / 0",
        f"slicelift retry {failed_run['run_id']}",
    ):
        assert part in out, out


def test_jobs(cli: Any, failed_run: dict[str, Any]) -> None:
    assert failed_run["run_id"] in cli("jobs").out
    runs = cli("jobs", "--all", "--status", "failed", "--json").json["jobs"]
    assert failed_run["run_id"] in [run["run_id"] for run in runs]
    assert cli("jobs", "--status", "WAITING", "--json").json == {"jobs": []}
    assert cli("jobs", "--status", "odd", "--json").json["code"] == "usage"


def test_outputs(cli: Any, failed_run: dict[str, Any], tmp_path: Path) -> None:
    run = failed_run["run_id"]
    assert "deep/结 果.txt" in cli("outputs", run).out
    [found] = cli("outputs", run, "--json").json["outputs"]
    assert (found["path"], found["size_bytes"], found["attempt"]) == ("deep/结 果.txt", 11, 1)
    assert cli("outputs", run, "--get", "deep/结 果.txt").out == "made by b=c"
    cli("outputs", run, "--all", tmp_path / "新 here")
    assert (tmp_path / "新 here" / "deep" / "结 果.txt").read_text() == "made by b=c"
    assert not list(tmp_path.rglob("*.part"))
    done = cli("outputs", run, "--get", "deep/other.txt", "--json")
    assert (done.code, done.json["code"]) == (2, "output-unknown")
    assert "结 果.txt" in done.json["hint"]
    done = cli("outputs", run, "--get", "deep/结 果.txt", "-o", tmp_path, "--json")
    assert (done.code, done.json["code"]) == (2, "cannot-write")


def test_ranks_that_are_not_there(cli: Any, failed_run: dict[str, Any]) -> None:
    run = failed_run["run_id"]
    done = cli("logs", run, "--rank", "7", "--json")
    assert (done.code, done.json["code"]) == (2, "rank-unknown")
    assert "0" in done.json["hint"]
    assert cli("logs", run, "--attempt", "9", "--json").json["code"] == "attempt-unknown"
    assert cli("logs", run, "--rank", "agent").code == 0


def test_the_same_id_again_is_the_same_run(
    cli: Any, failed_run: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    path = project / "笔 记" / "it fails.ipynb"
    command = ("promote", path, "-p", "rate=0.25", "-p", "name=b=c", "--json")
    again = cli(*command, "--promotion-id", failed_run["promotion_id"])
    assert (again.code, again.json["run_id"]) == (0, failed_run["run_id"])
    other = cli("promote", path, "--promotion-id", failed_run["promotion_id"], "--json")
    assert (other.code, other.json["code"]) == (2, "promotion-differs")


def test_watching_an_ended_run_tells_its_end(cli: Any, failed_run: dict[str, Any]) -> None:
    done = cli("watch", failed_run["run_id"])
    assert done.code == 1
    lines = done.out.split("\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  Waiting", lines[0])
    assert "Rank 0 failed in cell 3, line 2: ZeroDivisionError: float division by zero" in lines
    assert "    return x / 0" in lines
    assert any("it fails.ipynb, cell 3, line 5" in line for line in lines)
    assert cli("watch", failed_run["run_id"], "--json").json == failed_run


def test_an_unfinished_run_is_left_alone_by_ctrl_c(
    cli: Any, launcher: Path, project: Path, notebook_at: Any
) -> None:
    """Takes several seconds: a real job, two real followers, two attempts."""
    path = notebook_at(project / "sleepy.ipynb", SLEEPY)
    submitted = cli("promote", path).out
    run = re.findall(r"r-[a-z2-7]{12}", submitted)[0]
    assert f"slicelift watch {run}" in submitted
    watching = subprocess.Popen(
        [sys.executable, "-m", "slicelift", "logs", run, "-f"], stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    assert watching.stdout.readline() == "awake\n"
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    watching.stdout.close()
    follower = subprocess.Popen(
        [sys.executable, "-m", "slicelift", "watch", run, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stderr is not None
    assert "Waiting" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=20)
    assert follower.returncode == 130, err
    assert '"code": "interrupted"' in out
    assert f"slicelift cancel {run}" in err
    assert "Traceback" not in err
    assert cli("status", run, "--json").json["status"] == "RUNNING"
    assert cli("retry", run, "--json").code == 2
    done = cli("cancel", run, "--json")
    assert (done.code, done.json["status"]) == (0, "KILLED")
    assert cli("watch", run, "--json").code == 1
    again = cli("retry", run, "--json").json
    assert (again["run_id"], again["attempt"]) == (run, 2)
    assert cli("cancel", run).out.startswith(f"sleepy ({run}): Cancelled: cancelled by")
    asked = cli("outputs", run, "--json").json
    assert (asked["attempt"], asked["outputs"]) == (2, [])


def test_following_the_logs_of_a_launcher_that_has_stopped_ends(
    cli: Any, failed_run: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "AWAY_SECONDS", 0.5)
    with find() as client:
        view = client.job(failed_run["run_id"])
    gone = Client("http://127.0.0.1:1", "t")
    with pytest.raises(Unavailable):
        list(logs._followed(gone, view, [logs.Tail(gone, view.run_id, rank="0", attempt=1)]))
    assert capsys.readouterr().err == f"{follow.AWAY_TEXT}\n"


def test_a_plan_submits_nothing(cli: Any, failed_run: dict[str, Any], project: Path) -> None:
    path = project / "笔 记" / "it fails.ipynb"
    before = len(cli("jobs", "--all", "--json").json["jobs"])
    told = cli("plan", path, "-p", "rate=1", "--json").json
    assert told["upload"] == {"files": 0, "bytes": 0}
    assert told["spec"]["parameters"] == {"rate": 1.0}
    assert (told["position"], told["data"]) == (1, [])
    assert told["manifest"]["kind"]
    assert told["snapshot"]["files"] >= 4
    text = cli("plan", path).out
    assert "nothing to upload" in text
    assert "starts now" in text
    assert len(cli("jobs", "--all", "--json").json["jobs"]) == before


def test_a_plan_without_a_launcher_says_what_it_cannot_know(
    cli: Any, empty_home: Path, project: Path, notebook_at: Any
) -> None:
    path = notebook_at(project / "plain.ipynb", "print(1)")
    told = cli("plan", path, "--json").json
    assert (told["upload"], told["position"], told["manifest"]) == (None, None, None)
    assert "Position and manifest are not known" in told["notes"][0]
    assert not empty_home.exists()


SAVES = """import time
import slicelift
found = slicelift.resume()
start = found[1] if found else 0
for step in range(start, 400):
    slicelift.checkpoint({}, step=step + 1)
    print("at", step, "from", start, flush=True)
    time.sleep(0.05 if not start else 0)"""


def test_a_run_is_suspended_and_resumed(cli: Any, launcher: Path, project: Path, notebook_at: Any) -> None:
    """Takes several seconds: a real job of two attempts."""
    submitted = cli("promote", notebook_at(project / "saves.ipynb", SAVES)).out
    run = re.findall(r"r-[a-z2-7]{12}", submitted)[0]
    while "at 2 " not in cli("logs", run).out:
        time.sleep(0.2)
    assert cli("resume", run, "--json").json["code"] == "not-suspended"
    told = cli("suspend", run)
    assert (told.code, "Suspended by" in told.out) == (0, True)
    assert f"slicelift resume {run}" in told.out
    view = cli("status", run, "--json").json
    assert view["checkpoint"] >= 3
    assert "suspended  " in cli("status", run).out
    again = cli("resume", run, "--wait", "--json").json
    assert (again["run_id"], again["attempt"], again["status"]) == (run, 2, "FINISHED")
    assert f"from {view['checkpoint']}" in cli("logs", run).out
