"""What users see of runs, read from the ledger alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

from slicelift.errors import NotFound
from slicelift.models import Failure, JobSpec, ModelVersionView, RunView, Status, StatusChange, from_dict
from sqlalchemy import Connection, Row, Select, select

from slicelift_hub import leases
from slicelift_hub.launcher.ledger_assets import version_view
from slicelift_hub.launcher.ledger_rows import Rows
from slicelift_hub.launcher.ledger_runs import DELIVERING
from slicelift_hub.launcher.live import Live
from slicelift_hub.launcher.tables import attempts, changes, runs, versions


class ViewRows(Rows):
    """The part of the ledger that shows runs. Someone else's run is as unknown as one that never was."""

    def view(self, run_id: str) -> RunView:
        """One run, whoever owns it."""
        with self.reading() as connection:
            found = _views(connection, _newest_first().where(runs.c.run_id == run_id))
        return _the_one(found, run_id)

    def find(self, owner: str, ident: str) -> RunView:
        """A run of `owner` by run id or promotion id. Raises `run-unknown`."""
        name = runs.c.promotion_id if ident.startswith("p-") else runs.c.run_id
        with self.reading() as connection:
            found = _views(connection, _newest_first().where(name == ident, runs.c.owner == owner))
        return _the_one(found, ident)

    def list_runs(
        self,
        owner: str | None,
        *,
        statuses: tuple[Status, ...] = (),
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunView]:
        """Newest first; `before` is the run id of the last one already seen. Without an owner those of everybody."""
        query = _newest_first().limit(limit)
        if owner is not None:
            query = query.where(runs.c.owner == owner)
        if statuses:
            query = query.where(runs.c.status.in_(statuses))
        if before:
            seen = select(runs.c.seq).where(runs.c.run_id == before).scalar_subquery()
            query = query.where(runs.c.seq < seen)
        with self.reading() as connection:
            return _views(connection, query)

    def waiting_runs(self) -> list[RunView]:
        """Everyone in the queue: their positions change together."""
        with self.reading() as connection:
            return _views(connection, _newest_first().where(runs.c.status == Status.WAITING))

    def attempts_of(self, run_id: str) -> list[dict[str, Any]]:
        """Every attempt of a run in plain JSON types, oldest first."""
        query = select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.attempt)
        with self.reading() as connection:
            return [_attempt_view(row) for row in connection.execute(query)]


def _newest_first() -> Select[Any]:
    same = (attempts.c.run_id == runs.c.run_id) & (attempts.c.attempt == runs.c.attempt)
    wanted = [
        column
        for column in attempts.c
        if column.name not in ("run_id", "owner", "status", "created", "attempt")
    ]
    return select(runs, *wanted).join(attempts, same).order_by(runs.c.seq.desc())


def _the_one(found: list[RunView], ident: str) -> RunView:
    if not found:
        raise NotFound(
            "run-unknown", f"There is no run {ident} of yours.", "`slicelift jobs` lists your runs."
        )
    return found[0]


def _views(connection: Connection, query: Select[Any]) -> list[RunView]:
    rows = connection.execute(query).all()
    ids = [row.run_id for row in rows]
    history = _history(connection, ids)
    models = _models(connection, ids)
    unregistered = _unregistered(connection, ids)
    earlier = _earlier(connection, [row.run_id for row in rows if row.attempt > 1])
    places = leases.positions(connection) if any(row.status == Status.WAITING for row in rows) else {}
    return [
        _view(
            row,
            history=history.get(row.run_id, ()),
            models=models.get(row.run_id, ()),
            earlier=earlier.get(row.run_id, ()),
            position=places.get(row.attempt_id, row.position),
            tracked=row.tracked == "closed" and row.run_id not in unregistered,
        )
        for row in rows
    ]


def _history(connection: Connection, ids: list[str]) -> dict[str, tuple[StatusChange, ...]]:
    rows = connection.execute(select(changes).where(changes.c.run_id.in_(ids)).order_by(changes.c.id))
    return _grouped((row.run_id, _change(row)) for row in rows)


def _models(connection: Connection, ids: list[str]) -> dict[str, tuple[ModelVersionView, ...]]:
    registered = (versions.c.run_id.in_(ids), versions.c.version.is_not(None))
    rows = connection.execute(select(versions).where(*registered).order_by(versions.c.id)).all()
    return _grouped((row.run_id, version_view(connection, row)) for row in rows)


def _unregistered(connection: Connection, ids: list[str]) -> set[str]:
    """Runs with a model that has no version yet."""
    waiting = (versions.c.run_id.in_(ids), versions.c.version.is_(None))
    return set(connection.execute(select(versions.c.run_id).where(*waiting)).scalars())


def _earlier(connection: Connection, ids: list[str]) -> dict[str, tuple[Row[Any], ...]]:
    """How the attempts of runs stood that have had several, the newest first."""
    wanted = [attempts.c[name] for name in ("run_id", "attempt", "status", "reason", "message", "live")]
    query = select(*wanted).where(attempts.c.run_id.in_(ids)).order_by(attempts.c.attempt.desc())
    return _grouped((row.run_id, row) for row in connection.execute(query)) if ids else {}


def _failed_by(attempt: Row[Any]) -> str:
    """Why it failed, "" when it did not: one that was cancelled or suspended needs no word for a retry."""
    return (attempt.message or attempt.reason) if attempt.status == Status.FAILED else ""


def _grouped(pairs: Iterable[tuple[str, Any]]) -> dict[str, tuple[Any, ...]]:
    result: dict[str, list[Any]] = {}
    for key, value in pairs:
        result.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in result.items()}


def _change(row: Row[Any]) -> StatusChange:
    return StatusChange(
        time=row.time, attempt=row.attempt, status=Status(row.status), reason=row.reason, message=row.message
    )


def _view(
    row: Row[Any],
    *,
    history: tuple[StatusChange, ...],
    models: tuple[ModelVersionView, ...],
    earlier: tuple[Row[Any], ...],
    position: int | None,
    tracked: bool,
) -> RunView:
    live = Live.from_json(row.live)
    before = [attempt for attempt in earlier if attempt.attempt < row.attempt]
    # what attempts left may be large: no more of them is read than needed
    lives = chain((live,), (Live.from_json(attempt.live) for attempt in before))
    return RunView(
        promotion_id=row.promotion_id,
        run_id=row.run_id,
        name=row.name,
        owner=row.owner,
        status=Status(row.status),
        spec=from_dict(JobSpec, json.loads(row.spec)),
        attempt=row.attempt,
        handle=row.handle,
        mlflow_run_id=row.mlflow_run_id,
        phase=_phase(row),
        reason=row.reason,
        message=row.message,
        position=position,
        failure=None if row.failure is None else from_dict(Failure, json.loads(row.failure)),
        exit_code=row.exit_code,
        created=row.created,
        started=row.started,
        ended=row.ended,
        latest=live.latest(),
        network=live.network(),
        dropped_points=live.dropped,
        dropped_by=live.dropped_by,
        ranks=live.ranks(json.loads(row.ranks)),
        history=history,
        models=models,
        tracked=tracked,
        checkpoint=next((step for each in lives if (step := each.checkpoint_step()) is not None), None),
        previous=_failed_by(before[0]) if before else "",
    )


def _phase(row: Row[Any]) -> str:
    """Its word; "delivering" only until the agent has sent everything, or nobody waits for it any more."""
    return "ended" if row.phase == DELIVERING and (row.drained or row.discarded) else str(row.phase)


def _attempt_view(row: Row[Any]) -> dict[str, Any]:
    live = Live.from_json(row.live)
    return {
        "attempt": row.attempt,
        "submission": row.submission,
        "status": row.status,
        "reason": row.reason,
        "message": row.message,
        "started": row.started,
        "ended": row.ended,
        "exit_code": row.exit_code,
        "ranks": list(live.ranks(json.loads(row.ranks))),
        "failure": None if row.failure is None else json.loads(row.failure),
        "dropped_points": live.dropped,
        "dropped_by": live.dropped_by,
        "params": live.params,
        "tags": live.tags,
        "checkpoint": live.checkpoint,
        "nodes": [{"node": int(node), **said} for node, said in json.loads(row.nodes).items()],
    }
