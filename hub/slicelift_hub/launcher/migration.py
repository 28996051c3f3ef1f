"""Ledgers of earlier versions, brought to today's format.

All steps run in one transaction, in which the database also gets its new number: a launcher that is killed in between
finds it as it was.
"""

from __future__ import annotations

from sqlalchemy import Connection, text, update
from sqlalchemy.schema import CreateColumn

from slicelift_hub.launcher.tables import about, attempts


def migrate(connection: Connection, found: str) -> str:
    """The format that the ledger has now: today's, or `found` where no way leads on from it. Loses nothing."""
    while found in _STEPS:
        found = _STEPS[found](connection)
        connection.execute(update(about).where(about.c.key == "format").values(value=found))
    return found


def _know_submissions(connection: Connection) -> str:
    """Before format 2 every attempt was submitted, and had one agent."""
    for name in ("submission", "nodes", "position"):
        column = CreateColumn(attempts.c[name]).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE attempts ADD COLUMN {column}"))
    connection.execute(update(attempts).values(submission=attempts.c.attempt_id))
    return "2"


_STEPS = {"1": _know_submissions}
