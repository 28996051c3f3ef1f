"""A whole job through the backend: a real agent, real ranks."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import SliceliftError
from slicelift.models import Failure, JobStatus, Status

WORLD = """
import os, pathlib, sys
import slicelift
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
for step in range(20):
    slicelift.log(step=step, loss=total.item() + step, nothing=float("nan"))
print("rank", dist.get_rank(), "of", dist.get_world_size(), "key", os.environ["API_KEY"], pathlib.Path("here.txt").read_text())
if dist.get_rank() == 0:
    pathlib.Path("outputs/sub").mkdir(parents=True)
    pathlib.Path("outputs/sub/结果 1.txt").write_text("done")
dist.destroy_process_group()
"""


def test_two_ranks_train_and_everything_arrives(bench: Any, launcher: Any) -> None:
    # two interpreters load torch: 5 s and more
    launcher.secrets = {"API_KEY": "s3cret-value"}
    launcher.files["笔记 本/here.txt"] = b"cwd"
    launcher.files["笔记 本/outputs/old.txt"] = b"came with the snapshot"
    handle = bench.submit(WORLD, workers=2, secrets=("API_KEY",), parameters={"lr": 0.1})
    status = bench.wait_ended(handle)
    assert status == JobStatus(status=Status.FINISHED, phase="ended", exit_code=0), bench.log(handle)
    assert launcher.points("loss") == {
        0: [3.0 + step for step in range(20)],
        1: [3.0 + step for step in range(20)],
    }
    assert all(math.isnan(value) for values in launcher.points("nothing").values() for value in values)
    for rank in ("0", "1"):
        assert f"rank {rank} of 2 key *** cwd" in launcher.logs[rank].decode()
    assert not any(b"s3cret-value" in log for log in launcher.logs.values())
    assert launcher.outputs == {"sub/结果 1.txt": b"done"}
    last = launcher.states[-1]
    assert (last["state"], last["exit"]["status"], last["exit"]["exit_code"]) == ("ended", "FINISHED", 0)
    assert {row["rank"] for state in launcher.states for row in state["ranks"]} == {0, 1}
    assert not list((bench.root(handle) / "spool").iterdir())
    # what shows secrets as they were printed went with the delivery
    assert not any(b"s3cret-value" in text for text in texts(bench.root(handle)))
    assert not {"logs", "errors", "gang.json"} & {path.name for path in bench.root(handle).iterdir()}
    bench.wait_for("all to end", lambda: not bench.marked(handle))


def texts(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in root.rglob("*") if path.is_file()]


def test_what_a_rank_raised_with_a_secret_in_it_goes_with_the_delivery(bench: Any, launcher: Any) -> None:
    launcher.secrets = {"API_KEY": "s3cret-value"}
    handle = bench.submit("import os\nraise ValueError(os.environ['API_KEY'])\n", secrets=("API_KEY",))
    assert bench.wait_ended(handle).failure.message == "Rank 0 raised ValueError: ***"
    assert b"ValueError: ***" in launcher.logs["0"]
    assert not any(b"s3cret-value" in text for text in texts(bench.root(handle)))


def test_a_log_call_is_with_the_launcher_soon(bench: Any, launcher: Any) -> None:
    script = "import slicelift, time\nfor i in range(60):\n    slicelift.log(step=i, x=1.0)\n    time.sleep(0.03)\n"
    handle = bench.submit(script)
    bench.wait_ended(handle)
    delays = sorted(
        launcher.arrived[(*key, line["q"])] - line["t"]
        for key, lines in launcher.events.items()
        for line in lines
    )
    assert delays[int(len(delays) * 0.95)] < 0.3


def test_a_raising_rank_is_told_with_cell_and_line(bench: Any, launcher: Any) -> None:
    script = "import os\n\ndef bad():\n    raise ValueError('坏 loss')\n\nbad()\n"
    status = bench.wait_ended(bench.submit(script))
    assert (status.status, status.reason, status.exit_code) == (Status.FAILED, "rank-failed", 1)
    failure = status.failure
    assert failure is not None
    assert (failure.rank, failure.exception, failure.cell, failure.line) == (0, "ValueError", 3, 4)
    assert failure.message == "Rank 0 raised ValueError: 坏 loss"
    assert failure.source == "raise ValueError('坏 loss')"
    assert "笔记 本/n.ipynb, cell 4, line 6" in failure.traceback
    assert b"ValueError" in launcher.logs["0"]
    assert launcher.states[-1]["exit"]["failure"]["cell"] == 3


def test_a_rank_killed_by_sigkill_ends_the_gang(bench: Any) -> None:
    script = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    status = bench.wait_ended(bench.submit(script, workers=2))
    assert (status.status, status.reason, status.exit_code) == (Status.FAILED, "rank-failed", -9)
    assert status.failure is not None
    assert status.failure.rank == 1
    assert "SIGKILL" in status.message
    assert "dmesg" in status.message


def test_an_exit_code_of_the_script_is_the_jobs(bench: Any) -> None:
    status = bench.wait_ended(bench.submit("import sys\nsys.exit(7)\n"))
    assert (status.status, status.exit_code) == (Status.FAILED, 7)


def test_points_and_logs_arrive_once_when_the_launcher_was_away(bench: Any, launcher: Any) -> None:
    script = (
        "import slicelift, time\n"
        "for i in range(100):\n    slicelift.log(step=i, loss=float(i))\n    print('line', i)\n    time.sleep(0.03)\n"
    )
    handle = bench.submit(script)
    bench.wait_for("some points", lambda: len(launcher.points("loss").get(0, [])) > 5)
    launcher.away()
    bench.wait(handle, lambda status: status.status is Status.FINISHED)
    assert bench.local.status(handle).phase == "delivering"
    launcher.back()
    bench.wait_ended(handle)
    assert launcher.points("loss") == {0: [float(i) for i in range(100)]}
    assert launcher.logs["0"].decode().split("\n") == [*(f"line {i}" for i in range(100)), ""]
    assert launcher.states[-1]["state"] == "ended"


def test_the_launcher_comes_back_at_another_address(bench: Any, launcher: Any) -> None:
    handle = bench.submit("import time, slicelift\ntime.sleep(1)\nslicelift.log(loss=1.0)\n")
    bench.wait(handle, lambda status: status.status is Status.RUNNING)
    launcher.away()
    launcher.port = 0
    launcher.back()
    (bench.home / "launcher.json").write_text(json.dumps({"url": launcher.url}))
    bench.wait_ended(handle)
    assert launcher.points("loss") == {0: [1.0]}


@pytest.mark.parametrize("code", [0, 1])
def test_a_launcher_that_forgot_the_attempt_is_left_alone(bench: Any, launcher: Any, code: int) -> None:
    launcher.secrets = {"API_KEY": "s3cret-value"}
    script = f"import sys, time\ntime.sleep(1)\nprint('the only copy')\nsys.exit({code})\n"
    handle = bench.submit(script, secrets=("API_KEY",))
    bench.wait(handle, lambda status: status.status is Status.RUNNING)
    launcher.gone = True
    assert bench.wait_ended(handle).exit_code == code
    assert (bench.root(handle) / "logs" / "rank-0.log").read_text() == "the only copy\n"
    assert (bench.root(handle) / "gang.json").exists()


def test_submit_twice_at_once_starts_one_job(bench: Any, launcher: Any) -> None:
    spec = bench.spec("import os\nopen('ran.txt', 'a').write('x')\n")
    handles: list[str] = []
    threads = [
        threading.Thread(target=lambda: handles.append(bench.local.submit(spec, bench.attempt())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.handles += handles
    bench.wait_ended(handles[0])
    assert bench.local.submit(spec, bench.attempt()) == handles[0]
    assert len(set(handles)) == 1
    assert (bench.root(handles[0]) / "workspace/笔记 本/ran.txt").read_text() == "x"


def test_a_cut_off_submit_is_said_and_can_be_repeated(bench: Any) -> None:
    spec, attempt = bench.spec("pass\n"), bench.attempt()
    bench.local.folder(attempt.attempt_id).root.mkdir(parents=True)
    status = bench.local.status(f"local://{attempt.attempt_id}")
    assert (status.status, status.reason) == (Status.UNKNOWN, "never-started")
    handle = bench.local.submit(spec, attempt)
    bench.handles.append(handle)
    assert bench.wait_ended(handle).status is Status.FINISHED


def test_a_missing_interpreter_is_refused_at_submit(bench: Any) -> None:
    with pytest.raises(SliceliftError) as caught:
        bench.submit("pass\n", python="/nowhere/python")
    assert caught.value.code == "interpreter-missing"
    assert "/nowhere/python" in caught.value.message


@pytest.mark.parametrize(
    ("files", "secrets", "reason"),
    [
        ({"../out.py": b""}, (), "snapshot-unsafe"),
        ({}, ("NOT_SET",), "secret-missing"),
    ],
)
def test_a_job_that_cannot_start_fails_with_the_reason(
    bench: Any, launcher: Any, files: dict[str, bytes], secrets: tuple[str, ...], reason: str
) -> None:
    launcher.files.update(files)
    status = bench.wait_ended(bench.submit("pass\n", secrets=secrets))
    assert (status.status, status.reason) == (Status.FAILED, reason)
    assert isinstance(status.failure, Failure)
    assert status.message


def test_models_of_a_finished_job_are_registered_the_last_of_each_name(bench: Any, launcher: Any) -> None:
    script = """
import json, os, pathlib
models = pathlib.Path(os.environ["SLICELIFT_ATTEMPT_DIR"]) / "models"
for folder, name, text in (("2-a", "a", "old"), ("10-a", "a", "new"), ("3-b", "b", "b")):
    (models / folder / "data").mkdir(parents=True)
    (models / folder / "data" / "w.bin").write_text(text)
    (models / folder / "model.json").write_text(json.dumps({"name": name}))
(models / "4-half").mkdir()
"""
    bench.wait_ended(bench.submit(script))
    found = {
        offer["name"]: [launcher.blobs[file["sha256"]] for file in offer["files"]]
        for offer in launcher.models
    }
    assert found == {"a": [b"new"], "b": [b"b"]}
    assert [file["path"] for file in launcher.models[0]["files"]] == ["data/w.bin"]


def test_models_of_a_failed_job_are_not_registered(bench: Any, launcher: Any) -> None:
    script = """
import json, os, pathlib
model = pathlib.Path(os.environ["SLICELIFT_ATTEMPT_DIR"]) / "models" / "1-a"
model.mkdir(parents=True)
(model / "model.json").write_text(json.dumps({"name": "a"}))
raise SystemExit(1)
"""
    bench.wait_ended(bench.submit(script))
    assert launcher.models == []


def test_a_rank_inherits_nothing_of_the_launcher(
    bench: Any, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "hub-token")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "tracker")
    handle = bench.submit("import os\nprint(dict(os.environ))\n", parameters={"lr": "0.1"})
    bench.wait_ended(handle)
    log = launcher.logs["0"].decode()
    assert "hub-token" not in log
    assert "MLFLOW_TRACKING_PASSWORD" not in log
    assert "job-token-of-the-test" not in log
    assert "\"{'lr': '0.1'}\"" in log


def test_render_is_the_dry_run(bench: Any) -> None:
    spec = bench.spec("pass\n", workers=2, secrets=("API_KEY",), parameters={"lr": 1})
    root = bench.home / "attempts" / "r-abc-1"
    script = f"{root}/workspace/.slicelift/promoted.py"
    assert bench.local.render(spec, bench.attempt()) == {
        "kind": "LocalGang",
        "name": "job",
        "attempt": "r-abc-1",
        "workers": 2,
        "interpreter": sys.executable,
        "command": [sys.executable, "-P", "-m", "slicelift.runtime.gang", "--nproc", "2", script],
        "cwd": f"{root}/workspace/笔记 本",
        "environment": {
            "PYTHONPATH": f"{root}/runtime",
            "PYTHONUNBUFFERED": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "SLICELIFT_ATTEMPT": "r-abc-1",
            "SLICELIFT_RUN_ID": "r-abc",
            "SLICELIFT_PROMOTION_ID": "p-xyz",
            "SLICELIFT_ATTEMPT_DIR": str(root),
            "SLICELIFT_CHECKPOINT_DIR": f"{bench.home}/checkpoints/r-abc",
            "SLICELIFT_PARAMETERS": "{'lr': 1}",
            "SLICELIFT_MODEL_NAME": "",
            "MLFLOW_TRACKING_URI": "(the agent, on loopback)",
        },
        "secrets": ["API_KEY"],
        "data": [],
        "slots": 2,
        "gpus_per_worker": 0,
        "slice": None,
        "slice_uuid": None,
        "limits": {"grace_seconds": 10.0, "restarts": 0},
    }
    assert not root.exists()


def test_discard_frees_the_folder_but_for_what_is_kept(bench: Any) -> None:
    handle = bench.submit("import time\ntime.sleep(1)\n")
    assert not bench.local.discard(handle)
    assert (bench.root(handle) / "agent.json").exists()
    bench.wait_ended(handle)
    bench.wait_for("all to end", lambda: not bench.marked(handle))
    # its agent may be in its last moment: a discard is repeated until it is done
    bench.wait_for("the discard", lambda: bench.local.discard(handle, keep={"logs": True}))
    assert sorted(path.name for path in bench.root(handle).iterdir()) == ["exit.json", "logs"]
    assert bench.local.status(handle).status is Status.FINISHED
    assert bench.local.discard(handle)
    assert bench.local.status(handle).reason == "no-such-job"
    assert bench.local.discard(handle)


@pytest.mark.needs_root
def test_a_full_disk_while_running_is_told_and_survived(bench: Any, launcher: Any) -> None:
    """A small file system of its own holds the attempts; the job fills it."""
    attempts = bench.home / "attempts"
    attempts.mkdir(parents=True)
    assert os.system(f"mount -t tmpfs -o size=24m none '{attempts}'") == 0
    try:
        script = """
import slicelift, time
try:
    with open("filler", "wb") as stream:
        while True:
            stream.write(b"x" * 65536)
except OSError:
    pass
for i in range(20):
    slicelift.log(step=i, x=1.0)
    time.sleep(0.1)
"""
        status = bench.wait_ended(bench.submit(script))
        assert status.status is Status.FINISHED
        assert any("is full" in state["message"] for state in launcher.states)
        assert launcher.states[-1]["exit"]["status"] == "FINISHED"
        assert "was full" in status.message
    finally:
        os.system(f"umount -l '{attempts}'")


def test_what_takes_a_cluster_is_refused_with_a_way_on(bench: Any) -> None:
    for changes, code in (
        ({"workers": 4, "min_workers": 2}, "elastic"),
        ({"image": "lab@sha256:1"}, "image"),
    ):
        with pytest.raises(SliceliftError) as refused:
            bench.submit("", name="r-refused", **changes)
        assert refused.value.code == f"{code}-one-machine"
        assert "cluster" in refused.value.hint
    assert bench.local.plan(bench.spec("", workers=2, min_workers=2), bench.attempt()) == []
