"""Who holds which slot, GPU or slice of this machine: all or nothing, first in first out.

Items and queue are two tables of the ledger's database. Functions that take a connection join the caller's
transaction (the launcher frees a lease in the one that writes the terminal status); `Leases` wraps them for a
process of its own, such as a spawner. Every transaction begins IMMEDIATE, so two processes never give away one item.

The queue is strict: a request that does not fit holds back every later one that wants something of the same
pool, however small; requests over disjoint pools do not wait for each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    Table,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)

from slicelift_hub.database import Number, Words, reading, writing

SLOTS = "slots"
GPUS = "gpus"

Needs = Mapping[str, int]

metadata = MetaData()

leases = Table(
    "leases",
    metadata,
    Column("item", Words, primary_key=True),
    Column("pool", Words, nullable=False, index=True),
    Column("uuid", Words, nullable=False, default=""),
    Column("simulated", Boolean, nullable=False, default=False),
    Column("retired", Boolean, nullable=False, default=False),
    Column("holder", Words, index=True),
    Column("since", Float),
)

lease_queue = Table(
    "lease_queue",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("holder", Words, nullable=False, unique=True),
    Column("needs", Words, nullable=False),
    Column("since", Float, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that can be held: a slot, a GPU (uuid = its index) or a slice (pool = its name)."""

    item: str
    pool: str
    uuid: str = ""
    simulated: bool = False


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How many items of one kind there are, and how many of them nobody holds."""

    name: str
    total: int
    free: int
    simulated: bool = False


class Leases:
    """The leases as a library: each call is one transaction of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        metadata.create_all(engine)

    def declare(self, items: list[Item]) -> None:
        """Make the inventory be `items`; an item that vanished but is held goes when it is released."""
        with writing(self._engine) as connection:
            declare(connection, items)

    def request(self, holder: str, needs: Needs) -> list[Item]:
        """Queue up (once) and look whether it is our turn: the items held, or [] while waiting.

        Safe to repeat: call it again to poll. `release` ends the wait as well as the hold.
        """
        with writing(self._engine) as connection:
            enqueue(connection, holder, needs)
            grant(connection)
            return held(connection, holder)

    def release(self, holder: str) -> None:
        """Give everything back, or leave the queue. Idempotent.

        It serves nobody: a job that is granted by anyone but the launcher would hold its lease and never start.
        """
        with writing(self._engine) as connection:
            release(connection, holder)

    def position(self, holder: str) -> int | None:
        """Requests ahead in the way, plus one; None when not waiting."""
        with reading(self._engine) as connection:
            return positions(connection).get(holder)

    def capacity(self) -> dict[str, Pool]:
        """Every pool by name."""
        with reading(self._engine) as connection:
            return capacity(connection)


def declare(connection: Connection, items: list[Item]) -> None:
    """See `Leases.declare`."""
    known = set(connection.scalars(select(leases.c.item)))
    wanted = {item.item for item in items}
    gone = list(known - wanted)
    connection.execute(delete(leases).where(leases.c.item.in_(gone), leases.c.holder.is_(None)))
    connection.execute(update(leases).where(leases.c.item.in_(gone)).values(retired=True))
    for item in items:
        values = {"pool": item.pool, "uuid": item.uuid, "simulated": item.simulated, "retired": False}
        if item.item in known:
            connection.execute(update(leases).where(leases.c.item == item.item).values(values))
        else:
            connection.execute(insert(leases).values(item=item.item, **values))


def enqueue(connection: Connection, holder: str, needs: Needs) -> None:
    """Put `holder` at the end of the queue, unless it waits or holds already."""
    waits = connection.scalar(select(lease_queue.c.seq).where(lease_queue.c.holder == holder))
    if waits is None and not held(connection, holder):
        row = {"holder": holder, "needs": json.dumps(dict(needs)), "since": time.time()}
        connection.execute(insert(lease_queue).values(row))


def grant(connection: Connection) -> list[str]:
    """Serve the queue as far as it goes; the holders served, in order."""
    free = _free_items(connection)
    blocked: set[str] = set()
    served: list[str] = []
    for holder, needs in queued(connection):
        taken = _pick(free, blocked, needs)
        if taken:
            _take(connection, holder, taken)
            served.append(holder)
    return served


def take(connection: Connection, holder: str, needs: Needs) -> list[Item]:
    """All of `needs` at once, or [] and nothing held: no place in the queue, and nobody who waits is overtaken.

    For whoever tells a person now rather than later, such as a spawner. Nobody else is served by it.
    """
    free = _free_items(connection)
    blocked: set[str] = set()
    for _, earlier in queued(connection):
        _pick(free, blocked, earlier)
    taken = _pick(free, blocked, needs)
    _take(connection, holder, taken)
    return held(connection, holder) if taken else []


def held(connection: Connection, holder: str) -> list[Item]:
    """What `holder` has now."""
    columns = (leases.c.item, leases.c.pool, leases.c.uuid, leases.c.simulated)
    rows = connection.execute(select(*columns).where(leases.c.holder == holder).order_by(leases.c.item))
    return [Item(item=row.item, pool=row.pool, uuid=row.uuid, simulated=row.simulated) for row in rows]


def release(connection: Connection, holder: str) -> None:
    """See `Leases.release`; serving the queue is left to the caller."""
    connection.execute(delete(lease_queue).where(lease_queue.c.holder == holder))
    connection.execute(delete(leases).where(leases.c.holder == holder, leases.c.retired))
    connection.execute(update(leases).where(leases.c.holder == holder).values(holder=None, since=None))


def queued(connection: Connection) -> list[tuple[str, dict[str, int]]]:
    """Who waits for what, first come first."""
    rows = connection.execute(select(lease_queue).order_by(lease_queue.c.seq))
    return [(row.holder, json.loads(row.needs)) for row in rows]


def positions(connection: Connection) -> dict[str, int]:
    """For everyone who waits: 1 + the number of earlier requests that want something of the same pools."""
    ahead: list[set[str]] = []
    result: dict[str, int] = {}
    for holder, needs in queued(connection):
        pools = set(needs)
        result[holder] = 1 + sum(1 for earlier in ahead if earlier & pools)
        ahead.append(pools)
    return result


def capacity(connection: Connection) -> dict[str, Pool]:
    """See `Leases.capacity`."""
    rows = connection.execute(
        select(
            leases.c.pool,
            func.count().label("total"),
            (func.count() - func.count(leases.c.holder)).label("free"),
            func.max(cast(leases.c.simulated, Integer)).label("simulated"),
        )
        .where(leases.c.retired.is_(False))
        .group_by(leases.c.pool)
    )
    return {
        row.pool: Pool(name=row.pool, total=row.total, free=row.free, simulated=bool(row.simulated))
        for row in rows
    }


def make_inventory(
    *, slots: int, gpus: int | Sequence[int], slices: Sequence[Mapping[str, str]]
) -> list[Item]:
    """The items of one machine. A slice is `{name, uuid}`; without a uuid it is a simulated one.

    `gpus` counts whole GPUs, or lists their indexes where some of the machine's are sliced.
    """
    indexes = range(gpus) if isinstance(gpus, int) else gpus
    items = [Item(item=f"slot-{index:05d}", pool=SLOTS) for index in range(slots)]
    items += [Item(item=f"gpu-{index:03d}", pool=GPUS, uuid=str(index)) for index in indexes]
    alike: dict[str, int] = {}
    for entry in slices:
        name, uuid = entry["name"], entry.get("uuid", "")
        # a simulated one is known by its name and number, so that a changed list leaves held ones what they are
        alike[name] = alike.get(name, -1) + (not uuid)
        item = f"slice-{uuid}" if uuid else f"slice-{name}-{alike[name]}"
        items.append(Item(item=item, pool=name, uuid=uuid, simulated=not uuid))
    return items


def _free_items(connection: Connection) -> dict[str, list[str]]:
    query = select(leases.c.item, leases.c.pool).where(leases.c.holder.is_(None), leases.c.retired.is_(False))
    free: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(leases.c.item)):
        free.setdefault(row.pool, []).append(row.item)
    return free


def _pick(free: dict[str, list[str]], blocked: set[str], needs: Needs) -> list[str]:
    """Take `needs` out of `free`, or [] and their pools in `blocked` for everyone behind."""
    fits = all(len(free.get(pool, ())) >= count for pool, count in needs.items())
    if blocked & set(needs) or not fits:
        blocked |= set(needs)
        return []
    return [free[pool].pop(0) for pool, count in needs.items() for _ in range(count)]


def _take(connection: Connection, holder: str, items: list[str]) -> None:
    taken = update(leases).where(leases.c.item.in_(items)).values(holder=holder, since=time.time())
    connection.execute(taken)
    connection.execute(delete(lease_queue).where(lease_queue.c.holder == holder))
