"""A user who is kept apart can still do everything: gang, data, outputs, metrics, MLflow, checkpoints, cancel."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Status
from slicelift.runtime import processes

from tests.waiting import wait_for

pytestmark = pytest.mark.needs_root

GANG = """
import json, os, pathlib, socket, urllib.request
import slicelift
import torch, torch.distributed as dist

def refused(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "worked"

def mlflow(call, **body):
    base = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/"
    request = urllib.request.Request(base + call, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read())

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
for step in range(3):
    slicelift.log(step=step, total=total.item())
if dist.get_rank() == 0:
    run = mlflow("runs/create", experiment_id="0")["run"]["info"]["run_id"]
    mlflow("runs/log-metric", run_id=run, key="by_mlflow", value=7.0, timestamp=1, step=0)
    data, home = pathlib.Path("data"), pathlib.Path.home()
    victim = (data / "a.txt").resolve()
    port = int(os.environ["LAUNCHER"])
    told = {
        "uids": sorted({*os.getresuid(), *os.getgroups()}),
        "data": (data / "sub" / "b.txt").read_text(),
        "append": refused(lambda: victim.open("a")),
        "chmod": refused(lambda: victim.chmod(0o666)),
        "unlink": refused(victim.unlink),
        "add": refused(lambda: (data.resolve() / "new").write_text("x")),
        "launcher": refused(lambda: socket.create_connection(("127.0.0.1", port), 2)),
        "home": (home / "mine.txt").read_text(),
        "admin": sorted(name for name in os.environ if "ADMIN" in name or name.startswith("JUPYTERHUB")),
    }
    (home / "left.txt").write_text("by the job")
    pathlib.Path(os.environ["SLICELIFT_CHECKPOINT_DIR"], "kept").write_text("x")
    pathlib.Path("outputs").mkdir()
    pathlib.Path("outputs/told.json").write_text(json.dumps(told))
dist.destroy_process_group()
"""
SLEEP = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


def test_a_gang_trains_as_its_owner(machine: Any, tools: Any) -> None:
    # two interpreters load torch and one DVC: 10 s and more
    home, client = machine.home_of("bob"), machine.client("bob")
    (home / "mine.txt").write_text("bob's own")
    data = tools.make_data(home / "remote", {"a.txt": b"one", "sub/b.txt": "二".encode()})
    client.set_secret("LAUNCHER", client.url.rpartition(":")[2])
    view = machine.submit("bob", GANG, workers=2, data=(data,), secrets=("LAUNCHER",))
    done = machine.until("bob", view.run_id, Status.FINISHED)
    uid = machine.user("bob").uid
    assert done.latest["total"] == (2, 3.0)
    assert done.latest["by_mlflow"] == (0, 7.0)
    assert (home / "left.txt").stat().st_uid == uid
    (output,) = client.outputs(view.run_id)
    told = json.loads(b"".join(client.output(view.run_id, 1, output.path)))
    assert told == {
        "uids": [uid],
        "data": "二",
        "append": "PermissionError",
        "chmod": "OSError",
        "unlink": "OSError",
        "add": "OSError",
        "launcher": "ConnectionRefusedError",
        "home": "bob's own",
        "admin": [],
    }


def test_a_remote_in_a_closed_folder_is_named(machine: Any, tools: Any, tmp_path: Path) -> None:
    """The owner's own shell may see it, below /root say; the job does not."""
    data = tools.make_data(tmp_path / "remote", {"a.txt": b"unseen"})
    view = machine.submit("bob", "pass\n", data=(data,))
    done = machine.until("bob", view.run_id, Status.FAILED)
    assert (done.reason, "dvc push" in done.message) == ("data-remote-unseen", False)
    assert str(tmp_path / "remote") in done.message
    assert "c.Launcher.visible" in done.message


def test_a_cancel_ends_the_processes_of_another_user(machine: Any) -> None:
    view = machine.submit("bob", SLEEP)
    machine.until("bob", view.run_id, Status.RUNNING)
    agent = json.loads((machine.attempt(view.run_id) / "agent.pid").read_text())
    assert processes.user_of(agent["pid"]) == machine.user("bob").uid
    machine.client("bob").cancel(view.run_id)
    assert machine.until("bob", view.run_id, Status.KILLED).reason == "cancelled by bob"
    wait_for("bob's processes to end", lambda: not machine.processes_of("bob"))


def test_a_killed_agent_is_settled_and_another_one_delivers_as_the_owner(machine: Any) -> None:
    view = machine.submit("bob", SLEEP)
    machine.until("bob", view.run_id, Status.RUNNING)
    root = machine.attempt(view.run_id)
    wait_for("its line", lambda: b"here" in machine.client("bob").logs(view.run_id, rank=0)[0])
    os.kill(json.loads((root / "agent.pid").read_text())["pid"], signal.SIGKILL)
    assert machine.until("bob", view.run_id, Status.FAILED).reason == "agent-lost"
    wait_for("the delivery", (root / "delivered.json").exists)
    assert (root / "delivered.json").stat().st_uid == machine.user("bob").uid
    wait_for("bob's processes to end", lambda: not machine.processes_of("bob"))


def test_a_restarted_launcher_finds_the_job_and_the_job_finds_it(machine: Any) -> None:
    flag = machine.home_of("bob") / "go"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.05)\nprint('went on')\n"
    view = machine.submit("bob", waits)
    machine.until("bob", view.run_id, Status.RUNNING)
    machine.kill()
    machine.start()
    flag.touch(mode=0o644)
    machine.until("bob", view.run_id, Status.FINISHED)
    assert b"went on" in machine.client("bob").logs(view.run_id, rank=0)[0]
