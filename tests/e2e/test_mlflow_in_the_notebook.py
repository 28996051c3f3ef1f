"""A notebook that already uses mlflow runs unchanged: one run, not ended before the job, one version."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

SETUP = """
import os, mlflow, mlflow.pytorch, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
mlflow.set_experiment("my old experiment")
mlflow.autolog(silent=True)
"""
FIRST = """
with mlflow.start_run(run_name="first") as first:
    mlflow.log_param("lr", 0.1)
    for step in range(5):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
    mlflow.log_metrics({"nan": float("nan"), "accuracy": 0.5}, step=4)
    mlflow.set_tag("colour", "green")
"""
SECOND = """
with mlflow.start_run(run_name="second") as second:
    mlflow.log_metric("late", 2.0)
model = torch.nn.Linear(2, 1)
with mlflow.start_run(run_id=first.info.run_id):
    mlflow.pytorch.log_model(model, name="net", registered_model_name="from-mlflow", pip_requirements=["torch"],
                             serialization_format="pickle")
print("runs", first.info.run_id != second.info.run_id)
dist.barrier()
"""


def test_one_run_one_version(desk: Any) -> None:
    path = desk.notebook("old_mlflow.ipynb", SETUP, FIRST, SECOND)
    done = desk.slicelift("promote", path, "--workers", "2", "--wait", "--json", timeout=300)
    assert done.code == 0, f"{done}\n{desk.slicelift('logs', 'last').out}"
    run = done.json["mlflow_run_id"]
    assert done.json["status"] == "FINISHED"
    loss = desk.mlflow(
        "select step, value from metrics where run_uuid = ? and key = 'loss' order by step", run
    )
    assert loss == [(step, 1.0 / (step + 1)) for step in range(5)]
    assert desk.mlflow("select value from params where run_uuid = ? and key = 'lr'", run) == [("0.1",)]
    assert desk.mlflow("select value from tags where run_uuid = ? and key = 'colour'", run) == [("green",)]
    assert desk.mlflow("select is_nan from metrics where run_uuid = ? and key = 'nan'", run) == [(1,)]
    promotion = done.json["promotion_id"]
    assert desk.mlflow(
        "select run_uuid from tags where key = 'slicelift.promotion_id' and value = ?", promotion
    ) == [(run,)]
    children = desk.mlflow("select run_uuid from tags where key = 'mlflow.parentRunId' and value = ?", run)
    assert len(children) == 1
    versions = desk.mlflow("select version, run_id from model_versions where name = 'from-mlflow'")
    assert versions == [(1, run)]
    tags = dict(
        desk.mlflow("select key, value from model_version_tags where name = 'from-mlflow' and version = 1")
    )
    assert tags["slicelift.run_id"] == done.json["run_id"]
