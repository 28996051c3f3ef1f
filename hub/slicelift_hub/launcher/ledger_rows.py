"""What all parts of the ledger stand on: transactions, JSON columns, and the row of one attempt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from slicelift.models import SUSPENDED, JobSpec, Status, from_dict
from sqlalchemy import Connection, Engine, select

from slicelift_hub.database import reading, writing
from slicelift_hub.launcher.tables import attempts, runs


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt with what is needed to start, watch or end it. `cancel` is the reason asked for, or "".

    `submission` is the attempt that was submitted: this one, or the one whose gang a cluster has started again.
    """

    attempt_id: str
    run_id: str
    promotion_id: str
    attempt: int
    owner: str
    status: Status
    spec: JobSpec
    handle: str = ""
    cancel: str = ""
    drained: bool = False
    ended: float | None = None
    submission: str

    @property
    def restarts(self) -> int:
        """How often the gang had been started again when this attempt began."""
        return self.attempt - int(self.submission.rpartition("-")[2])

    @property
    def suspending(self) -> bool:
        """Whether it is to be ended with time to save a checkpoint."""
        return self.cancel.startswith(SUSPENDED)

    @property
    def submitted(self) -> AttemptRow:
        """The attempt that the backend was, or is to be, given."""
        return replace(self, attempt_id=self.submission, attempt=self.attempt - self.restarts)


class Rows:
    """Transactions on the ledger. Writers of this process queue on a lock, which is fairer than SQLite's.

    `leased`: jobs wait for a lease of this ledger. Set it to False, before the first submit, over a backend that queues.
    """

    leased = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._write_lock = threading.Lock()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction with the write lock held from its first line."""
        with self._write_lock, writing(self.engine) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        with reading(self.engine) as connection:
            yield connection


def dumps(value: Any) -> str:
    """JSON in one canonical form: equal values give equal text. NaN stays as Python writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def find_attempts(connection: Connection, *conditions: Any) -> list[AttemptRow]:
    """Attempts that meet all conditions, oldest first."""
    query = select(attempts, runs.c.promotion_id, runs.c.spec).join(runs, runs.c.run_id == attempts.c.run_id)
    rows = connection.execute(query.where(*conditions).order_by(attempts.c.created, attempts.c.attempt))
    return [_attempt_row(row) for row in rows]


def _attempt_row(row: Any) -> AttemptRow:
    return AttemptRow(
        attempt_id=row.attempt_id,
        run_id=row.run_id,
        promotion_id=row.promotion_id,
        attempt=row.attempt,
        owner=row.owner,
        status=Status(row.status),
        spec=from_dict(JobSpec, json.loads(row.spec)),
        handle=row.handle,
        cancel=row.cancel,
        drained=row.drained,
        ended=row.ended,
        submission=row.submission,
    )
