"""Real jobs for the benchmarks: a launcher of their own, a promotion, and what the job printed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slicelift.launcher_client import Client, ensure
from slicelift.models import RunView, Status

MARK = "BENCH "

START_SECONDS = 90
RUN_SECONDS = 600


@contextlib.contextmanager
def launcher() -> Iterator[Client]:
    """A launcher in this benchmark's own home, ended with its jobs afterwards."""
    client = ensure()
    try:
        yield client
    finally:
        client.shutdown(keep_jobs=False)


def mlflow_url(client: Client) -> str:
    """The address of the launcher's MLflow server, once it answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        tracker = client.health()["tracker"]
        if tracker["status"] == "up":
            return str(tracker["url"])
        time.sleep(0.5)
    raise RuntimeError(f"MLflow did not answer within {START_SECONDS} s: {tracker}")


def start(notebook: Path, *, parameters: Mapping[str, Any] | None = None) -> RunView:
    """Promote the notebook to a job of one worker."""
    from slicelift.promotion import promote

    return promote(notebook, workers=1, parameters=dict(parameters or {}))


def wait(client: Client, run_id: str, *, wanted: Status = Status.FINISHED) -> RunView:
    """Until the run has that status. Raises RuntimeError when it ends otherwise or takes too long."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        view = client.job(run_id)
        if view.status == wanted:
            return view
        if view.status.terminal:
            raise RuntimeError(f"the job ended {view.status}: {view.message} {view.failure}")
        time.sleep(0.1)
    raise RuntimeError(f"the job is still {view.status} after {RUN_SECONDS} s")


def measured(client: Client, notebook: Path, *, parameters: Mapping[str, Any] | None = None) -> Any:
    """Run the notebook as a job to its end and give what it printed after the mark, as JSON."""
    run = start(notebook, parameters=parameters)
    wait(client, run.run_id)
    for line in _log(client, run.run_id).splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise RuntimeError(f"the job printed no line that starts with {MARK!r}")


def attempt_token(run_id: str, *, attempt: int = 1) -> str:
    """The job token of an attempt of this home, to speak as its agent."""
    folder = Path(os.environ["SLICELIFT_HOME"]) / "attempts" / f"{run_id}-{attempt}"
    return str(json.loads((folder / "agent.json").read_text(encoding="utf-8"))["token"])


def _log(client: Client, run_id: str) -> str:
    """Whole: the run is over."""
    parts, offset = [], 0
    while (answer := client.logs(run_id, rank=0, offset=offset))[0]:
        parts.append(answer[0])
        offset = answer[1]
    return b"".join(parts).decode("utf-8", errors="replace")
