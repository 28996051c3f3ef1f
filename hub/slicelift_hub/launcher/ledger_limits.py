"""How long runs may take, and what one person has under way: what the policy needs to know of the past."""

from __future__ import annotations

from dataclasses import dataclass

from slicelift.models import JobSpec
from sqlalchemy import Column, Float, Table, delete, func, insert, select

from slicelift_hub.database import Words
from slicelift_hub.launcher.ledger_rows import Rows, find_attempts
from slicelift_hub.launcher.ledger_steps import TERMINAL
from slicelift_hub.launcher.tables import attempts, metadata, runs

# written before the run itself, so that no run is ever without its limit; of the newest submit or retry
limits = Table(
    "limits",
    metadata,
    Column("owner", Words, primary_key=True),
    Column("promotion_id", Words, primary_key=True),
    Column("seconds", Float, nullable=False),
    Column("source", Words, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class WallTime:
    """How long a run may take from its start, and what says so: `rule students`, `preset night`."""

    seconds: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """A run whose time is over and that nobody has ended yet."""

    owner: str
    run_id: str
    limit: WallTime


class LimitRows(Rows):
    """The part of the ledger that the policy asks."""

    def set_wall_time(self, owner: str, promotion_id: str, limit: WallTime | None) -> None:
        """The limit of this promotion's run from now on; None takes it away. Idempotent."""
        here = (limits.c.owner == owner, limits.c.promotion_id == promotion_id)
        row = {"owner": owner, "promotion_id": promotion_id}
        with self.reading() as connection:
            if limit is None and connection.execute(select(limits.c.seconds).where(*here)).first() is None:
                return
        with self.writing() as connection:
            connection.execute(delete(limits).where(*here))
            if limit is not None:
                connection.execute(insert(limits).values(**row, seconds=limit.seconds, source=limit.source))

    def knows(self, owner: str, promotion_id: str) -> bool:
        """Whether a promotion of this person has a run."""
        mine = (runs.c.owner == owner, runs.c.promotion_id == promotion_id)
        with self.reading() as connection:
            return connection.execute(select(runs.c.run_id).where(*mine)).first() is not None

    def under_way(self, owner: str) -> list[JobSpec]:
        """The jobs of one person that are not over."""
        mine = (attempts.c.owner == owner, attempts.c.status.not_in(TERMINAL))
        with self.reading() as connection:
            return [row.spec for row in find_attempts(connection, *mine)]

    def overdue(self, now: float) -> list[Overdue]:
        """Runs that are past their limit at `now`, Unix seconds.

        Restarts that a backend makes by itself count on: time begins with the first attempt of the submit.
        """
        same = (runs.c.owner == limits.c.owner) & (runs.c.promotion_id == limits.c.promotion_id)
        last = (attempts.c.run_id == runs.c.run_id) & (attempts.c.attempt == runs.c.attempt)
        family = attempts.alias()
        began = (
            select(func.min(family.c.started))
            .where(family.c.run_id == attempts.c.run_id, family.c.submission == attempts.c.submission)
            .scalar_subquery()
        )
        late = (attempts.c.status.not_in(TERMINAL), attempts.c.cancel == "", began < now - limits.c.seconds)
        columns = (runs.c.owner, runs.c.run_id, limits.c.seconds, limits.c.source)
        query = select(*columns).select_from(limits.join(runs, same).join(attempts, last)).where(*late)
        with self.reading() as connection:
            return [
                Overdue(
                    owner=row.owner,
                    run_id=row.run_id,
                    limit=WallTime(seconds=row.seconds, source=row.source),
                )
                for row in connection.execute(query)
            ]
