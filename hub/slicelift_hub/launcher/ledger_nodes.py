"""What agents tell of their nodes, and the attempts that begin when a cluster starts a gang again by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slicelift.errors import NotFound
from slicelift.models import Failure, JobStatus, Status, from_dict, to_dict
from sqlalchemy import Connection, Row, func, insert, select, update

from slicelift_hub.launcher.ledger_rows import AttemptRow, Rows, dumps, find_attempts
from slicelift_hub.launcher.ledger_steps import DELIVERING, TERMINAL, move, remember
from slicelift_hub.launcher.lines import check_told
from slicelift_hub.launcher.nodes import (
    ENDED,
    RESTARTED,
    Report,
    all_ended,
    fold_end,
    fold_idle,
    fold_ranks,
    fold_status,
    take_in,
)
from slicelift_hub.launcher.tables import attempts, runs

# far beyond any preset's attempts: a number that an agent makes up must not fill the ledger
_MOST_RESTARTS = 100
_STORE_FULL = "store-full"
_STARTED_AGAIN = "The cluster started the gang again."


class NodeRows(Rows):
    """The part of the ledger that gangs of several nodes write."""

    def agent_said(
        self,
        attempt_id: str,
        status: JobStatus,
        *,
        ranks: list[Any],
        node: int = 0,
        needed: int = 1,
        idle: int | None = None,
    ) -> bool:
        """Fold in that a node prepares (STARTING) or runs; whether anything changed. `needed` nodes make a gang.

        Raises `too-much-told`.
        """
        state = "running" if status.status == Status.RUNNING else "preparing"
        report = Report(node=node, state=state, message=status.message, ranks=tuple(ranks), idle=idle)
        with self.writing() as connection:
            row = _row(connection, attempt_id)
            nodes = take_in(json.loads(row.nodes), report)
            told = check_told(dumps(nodes))
            after = fold_status(nodes, needed=needed)
            # where the backend has words of its own for the phase, they stay
            changed = move(connection, attempt_id, after if self.leased else replace(after, phase=""))
            shown = dumps(fold_ranks(nodes))
            _put(connection, row, nodes=told, ranks=shown)
            return changed or shown != row.ranks

    def agent_ended(
        self, attempt_id: str, told: Mapping[str, Any] | None, *, node: int = 0, workers: int = 1
    ) -> bool:
        """A node has sent all it had, and `told` how it ended; whether what is shown changed.

        How a job of the launcher's own machine ended is the backend's to say. A cluster's backend cannot know why: what
        agents tell, also after the attempt is closed, is the reason of its failure. Raises `too-much-told`.
        """
        with self.writing() as connection:
            row = _row(connection, attempt_id)
            before = json.loads(row.nodes)
            nodes = take_in(before, Report(node=node, state=ENDED, exit=told))
            drained = row.drained or all_ended(nodes, workers=workers)
            shown = dumps(fold_ranks(nodes))
            _put(connection, row, nodes=check_told(dumps(nodes)), ranks=shown, drained=drained)
            changed = drained and not row.drained
            if self.leased or row.status != Status.FAILED:
                return changed
            ends = fold_end(before, workers=workers), fold_end(nodes, workers=workers)
            return _explain(connection, row, *ends) or changed

    def observe(self, attempt_id: str, status: JobStatus) -> bool:
        """Fold one look of the backend into the ledger; whether anything changed.

        A step back (RUNNING to STARTING, or away from a terminal status) is ignored. A terminal status frees
        the attempt's lease in the same transaction; with another phase than "delivering" it also says that the
        agents have sent everything. A failure that the backend cannot explain is what the agents told.
        """
        with self.writing() as connection:
            if status.status == Status.FAILED and status.failure is None and not self.leased:
                status = _explained(status, _told_end(connection, attempt_id))
            changed = move(connection, attempt_id, status)
            if changed and status.status.terminal and status.phase != DELIVERING:
                here = attempts.c.attempt_id == attempt_id
                connection.execute(update(attempts).where(here).values(drained=True))
            return changed

    def forget_store_full(self) -> None:
        """For a launcher that starts, which finds out anew: no card goes on telling what was true of the one before."""
        full = (attempts.c.reason == _STORE_FULL, attempts.c.status.not_in(TERMINAL))
        with self.writing() as connection:
            connection.execute(update(attempts).where(*full).values(reason="", message=""))

    def store_full(self, attempt_id: str, *, full: bool) -> bool:
        """Say in the card that what a job prints finds no room at the launcher, or that it does again; whether that is new.

        Points go into the ledger meanwhile. A job cannot end before all that it printed is kept.
        """
        reason, message = "store-back", "There is room in the launcher's store again."
        if full:
            reason = _STORE_FULL
            message = "The disk under the launcher's store is full: logs and outputs wait in the job, and its end waits for them."
        with self.writing() as connection:
            status = Status(_row(connection, attempt_id).status)
            return move(connection, attempt_id, JobStatus(status=status, reason=reason, message=message))

    def restarted(
        self, submission: str, restarts: int, *, status: Status, message: str = ""
    ) -> tuple[AttemptRow, bool]:
        """The attempt that is restart number `restarts` of what was submitted, and whether this is the first word of it.

        The attempts before it are closed: FAILED, with what their agents told. The new one is `status`, or CANCELLING if
        it was to be ended. Raises `attempt-unknown` when that cannot be: the run is over, or was submitted again.
        """
        with self.writing() as connection:
            first = _only(find_attempts(connection, attempts.c.attempt_id == submission), submission)
            number = first.attempt + restarts
            known = find_attempts(connection, *_of(submission), attempts.c.attempt == number)
            if known:
                return known[0], False
            newest = _newest(connection, first.run_id)
            past = newest.status.terminal or newest.submission != submission or number < newest.attempt
            if past or self.leased or not 0 < restarts <= _MOST_RESTARTS:
                raise _unknown(f"{first.run_id}-{number}")
            while newest.attempt < number:
                _close(connection, newest, message or _STARTED_AGAIN)
                newest = _begin(connection, newest, status)
            return newest, True

    def idle(self) -> list[tuple[AttemptRow, str, int]]:
        """Running attempts that tell of their GPUs: (attempt, reason of its status, minutes in which none did anything)."""
        here = (attempts.c.status == Status.RUNNING, attempts.c.cancel == "")
        columns = (attempts.c.attempt_id, attempts.c.reason, attempts.c.nodes)
        with self.reading() as connection:
            told = {
                row.attempt_id: (row.reason, minutes)
                for row in connection.execute(select(*columns).where(*here))
                if (minutes := fold_idle(json.loads(row.nodes))) is not None
            }
            rows = find_attempts(connection, attempts.c.attempt_id.in_(list(told))) if told else []
        return [(row, *told[row.attempt_id]) for row in rows]

    def current(self, submission: str) -> AttemptRow | None:
        """The newest attempt of what was submitted."""
        with self.reading() as connection:
            found = find_attempts(connection, *_of(submission))
        return max(found, key=lambda row: row.attempt, default=None)


def _row(connection: Connection, attempt_id: str) -> Row[Any]:
    return connection.execute(select(attempts).where(attempts.c.attempt_id == attempt_id)).one()


def _of(submission: str) -> tuple[Any, Any]:
    """The attempts of what was submitted; by their run, which has an index."""
    return attempts.c.run_id == submission.rpartition("-")[0], attempts.c.submission == submission


def _put(connection: Connection, row: Row[Any], **values: Any) -> None:
    """Write what differs: agents say the same every few seconds."""
    news = {name: value for name, value in values.items() if value != getattr(row, name)}
    if news:
        connection.execute(update(attempts).where(attempts.c.attempt_id == row.attempt_id).values(news))


def _newest(connection: Connection, run_id: str) -> AttemptRow:
    number = select(func.max(attempts.c.attempt)).where(attempts.c.run_id == run_id).scalar_subquery()
    return find_attempts(connection, attempts.c.run_id == run_id, attempts.c.attempt == number)[0]


def _only(found: list[AttemptRow], attempt_id: str) -> AttemptRow:
    if not found:
        raise _unknown(attempt_id)
    return found[0]


def _unknown(attempt_id: str) -> NotFound:
    return NotFound("attempt-unknown", f"There is no attempt {attempt_id} of yours.")


def _close(connection: Connection, row: AttemptRow, message: str) -> None:
    end = JobStatus(status=Status.FAILED, phase=RESTARTED, reason=RESTARTED, message=message)
    move(connection, row.attempt_id, _explained(end, _told_end(connection, row.attempt_id)))
    # whoever still has something to send may; nobody waits for it
    here = attempts.c.attempt_id == row.attempt_id
    connection.execute(update(attempts).where(here).values(drained=True))


def _begin(connection: Connection, before: AttemptRow, status: Status) -> AttemptRow:
    """The next attempt of the same submission. It has no token of its own."""
    number, now = before.attempt + 1, time.time()
    attempt_id = f"{before.run_id}-{number}"
    after = Status.CANCELLING if before.cancel else status
    row = {"attempt_id": attempt_id, "run_id": before.run_id, "attempt": number, "owner": before.owner}
    row |= {"token_hash": f"of {before.submission}, for {attempt_id}", "submission": before.submission}
    row |= {"handle": before.handle, "cancel": before.cancel, "status": after, "created": now}
    row |= {"started": None if after == Status.WAITING else now}
    connection.execute(insert(attempts).values(row))
    connection.execute(
        update(runs).where(runs.c.run_id == before.run_id).values(attempt=number, status=after)
    )
    remember(connection, before.run_id, attempt=number, status=JobStatus(status=after, reason=before.cancel))
    return replace(before, attempt_id=attempt_id, attempt=number, status=after, drained=False, ended=None)


def _told_end(connection: Connection, attempt_id: str) -> JobStatus | None:
    row = _only(find_attempts(connection, attempts.c.attempt_id == attempt_id), attempt_id)
    return fold_end(json.loads(_row(connection, attempt_id).nodes), workers=row.spec.workers)


def _explained(status: JobStatus, told: JobStatus | None) -> JobStatus:
    """A failure with the agents' words for it, if they had any."""
    if told is None:
        return status
    return replace(told, status=status.status, phase=status.phase, restarts=status.restarts)


def _explain(
    connection: Connection, row: Row[Any], before: JobStatus | None, after: JobStatus | None
) -> bool:
    """Put a new explanation in the place of the one that agents gave before, or of none; whether that was done."""
    known = None if row.failure is None else from_dict(Failure, json.loads(row.failure))
    if after is None or after == before or known != (before.failure if before else None):
        return False
    failure = None if after.failure is None else dumps(to_dict(after.failure))
    values = {"reason": after.reason, "message": after.message, "exit_code": after.exit_code}
    here = attempts.c.attempt_id == row.attempt_id
    connection.execute(update(attempts).where(here).values(**values, failure=failure))
    return True
