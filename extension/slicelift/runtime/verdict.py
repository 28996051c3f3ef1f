"""How an attempt ended, in the words of exit.json: status, exit code, reason, and the failure that came first."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slicelift.errors import SliceliftError
from slicelift.models import (
    Failure,
    JobSpec,
    LinePlace,
    Status,
    locate,
    map_traceback,
    places_from_json,
    to_dict,
)
from slicelift.runtime.folder import AttemptFolder, read_object
from slicelift.runtime.masking import mask

# the reason of a job that was ended because the launcher told its agent so
CANCELLED = "cancelled by the launcher"
# the exit code of a pod of which the cluster must make no other: starting the same thing again cannot help
HOPELESS = 78
_OUT_OF_MEMORY = "was killed by SIGKILL; if nobody did that, the kernel's out-of-memory killer is the usual cause: see dmesg"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The end of an attempt, on one node. `reason` is a stable word, empty for a job that simply finished.

    `time` is when what is told of happened (Unix seconds), `echo` says that another node's end was the cause: so the
    launcher finds the first trigger of a whole gang.
    """

    status: Status
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    failure: Failure | None = None
    time: float | None = None
    echo: bool = False

    def to_exit(self, *, ended_processes: int = 0) -> dict[str, Any]:
        """The content of exit.json."""
        now = time.time()
        return {**to_dict(self), "time": self.time or now, "ended": now, "ended_processes": ended_processes}

    def masked(self, secrets: Iterable[str]) -> Verdict:
        """The same without the values of `secrets`."""
        values = tuple(secrets)
        failure = self.failure and replace(
            self.failure,
            message=mask(self.failure.message, values),
            source=mask(self.failure.source, values),
            traceback=mask(self.failure.traceback, values),
        )
        return replace(self, message=mask(self.message, values), failure=failure)


def judge(folder: AttemptFolder, spec: JobSpec, exit_code: int) -> Verdict:
    """The verdict on a gang that ended by itself, from what it and its ranks left; `exit_code` is the gang's own."""
    told = read_object(folder.gang)
    if not told:
        return _gang_lost(folder, spec, exit_code)
    code = int(told.get("exit_code", exit_code))
    failures = told.get("failures") or []
    if code == 0 and not failures:
        return Verdict(status=Status.FINISHED, exit_code=0)
    row = failures[0] if failures else {"exit_code": code}
    code = row.get("exit_code") or code
    failure = _failure(row, folder, spec)
    return Verdict(
        status=Status.FAILED,
        exit_code=code,
        reason=str(row.get("reason") or "rank-failed"),
        message=failure.message,
        failure=failure,
        time=row.get("time"),
        echo=bool(row.get("echo", False)),
    )


def fault(error: SliceliftError) -> Verdict:
    """The verdict on a job whose agent could not start it."""
    message = f"{error.message} {error.hint}".strip()
    return Verdict(status=Status.FAILED, reason=error.code, message=message, failure=Failure(message=message))


def os_fault(error: OSError, root: Path) -> Verdict:
    """A job whose folder `root` could not be written."""
    full = error.errno in (28, 122)
    return fault(
        SliceliftError(
            "disk-full" if full else "agent-failed",
            f"The job could not be prepared in {root}: {error}.",
            "Free space there, then `slicelift retry`." if full else "The agent's log may say more.",
        )
    )


def cancelled(reason: str, exit_code: int | None) -> Verdict:
    """The verdict on a job that was told to end."""
    return Verdict(status=Status.KILLED, exit_code=exit_code, reason=reason, message=reason)


def data_changed(paths: list[str], before: Verdict) -> Verdict:
    """The verdict when the job's data is not what it was; it stands above how the ranks ended."""
    names = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    message = (
        f"Data of the job was changed while it ran: {names}. Its results cannot be trusted. "
        "Write to ./outputs, or copy the data before changing it."
    )
    failure = before.failure or Failure(message=message)
    return replace(before, status=Status.FAILED, reason="data-changed", message=message, failure=failure)


def words(exit_code: int) -> str:
    """What an exit code means, continuing "rank 1 ..."."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return _OUT_OF_MEMORY
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _gang_lost(folder: AttemptFolder, spec: JobSpec, exit_code: int) -> Verdict:
    """The gang's own process ended without a result: the earliest rank's error, if any, else its exit code."""
    errors = [read_object(path) for path in sorted((folder.root / "errors").glob("*.json"))]
    errors = sorted((error for error in errors if error), key=lambda error: float(error.get("time", 0)))
    if errors:
        row = {"rank": errors[0].get("rank"), "exit_code": 1, "error": errors[0]}
        failure = _failure(row, folder, spec)
    else:
        failure = Failure(message=f"The process that runs the gang {words(exit_code)}.", exit_code=exit_code)
    reason = "rank-failed" if errors else "gang-failed"
    return Verdict(
        status=Status.FAILED, exit_code=exit_code, reason=reason, message=failure.message, failure=failure
    )


def _failure(row: dict[str, Any], folder: AttemptFolder, spec: JobSpec) -> Failure:
    error = row.get("error") or {}
    rank, code = row.get("rank"), row.get("exit_code")
    exception = str(error.get("exception") or row.get("exception") or "")
    text = str(error.get("text") or row.get("message") or "")
    places = _places(folder, spec)
    place, source = _place(error.get("frames") or [], folder.workspace / spec.script, places)
    stack = str(((error.get("message") or {}).get("extraInfo") or {}).get("py_callstack") or "")
    return Failure(
        message=_sentence(rank, code, exception=exception, text=text),
        rank=rank,
        exit_code=code,
        exception=exception,
        cell=place.cell if place else None,
        line=place.line if place else None,
        file=(place.file or spec.notebook) if place else None,
        source=source,
        traceback=map_traceback(stack, spec.script, places=places, notebook=spec.notebook),
    )


def _sentence(rank: int | None, code: int | None, *, exception: str, text: str) -> str:
    who = "The gang" if rank is None else f"Rank {rank}"
    if exception:
        return f"{who} raised {exception}: {text}" if text else f"{who} raised {exception}"
    if isinstance(code, int):
        return f"{who} {words(code)}."
    return text or f"{who} failed."


def _places(folder: AttemptFolder, spec: JobSpec) -> tuple[LinePlace | None, ...]:
    path = (folder.workspace / spec.script).with_suffix(".map.json")
    try:
        return places_from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return ()


def _place(
    frames: list[dict[str, Any]], script: Path, places: tuple[LinePlace | None, ...]
) -> tuple[LinePlace | None, str]:
    """Where in the notebook the innermost mapped frame stands, and that line's text."""
    for frame in reversed(frames):
        if frame.get("file") == str(script) and isinstance(frame.get("line"), int):
            place = locate(places, frame["line"])
            if place is not None:
                return place, str(frame.get("source", ""))
    return None, ""
