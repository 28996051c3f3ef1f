"""The main job: a notebook and its data become a gang, a run and a registered version."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def promoted(desk: Any) -> dict[str, Any]:
    """The quickstart, promoted as the README says."""
    done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "--workers", "2", "--wait", "--json")
    assert done.code == 0, done
    return dict(done.json)


def test_the_answer_names_everything(promoted: dict[str, Any]) -> None:
    assert promoted["status"] == "FINISHED"
    assert promoted["promotion_id"].startswith("p-")
    assert promoted["run_id"].startswith("r-")
    assert re.fullmatch(r"[0-9a-f]{32}", promoted["mlflow_run_id"])
    assert (promoted["model_name"], promoted["model_version"]) == ("digits", "1")


def test_mlflow_holds_one_finished_run_with_all_points(desk: Any, promoted: dict[str, Any]) -> None:
    run = promoted["mlflow_run_id"]
    tagged = desk.mlflow(
        "select run_uuid from tags where key = 'slicelift.promotion_id' and value = ?",
        promoted["promotion_id"],
    )
    assert tagged == [(run,)]
    assert desk.mlflow("select status from runs where run_uuid = ?", run) == [("FINISHED",)]
    steps = [
        row[0]
        for row in desk.mlflow(
            "select step from metrics where run_uuid = ? and key = 'loss' order by step", run
        )
    ]
    assert steps == list(range(12 * (750 // 64)))
    keys = {row[0] for row in desk.mlflow("select distinct key from metrics where run_uuid = ?", run)}
    assert {
        "loss",
        "rank/1/loss",
        "step_time_seconds",
        "throughput_samples_per_second",
        "peak_host_memory_bytes",
    } <= keys
    assert not any("gpu" in key for key in keys)


def test_the_version_is_bound_to_code_data_and_weights(desk: Any, promoted: dict[str, Any]) -> None:
    [(source,)] = desk.mlflow(
        "select source from model_versions where name = 'digits' and version = 1 and run_id = ?",
        promoted["mlflow_run_id"],
    )
    tags = dict(
        desk.mlflow("select key, value from model_version_tags where name = 'digits' and version = 1")
    )
    weights = [
        path
        for path in (desk.home / "mlflow").rglob(Path(tags["slicelift.weights_file"]).name)
        if path.is_file()
    ]
    assert hashlib.sha256(weights[0].read_bytes()).hexdigest() == tags["slicelift.weights_sha256"], source
    assert tags["slicelift.run_id"] == promoted["run_id"]
    assert tags["slicelift.data_md5"] == "8fe6c993555795f89d71e5988b8f92e9.dir"
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=desk.project, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert tags["slicelift.git_commit"] == head
    assert re.fullmatch(r"[0-9a-f]{64}", tags["slicelift.snapshot_id"])
    run_tags = dict(desk.mlflow("select key, value from tags where run_uuid = ?", promoted["mlflow_run_id"]))
    assert run_tags["slicelift.snapshot_id"] == tags["slicelift.snapshot_id"]


def test_the_git_index_and_head_are_untouched(desk: Any, promoted: dict[str, Any]) -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=desk.project, capture_output=True, text=True, check=True
    ).stdout
    assert "M " not in status
    assert "A " not in status


def test_the_same_content_uploads_nothing(desk: Any, promoted: dict[str, Any]) -> None:
    done = desk.slicelift("plan", "notebooks/quickstart.ipynb", "--workers", "2", "--json")
    assert done.code == 0, done
    assert done.json["upload"] == {"files": 0, "bytes": 0}


def test_a_gang_nobody_has_seen(desk: Any) -> None:
    path = desk.notebook(
        "未见过 gang.ipynb",
        ("nonce = 0", "parameters"),
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')",
        "rank = dist.get_rank()\ntotal = torch.tensor([float(rank + nonce)])\ndist.all_reduce(total)",
        "print('sum', int(total.item()), 'of', dist.get_world_size())",
    )
    done = desk.slicelift("promote", path, "--workers", "2", "-p", "nonce=1234", "--wait", "--json")
    assert done.code == 0, done
    for rank in range(2):
        logs = desk.slicelift("logs", done.json["run_id"], "--rank", str(rank))
        assert f"sum {0 + 1 + 2 * 1234} of 2" in logs.out


def test_a_raising_cell_is_named(desk: Any) -> None:
    path = desk.notebook(
        "raises.ipynb",
        "import os\nrank = int(os.environ['RANK'])",
        "def boom(x):\n    return 1 / x",
        "if rank == 1:\n\n    boom(0)\nprint('fine')",
    )
    done = desk.slicelift("promote", path, "--workers", "2", "--wait", "--json")
    assert done.code == 1, done
    assert done.json["status"] == "FAILED"
    failure = done.json["failure"]
    assert (failure["rank"], failure["cell"], failure["line"]) == (1, 1, 2)
    assert "ZeroDivisionError" in failure["message"]
    logs = desk.slicelift("logs", done.json["run_id"], "--rank", "1").out
    assert re.search(r"raises\.ipynb.*cell 3, line 3", logs), logs
    assert desk.mlflow("select status from runs where run_uuid = ?", done.json["mlflow_run_id"]) == [
        ("FAILED",)
    ]


def test_one_changed_byte_is_refused_by_name(desk: Any) -> None:
    victim = desk.project / "notebooks/data/digits/0007-7.pgm"
    before = victim.read_bytes()
    victim.chmod(0o644)
    victim.unlink()
    victim.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "--workers", "2", "--wait", "--json")
    finally:
        victim.write_bytes(before)
    assert done.code == 1, done
    assert done.json["code"] == "data-modified"
    assert "0007-7.pgm" in json.dumps(done.json)
    assert done.json["hint"]


def test_one_missing_blob_is_refused_by_name(desk: Any) -> None:
    victim = desk.project / "notebooks/data/digits/0008-8.pgm"
    digest = hashlib.md5(victim.read_bytes()).hexdigest()
    blob = desk.project / f".build/dvc-remote/files/md5/{digest[:2]}/{digest[2:]}"
    hidden = blob.with_name("hidden")
    blob.rename(hidden)
    try:
        done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "--workers", "2", "--wait", "--json")
    finally:
        hidden.rename(blob)
    assert done.code == 1, done
    assert done.json["code"] == "data-not-pushed"
    assert "0008-8.pgm" in json.dumps(done.json)
