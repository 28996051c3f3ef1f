"""Brings MLflow up to what the ledger knows, whenever MLflow answers: runs, points, ends, model versions.

Every step asks the ledger what is missing, tells MLflow, and marks it. A kill between the last two repeats the
step, which changes nothing in MLflow. Two threads, so that the upload of a large model does not hold up the
points of other runs; neither ever blocks whoever writes into the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

from slicelift import registry, tracking
from slicelift.errors import SliceliftError, Unavailable
from slicelift.runtime.mlflow_ids import local_run_id
from slicelift.tracking import Mlflow, RunGone

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_export import ClosingRun, ExportBatch, PendingVersion, TrackedRun
from slicelift_hub.launcher.mlflow_server import TrackerState
from slicelift_hub.launcher.series import MAX_BUCKETS, Fold

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_BATCHES = 50
# so often may MLflow fail on one run's points before they are tried one by one and the guilty ones left out
_FAULTS = 6
# what MLflow refuses once it will refuse again: look at it again after so long
_REST_SECONDS = 60.0
# what the launcher knows better than the job's own mlflow code
_RESERVED_TAGS = ("slicelift.", "mlflow.source.", "mlflow.user", "mlflow.parentRunId")


class Exporter:
    """One per launcher. `changed` is called with a run id, from a thread of the exporter, after each step that
    a user can see (MLflow's run id known, version registered).
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        tracker: Callable[[], TrackerState],
        blob_path: Callable[[str, str], Path],
        changed: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._blob_path = blob_path
        self._changed = changed
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._client: Mlflow | None = None
        self._client_url = ""
        self._client_lock = threading.Lock()
        self._resting: dict[str, float] = {}
        self._faults: dict[str, int] = {}

    def start(self) -> None:
        """Begin; returns at once."""
        for name, work in (("runs", self.export_runs), ("models", self.export_models)):
            thread = threading.Thread(target=self._repeat, args=(work,), name=f"export-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, *, timeout_seconds: float = 5.0) -> None:
        """End, within about `timeout_seconds` even if MLflow hangs. What is left is exported after the next start."""
        self._stopping.set()
        if self._client is not None:
            self._client.close()  # wakes a thread that waits for an answer
        for thread in self._threads:
            thread.join(timeout_seconds)

    def export_runs(self) -> None:
        """One round over runs and points. Raises `Unavailable` when MLflow is away."""
        mlflow = self._mlflow()
        for run in self._ledger.runs_to_open():
            self._step(run.run_id, lambda run=run: self._open(mlflow, run))  # type: ignore[misc]
        for run in self._ledger.runs_to_reopen():
            self._step(run.run_id, lambda run=run: self._reopen(mlflow, run))  # type: ignore[misc]
        while self._export_points(mlflow):
            pass
        for end in self._ledger.runs_to_close():
            self._step(end.run_id, lambda end=end: self._close(mlflow, end))  # type: ignore[misc]

    def export_models(self) -> None:
        """One round over model versions. Raises `Unavailable` when MLflow is away."""
        mlflow = self._mlflow()
        for pending in self._ledger.versions_to_register():
            self._step(pending.run.run_id, lambda pending=pending: self._register(mlflow, pending))  # type: ignore[misc]
