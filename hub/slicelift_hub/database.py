"""One way to open the ledger's database, shared by the launcher and whoever uses the leases as a library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event

BUSY_SECONDS = 20


def open_database(path: Path) -> Engine:
    """An engine on the SQLite file at `path`, in WAL mode; the file is made 0600 if it is missing."""
    path.touch(mode=0o600, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}", pool_size=16, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that holds the write lock from its first line, so that what it reads stays true."""
    with engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view that never waits for a writer."""
    with engine.connect().execution_options(slicelift_reads=True) as connection:
        yield connection


def _on_connect(connection: Any, _record: Any) -> None:
    # sqlite3 opens transactions by itself, and too late for BEGIN IMMEDIATE: this turns that off
    connection.isolation_level = None
    cursor = connection.cursor()
    # NORMAL: a killed process loses nothing; only a power cut may take the last commits, and the jobs with them
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get("slicelift_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
