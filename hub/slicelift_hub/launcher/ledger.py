"""The launcher's memory: what was asked, where it stands, what it said and what came out.

One class over one database, written in parts: runs and their attempts, the views that users see, the log of
events, the export to MLflow, and what jobs leave behind. Every method is one transaction and may be called from
any thread. Nothing is kept in memory, so a killed launcher has lost nothing that a caller was told.
"""

from __future__ import annotations

from pathlib import Path

from slicelift.errors import SliceliftError
from sqlalchemy.exc import DatabaseError

from slicelift_hub import leases
from slicelift_hub.database import open_database, show_address, writing
from slicelift_hub.launcher import tables
from slicelift_hub.launcher.ledger_assets import AssetRows
from slicelift_hub.launcher.ledger_events import EventRows
from slicelift_hub.launcher.ledger_export import ExportRows
from slicelift_hub.launcher.ledger_limits import LimitRows
from slicelift_hub.launcher.ledger_nodes import NodeRows
from slicelift_hub.launcher.ledger_runs import RunRows
from slicelift_hub.launcher.ledger_views import ViewRows
from slicelift_hub.launcher.migration import migrate


class Ledger(RunRows, NodeRows, ViewRows, EventRows, ExportRows, AssetRows, LimitRows):
    """See the module."""

    def __init__(self, where: Path | str) -> None:
        """Opens or makes the database: SQLite at a path, PostgreSQL at an address.

        Raises `ledger-format` when another version of slicelift made it, `ledger-damaged` when it is none,
        `ledger-away` when it does not answer.
        """
        super().__init__(open_database(where))
        try:
            self._open(where)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of all connections; whoever holds one keeps it until it is done."""
        self.engine.dispose()

    def _open(self, where: Path | str) -> None:
        try:
            with writing(self.engine) as connection:
                tables.metadata.create_all(connection)
                leases.metadata.create_all(connection)
        except DatabaseError as error:
            message = f"The ledger's database {show_address(where)} cannot be read: {error.orig}."
            hint = "Restore it, or move it away to begin a new one; models and metrics in MLflow stay."
            raise SliceliftError("ledger-damaged", message, hint) from error
        self._check_format(where)

    def _check_format(self, where: Path | str) -> None:
        about = tables.about
        with self.writing() as connection:
            found = connection.scalar(
                about.select().with_only_columns(about.c.value).where(about.c.key == "format")
            )
            if found is None:
                connection.execute(about.insert().values(key="format", value=str(tables.FORMAT)))
            else:
                found = migrate(connection, found)
        if found is not None and found != str(tables.FORMAT):
            message = (
                f"The ledger {show_address(where)} has format {found}; "
                f"this version of slicelift writes {tables.FORMAT}."
            )
            hint = "Install the version that made it, or move it away to begin a new one."
            raise SliceliftError("ledger-format", message, hint)
