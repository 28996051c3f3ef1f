"""Runs and attempts: submit, retry, cancel, and every step of a status. One step is one transaction."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slicelift.errors import Conflict, NotFound
from slicelift.models import SUSPENDED, JobSpec, JobStatus, Status, from_dict, to_dict
from sqlalchemy import Connection, Row, exists, func, insert, or_, select, update

from slicelift_hub import leases
from slicelift_hub.launcher.ledger_rows import AttemptRow, Rows, dumps, find_attempts
from slicelift_hub.launcher.ledger_steps import DELIVERING as DELIVERING
from slicelift_hub.launcher.ledger_steps import TERMINAL as TERMINAL
from slicelift_hub.launcher.ledger_steps import move, remember
from slicelift_hub.launcher.tables import attempts, runs

TokenOf = Callable[[str], str]
_AN_END = "A run that is over can be retried, with its workers as they are."


class RunRows(Rows):
    """The part of the ledger that changes runs."""

    def submit(
        self, owner: str, promotion_id: str, *, spec: JobSpec, snapshot: Mapping[str, Any], token_of: TokenOf
    ) -> tuple[str, bool]:
        """Accept a job once: (run id, whether it is new). It waits from here on, for its lease or in the backend's queue.

        `token_of` gives the attempt's token, of which only the hash is kept. Raises `promotion-differs` when
        the promotion id is known with another spec or belongs to someone else.
        """
        text = dumps(to_dict(spec))
        with self.writing() as connection:
            known = connection.execute(select(runs).where(runs.c.promotion_id == promotion_id)).first()
            if known is not None:
                _must_be_same(known, owner, text)
                return known.run_id, False
            run_id = _make_run_id()
            row = {"run_id": run_id, "promotion_id": promotion_id, "owner": owner, "name": spec.name}
            row |= {"spec": text, "snapshot": dumps(dict(snapshot)), "status": Status.WAITING}
            connection.execute(insert(runs).values(**row, created=time.time()))
            self._add_attempt(connection, owner, run_id=run_id, attempt=1, token_of=token_of, spec=spec)
            return run_id, True

    def retry(self, owner: str, run_id: str, *, token_of: TokenOf) -> str:
        """Queue the next attempt of a run that is over; its attempt id. Raises `attempt-not-over`."""
        with self.writing() as connection:
            last = _last_attempt(connection, owner, run_id)
            if not last.status.terminal:
                message = f"Attempt {last.attempt} of {run_id} is {last.status}: only one that is over can be retried."
                raise Conflict(
                    "attempt-not-over", message, f"Wait for its end, or run `slicelift cancel {run_id}`."
                )
            number = last.attempt + 1
            values = {"attempt": number, "status": Status.WAITING}
            connection.execute(update(runs).where(runs.c.run_id == run_id).values(values))
            return self._add_attempt(
                connection, owner, run_id=run_id, attempt=number, token_of=token_of, spec=last.spec
            )

    def cancel(self, owner: str, run_id: str, *, reason: str) -> AttemptRow:
        """Ask for the end of the last attempt: one that waits for a lease is KILLED at once, one that is over stays as it is.

        Otherwise it is CANCELLING until its processes are proved gone. Idempotent; the first reason stays, but
        a suspend, which may take its time, gives way to any other end.
        """
        with self.writing() as connection:
            last = _last_attempt(connection, owner, run_id)
            return _ask_to_end(connection, last, reason)

    def scale(self, owner: str, run_id: str, workers: int) -> None:
        """A run that is under way is to have that many workers from now on; `scaled` or `unscale` says how that went.

        Raises `run-over` for one that is over or is being ended.
        """
        with self.writing() as connection:
            last = _last_attempt(connection, owner, run_id)
            if last.status.terminal or last.cancel:
                raise Conflict("run-over", f"{run_id} is over, or is being ended.", _AN_END)
            _set_workers(connection, last, workers)

    def scaled(self, owner: str, run_id: str, workers: int, *, before: int, who: str) -> None:
        """The cluster has taken the new number: the run's history tells it, and who wanted it."""
        with self.writing() as connection:
            last = _last_attempt(connection, owner, run_id)
            message = f"scaled from {before} to {workers} by {who}"
            told = JobStatus(status=last.status, reason="scaled", message=message)
            remember(connection, run_id, attempt=last.attempt, status=told)

    def unscale(self, owner: str, run_id: str, workers: int, *, before: int) -> None:
        """The cluster has not taken it: the run has as many as before, unless it was scaled once more since."""
        with self.writing() as connection:
            last = _last_attempt(connection, owner, run_id)
            if last.spec.workers == workers:
                _set_workers(connection, last, before)

    def cancel_started(self, *, reason: str) -> list[AttemptRow]:
        """Ask for the end of everything that holds a lease or that a backend has; jobs that wait here go on waiting."""
        there = or_(attempts.c.status != Status.WAITING, attempts.c.handle != "")
        with self.writing() as connection:
            live = find_attempts(connection, attempts.c.status.not_in(TERMINAL), there)
            return [_ask_to_end(connection, row, reason) for row in live]

    def grant(self) -> list[AttemptRow]:
        """Serve the queue; the attempts that got all they asked for, now STARTING."""
        with self.writing() as connection:
            served = leases.grant(connection)
            mine = find_attempts(
                connection, attempts.c.attempt_id.in_(served), attempts.c.status == Status.WAITING
            )
            for row in mine:
                move(connection, row.attempt_id, JobStatus(status=Status.STARTING))
            return [replace(row, status=Status.STARTING) for row in mine]

    def set_handle(self, submission: str, handle: str) -> None:
        """The backend has it: also what restarts made of it meanwhile, whose agents may have been quicker."""
        of_run = attempts.c.run_id == submission.rpartition("-")[0]
        mine = attempts.c.submission == submission
        with self.writing() as connection:
            connection.execute(update(attempts).where(of_run, mine).values(handle=handle))

    def unsubmitted(self) -> list[AttemptRow]:
        """All that no backend is known to have, oldest first: what there is to submit, or to end, without leases.

        Not those alone that wait: one may be cancelled at once, and agents of one whose launcher was killed be quicker.
        """
        with self.reading() as connection:
            return find_attempts(connection, attempts.c.status.not_in(TERMINAL), attempts.c.handle == "")

    def active(self) -> list[AttemptRow]:
        """All attempts that hold something or wait, oldest first."""
        with self.reading() as connection:
            return find_attempts(connection, attempts.c.status.not_in(TERMINAL))

    def attempt(self, attempt_id: str) -> AttemptRow | None:
        """One attempt by id, whoever owns it."""
        with self.reading() as connection:
            return next(iter(find_attempts(connection, attempts.c.attempt_id == attempt_id)), None)

    def attempt_of_token(self, token: str) -> AttemptRow | None:
        """The attempt whose token this is; None once that is tidied away, since no agent of it lives then."""
        with self.reading() as connection:
            mine = (attempts.c.token_hash == hash_token(token), attempts.c.discarded.is_(False))
            return next(iter(find_attempts(connection, *mine)), None)

    def ended_before(self, moment: float) -> list[AttemptRow]:
        """Attempts that ended before `moment` and still hold something at the backend; of each submission the last."""
        later = attempts.alias()
        same = (later.c.submission == attempts.c.submission, later.c.attempt > attempts.c.attempt)
        over = (attempts.c.ended < moment, attempts.c.discarded.is_(False))
        with self.reading() as connection:
            return find_attempts(
                connection, *over, ~exists().where(later.c.run_id == attempts.c.run_id, *same)
            )

    def mark_discarded(self, attempt_id: str) -> None:
        """The backend has freed what the attempt held, and those before it of the same submission."""
        family = attempts.alias()
        mine = select(family.c.submission).where(family.c.attempt_id == attempt_id).scalar_subquery()
        of_run = attempts.c.run_id == attempt_id.rpartition("-")[0]
        with self.writing() as connection:
            connection.execute(
                update(attempts).where(of_run, attempts.c.submission == mine).values(discarded=True)
            )

    def declare_inventory(self, items: list[leases.Item]) -> dict[str, leases.Pool]:
        """Make the machine be `items`; the pools it has."""
        with self.writing() as connection:
            leases.declare(connection, items)
            return leases.capacity(connection)

    def held(self, attempt_id: str) -> list[leases.Item]:
        """What the attempt has leased."""
        with self.reading() as connection:
            return leases.held(connection, attempt_id)

    def capacity(self) -> dict[str, leases.Pool]:
        """Every pool with what is free in it."""
        with self.reading() as connection:
            return leases.capacity(connection)

    def queue_length(self, pools: set[str] | None = None) -> int:
        """How many requests wait, for any of `pools` (None: in all)."""
        with self.reading() as connection:
            rows = connection.scalars(select(leases.lease_queue.c.needs))
            return sum(1 for needs in rows if pools is None or pools & set(json.loads(needs)))

    def _add_attempt(
        self,
        connection: Connection,
        owner: str,
        *,
        run_id: str,
        attempt: int,
        token_of: TokenOf,
        spec: JobSpec,
    ) -> str:
        attempt_id = f"{run_id}-{attempt}"
        row = {"attempt_id": attempt_id, "run_id": run_id, "attempt": attempt, "owner": owner}
        row |= {"token_hash": hash_token(token_of(attempt_id)), "submission": attempt_id}
        connection.execute(insert(attempts).values(**row, status=Status.WAITING, created=time.time()))
        remember(connection, run_id, attempt=attempt, status=JobStatus(status=Status.WAITING))
        if self.leased:
            leases.enqueue(connection, attempt_id, make_needs(spec))
        return attempt_id


def hash_token(token: str) -> str:
    """What is kept of an attempt's token. The token has 256 random bits, so a plain digest is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_needs(spec: JobSpec) -> dict[str, int]:
    """What a spec leases: one slice, or one slot per worker and its GPUs."""
    if spec.slice is not None:
        return {spec.slice: 1}
    gpus = spec.workers * spec.gpus_per_worker
    return {leases.SLOTS: spec.workers} | ({leases.GPUS: gpus} if gpus else {})


def _make_run_id() -> str:
    return "r-" + base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]


def _must_be_same(known: Row[Any], owner: str, text: str) -> None:
    # one that an earlier version wrote lacks the fields that came since
    was, asked = (from_dict(JobSpec, json.loads(each)) for each in (known.spec, text))
    if was.min_workers is not None:
        # it may have been scaled since
        was = replace(was, workers=asked.workers)
    if known.owner == owner and dumps(to_dict(was)) == dumps(to_dict(asked)):
        return
    message = f"Promotion {known.promotion_id} was submitted before with another spec."
    raise Conflict(
        "promotion-differs", message, "A changed job is a new promotion: submit it under a new id."
    )


def _set_workers(connection: Connection, row: AttemptRow, workers: int) -> None:
    spec = dumps(to_dict(replace(row.spec, workers=workers)))
    connection.execute(update(runs).where(runs.c.run_id == row.run_id).values(spec=spec))


def _last_attempt(connection: Connection, owner: str, run_id: str) -> AttemptRow:
    newest = select(func.max(attempts.c.attempt)).where(attempts.c.run_id == run_id).scalar_subquery()
    mine = (attempts.c.run_id == run_id, attempts.c.owner == owner, attempts.c.attempt == newest)
    found = find_attempts(connection, *mine)
    if not found:
        raise NotFound(
            "run-unknown", f"There is no run {run_id} of yours.", "`slicelift jobs` lists your runs."
        )
    return found[0]


def _ask_to_end(connection: Connection, row: AttemptRow, reason: str) -> AttemptRow:
    gives_way = row.suspending and not reason.startswith(SUSPENDED)
    if row.status.terminal or (row.cancel and not gives_way):
        return row
    waits = row.status == Status.WAITING and _has_no_lease_yet(connection, row.attempt_id)
    after = Status.KILLED if waits else Status.CANCELLING
    connection.execute(update(attempts).where(attempts.c.attempt_id == row.attempt_id).values(cancel=reason))
    move(connection, row.attempt_id, JobStatus(status=after, reason=reason))
    return replace(row, status=after, cancel=reason)


def _has_no_lease_yet(connection: Connection, attempt_id: str) -> bool:
    """Then no backend has it. One that waits without a place in our queue may wait in a backend's."""
    mine = leases.lease_queue.c.holder == attempt_id
    return connection.execute(select(leases.lease_queue.c.seq).where(mine)).first() is not None
