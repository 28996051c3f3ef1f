"""One way to open the ledger's database, shared by the launcher and whoever uses the leases as a library.

SQLite in a file, or PostgreSQL by its address; one text of SQL for both. What the callers rely on:

- `writing`: one writer at a time over the whole ledger, from the first line on, so that what a transaction reads stays
  true until it ends. SQLite: BEGIN IMMEDIATE. PostgreSQL: an advisory lock of the transaction, the same for all. Locks on
  rows would not do: transactions decide by what is *not* there (an unknown promotion, a free item, an empty queue)
  and over several tables. It also lets ids of new rows grow in the order of the commits, which the fold stands on.
- `reading`: one consistent view that waits for no writer (PostgreSQL: REPEATABLE READ, READ ONLY).
- A server that is away raises `Unavailable` "ledger-away" from either, at once or within seconds; whether a transaction
  whose connection broke at its commit has happened is then unknown, so every one of them may be repeated.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slicelift.errors import SliceliftError, Unavailable
from sqlalchemy import (
    URL,
    BigInteger,
    Connection,
    Dialect,
    Engine,
    Integer,
    Text,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.types import TypeDecorator, TypeEngine

BUSY_SECONDS = 20
POSTGRESQL = "postgresql+psycopg"
# any number will do, as long as nobody else takes it in this database
WRITERS = 0x51_1CE_11F7
_CONNECT_SECONDS = 5
# after a failed connect the next ones fail at once for so long: threads must not queue up behind an absent server
_REST_SECONDS = 1.0
_CONNECTION: dict[str, str | int] = {
    "connect_timeout": _CONNECT_SECONDS,
    "application_name": "slicelift",
    # a server whose machine is gone says nothing: found within 25 s
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    # and the server finds it when ours is gone, with the locks it held
    "options": f"-c lock_timeout={BUSY_SECONDS}s -c idle_in_transaction_session_timeout=120s "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
}
# classes of SQLSTATE that may pass: connection, resources, the operator's doing, and a few of others
_PASSING = ("08", "53", "57", "58")
_PASSING_STATES = ("25006", "40001", "40P01", "55P03")
# what PostgreSQL's text and UTF-8 cannot hold, and the character that marks what stands for it
_MARK = "\uffff"
_UNFIT = re.compile("[\0\ud800-\udfff\uffff]")
_MARKED = re.compile(f"{_MARK}([0-9a-f]{{4}})")

Number = BigInteger().with_variant(Integer, "sqlite")
"""A whole number of 64 bits; SQLite counts rows by INTEGER only, which has 64 there."""


class Words(TypeDecorator[str]):
    """Text of any length with every character that a Python string can have, ordered by code point everywhere.

    NUL and halves of surrogate pairs, which come in by JSON, are kept in another form and come back as they were.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The order of the database's own locale would skip hyphens."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database. A word of an enum becomes plain text."""
        if value is None:
            return None
        value = str(value)
        return _UNFIT.sub(_mark, value) if _UNFIT.search(value) else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """From the database."""
        if value is None or _MARK not in value:
            return value
        return _MARKED.sub(lambda found: chr(int(found[1], 16)), value)


def open_database(where: Path | str) -> Engine:
    """An engine on the SQLite file at a path (WAL; made 0600 if missing), or on the PostgreSQL at an address.

    Nothing is connected yet. Raises `ledger-address` for an address that is none.
    """
    if isinstance(where, Path):
        where.touch(mode=0o600, exist_ok=True)
        engine = create_engine(f"sqlite:///{where}", pool_size=16, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _set_up_sqlite)
    else:
        engine = _make_postgresql(_address(where))
        event.listen(engine, "do_connect", _Door())
    event.listen(engine, "begin", _on_begin)
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that holds the write lock from its first line, so that what it reads stays true."""
    with _told(engine), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view that never waits for a writer."""
    options: dict[str, Any] = {"slicelift_reads": True}
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with _told(engine), engine.connect().execution_options(**options) as connection:
        yield connection


def show_address(where: Path | str) -> str:
    """A database's place for logs and messages, without its password."""
    return str(where) if isinstance(where, Path) else make_url(where).render_as_string(hide_password=True)


def _address(where: str) -> URL:
    try:
        url = make_url(where)
    except ArgumentError:
        url = URL.create("unknown")
    if url.drivername not in (POSTGRESQL, "postgresql", "postgres"):
        # the rest is not shown: it may hold a password
        begins, mark, _ = where.partition("://")
        message = (
            f"The ledger's address is not one of PostgreSQL{f' but of {begins[:30]!r}' if mark else ''}."
        )
        hint = (
            "Write postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, or leave it out for SQLite in the home."
        )
        raise SliceliftError("ledger-address", message, hint)
    return url.set(drivername=POSTGRESQL)


def _make_postgresql(url: URL) -> Engine:
    defaults = {name: value for name, value in _CONNECTION.items() if name not in url.query}
    try:
        # pre_ping: connections that an outage broke are replaced before anyone meets them
        return create_engine(
            url, pool_size=16, pool_pre_ping=True, pool_timeout=BUSY_SECONDS, connect_args=defaults
        )
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'psycopg[binary]' (slicelift[hub] has it)."
        raise SliceliftError("ledger-driver", "A ledger on PostgreSQL needs psycopg.", hint) from error


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # sqlite3 opens transactions by itself, and too late for BEGIN IMMEDIATE: this turns that off
    connection.isolation_level = None
    cursor = connection.cursor()
    # NORMAL: a killed process loses nothing; only a power cut may take the last commits, and the jobs with them
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get("slicelift_reads", False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
    elif not reads:
        # in READ COMMITTED each statement sees what was committed before it: all of it, once the lock is ours
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")


class _Door:
    """Connects, unless it failed a moment ago."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed_until = 0.0
        self._why: Exception | None = None

    def __call__(self, dialect: Dialect, _record: Any, cargs: Any, cparams: Any) -> Any:
        with self._lock:
            if self._why is not None and time.monotonic() < self._closed_until:
                raise type(self._why)(*self._why.args)
        try:
            return dialect.connect(*cargs, **cparams)
        except Exception as error:
            with self._lock:
                self._why, self._closed_until = error, time.monotonic() + _REST_SECONDS
            raise


@contextmanager
def _told(engine: Engine) -> Iterator[None]:
    """Faults of a server that may pass become `Unavailable`; SQLite's stay what they are."""
    if engine.dialect.name == "sqlite":
        yield
        return
    try:
        yield
    except PoolTimeout as error:
        raise _make_away("all its connections are in use") from error
    except DBAPIError as error:
        if not _may_pass(error):
            raise
        raise _make_away(_first_line(error)) from error


def _may_pass(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state is None:
        return error.connection_invalidated or isinstance(error, OperationalError)
    return str(state).startswith(_PASSING) or state in _PASSING_STATES


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0][:200] if lines else type(error.orig).__name__


def _make_away(why: str) -> Unavailable:
    message = f"The ledger's database does not answer now: {why.rstrip('.')}."
    return Unavailable("ledger-away", message, "Jobs go on and keep what they log. Try again in a moment.")


def _mark(found: re.Match[str]) -> str:
    return f"{_MARK}{ord(found[0]):04x}"
