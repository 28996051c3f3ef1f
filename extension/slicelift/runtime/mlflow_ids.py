"""The names under which a job's own mlflow code knows its run, before MLflow has given it any.

Both follow from the run id, so the agent, the launcher and a later attempt agree on them without asking.
"""

from __future__ import annotations

import hashlib


def local_run_id(run_id: str) -> str:
    """What the job takes for MLflow's id of its run: 32 hex digits, like every id of MLflow's."""
    return hashlib.sha256(f"slicelift run {run_id}".encode()).hexdigest()[:32]


def local_experiment_id(run_id: str) -> str:
    """What the job takes for the id of its experiment: 18 digits, too many for one that MLflow counted to."""
    number = int(hashlib.sha256(f"slicelift experiment {run_id}".encode()).hexdigest(), 16)
    return f"9{number % 10**17:017d}"
