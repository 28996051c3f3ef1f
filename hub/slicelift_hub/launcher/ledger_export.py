"""What MLflow still has to be told. The exporter asks, tells MLflow, and marks; each step may be repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from slicelift.models import JobSpec, Snapshot, SnapshotFile, Status, from_dict
from sqlalchemy import Row, delete, exists, insert, or_, select, update

from slicelift_hub.launcher.ledger_rows import Rows, dumps
from slicelift_hub.launcher.ledger_runs import TERMINAL
from slicelift_hub.launcher.tables import attempts, batches, runs, versions

# the agent sends the last points after the end; a run is closed without them only after this long
DRAIN_SECONDS = 15


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run as MLflow should know it. `snapshot` comes without its files."""

    run_id: str
    promotion_id: str
    owner: str
    name: str
    attempt: int
    status: Status
    created: float
    spec: JobSpec
    snapshot: Snapshot
    mlflow_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportBatch:
    """Spool lines on their way to MLflow."""

    batch_id: int
    run_id: str
    owner: str
    mlflow_run_id: str
    attempt: int
    rank: int
    lines: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ClosingRun:
    """A run whose last attempt is over and whose points are all exported."""

    run_id: str
    owner: str
    mlflow_run_id: str
    attempt: int
    status: Status
    reason: str
    ended: float


@dataclass(frozen=True, kw_only=True)
class PendingVersion:
    """A model that is whole in the store and not registered yet. `digest` is over its files."""

    id: int
    run: TrackedRun
    attempt: int
    name: str
    digest: str
    files: tuple[SnapshotFile, ...]
    meta: Mapping[str, Any]
    created: float


class ExportRows(Rows):
    """The part of the ledger that the exporter works off."""

    def runs_to_open(self) -> list[TrackedRun]:
        """Runs that MLflow does not know, oldest first."""
        return self._tracked_runs(runs.c.mlflow_run_id.is_(None))

    def set_mlflow_run(self, run_id: str, mlflow_run_id: str) -> None:
        """MLflow knows the run, and has it RUNNING. Also when it had to be made again under another id."""
        with self.writing() as connection:
            connection.execute(
                update(runs).where(runs.c.run_id == run_id).values(mlflow_run_id=mlflow_run_id)
            )
            connection.execute(update(attempts).where(attempts.c.run_id == run_id).values(tracked="open"))

    def runs_to_reopen(self) -> list[TrackedRun]:
        """Runs that were closed or left open by an earlier attempt and have a new one."""
        return self._tracked_runs(runs.c.mlflow_run_id.is_not(None), attempts.c.tracked == "")

    def mark_reopened(self, run_id: str, attempt: int) -> None:
        """MLflow has the run RUNNING again, for this attempt."""
        self._mark_tracked(run_id, attempt, "open")

    def batches_to_export(self, limit: int, *, without: Collection[str] = ()) -> list[ExportBatch]:
        """The oldest batches that MLflow lacks, of runs that it knows; those of the runs `without` are left out."""
        known = [batches.c.exported.is_(False), runs.c.mlflow_run_id.is_not(None)]
        if without:
            known.append(batches.c.run_id.not_in(without))
        columns = (batches, runs.c.owner, runs.c.mlflow_run_id)
        query = select(*columns).join(runs, runs.c.run_id == batches.c.run_id).where(*known)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(batches.c.batch_id).limit(limit)).all()
        return [_export_batch(row) for row in rows]

    def mark_exported(self, batch_ids: list[int]) -> None:
        """MLflow has them; those that are folded too are dropped."""
        mine = batches.c.batch_id.in_(batch_ids)
        with self.writing() as connection:
            connection.execute(delete(batches).where(mine, batches.c.folded))
            connection.execute(update(batches).where(mine).values(exported=True))

    def runs_to_close(self) -> list[ClosingRun]:
        """Runs that are over, drained and wholly exported, and that MLflow still has RUNNING."""
        left = exists().where(batches.c.run_id == runs.c.run_id, batches.c.exported.is_(False))
        drained = or_(
            attempts.c.drained, attempts.c.ended < time.time() - DRAIN_SECONDS, attempts.c.handle == ""
        )
        over = (runs.c.status.in_(TERMINAL), attempts.c.tracked == "open", drained, ~left)
        query = _current().where(runs.c.mlflow_run_id.is_not(None), *over)
        with self.reading() as connection:
            return [_closing(row) for row in connection.execute(query)]

    def mark_closed(self, run_id: str, attempt: int) -> None:
        """MLflow has the end of this attempt."""
        self._mark_tracked(run_id, attempt, "closed")

    def versions_to_register(self) -> list[PendingVersion]:
        """Models without a version, of runs that MLflow knows, oldest first."""
        waiting = select(versions).where(versions.c.version.is_(None)).order_by(versions.c.id)
        with self.reading() as connection:
            rows = connection.execute(waiting).all()
            query = _current().where(runs.c.run_id.in_([row.run_id for row in rows]))
            known = {row.run_id: _tracked(row) for row in connection.execute(query)}
        return [_pending(row, known[row.run_id]) for row in rows if known[row.run_id].mlflow_run_id]

    def mark_registered(self, pending_id: int, *, version: str, tags: Mapping[str, str]) -> None:
        """The registry has it, under this version number."""
        with self.writing() as connection:
            values = {"version": version, "tags": dumps(dict(tags))}
            connection.execute(update(versions).where(versions.c.id == pending_id).values(values))

    def note_version(
        self, run: TrackedRun, *, name: str, version: str, tags: Mapping[str, str], created: float
    ) -> bool:
        """A version that the job registered by itself; whether it is news. Idempotent."""
        digest = f"mlflow:{name}/{version}"
        same = (versions.c.run_id == run.run_id, versions.c.name == name, versions.c.version == version)
        with self.writing() as connection:
            if connection.execute(select(versions.c.id).where(*same)).first():
                return False
            row = {
                "owner": run.owner,
                "run_id": run.run_id,
                "attempt": run.attempt,
                "digest": digest,
                "name": name,
            }
            row |= {
                "files": "[]",
                "meta": "{}",
                "version": version,
                "tags": dumps(dict(tags)),
                "created": created,
            }
            connection.execute(insert(versions).values(row))
            return True

    def tracked_run(self, run_id: str) -> TrackedRun | None:
        """One run as the tracker sees it."""
        return next(iter(self._tracked_runs(runs.c.run_id == run_id)), None)

    def _tracked_runs(self, *conditions: Any) -> list[TrackedRun]:
        with self.reading() as connection:
            return [_tracked(row) for row in connection.execute(_current().where(*conditions))]

    def _mark_tracked(self, run_id: str, attempt: int, word: str) -> None:
        here = (attempts.c.run_id == run_id, attempts.c.attempt == attempt)
        with self.writing() as connection:
            connection.execute(update(attempts).where(*here).values(tracked=word))


def _current() -> Any:
    """Every run beside its last attempt, oldest first."""
    same = (attempts.c.run_id == runs.c.run_id) & (attempts.c.attempt == runs.c.attempt)
    columns = (attempts.c.reason, attempts.c.ended, attempts.c.tracked)
    return select(runs, *columns).join(attempts, same).order_by(runs.c.seq)


def _tracked(row: Row[Any]) -> TrackedRun:
    return TrackedRun(
        run_id=row.run_id,
        promotion_id=row.promotion_id,
        owner=row.owner,
        name=row.name,
        attempt=row.attempt,
        status=Status(row.status),
        created=row.created,
        spec=from_dict(JobSpec, json.loads(row.spec)),
        snapshot=from_dict(Snapshot, json.loads(row.snapshot)),
        mlflow_run_id=row.mlflow_run_id,
    )


def _export_batch(row: Row[Any]) -> ExportBatch:
    return ExportBatch(
        batch_id=row.batch_id,
        run_id=row.run_id,
        owner=row.owner,
        mlflow_run_id=row.mlflow_run_id,
        attempt=row.attempt,
        rank=row.rank,
        lines=json.loads(row.lines),
    )


def _closing(row: Row[Any]) -> ClosingRun:
    return ClosingRun(
        run_id=row.run_id,
        owner=row.owner,
        mlflow_run_id=row.mlflow_run_id,
        attempt=row.attempt,
        status=Status(row.status),
        reason=row.reason,
        ended=row.ended,
    )


def _pending(row: Row[Any], run: TrackedRun) -> PendingVersion:
    return PendingVersion(
        id=row.id,
        run=run,
        attempt=row.attempt,
        name=row.name,
        digest=row.digest,
        files=tuple(from_dict(SnapshotFile, item) for item in json.loads(row.files)),
        meta=json.loads(row.meta),
        created=row.created,
    )
