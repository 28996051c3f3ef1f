"""One sentence that says what is going on with a run.

The same words everywhere: live view, `status`, `jobs`, the end of `promote --wait`, the card under a cell.
"""

from __future__ import annotations

import time

from slicelift.figures import WAIT_KEY, duration, number, percent, user_metrics
from slicelift.models import SUSPENDED, Failure, RunView, Status, place_text

# from there on waiting for data is worth a word
_HUNGRY = 0.5


def sentence(view: RunView) -> str:
    """What is going on, without a full stop when it goes on."""
    return _SENTENCES[view.status](view)


def remarks(view: RunView) -> list[str]:
    """What is said beside the sentence: what is still on its way, what is not shown, what MLflow does not take."""
    found = []
    if view.status in (Status.RUNNING, Status.FINISHED) and view.message:
        found.append(_clause(view.message))
    if view.network:
        found.append(_clause(view.network))
    found += _hungry(view)
    if view.status.terminal and view.phase == "delivering":
        found.append("Still delivering logs and outputs")
    found += _left_out(view)
    if view.tracker_message:
        found.append(f"MLflow does not take this run, and is asked again: {_clause(view.tracker_message)}")
    return found


def failure_sentence(failure: Failure, *, notebook: str = "") -> str:
    """`Rank 1 failed in cell 5, line 2: ValueError: bad`; as much of it as is known.

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


def newest_step(view: RunView) -> int | None:
    """The highest step that any metric has reached."""
    return max((int(step) for step, _ in view.latest.values()), default=None)


def elapsed(view: RunView, *, now: float | None = None) -> float:
    """Seconds from start (or submit) to end (or now), over all attempts; not those between an end and a retry."""
    end = view.ended or (time.time() if now is None else now)
    if view.attempt == 1 or not view.history:
        return end - (view.started or view.created)
    return end - _begun(view) - _paused(view)


def _begun(view: RunView) -> float:
    """When the first attempt started."""
    began = (change for change in view.history if change.status in (Status.STARTING, Status.RUNNING))
    first = next(began, None)
    return first.time if first else view.started or view.created


def _paused(view: RunView) -> float:
    """Seconds in which an attempt was over and the next one not asked for yet."""
    total, before = 0.0, view.history[0]
    for change in view.history:
        if change.attempt > before.attempt and before.status.terminal:
            total += change.time - before.time
        before = change
    return total


def _hungry(view: RunView) -> list[str]:
    """Whether data is what training waits for: of the rank that waits most, since all others wait for that one."""
    told: list[object] = [
        value for name, (_, value) in view.latest.items() if name.rpartition("/")[2] == WAIT_KEY
    ]
    # NaN and the infinities of JSON are words
    most = max((share for share in told if isinstance(share, int | float) and share <= 1), default=0.0)
    if view.status is not Status.RUNNING or most <= _HUNGRY:
        return []
    return [
        f"Waits for data {percent(most)} of the time: more DataLoader workers or a faster store help more than GPUs"
    ]


def _left_out(view: RunView) -> list[str]:
    """What is counted without a reason was told by an agent that names none: its disk was full."""
    by = dict(view.dropped_by)
    thinned = view.dropped_points - sum(by.values()) + by.get("spool-full", 0)
    reasons = {
        "were thinned out: the spool was full": thinned,
        f"of names beyond the first {len(view.latest)} are not shown": by.get("too-many-names", 0),
        "are not shown: their name is too long": by.get("name-too-long", 0),
        "could not be understood": by.get("not-understood", 0),
    }
    return [f"{count} logged points {why}" for why, count in reasons.items() if count]


def _waiting(view: RunView) -> str:
    ahead = (view.position or 1) - 1
    first = "next in line" if ahead == 0 else f"{ahead} job{'' if ahead == 1 else 's'} ahead"
    if view.attempt > 1:
        told = [part for part in (first, _clause(view.message), _again(view)) if part]
        return f"Waiting to start again, attempt {view.attempt}: {'; '.join(told)}"
    return f"Waiting: {first}" + (f"; {_clause(view.message)}" if view.message else "")


def _starting(view: RunView) -> str:
    if view.attempt > 1:
        told = [part for part in (_again(view), _clause(view.message)) if part]
        return f"Starting again, attempt {view.attempt}: {'; '.join(told) or 'preparing the processes'}"
    return f"Starting: {_clause(view.message) or 'preparing the processes'}"


def _again(view: RunView) -> str:
    """Why there is another attempt, and where it goes on, as far as that is known."""
    goes_on = "" if view.checkpoint is None else f"goes on from step {view.checkpoint}"
    return ", ".join(part for part in (_clause(view.previous), goes_on) if part)


def _running(view: RunView) -> str:
    step = newest_step(view)
    if step is None:
        told = _again(view) if view.attempt > 1 else ""
        return f"Running again, attempt {view.attempt}: {told}" if told else "Running: no step logged yet"
    own = user_metrics(dict(view.latest))
    figures = [f"step {step}", *(f"{key} {number(view.latest[key][1])}" for key in own[:1])]
    return "Running: " + ", ".join(figures)


def _cancelling(view: RunView) -> str:
    if view.reason.startswith(SUSPENDED):
        return f"Suspending: {_clause(view.message) or 'waiting for a checkpoint, then ending every process'}"
    return f"Cancelling: {_clause(view.message) or 'ending every process'}"


def _finished(view: RunView) -> str:
    took = duration(elapsed(view)) + (f", {view.attempt} attempts" if view.attempt > 1 else "")
    if not view.models:
        return f"Finished in {took}"
    names = ", ".join(f"{model.name} version {model.version}" for model in view.models)
    return f"Finished in {took}: {names}"


def _failed(view: RunView) -> str:
    if view.failure:
        return failure_sentence(view.failure, notebook=view.spec.notebook)
    return f"Failed: {_clause(view.message) or view.reason or 'no reason is known'}"


def _killed(view: RunView) -> str:
    if view.suspended:
        kept = (
            "no checkpoint is known"
            if view.checkpoint is None
            else f"its checkpoint is at step {view.checkpoint}"
        )
        return f"Suspended by {view.reason.removeprefix(SUSPENDED)}: {kept}"
    return f"Cancelled: {_clause(view.message) or view.reason or 'no reason is known'}"


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
    file = failure.file if failure.file != notebook else None
    return f" in {place_text(failure.cell, failure.line, file=file)}"


def _clause(message: str) -> str:
    """The first line of a message, without the full stop that our sentence does not have."""
    lines = message.strip().splitlines()
    return lines[0].rstrip(".") if lines else ""
