"""Sessions and what they hold: a lease, and the proof that somebody still lives who needs it.

A row beside the lease, written in the same transaction, names the hub that began the start and then the session's
own process, both by (pid, start time, boot). Whoever finds both gone may free the lease: the spawner before it
gives away a slice, the launcher every few seconds. So a killed hub keeps no slice for ever, and a restarted one
takes none from a session that lives.

All processes of a session are ended before the slice goes to the next one, wherever they moved to: how they are found is
in `slicelift_hub.leftovers`.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from slicelift.models import Status
from slicelift.runtime import processes
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    MetaData,
    Table,
    and_,
    delete,
    inspect,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy import insert as insert_row

from slicelift_hub import leases, leftovers
from slicelift_hub.database import Number, Words, open_database, reading, writing
from slicelift_hub.launcher.tables import attempts
from slicelift_hub.leftovers import MARKER as MARKER
from slicelift_hub.leftovers import Traces
from slicelift_hub.system_users import known_user

PREFIX = "session:"
_OVER = tuple(status.value for status in Status if status.terminal)
# nothing of it has been started yet
_WAITING = Status.WAITING.value

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


@functools.cache
def of_home(root: Path) -> Sessions:
    """The sessions of that home, whose ledger is made if there is none yet. Blocks."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Sessions(open_database(root / "ledger.db"))


def make_holder(user: str, server: str = "") -> str:
    """How a session is named in the leases; for the default server also how those of all its user's begin. Pure."""
    return f"{PREFIX}{quote(user, safe='@~')}:{server}"


class Sessions:
    """The sessions of one ledger. All methods block for a transaction, `end` and `reconcile` also for deaths."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._home = Path(str(engine.url.database)).parent
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
        with reading(self._engine) as connection:
            session_id = _session_of(connection, holder)
        return self._end(holder, session_id)

    def end_user(self, user: str) -> None:
        """End every session of somebody whom the hub knows no longer."""
        with reading(self._engine) as connection:
            holders = list(connection.scalars(select(sessions.c.holder)))
        for holder in holders:
            if holder.startswith(make_holder(user)):
                self.end(holder)

    def reconcile(self) -> list[str]:
        """Free what belongs to no living session; the holders."""
        held = select(leases.leases.c.holder).where(leases.leases.c.holder.startswith(PREFIX)).distinct()
        with reading(self._engine) as connection:
            rows = {row.holder: row for row in connection.execute(select(sessions))}
            found = dict.fromkeys(holder for holder in connection.scalars(held) if holder not in rows)
        found |= {holder: row.session_id for holder, row in rows.items() if not _lives(row)}
        return [holder for holder, session_id in found.items() if not self._end(holder, session_id)]

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

    def _end(self, holder: str, session_id: str | None) -> tuple[str, ...]:
        """That very session, or for None a lease without one: the holder may have begun anew since it was seen."""
        left = self._kill(holder, session_id) if session_id else ()
        if left:
            return left
        with writing(self._engine) as connection:
            if _session_of(connection, holder) == session_id:
                leases.release(connection, holder)
                connection.execute(delete(sessions).where(sessions.c.holder == holder))
        return ()

    def _kill(self, holder: str, session_id: str) -> tuple[str, ...]:
        user = unquote(holder.removeprefix(PREFIX).partition(":")[0])
        account = known_user(self._home, user) if os.geteuid() == 0 else None
        with reading(self._engine) as connection:
            row = connection.execute(select(sessions).where(sessions.c.session_id == session_id)).first()
        here = row is not None and row.pid is not None and row.boot_id == processes.boot_id()
        first = (row.pid, row.pid_start) if row is not None and here else None
        traces = Traces(
            session_id=session_id,
            first=first,
            uid=account.uid if account else None,
        )
        return leftovers.end(traces, lambda: self._has_others(user, session_id))

    def _has_others(self, user: str, session_id: str) -> bool:
        """Whether this user has other sessions, or jobs that run or still deliver."""
        ended, waiting = attempts.c.status.in_(_OVER), attempts.c.status == _WAITING
        done = or_(attempts.c.drained, attempts.c.discarded, attempts.c.handle == "")
        here = and_(attempts.c.owner == user, not_(waiting), or_(not_(ended), not_(done)))
        jobs = select(attempts.c.attempt_id).where(here).limit(1)
        others = select(sessions.c.holder).where(sessions.c.session_id != session_id)
        with reading(self._engine) as connection:
            if any(holder.startswith(make_holder(user)) for holder in connection.scalars(others)):
                return True
            # without a launcher there are no jobs yet
            return inspect(connection).has_table(attempts.name) and connection.scalar(jobs) is not None


def _session_of(connection: Connection, holder: str) -> str | None:
    query = select(sessions.c.session_id).where(sessions.c.holder == holder)
    session_id: str | None = connection.scalar(query)
    return session_id


def _lives(row: Any) -> bool:
    if row.boot_id != processes.boot_id():
        return False
    started = row.pid is not None
    return processes.alive((row.pid, row.pid_start) if started else (row.hub_pid, row.hub_start))
