"""MLflow for ranks above 0: a store of their own, so that N ranks never make N runs or register N models."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# MLflow's SQL store reads this when nobody told it where artifacts go (3.17: _tracking_service/utils.py); else
# they would land in ./mlruns of the working folder
_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
# name things of rank 0's tracker that the scratch store does not know
_FOREIGN = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_REGISTRY_URI", "MLFLOW_ACTIVE_MODEL_ID")


def isolate(rank: int, attempt_folder: Path) -> None:
    """Point MLflow's environment at scratch/rank-<r>/ unless this is rank 0. Imports nothing of MLflow."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if rank == 0:
        return
    scratch = attempt_folder.absolute() / "scratch" / f"rank-{rank}"
    with contextlib.suppress(OSError):  # a full disk is told when MLflow is used, if it is
        scratch.mkdir(parents=True, exist_ok=True)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{scratch / 'mlflow.db'}"
    os.environ[_ARTIFACT_ROOT] = str(scratch / "artifacts")
