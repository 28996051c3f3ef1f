"""One sentence that says what is going on with a run, and what to do next.

The same words everywhere: live view, `status`, `jobs`, the end of `promote --wait`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from slicelift.cli.printing import duration, number
from slicelift.models import Failure, RunView, Status

STEP_KEY = "step_time_seconds"
_AUTOMATIC = (
    STEP_KEY,
    "throughput_samples_per_second",
    "throughput_steps_per_second",
    "peak_gpu_memory_bytes",
    "peak_host_memory_bytes",
)


def sentence(view: RunView) -> str:
    """What is going on, without a full stop when it goes on."""
    return _SENTENCES[view.status](view)


def next_step(view: RunView) -> str:
    """The commands worth trying in this state, empty when there is nothing to do."""
    run = view.run_id
    if view.status is Status.FAILED:
        rank = view.failure.rank if view.failure else None
        logs = f"slicelift logs {run}" + ("" if rank is None else f" --rank {rank}")
        return f"{logs}   what it printed; after a change promote again, unchanged: slicelift retry {run}"
    if view.status is Status.KILLED:
        return f"slicelift retry {run}   starts it once more, unchanged"
    if view.status is Status.FINISHED:
        return f"slicelift outputs {run} · slicelift models"
    return f"slicelift watch {run} · slicelift cancel {run}"


def failure_sentence(failure: Failure, *, notebook: str = "") -> str:
    """`Rank 1 failed in cell 4, line 2: ValueError: bad`; as much of it as is known.

    The file is named unless it is `notebook`, the promoted one.
    """
    who = "The job" if failure.rank is None else f"Rank {failure.rank}"
    message = _clause(failure.message)
    what = message.removeprefix(f"{who} raised ")
    if what.startswith(f"{who} "):
        return what
    if failure.exception and not what.startswith(failure.exception):
        what = f"{failure.exception}: {what}" if what else failure.exception
    return f"{who} failed{_in_place(failure, notebook)}: {what}"


def failure_lines(failure: Failure, *, notebook: str = "") -> list[str]:
    """The sentence, the line of source, and the traceback in the notebook's own places."""
    lines = [failure_sentence(failure, notebook=notebook)]
    if failure.source.strip():
        lines.append(f"    {failure.source.strip()}")
    if failure.traceback.strip():
        lines.extend(["", *failure.traceback.rstrip().splitlines()])
    return lines


def user_metrics(keys: Mapping[str, object] | list[str]) -> list[str]:
    """The keys that the notebook logged, a loss first; ours (step time, throughput, memory) left out."""
    own = [key for key in keys if key not in _AUTOMATIC and not key.startswith("system/")]
    return sorted(own, key=lambda key: ("loss" not in key, key))


def newest_step(view: RunView) -> int | None:
    """The highest step that any metric has reached."""
    return max((int(step) for step, _ in view.latest.values()), default=None)


def elapsed(view: RunView, *, now: float | None = None) -> float:
    """Seconds from start (or submit) to end (or now)."""
    start = view.started or view.created
    return (view.ended or (time.time() if now is None else now)) - start


def _waiting(view: RunView) -> str:
    ahead = (view.position or 1) - 1
    first = "next in line" if ahead == 0 else f"{ahead} job{'' if ahead == 1 else 's'} ahead"
    return f"Waiting: {first}" + (f"; {_clause(view.message)}" if view.message else "")


def _starting(view: RunView) -> str:
    return f"Starting: {_clause(view.message) or 'preparing the processes'}"


def _running(view: RunView) -> str:
    step = newest_step(view)
    if step is None:
        return "Running: no step logged yet"
    own = user_metrics(dict(view.latest))
    figures = [f"step {step}", *(f"{key} {number(view.latest[key][1])}" for key in own[:1])]
    return "Running: " + ", ".join(figures)


def _cancelling(view: RunView) -> str:
    return f"Cancelling: {_clause(view.message) or 'ending every process'}"


def _finished(view: RunView) -> str:
    if not view.models:
        return f"Finished in {duration(elapsed(view))}"
    names = ", ".join(f"{model.name} version {model.version}" for model in view.models)
    return f"Finished in {duration(elapsed(view))}: {names}"


def _failed(view: RunView) -> str:
    if view.failure:
        return failure_sentence(view.failure, notebook=view.spec.notebook)
    return f"Failed: {_clause(view.message) or view.reason or 'no reason is known'}"


def _killed(view: RunView) -> str:
    return f"Killed: {_clause(view.message) or view.reason or 'no reason is known'}"


def _unknown(view: RunView) -> str:
    raw = f" (the backend says {view.phase!r})" if view.phase else ""
    return f"Unknown: {_clause(view.message) or view.reason or 'nothing is known of it'}{raw}"


_SENTENCES = {
    Status.WAITING: _waiting,
    Status.STARTING: _starting,
    Status.RUNNING: _running,
    Status.CANCELLING: _cancelling,
    Status.FINISHED: _finished,
    Status.FAILED: _failed,
    Status.KILLED: _killed,
    Status.UNKNOWN: _unknown,
}


def _in_place(failure: Failure, notebook: str) -> str:
    if failure.cell is None:
        return ""
    line = f", line {failure.line}" if failure.line is not None else ""
    file = f" of {failure.file}" if failure.file and failure.file != notebook else ""
    return f" in cell {failure.cell}{line}{file}"


def _clause(message: str) -> str:
    """The first line of a message, without the full stop that our sentence does not have."""
    lines = message.strip().splitlines()
    return lines[0].rstrip(".") if lines else ""
