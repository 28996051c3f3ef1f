"""How a run's end is told: in words, as JSON, and as an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicelift.cli.printing import dim, print_json
from slicelift.cli.sentences import next_step
from slicelift.errors import SliceliftError
from slicelift.models import RunView, Status, to_dict
from slicelift.sentences import failure_lines, remarks, sentence

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

FINE, FAILED, AWAY = 0, 1, 3
_TAIL_LINES = 15


def summary(view: RunView) -> dict[str, Any]:
    """What a script needs of a run; `failure` only when it failed."""
    model = next((model for model in reversed(view.models) if model.version), None)
    told = {
        "promotion_id": view.promotion_id,
        "run_id": view.run_id,
        "mlflow_run_id": view.mlflow_run_id,
        "status": view.status.value,
        "attempt": view.attempt,
        "model_name": model.name if model else None,
        "model_version": model.version if model else None,
        "models": [{"name": each.name, "version": each.version} for each in view.models],
        "message": view.message,
    }
    return told | ({"failure": to_dict(view.failure)} if view.failure else {})


def conclude(view: RunView, *, as_json: bool, behind: bool = False) -> int:
    """Tell the end of a followed run; `behind` when MLflow has not caught up. Returns the exit status."""
    if as_json:
        print_json(summary(view))
    else:
        print("\n".join(ending(view)), flush=True)
    if view.status is not Status.FINISHED:
        return FAILED
    return AWAY if behind else FINE


def ending(view: RunView) -> list[str]:
    """Lines for a reader: what became of the run, its ids, and what to do next."""
    told = failure_lines(view.failure, notebook=view.spec.notebook) if view.failure else [sentence(view)]
    ids = [f"run {view.run_id}", f"attempt {view.attempt}"]
    if view.mlflow_run_id:
        ids.append(f"MLflow run {view.mlflow_run_id}")
    ids += [f"model {model.name} version {model.version}" for model in view.models if model.version]
    return [*told, *remarks(view), "", " · ".join(ids), dim(f"next: {next_step(view)}")]


def log_tail(client: Client, view: RunView) -> list[str]:
    """The end of the log of the rank that failed, when no traceback tells why."""
    if view.status is not Status.FAILED or (view.failure and view.failure.traceback.strip()):
        return []
    from slicelift.cli.logs import last_lines

    rank = "agent" if view.failure is None or view.failure.rank is None else str(view.failure.rank)
    try:
        lines = last_lines(client, view, rank=rank, count=_TAIL_LINES)
    except SliceliftError:
        return []
    whose = "the job's agent" if rank == "agent" else f"rank {rank}"
    return [f"the last lines of {whose}:", *(f"  {line}" for line in lines), ""] if lines else []
