"""The commands worth trying next, in each state of a run."""

from __future__ import annotations

from slicelift.models import RunView, Status


def next_step(view: RunView) -> str:
    """The commands worth trying in this state, empty when there is nothing to do."""
    run = view.run_id
    if view.status is Status.FAILED:
        rank = view.failure.rank if view.failure else None
        logs = f"slicelift logs {run}" + ("" if rank is None else f" --rank {rank}")
        return f"{logs}   what it printed; after a change promote again, unchanged: slicelift retry {run}"
    if view.suspended:
        return f"slicelift resume {run}   goes on from its last checkpoint"
    if view.status is Status.KILLED:
        return f"slicelift retry {run}   starts it once more, unchanged"
    if view.status is Status.FINISHED:
        return f"slicelift outputs {run} · slicelift models"
    return f"slicelift watch {run} · slicelift cancel {run}"
