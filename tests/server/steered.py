"""A backend for tests of the launcher: it runs nothing, and does what files in `<home>/steered` say.

Loaded by the launcher's own process (`--backend steered.Steered`). `submits.log` has a line per call of `submit`,
`cancels.log` per call of `cancel`, `savings.log` per one of those that gives time to save, `asked.log` per call of
`scale`, `scales.log` per number of workers that a gang was given. What the file `away` says befalls one call of `scale`:
"silent", "slow", "lost" or "done". `<attempt>.json` is what the agent would be told; `<attempt>.status` is what `status`
answers from then on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slicelift.backends.base import Attempt, Manifest, Proof
from slicelift.errors import Refused, SliceliftError, Unavailable
from slicelift.models import JobSpec, JobStatus, Status, from_dict, to_dict


class Quiet:
    """What steered backends have nothing to say about."""

    name = "steered"
    leased = True

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        return {"kind": "Steered", "name": spec.name, "workers": spec.workers}

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        return []

    def listen(self, changed: Callable[[str], None]) -> None:
        """There is never news."""

    def capacity(self) -> Mapping[str, Any] | None:
        return None


class Steered(Quiet):
    """See the module."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "steered"
        self.folder.mkdir(exist_ok=True)

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        return None

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        there = (self.folder / f"{attempt.attempt_id}.json").exists()
        return f"steered://{attempt.attempt_id}" if there else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        self._log("submits.log", attempt.attempt_id)
        if spec.name == "impossible":
            raise SliceliftError("interpreter-missing", "The interpreter is gone.", "Choose another.")
        if spec.name == "slow":
            time.sleep(1.5)
        told = {"token": attempt.token, "url": attempt.launcher_url, "slice": attempt.slice_uuid}
        (self.folder / f"{attempt.attempt_id}.json").write_text(json.dumps(told))
        return f"steered://{attempt.attempt_id}"

    def status(self, handle: str) -> JobStatus:
        path = self._status(handle)
        return (
            from_dict(JobStatus, json.loads(path.read_text()))
            if path.exists()
            else JobStatus(status=Status.RUNNING)
        )

    def cancel(self, handle: str, *, reason: str, grace_seconds: float = 10.0, saving: bool = False) -> Proof:
        self._log("cancels.log", handle)
        if saving:
            self._log("savings.log", handle)
        if (self.folder / "immortal").exists():
            return Proof(gone=False, left=("process 4711",))
        path = self._status(handle)
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_text(json.dumps(to_dict(JobStatus(status=Status.KILLED, exit_code=-15))))
            part.rename(path)
        return Proof(gone=True, killed=1)

    def scale(self, handle: str, workers: int) -> None:
        if workers == 13:
            raise Refused("bad-workers", "The gang cannot have 13 workers.", "Ask for another number.")
        self._log("asked.log", f"{handle}={workers}")
        away = self.folder / "away"
        how = away.read_text() if away.exists() else ""
        if how == "silent":
            time.sleep(60)
        if how == "slow":
            away.unlink()
            time.sleep(1)
        if how != "lost":
            self._log("scales.log", f"{handle}={workers}")
        if how in ("lost", "done"):
            away.unlink()
            raise Unavailable("cluster-away", "The API server does not answer.")

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        self._log("discards.log", handle)
        return True

    def _status(self, handle: str) -> Path:
        return self.folder / f"{handle.removeprefix('steered://')}.status"

    def _log(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text + "\n")


class Queueing(Steered):
    """The same as a cluster would: jobs queue there, and it says how full it is."""

    leased = False

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        # those of an admin, where a test has written some
        presets = self.folder / "presets.yaml"
        self.presets_file = str(presets) if presets.exists() else ""

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        self._log("plans.log", attempt.owner)
        if spec.name == "thoughtful":
            time.sleep(5)
        if spec.name == "impossible":
            raise Refused("no-such-claim", "The API server refuses it.", "Ask for another.")
        return ["It will wait: 2 of 4 GPUs are free."]

    def capacity(self) -> Mapping[str, Any] | None:
        return {"cluster": {"queues": [{"name": "default", "jobs": 3}]}}


class Placed(Queueing):
    """Its gangs have their places at once; that they run is their agents' to say."""

    def status(self, handle: str) -> JobStatus:
        if self._status(handle).exists():
            return super().status(handle)
        return JobStatus(status=Status.STARTING, workers=self._workers(handle))

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        handle = super().submit(spec, attempt)
        if spec.min_workers is not None:
            self._log("scales.log", f"{handle}={spec.workers}")
        return handle

    def _workers(self, handle: str) -> int | None:
        """How many its gang was given last."""
        log = self.folder / "scales.log"
        lines = log.read_text().split() if log.exists() else []
        given = [line.rpartition("=")[2] for line in lines if line.startswith(f"{handle}=")]
        return int(given[-1]) if given else None
