"""Sessions and what they hold: a lease, and the proof that somebody still lives who needs it.

A row beside the lease, written in the same transaction, names the hub that began the start and then the session's
own process, both by (pid, start time, boot). Whoever finds both gone may free the lease: the spawner before it
gives away a slice, the launcher every few seconds. So a killed hub keeps no slice for ever, and a restarted one
takes none from a session that lives.

Every process of a session carries `SLICELIFT_SESSION=<session id>` in its environment. They are ended, whatever
session or group they moved to, before the slice goes to the next one.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slicelift.runtime import processes
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    MetaData,
    Table,
    delete,
    select,
    update,
)
from sqlalchemy import insert as insert_row

from slicelift_hub import leases
from slicelift_hub.database import Number, Words, reading, writing

MARKER = "SLICELIFT_SESSION"
PREFIX = "session:"
KILL_SECONDS = 5.0
SETTLE_SECONDS = 0.2

metadata = MetaData()

sessions = Table(
    "sessions",
    metadata,
    Column("holder", Words, primary_key=True),
    Column("session_id", Words, nullable=False),
    Column("boot_id", Words, nullable=False),
    Column("hub_pid", Number, nullable=False),
    Column("hub_start", Number, nullable=False),
    Column("pid", Number),
    Column("pid_start", Number),
    Column("since", Float, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session that may start: its id is the value of the marker, `items` what it holds."""

    session_id: str
    items: tuple[leases.Item, ...]


class Sessions:
    """The sessions of one ledger. All methods block for a transaction, `end` and `reconcile` also for deaths."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        leases.metadata.create_all(engine)
        metadata.create_all(engine)

    def begin(self, holder: str, needs: leases.Needs) -> Session | None:
        """Lease all of `needs` for a session that this process is about to start; None when it is not free.

        A session of that holder must have been ended (`end`) before.
        """
        me = processes.look(os.getpid())
        row = {"holder": holder, "session_id": f"s-{secrets.token_hex(8)}", "since": time.time()}
        row |= {
            "boot_id": processes.boot_id(),
            "hub_pid": os.getpid(),
            "hub_start": me.start_time if me else 0,
        }
        with writing(self._engine) as connection:
            items = leases.take(connection, holder, needs) if needs else []
            if needs and not items:
                return None
            connection.execute(insert_row(sessions).values(row))
        return Session(session_id=str(row["session_id"]), items=tuple(items))

    def started(self, holder: str, pid: int) -> None:
        """From now on the session lives as long as this process does."""
        process = processes.look(pid)
        values = {"pid": pid, "pid_start": process.start_time if process else 0}
        with writing(self._engine) as connection:
            connection.execute(update(sessions).where(sessions.c.holder == holder).values(values))

    def end(self, holder: str) -> tuple[str, ...]:
        """End what is left of the session and give its lease back. Idempotent.

        Processes that cannot be killed (uninterruptible sleep on a device) are named, and the lease stays with them.
        """
        row = self._row(holder)
        left = _kill(row.session_id) if row is not None else ()
        if not left:
            with writing(self._engine) as connection:
                _forget(connection, holder)
        return left

    def reconcile(self) -> list[str]:
        """Free what belongs to no living session; the holders freed."""
        with reading(self._engine) as connection:
            rows = list(connection.execute(select(sessions)))
            holders = (
                select(leases.leases.c.holder).where(leases.leases.c.holder.startswith(PREFIX)).distinct()
            )
            known = {row.holder for row in rows}
            stray = [holder for holder in connection.scalars(holders) if holder not in known]
        gone = [row for row in rows if not _lives(row)]
        return [row.holder for row in gone if self._end_if_still(row)] + [
            holder for holder in stray if not self.end(holder)
        ]

    def capacity(self) -> dict[str, leases.Pool]:
        """Every pool by name, in one read that waits for nobody."""
        with reading(self._engine) as connection:
            return leases.capacity(connection)

    def waiting(self) -> dict[str, int]:
        """How many requests wait for something of each pool."""
        counts: dict[str, int] = {}
        with reading(self._engine) as connection:
            for _, needs in leases.queued(connection):
                for pool in needs:
                    counts[pool] = counts.get(pool, 0) + 1
        return counts

    def _row(self, holder: str) -> Any:
        with reading(self._engine) as connection:
            return connection.execute(select(sessions).where(sessions.c.holder == holder)).first()

    def _end_if_still(self, seen: Any) -> bool:
        """A holder may have begun anew since it was seen: only the same session is ended."""
        if _kill(seen.session_id):
            return False
        same = (sessions.c.holder == seen.holder) & (sessions.c.session_id == seen.session_id)
        with writing(self._engine) as connection:
            if connection.scalar(select(sessions.c.holder).where(same)) is None:
                return False
            _forget(connection, seen.holder)
        return True


def _forget(connection: Connection, holder: str) -> None:
    leases.release(connection, holder)
    connection.execute(delete(sessions).where(sessions.c.holder == holder))


def _lives(row: Any) -> bool:
    if row.boot_id != processes.boot_id():
        return False
    started = row.pid is not None
    return processes.alive((row.pid, row.pid_start) if started else (row.hub_pid, row.hub_start))


def _kill(session_id: str) -> tuple[str, ...]:
    """End every process of the session at once; those that would not die."""
    wanted = f"{MARKER}={session_id}".encode()
    end = partial(processes.end, lambda: _marked(wanted), grace_seconds=0, limit_seconds=KILL_SECONDS)
    left = end().left
    # a process shows no environment while it is being exec'ed: what was just starting is found now
    time.sleep(SETTLE_SECONDS)
    return left or end().left


def _marked(wanted: bytes) -> list[processes.Process]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = (processes.look(pid) for pid in pids if pid != os.getpid() and wanted in _environment(pid))
    return [process for process in found if process is not None]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
