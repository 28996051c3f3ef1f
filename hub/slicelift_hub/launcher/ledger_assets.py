"""What jobs bring and leave: snapshots, output files, model versions and the names that point at versions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from slicelift.errors import NotFound
from slicelift.models import AliasChange, ModelVersionView, Output, SnapshotFile, to_dict
from sqlalchemy import Connection, Row, insert, select, update

from slicelift_hub.launcher.ledger_rows import AttemptRow, Rows, dumps
from slicelift_hub.launcher.tables import alias_changes, outputs, snapshots, versions


class AssetRows(Rows):
    """The part of the ledger that lists files and models; the bytes are in the store."""

    def note_snapshot(self, owner: str, snapshot_id: str, *, files: int, size_bytes: int) -> None:
        """A snapshot is whole in the store. Idempotent."""
        here = (snapshots.c.owner == owner, snapshots.c.snapshot_id == snapshot_id)
        with self.writing() as connection:
            if connection.execute(select(snapshots.c.files).where(*here)).first() is None:
                row = {"owner": owner, "snapshot_id": snapshot_id, "files": files, "size_bytes": size_bytes}
                connection.execute(insert(snapshots).values(**row, created=time.time()))

    def add_output(self, attempt: AttemptRow, *, path: str, sha256: str, size_bytes: int) -> Output:
        """A file of ./outputs is in the store; a newer content of the same path takes its place."""
        here = (
            outputs.c.run_id == attempt.run_id,
            outputs.c.attempt == attempt.attempt,
            outputs.c.path == path,
        )
        values = {"sha256": sha256, "size_bytes": size_bytes}
        with self.writing() as connection:
            if connection.execute(update(outputs).where(*here).values(values)).rowcount == 0:
                row = {"run_id": attempt.run_id, "attempt": attempt.attempt, "path": path}
                connection.execute(insert(outputs).values(**row, **values))
        return Output(attempt=attempt.attempt, path=path, size_bytes=size_bytes, sha256=sha256)

    def outputs_of(self, run_id: str) -> list[Output]:
        """All files that all attempts of a run left, by attempt and path."""
        query = select(outputs).where(outputs.c.run_id == run_id).order_by(outputs.c.attempt, outputs.c.path)
        with self.reading() as connection:
            return [_output(row) for row in connection.execute(query)]

    def add_version(
        self, attempt: AttemptRow, *, name: str, files: tuple[SnapshotFile, ...], meta: Mapping[str, Any]
    ) -> bool:
        """A model is whole in the store; whether it is news. The same files of one run count once."""
        digest = digest_of(files)
        with self.writing() as connection:
            same = (versions.c.run_id == attempt.run_id, versions.c.digest == digest)
            if connection.execute(select(versions.c.id).where(*same)).first():
                return False
            row = {
                "owner": attempt.owner,
                "run_id": attempt.run_id,
                "attempt": attempt.attempt,
                "digest": digest,
            }
            row |= {"name": name, "files": dumps(to_dict(files)), "meta": dumps(dict(meta))}
            connection.execute(insert(versions).values(**row, created=time.time()))
            return True

    def models_of(self, owner: str) -> list[ModelVersionView]:
        """All registered versions of `owner`, newest first."""
        mine = (versions.c.owner == owner, versions.c.version.is_not(None))
        with self.reading() as connection:
            rows = connection.execute(select(versions).where(*mine).order_by(versions.c.id.desc())).all()
            return [version_view(connection, row) for row in rows]

    def find_version(self, owner: str, name: str, version: str) -> ModelVersionView:
        """One registered version. Raises `version-unknown` with those that exist."""
        found = [model for model in self.models_of(owner) if model.name == name]
        for model in found:
            if model.version == version:
                return model
        have = ", ".join(model.version for model in found) or "none"
        message = f"Model {name} has no version {version}."
        raise NotFound("version-unknown", message, f"Versions of it: {have}. `slicelift models` lists all.")

    def set_alias(self, owner: str, name: str, *, alias: str, version: str, by: str) -> str | None:
        """Write down that `alias` moves to `version`; where it pointed before."""
        with self.writing() as connection:
            known = _newest_changes(connection, owner, name).get(alias)
            before = None if known is None else known.after
            row = {"owner": owner, "name": name, "alias": alias, "before": before, "after": version, "by": by}
            connection.execute(insert(alias_changes).values(**row, time=time.time()))
            return before


def version_view(connection: Connection, row: Row[Any]) -> ModelVersionView:
    """A registered row of `versions` with the aliases that point at it now, and who moved them last."""
    newest = _newest_changes(connection, row.owner, row.name)
    touching = [change for change in newest.values() if row.version in (change.before, change.after)]
    return ModelVersionView(
        name=row.name,
        version=row.version,
        run_id=row.run_id,
        aliases=tuple(sorted(alias for alias, change in newest.items() if change.after == row.version)),
        tags=json.loads(row.tags),
        created=row.created,
        alias_changes=tuple(sorted(touching, key=lambda change: -change.time)),
    )


def digest_of(files: tuple[SnapshotFile, ...]) -> str:
    """One digest over a model's paths and contents, whatever their order."""
    pairs = sorted([item.path, item.sha256] for item in files)
    return hashlib.sha256(dumps(pairs).encode()).hexdigest()


def _newest_changes(connection: Connection, owner: str, name: str) -> dict[str, AliasChange]:
    """Alias -> its newest change: `after` is where it points now."""
    mine = (alias_changes.c.owner == owner, alias_changes.c.name == name)
    rows = connection.execute(select(alias_changes).where(*mine).order_by(alias_changes.c.id))
    return {
        row.alias: AliasChange(alias=row.alias, who=row.by, time=row.time, before=row.before, after=row.after)
        for row in rows
    }


def _output(row: Row[Any]) -> Output:
    return Output(attempt=row.attempt, path=row.path, size_bytes=row.size_bytes, sha256=row.sha256)
