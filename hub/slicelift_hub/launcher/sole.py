"""One launcher per ledger, also where its home is no help: two pods with homes of their own over one PostgreSQL.

The right is a lock of a session on the server: it ends with the process that holds it, however that ends, and with a
connection that breaks. It is looked after every few seconds; whoever finds it with somebody else stops.
"""

from __future__ import annotations

import threading

from slicelift.errors import Unavailable
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from slicelift_hub.database import WRITERS, reading

_KEY = WRITERS + 1


class Sole:
    """The right to serve one ledger. SQLite's is that of the home, whose lock the launcher holds already."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Have it, now or still; False when another launcher has. Raises `Unavailable` when nobody can tell."""
        if self._engine.dialect.name == "sqlite":
            return True
        with self._lock:
            if self._connection is not None and _lives(self._connection):
                return True
            self._drop()
            # says in our words when the server is away
            with reading(self._engine) as connection:
                connection.execute(text("SELECT 1"))
            return self._try()

    def give_up(self) -> None:
        """Let the next one have it. Idempotent."""
        with self._lock:
            self._drop()

    def _try(self) -> bool:
        # no transaction, which would be one that is idle for ever, and none of a writer's locks
        options = {"isolation_level": "AUTOCOMMIT", "slicelift_reads": True}
        connection = self._engine.connect().execution_options(**options)
        try:
            mine = bool(connection.scalar(text(f"SELECT pg_try_advisory_lock({_KEY})")))
        except DBAPIError as error:
            connection.invalidate()
            connection.close()
            message = "The ledger's database broke off."
            raise Unavailable("ledger-away", message, "Try again in a moment.") from error
        if not mine:
            connection.close()
            return False
        self._connection = connection
        return True

    def _drop(self) -> None:
        """End the session, and the lock with it: back in the pool it would live on."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def _lives(connection: Connection) -> bool:
    try:
        connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True
