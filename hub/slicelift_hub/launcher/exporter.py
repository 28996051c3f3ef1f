"""Brings MLflow up to what the ledger knows, whenever MLflow answers: runs, points, ends, model versions.

Every step asks the ledger what is missing, tells MLflow, and marks it. A kill between the last two repeats the
step, which changes nothing in MLflow. Two threads, so that the upload of a large model does not hold up the
points of other runs; neither ever blocks whoever writes into the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TypeVar

from slicelift import registry, tracking
from slicelift.errors import SliceliftError, Unavailable
from slicelift.runtime.mlflow_ids import local_run_id
from slicelift.tracking import Mlflow, RunGone
from slicelift.tracking_account import NO_ACCOUNT, Account

from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.ledger_export import ClosingRun, ExportBatch, PendingVersion, TrackedRun
from slicelift_hub.launcher.mlflow_server import TrackerState
from slicelift_hub.launcher.series import MAX_BUCKETS, Fold

_T = TypeVar("_T")
_Known = TrackedRun | ClosingRun | ExportBatch
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
# the two threads: what rests in one goes on in the other
_RUNS, _MODELS = "runs", "models"


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """A run that could not be told, and when it is tried again (monotonic seconds)."""

    until: float
    why: str


class Exporter:
    """One per launcher. `changed` is called with a run id, from a thread of the exporter, after each step that
    a user can see (MLflow's run id known, version registered). Each run is told under the account of its owner, so
    that MLflow gives it to nobody else.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        tracker: Callable[[], TrackerState],
        blob_path: Callable[[str, str], Path],
        changed: Callable[[str], None],
        account_of: Callable[[str], Account] = lambda _owner: NO_ACCOUNT,
    ) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._blob_path = blob_path
        self._changed = changed
        self._account_of = account_of
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: dict[str, Mlflow] = {}
        self._clients_url = ""
        self._client_lock = threading.Lock()
        self._rests: dict[tuple[str, str], _Rest] = {}
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
        for client in list(self._clients.values()):
            client.close()  # wakes a thread that waits for an answer
        for thread in self._threads:
            thread.join(timeout_seconds)

    def export_runs(self) -> None:
        """One round over runs and points. Raises `Unavailable` when MLflow is away."""
        for run in self._ledger.runs_to_open():
            self._step(_RUNS, run, self._open, run)
        for run in self._ledger.runs_to_reopen():
            self._step(_RUNS, run, self._reopen, run)
        while not self._stopping.is_set() and self._export_points():
            pass
        for end in self._ledger.runs_to_close():
            self._step(_RUNS, end, self._close, end)

    def export_models(self) -> None:
        """One round over model versions. Raises `Unavailable` when MLflow is away."""
        for pending in self._ledger.versions_to_register():
            self._step(_MODELS, pending.run, self._register, pending)

    def fault(self, run_id: str) -> str:
        """Why MLflow lacks something of this run that it was told; "" while all goes well. Never blocks."""
        rests = (self._rests.get((lane, run_id)) for lane in (_RUNS, _MODELS))
        return next((rest.why for rest in rests if rest is not None), "")

    def _repeat(self, work: Callable[[], None]) -> None:
        """Run `work` every half second while MLflow is up, less often after a failure; never ends by one."""
        failures = 0
        while not self._stopping.is_set():
            if self._tracker().status == "up":
                try:
                    work()
                    failures = 0
                except Unavailable as error:
                    failures += 1
                    _log.info("MLflow: %s", error.message)
                except Exception:  # noqa: BLE001 - whatever it is, the next round must come
                    failures += 1
                    _log.exception("The export to MLflow failed; it is tried again")
            self._stopping.wait(min(_INTERVAL_SECONDS * 2 ** min(failures, 10), _LONGEST_PAUSE_SECONDS))

    def _mlflow(self, owner: str) -> Mlflow:
        """The way to MLflow under an owner's account; one for all where MLflow asks nobody who they are."""
        url, account = self._tracker().url, self._account_of(owner)
        with self._client_lock:
            if self._clients_url != url:
                self._clients, self._clients_url = {}, url
            if account.name not in self._clients:
                self._clients[account.name] = Mlflow(url, account)
            return self._clients[account.name]

    def _step(self, lane: str, run: _Known, work: Callable[[Mlflow, _T], None], subject: _T) -> None:
        """One step for one run, so that a run that cannot be told, for whatever reason, holds up no other."""
        if run.run_id in self._resting(lane):
            return
        try:
            mlflow = self._mlflow(run.owner)
            try:
                work(mlflow, subject)
            except RunGone:
                self._make_again(mlflow, run.run_id)
        except Unavailable as fault:
            if fault.code != "tracker-fault":
                raise
            self._rest(lane, run.run_id, why=fault.message, seconds=_LONGEST_PAUSE_SECONDS)
        except SliceliftError as refusal:
            self._rest(lane, run.run_id, why=refusal.message, seconds=_REST_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever one run brings about, the others are told
            _log.exception("The export of %s failed", run.run_id)
            message = f"The export to MLflow failed ({type(error).__name__}); the launcher's log says more."
            self._rest(lane, run.run_id, why=message, seconds=_REST_SECONDS)
        else:
            self._recover(lane, run.run_id)

    def _resting(self, lane: str) -> set[str]:
        now = time.monotonic()
        rests = list(self._rests.items())
        return {run_id for (of, run_id), rest in rests if of == lane and rest.until > now}

    def _rest(self, lane: str, run_id: str, *, why: str, seconds: float) -> None:
        before = self.fault(run_id)
        self._rests[(lane, run_id)] = _Rest(until=time.monotonic() + seconds, why=why)
        _log.warning("MLflow does not take %s (tried again in %d s): %s", run_id, seconds, why)
        if self.fault(run_id) != before:
            self._changed(run_id)

    def _recover(self, lane: str, run_id: str) -> None:
        if self._rests.pop((lane, run_id), None) is not None:
            self._changed(run_id)

    def _open(self, mlflow: Mlflow, run: TrackedRun) -> None:
        self._ledger.set_mlflow_run(run.run_id, tracking.open_run(mlflow, run))
        self._changed(run.run_id)

    def _reopen(self, mlflow: Mlflow, run: TrackedRun) -> None:
        tracking.reopen_run(mlflow, run.mlflow_run_id or "", attempt=run.attempt)
        self._ledger.mark_reopened(run.run_id, run.attempt)

    def _export_points(self) -> bool:
        """The oldest batches, one call per run as far as possible; whether there may be more."""
        batches = self._ledger.batches_to_export(_BATCHES, without=self._resting(_RUNS))
        by_run = sorted(batches, key=lambda batch: batch.run_id)  # stable: in order within a run
        for _, mine in groupby(by_run, key=lambda batch: batch.run_id):
            listed = list(mine)
            self._step(_RUNS, listed[0], self._export_run, listed)
        return len(batches) == _BATCHES

    def _export_run(self, mlflow: Mlflow, batches: list[ExportBatch]) -> None:
        run_id = batches[0].run_id
        try:
            skip_faults = self._faults.get(run_id, 0) >= _FAULTS
            refused = _send(mlflow, run_id, batches, skip_faults=skip_faults)
        except Unavailable as fault:
            if fault.code == "tracker-fault":
                self._faults[run_id] = self._faults.get(run_id, 0) + 1
            raise
        self._faults.pop(run_id, None)
        self._ledger.mark_exported([batch.batch_id for batch in batches])
        if refused:
            _log.warning("MLflow refused %d points of %s, such as %s", len(refused), run_id, refused[0])

    def _close(self, mlflow: Mlflow, end: ClosingRun) -> None:
        """Tell the end; before it, tag the versions that the job registered by its own mlflow code."""
        run = self._ledger.tracked_run(end.run_id)
        if run is not None:
            self._adopt(mlflow, run, end.mlflow_run_id)
        tracking.close_run(mlflow, end.mlflow_run_id, status=end.status, reason=end.reason, ended=end.ended)
        self._ledger.mark_closed(end.run_id, end.attempt)
        self._changed(end.run_id)

    def _adopt(self, mlflow: Mlflow, run: TrackedRun, mlflow_run_id: str) -> None:
        tags = registry.version_tags(tracking.run_tags(run))
        runs = [mlflow_run_id, *tracking.child_runs(mlflow, mlflow_run_id)]
        try:
            found = registry.adopt_versions(mlflow, runs, tags=tags)
        except Unavailable:
            raise
        except SliceliftError as refusal:  # its files are gone or elsewhere: no reason to leave the run open
            _log.warning("A version that %s registered could not be tagged: %s", run.run_id, refusal)
            return
        for view in found:
            known = {"name": view.name, "version": view.version}
            self._ledger.note_version(run, **known, tags=view.tags, created=view.created)

    def _register(self, mlflow: Mlflow, pending: PendingVersion) -> None:
        view = registry.register(mlflow, self._version_request(pending))
        self._ledger.mark_registered(pending.id, version=view.version, tags=view.tags)
        self._changed(pending.run.run_id)

    def _version_request(self, pending: PendingVersion) -> registry.VersionRequest:
        run, meta = pending.run, pending.meta
        blobs = [(item, self._blob_path(run.owner, item.sha256)) for item in pending.files]
        return registry.VersionRequest(
            name=pending.name,
            run_id=run.run_id,
            mlflow_run_id=run.mlflow_run_id or "",
            files=tuple(registry.ModelFile(path=f.path, blob=blob, sha256=f.sha256) for f, blob in blobs),
            digest=str(meta.get("model_digest", "")),
            weights_file=str(meta.get("weights_file", "")),
            tags=registry.version_tags(tracking.run_tags(run)),
        )

    def _make_again(self, mlflow: Mlflow, run_id: str) -> None:
        """A run that was deleted in MLflow, or whose database was: a new one with what the ledger still has.

        The ledger is told last, so that after a crash in between the same new run is found by its tag.
        """
        run = self._ledger.tracked_run(run_id)
        if run is None:
            return
        mlflow_run_id = tracking.open_run(mlflow, run)
        for attempt in range(1, run.attempt + 1):
            folds, _ = self._ledger.load_fold(f"{run_id}-{attempt}")
            tracking.log_points(mlflow, mlflow_run_id, list(_points_of_folds(folds)))
        self._ledger.set_mlflow_run(run_id, mlflow_run_id)
        _log.warning("MLflow had lost %s; it is there again as %s", run_id, mlflow_run_id)
        self._changed(run_id)


def _send(
    mlflow: Mlflow, run_id: str, batches: list[ExportBatch], *, skip_faults: bool
) -> list[tracking.Point]:
    """Write batches of one run; the points that MLflow refused for good."""
    run = batches[0].mlflow_run_id
    points = [point for batch in batches for point in tracking.points_of(batch.lines, rank=batch.rank)]
    refused = tracking.log_points(mlflow, run, points, skip_faults=skip_faults)
    words: dict[str, dict[str, str]] = {"param": {}, "tag": {}}
    for line in chain.from_iterable(batch.lines for batch in batches):
        if line["k"] in words:
            words[line["k"]] |= {key: _real(str(value), run_id, run) for key, value in line["p"].items()}
    tracking.log_params(mlflow, run, words["param"])
    tags = {key: value for key, value in words["tag"].items() if not key.startswith(_RESERVED_TAGS)}
    tracking.set_tags(mlflow, run, tags)
    return refused


def _real(text: str, run_id: str, mlflow_run_id: str) -> str:
    """MLflow's own code writes run ids into tags; the job knows its run by another one."""
    return text.replace(local_run_id(run_id), mlflow_run_id)


def _points_of_folds(folds: dict[tuple[int, str], bytes]) -> Iterator[tracking.Point]:
    """What the ledger's bounded series still hold, as points."""
    for (rank, key), data in folds.items():
        points = Fold.from_bytes(data).points(limit=8 * MAX_BUCKETS)
        lines = [{"k": "m", "t": when, "s": step, "m": {key: value}} for step, when, value in points]
        yield from tracking.points_of(lines, rank=rank)
