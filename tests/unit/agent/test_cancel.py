"""Ending a job in all its states, and what is left of it afterwards: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Proof
from slicelift.models import Status
from slicelift.runtime import processes

# a child that leaves session, parent and environment behind, and writes its pid
HIDING = """
import os, pathlib, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        hidden = "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        hidden += "pathlib.Path('hidden.pid').write_text(str(os.getpid())); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", hidden], {})
    os._exit(0)
os.wait()
"""
READY = "pathlib.Path('ready').touch()\n"
SLEEP = "import time\nwhile True:\n    time.sleep(0.1)\n"


def hidden_pid(bench: Any, handle: str) -> int:
    path = bench.root(handle) / "workspace/笔记 本/hidden.pid"
    return int(bench.wait_for("the hidden one", lambda: path.exists() and path.read_text()))


def test_cancel_ends_ranks_and_children_that_hide(bench: Any, launcher: Any) -> None:
    handle = bench.submit(HIDING + "print('begun', flush=True)\n" + SLEEP)
    pid = hidden_pid(bench, handle)
    assert processes.look(pid)
    proof = bench.local.cancel(handle, reason="cancelled by ann", grace_seconds=0.5)
    assert proof.gone
    assert proof.left == ()
    # torchrun's place, the rank, the hidden child
    assert proof.killed >= 3
    assert processes.look(pid) is None
    assert not bench.marked(handle)
    status = bench.wait_ended(handle)
    assert (status.status, status.reason) == (Status.KILLED, "cancelled by ann")
    assert launcher.logs["0"] == b"begun\n"
    assert launcher.states[-1]["exit"]["status"] == "KILLED"


def test_a_rank_that_acts_on_sigterm_gets_the_time_for_it(bench: Any) -> None:
    script = """
import pathlib, signal, sys, time
def save(number, frame):
    with open("saved.txt", "a") as stream:
        stream.write("saved ")
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
"""
    handle = bench.submit(script + SLEEP)
    folder = bench.root(handle) / "workspace/笔记 本"
    bench.wait_for("its handler", (folder / "ready").exists)
    assert bench.local.cancel(handle, reason="stop", grace_seconds=10).gone
    assert (folder / "saved.txt").read_text() == "saved "
    assert bench.local.status(handle).status is Status.KILLED


def test_two_ranks_with_torchrun_are_cancelled(bench: Any) -> None:
    # loads torch in the gang's own process
    handle = bench.submit(
        "import pathlib, os\npathlib.Path('up' + os.environ['RANK']).touch()\n" + SLEEP, workers=2
    )
    folder = bench.root(handle) / "workspace/笔记 本"
    bench.wait_for("two ranks", lambda: (folder / "up0").exists() and (folder / "up1").exists())
    assert bench.local.cancel(handle, reason="stop", grace_seconds=5) == Proof(gone=True, killed=3)
    assert bench.local.status(handle).status is Status.KILLED


def test_cancel_during_the_start(bench: Any, launcher: Any) -> None:
    launcher.away()
    handle = bench.submit("pass\n")
    assert bench.local.status(handle).status is Status.STARTING
    assert bench.local.cancel(handle, reason="stop", grace_seconds=1).gone
    assert bench.local.status(handle).status is Status.KILLED
    assert not (bench.root(handle) / "workspace").exists()


def test_cancel_before_the_agent_was_started_forbids_its_start(bench: Any) -> None:
    spec, attempt = bench.spec("open('ran', 'w')\n"), bench.attempt()
    bench.local.folder(attempt.attempt_id).root.mkdir(parents=True)
    handle = f"local://{attempt.attempt_id}"
    assert bench.local.cancel(handle, reason="stop") == Proof(gone=True)
    assert bench.local.submit(spec, attempt) == handle
    assert (bench.local.status(handle).status, bench.marked(handle)) == (Status.KILLED, [])


def test_cancel_of_a_job_that_is_over_changes_nothing(bench: Any) -> None:
    handle = bench.submit("pass\n")
    status = bench.wait_ended(handle)
    assert bench.local.cancel(handle, reason="late").gone
    assert bench.local.status(handle) == status
    assert bench.local.cancel("local://r-unknown-1", reason="who") == Proof(gone=True)


def test_cancel_of_a_stopped_agent(bench: Any) -> None:
    handle = bench.submit(SLEEP)
    bench.wait(handle, lambda status: status.status is Status.RUNNING)
    agent = bench.local_agent(handle)
    os.kill(agent, signal.SIGSTOP)
    assert bench.local.cancel(handle, reason="stop", grace_seconds=1).gone
    assert bench.local.status(handle).reason == "stop"


@pytest.mark.parametrize("asked", ["status", "cancel"])
def test_a_killed_agent_leaves_no_process_and_an_end(bench: Any, launcher: Any, asked: str) -> None:
    launcher.secrets = {"KEY": "hunter22"}
    script = "import slicelift\nslicelift.log(loss=1.0)\nprint('begun', os.environ['KEY'], flush=True)\n"
    handle = bench.submit(HIDING + script + SLEEP, secrets=("KEY",))
    pid = hidden_pid(bench, handle)
    bench.wait_for("word of it", lambda: str(pid) in (bench.root(handle) / "processes.json").read_text())
    launcher.away()
    os.kill(bench.local_agent(handle), signal.SIGKILL)
    if asked == "cancel":
        assert bench.local.cancel(handle, reason="stop", grace_seconds=0.2).gone
    status = bench.wait(handle, lambda status: status.status.terminal)
    expected = (Status.FAILED, "agent-lost") if asked == "status" else (Status.KILLED, "stop")
    assert (status.status, status.reason) == expected
    assert processes.look(pid) is None
    # another agent delivers in its place
    launcher.back()
    bench.wait_ended(handle)
    assert launcher.points("loss") == {0: [1.0]}
    assert launcher.logs["0"] == b"begun ***\n"
    assert launcher.states[-1]["exit"]["reason"] == expected[1]


def test_leftovers_of_a_finished_job_are_ended(bench: Any) -> None:
    handle = bench.submit(HIDING + "while not pathlib.Path('hidden.pid').exists():\n    time.sleep(0.01)\n")
    pid = hidden_pid(bench, handle)
    assert bench.wait_ended(handle).status is Status.FINISHED
    assert processes.look(pid) is None


def test_the_launchers_answer_can_end_the_job(bench: Any, launcher: Any) -> None:
    handle = bench.submit(SLEEP)
    bench.wait(handle, lambda status: status.status is Status.RUNNING)
    launcher.cancel = True
    status = bench.wait_ended(handle)
    assert (status.status, status.reason) == (Status.KILLED, "cancelled by the launcher")


def test_a_job_outlives_whoever_submitted_it(bench: Any, launcher: Any, tmp_path: Path) -> None:
    spec, attempt = bench.spec("import time\ntime.sleep(1.5)\n"), bench.attempt()
    script = f"""
import os, signal, sys
from pathlib import Path
from slicelift.backends.base import Attempt
from slicelift.backends.local import Local
from slicelift.models import JobSpec
Local(Path({str(bench.home)!r})).submit({spec!r}, {attempt!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, start_new_session=True)
    assert ended.returncode == -signal.SIGKILL
    handle = f"local://{attempt.attempt_id}"
    bench.handles.append(handle)
    assert bench.local.status(handle).status in (Status.STARTING, Status.RUNNING)
    assert bench.wait_ended(handle).status is Status.FINISHED


SAVES = """
import pathlib, time
import slicelift
state = slicelift.resume()
for step in range(600):
    slicelift.checkpoint({"step": step}, step=step)
    pathlib.Path("saved").touch()
    time.sleep(0.05)
"""


def suspend(bench: Any, handle: str) -> None:
    """As the launcher does: asked again as long as ranks may save."""
    bench.wait_for(
        "it to be gone", lambda: bench.local.cancel(handle, reason="suspended by ann", saving=True).gone
    )


def test_a_suspended_job_saves_once_more_and_is_over_then(bench: Any) -> None:
    handle = bench.submit(SAVES)
    bench.wait_for("a checkpoint", (bench.root(handle) / "workspace/笔记 本/saved").exists)
    began = time.monotonic()
    suspend(bench, handle)
    # it has a minute for that, and needs a moment
    assert time.monotonic() - began < 20
    status = bench.wait_ended(handle)
    # it left by itself, at a checkpoint; a signal would be told as -15
    assert (status.status, status.reason, status.exit_code) == (Status.KILLED, "suspended by ann", 143)
    assert not bench.marked(handle)


def test_a_cancel_cuts_short_the_time_of_a_suspended_job(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saved once, and its next checkpoint is far away."""
    monkeypatch.setattr("slicelift.backends.local._SAVING_LOOK_SECONDS", 0.2)
    handle = bench.submit(
        "import pathlib\nimport slicelift\nslicelift.checkpoint({}, step=1)\n" + READY + SLEEP
    )
    bench.wait_for("a checkpoint", (bench.root(handle) / "workspace/笔记 本/ready").exists)
    began = time.monotonic()
    # neither gone nor left: it may still save, and who asks is not kept waiting
    for _ in range(2):
        assert bench.local.cancel(handle, reason="suspended by ann", saving=True) == Proof(gone=False)
    assert bench.local.cancel(handle, reason="cancelled by ann", grace_seconds=0.5).gone
    assert time.monotonic() - began < 20
    assert bench.wait_ended(handle).reason == "cancelled by ann"


def test_a_job_that_saves_nothing_is_suspended_at_once(bench: Any) -> None:
    handle = bench.submit("import pathlib\npathlib.Path('ready').touch()\n" + SLEEP)
    bench.wait_for("its start", (bench.root(handle) / "workspace/笔记 本/ready").exists)
    began = time.monotonic()
    suspend(bench, handle)
    assert time.monotonic() - began < 20
    assert bench.local.status(handle).reason == "suspended by ann"


def test_a_job_that_ends_well_while_it_is_suspended_has_finished(bench: Any) -> None:
    """Its last checkpoint was its last step."""
    script = "import pathlib, time\nimport slicelift\nslicelift.checkpoint({}, step=1)\n"
    handle = bench.submit(script + "pathlib.Path('ready').touch()\ntime.sleep(3)\n")
    bench.wait_for("a checkpoint", (bench.root(handle) / "workspace/笔记 本/ready").exists)
    suspend(bench, handle)
    assert bench.wait_ended(handle).status is Status.FINISHED
