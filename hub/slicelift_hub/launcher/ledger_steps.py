"""One step of a status: what may follow what, and what of the ledger changes with it."""

from __future__ import annotations

import time
from typing import Any

from slicelift.models import JobStatus, Status, to_dict
from sqlalchemy import Connection, Row, insert, select, update

from slicelift_hub import leases
from slicelift_hub.launcher.ledger_rows import dumps
from slicelift_hub.launcher.tables import attempts, changes, runs

TERMINAL = tuple(status.value for status in Status if status.terminal)
# what a backend says beside a terminal status while the agent still sends what the job left
DELIVERING = "delivering"
_STEPS = {Status.WAITING: 0, Status.STARTING: 1, Status.RUNNING: 2}


def move(connection: Connection, attempt_id: str, after: JobStatus) -> bool:
    """Take the step, unless it leads back; whether anything changed. A terminal one frees the attempt's lease."""
    row = connection.execute(select(attempts).where(attempts.c.attempt_id == attempt_id)).one()
    before = Status(row.status)
    if before.terminal or _is_step_back(before, after.status):
        return False
    values = _differences(row, after)
    if not values:
        return False
    now = time.time()
    if row.started is None and after.status in (Status.STARTING, Status.RUNNING):
        values["started"] = now
    if after.status.terminal:
        values["ended"] = now
        leases.release(connection, attempt_id)
    connection.execute(update(attempts).where(attempts.c.attempt_id == attempt_id).values(values))
    current = (runs.c.run_id == row.run_id, runs.c.attempt == row.attempt)
    connection.execute(update(runs).where(*current).values(status=after.status))
    # how many are ahead of one that waits changes all the time
    told = {"status", "reason"} if after.status == Status.WAITING else {"status", "reason", "message"}
    if values.keys() & told:
        remember(connection, row.run_id, attempt=row.attempt, status=after)
    return True


def _is_step_back(before: Status, after: Status) -> bool:
    if after.terminal or before == after:
        return False
    if before == Status.CANCELLING:
        return True
    return _STEPS.get(after, 9) < _STEPS.get(before, 0)


def _differences(row: Row[Any], after: JobStatus) -> dict[str, Any]:
    """The columns that change. An empty word never wipes out a known one while the status stays."""
    values: dict[str, Any] = {}
    for name in ("phase", "reason", "message"):
        word = getattr(after, name)
        if word != getattr(row, name) and (word or row.status != after.status):
            values[name] = word
    if row.status != after.status:
        values["status"] = after.status
    if after.exit_code is not None and after.exit_code != row.exit_code:
        values["exit_code"] = after.exit_code
    if after.position != row.position and (after.status == Status.WAITING or row.position is not None):
        values["position"] = after.position if after.status == Status.WAITING else None
    failure = None if after.failure is None else dumps(to_dict(after.failure))
    if failure is not None and failure != row.failure:
        values["failure"] = failure
    return values


def remember(connection: Connection, run_id: str, *, attempt: int, status: JobStatus) -> None:
    """One more line of the run's history."""
    row = {"run_id": run_id, "attempt": attempt, "time": time.time(), "status": status.status}
    connection.execute(insert(changes).values(**row, reason=status.reason, message=status.message))
