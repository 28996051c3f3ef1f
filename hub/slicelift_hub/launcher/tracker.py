"""The launcher's side of MLflow: the supervised server and the exporter, or nothing at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from slicelift import registry
from slicelift.errors import Unavailable
from slicelift.tracking import Mlflow
from slicelift.tracking_account import NO_ACCOUNT, Account, make_account

from slicelift_hub.launcher.exporter import Exporter
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.mlflow_server import MlflowServer

# kept short: a stop must not wait for a server that hangs
_SETTLE_SECONDS = 5.0


class Tracker(Protocol):
    """What a launcher tells its runs to. `exports`: whether batches must wait for it."""

    exports: bool

    def state(self) -> dict[str, Any]:
        """`{status, url, message}` as GET /health shows it; never blocks."""
        ...

    def start(self) -> None:
        """Begin, in threads of its own."""
        ...

    def stop(self) -> None:
        """End; safe to repeat."""
        ...

    def settle(self) -> None:
        """Wait a moment for the ends of runs to be told."""
        ...

    def account_of(self, owner: str) -> Account:
        """Under which account MLflow knows an owner."""
        ...

    def fault(self, run_id: str) -> str:
        """Why this run is not tracked at present, "" while all goes well; never blocks."""
        ...

    def set_alias(self, owner: str, name: str, *, alias: str, version: str) -> None:
        """Let `alias` of the owner's model name another version. Raises `Unavailable` when the registry is away."""
        ...


class NoTracker:
    """Runs are kept in the ledger only."""

    exports = False

    def state(self) -> dict[str, Any]:
        """See `Tracker`."""
        return {"status": "none", "url": "", "message": "This launcher runs without MLflow."}

    def start(self) -> None:
        """See `Tracker`."""

    def stop(self) -> None:
        """See `Tracker`."""

    def settle(self) -> None:
        """See `Tracker`."""

    def account_of(self, owner: str) -> Account:  # noqa: ARG002
        """See `Tracker`."""
        return NO_ACCOUNT

    def fault(self, run_id: str) -> str:  # noqa: ARG002
        """See `Tracker`."""
        return ""

    def set_alias(self, owner: str, name: str, *, alias: str, version: str) -> None:  # noqa: ARG002
        """See `Tracker`. There is no registry."""
        message = (
            f"This launcher runs without MLflow: {name} has no version {version} that {alias} could name."
        )
        raise Unavailable("tracker-none", message, "Start it with --tracker mlflow.")


class MlflowTracker:
    """A supervised MLflow server, and the exporter that brings it up to the ledger.

    With a `secret` MLflow asks everyone who they are, and each owner has an account derived from it.
    """

    exports = True

    def __init__(
        self,
        home: Path,
        ledger: Ledger,
        *,
        port: int,
        blob_path: Callable[[str, str], Path],
        changed: Callable[[str], None],
        secret: str = "",
    ) -> None:
        self.server = MlflowServer(home, port=port, secret=secret)
        self._secret = secret
        self._ledger = ledger
        self._exporter = Exporter(
            ledger,
            tracker=lambda: self.server.state,
            blob_path=blob_path,
            changed=changed,
            account_of=self.account_of,
        )

    def state(self) -> dict[str, Any]:
        """See `Tracker`."""
        state = self.server.state
        return {"status": state.status, "url": state.url, "message": state.message}

    def start(self) -> None:
        """See `Tracker`. Raises `port-taken`."""
        self.server.start()
        self._exporter.start()

    def stop(self) -> None:
        """See `Tracker`."""
        self._exporter.stop()
        self.server.stop()

    def settle(self) -> None:
        """See `Tracker`."""
        until = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < until and self.server.state.status == "up" and self._ledger.runs_to_close():
            time.sleep(0.1)

    def account_of(self, owner: str) -> Account:
        """See `Tracker`."""
        return make_account(self._secret, owner) if self._secret else NO_ACCOUNT

    def fault(self, run_id: str) -> str:
        """See `Tracker`."""
        return self._exporter.fault(run_id)

    def set_alias(self, owner: str, name: str, *, alias: str, version: str) -> None:
        """See `Tracker`."""
        if self.server.state.status != "up":
            message = f"MLflow does not answer now, so {alias} of {name} cannot move to version {version}."
            raise Unavailable("tracker-away", message, "Nothing was changed: try again in a moment.")
        mlflow = Mlflow(self.server.url, self.account_of(owner))
        try:
            registry.set_alias(mlflow, name, alias=alias, version=version)
        finally:
            mlflow.close()
