"""The log of events: batches of spool lines, how far each stream has come, and the series folded from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slicelift.errors import Conflict, UserError
from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from slicelift_hub.launcher.ledger_rows import AttemptRow, Rows
from slicelift_hub.launcher.tables import attempts, batches, cursors, series

Line = dict[str, Any]

# processes that an attempt's ranks may have been: the largest gang, started again six times
_MOST_STREAMS = 50_000

# built once: SQLAlchemy spends more on building these than SQLite on running them, twenty times a second per job
_OF_ATTEMPT = select(cursors.c.rank, cursors.c.process, cursors.c.q).where(
    cursors.c.attempt_id == bindparam("of")
)
_ADD_BATCH = insert(batches)
_ADD_CURSOR = insert(cursors)
_MOVE_CURSOR = (
    update(cursors)
    .where(cursors.c.attempt_id == bindparam("of"))
    .where(cursors.c.rank == bindparam("of_rank"), cursors.c.process == bindparam("of_process"))
)
# for many rows at once: a round trip for each would hold up all writers, over a network for seconds
_PUT_SERIES = text(
    "INSERT INTO series (attempt_id, rank, key, fold) VALUES (:attempt_id, :rank, :key, :fold) "
    "ON CONFLICT (attempt_id, rank, key) DO UPDATE SET fold = excluded.fold"
).bindparams(*(bindparam(column.name, type_=column.type) for column in series.c))
_PUT_LIVE = update(attempts).where(attempts.c.attempt_id == bindparam("of")).values(live=bindparam("now"))


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Spool lines of one process of one rank, in order, as an agent posts them."""

    rank: int
    process: str
    lines: list[Line]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Lines that are in the log."""

    batch_id: int
    attempt_id: str
    rank: int
    lines: list[Line]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The fold as it stands after every batch up to `upto`: changed series and what cards show."""

    upto: int
    folds: Mapping[tuple[str, int, str], bytes]
    lives: Mapping[str, str]


class EventRows(Rows):
    """The part of the ledger that takes events in."""

    def append(
        self, attempt: AttemptRow, streams: list[Stream], *, exported: bool
    ) -> tuple[list[Batch], list[dict[str, Any]]]:
        """Take in what is new: (the batches, `{rank, process, q}` of every stream).

        Lines that are known already are skipped. A stream that does not go on where it stopped refuses the whole
        call with `events-gap`, whose detail says what we have. `exported`: nobody will export them. Raises
        `too-many-processes`.
        """
        with self.writing() as connection:
            have = _cursors(connection, attempt.attempt_id)
            if len(have.keys() | {(stream.rank, stream.process) for stream in streams}) > _MOST_STREAMS:
                message = f"The ranks of this attempt were more than {_MOST_STREAMS:,} processes."
                raise UserError("too-many-processes", message, "Log from fewer processes of a rank.")
            added = [_append_stream(connection, attempt, s, have=have, exported=exported) for s in streams]
        acks = [{"rank": s.rank, "process": s.process, "q": have[(s.rank, s.process)]} for s in streams]
        return [batch for batch in added if batch is not None], acks

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a fold and mark its batches as folded; those that MLflow has too are dropped."""
        with self.writing() as connection:
            folds = [
                {"attempt_id": attempt_id, "rank": rank, "key": key, "fold": fold}
                for (attempt_id, rank, key), fold in checkpoint.folds.items()
            ]
            lives = [{"of": attempt_id, "now": live} for attempt_id, live in checkpoint.lives.items()]
            for statement, rows in ((_PUT_SERIES, folds), (_PUT_LIVE, lives)):
                if rows:
                    connection.execute(statement, rows)
            old = batches.c.batch_id <= checkpoint.upto
            connection.execute(delete(batches).where(old, batches.c.exported))
            connection.execute(update(batches).where(old, batches.c.folded.is_(False)).values(folded=True))

    def load_fold(self, attempt_id: str) -> tuple[dict[tuple[int, str], bytes], str]:
        """The series of an attempt and its card's data, as last saved."""
        with self.reading() as connection:
            rows = connection.execute(select(series).where(series.c.attempt_id == attempt_id))
            folds = {(row.rank, row.key): row.fold for row in rows}
            live = connection.scalar(select(attempts.c.live).where(attempts.c.attempt_id == attempt_id))
        return folds, live or "{}"

    def unfolded(self, *, after: int = 0) -> Iterator[Batch]:
        """What came in after the last checkpoint and that batch, in order: replayed at a start."""
        last = after
        while True:
            query = select(batches).where(batches.c.folded.is_(False), batches.c.batch_id > last)
            with self.reading() as connection:
                rows = connection.execute(query.order_by(batches.c.batch_id).limit(200)).all()
            for row in rows:
                lines = json.loads(row.lines)
                yield Batch(batch_id=row.batch_id, attempt_id=row.attempt_id, rank=row.rank, lines=lines)
            if not rows:
                return
            last = rows[-1].batch_id


def _cursors(connection: Connection, attempt_id: str) -> dict[tuple[int, str], int]:
    rows = connection.execute(_OF_ATTEMPT, {"of": attempt_id})
    return {(row.rank, row.process): row.q for row in rows}


def _append_stream(
    connection: Connection,
    attempt: AttemptRow,
    stream: Stream,
    *,
    have: dict[tuple[int, str], int],
    exported: bool,
) -> Batch | None:
    """Insert the new lines of one stream and move its cursor, in the table and in `have`."""
    place = (stream.rank, stream.process)
    known = have.setdefault(place, 0)
    fresh = [line for line in stream.lines if line["q"] > known]
    if [line["q"] for line in fresh] != list(range(known + 1, known + 1 + len(fresh))):
        raise _gap(stream, known)
    if not fresh:
        return None
    have[place] = known + len(fresh)
    _put_cursor(connection, (attempt.attempt_id, *place), q=have[place], known=known)
    row = {"run_id": attempt.run_id, "attempt_id": attempt.attempt_id, "attempt": attempt.attempt}
    row |= {"rank": stream.rank, "process": stream.process, "exported": exported}
    text = json.dumps(fresh, separators=(",", ":"))
    key = connection.execute(_ADD_BATCH, {**row, "lines": text, "folded": False}).inserted_primary_key
    batch_id = int(key[0]) if key else 0
    return Batch(batch_id=batch_id, attempt_id=attempt.attempt_id, rank=stream.rank, lines=fresh)


def _gap(stream: Stream, known: int) -> Conflict:
    message = f"Lines of rank {stream.rank}, process {stream.process}, do not go on after line {known}."
    detail = {"rank": stream.rank, "process": stream.process, "have": known}
    return Conflict("events-gap", message, "Send again from the line after that one.", detail=detail)


def _put_cursor(connection: Connection, place: tuple[str, int, str], *, q: int, known: int) -> None:
    attempt_id, rank, process = place
    if known == 0:
        row = {"attempt_id": attempt_id, "rank": rank, "process": process, "q": q}
        connection.execute(_ADD_CURSOR, row)
    else:
        connection.execute(_MOVE_CURSOR, {"of": attempt_id, "of_rank": rank, "of_process": process, "q": q})
