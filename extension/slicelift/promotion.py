"""From a notebook to an accepted job: the other rooms called in order, and side by side where they may be.

Nothing is decided here that a room decides: the preflight refuses notebooks, the snapshot refuses data,
the launcher refuses gangs. What is here is the order, the promotion id, and what to do when the launcher
goes away between two steps.
"""

from __future__ import annotations

import re
import secrets as random_source
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slicelift.errors import NotFound, Refused, SliceliftError, Unavailable, UserError
from slicelift.models import JobSpec, RunView, Severity, Snapshot, to_dict

if TYPE_CHECKING:
    from slicelift.launcher_client import Client
    from slicelift.preflight import Report
    from slicelift.snapshot import Project

T = TypeVar("T")

RETRY_SECONDS = 60.0
_ID_LENGTH, _TIME_LENGTH = 20, 9
# Base32's characters in ASCII order, so that a later id sorts later.
_ALPHABET = "234567abcdefghijklmnopqrstuvwxyz"
_ID = re.compile(rf"p-[{_ALPHABET}]{{{_ID_LENGTH}}}")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that is done, told while the rest goes on. `seconds` is the time that it took by itself."""

    name: str
    text: str
    seconds: float = 0.0


Progress = Callable[[Step], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for. `parameters` are overrides, as text or as values of the default's type.

    None and "" mean what the preset or the notebook says.
    """

    notebook: Path
    workers: int | None = None
    slice: str | None = None
    gpus_per_worker: int | None = None
    queue: str = "default"
    preset: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    model_name: str | None = None
    python: str | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All of a promotion that is known before the launcher has heard of it."""

    report: Report
    project: Project
    snapshot: Snapshot
    spec: JobSpec
    proof: DataProof | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A dry run. What only a launcher can tell is None while none runs, and `notes` say so.

    `missing` are the files that would be uploaded; `position` counts jobs ahead + 1.
    """

    prepared: Prepared
    missing: tuple[SnapshotFile, ...] | None = None
    manifest: Mapping[str, Any] | None = None
    position: int | None = None
    capacity: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def silent(_: Step) -> None:
    """Progress that nobody listens to."""


def promote(
    notebook: str | Path,
    *,
    workers: int | None = None,
    slice: str | None = None,  # noqa: A002 - the field's own word
    gpus_per_worker: int | None = None,
    queue: str = "default",
    preset: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    name: str | None = None,
    model_name: str | None = None,
    python: str | None = None,
    secrets: Sequence[str] = (),
    promotion_id: str | None = None,
    home: Path | None = None,
    on_progress: Progress = silent,
) -> RunView:
    """Run a notebook as a gang: check, snapshot, prove the data, submit. Returns once the job is accepted.

    `parameters` override the notebook's, `secrets` are names in the launcher's store. The launcher of `home`
    is started if none runs. Repeating a call with the same `promotion_id` makes no second job. Raises
    `Refused` (`preflight-refused` with the findings in `detail`, `data-modified`, ...), `UserError`, or
    `Unavailable` when the launcher stays away for `RETRY_SECONDS`.
    """
    request = Request(
        notebook=Path(notebook),
        workers=workers,
        slice=slice,
        gpus_per_worker=gpus_per_worker,
        queue=queue,
        preset=preset,
        parameters=parameters or {},
        name=name,
        model_name=model_name,
        python=python,
        secrets=tuple(secrets),
    )
    return submit(request, promotion_id=promotion_id, home=home, on_progress=on_progress)


def submit(
    request: Request,
    *,
    promotion_id: str | None = None,
    home: Path | None = None,
    on_progress: Progress = silent,
) -> RunView:
    """`promote` for a request that is put together already."""
    from slicelift.launcher_client import ensure  # httpx takes a quarter of a second

    identity = checked_id(promotion_id) if promotion_id else mint_id()
    # a cold launcher takes a second: it starts while the notebook is checked
    starting = _Background(lambda: ensure(home))
    prepared = prepare(request, on_progress=on_progress)
    client = _timed("launcher", starting.result, say=on_progress, text=_launcher_text)
    return _deliver(prepared, identity, client=client, again=lambda: ensure(home), say=on_progress)


def plan(request: Request, *, home: Path | None = None, on_progress: Progress = silent) -> Plan:
    """Everything that `submit` would do, without a job. Starts no launcher.

    The snapshot's commit is made in the repository, as a promotion does. Raises what `submit` raises.
    """
    from slicelift.launcher_client import find

    prepared = prepare(request, on_progress=on_progress)
    try:
        client = find(home)
        answer = client.plan(prepared.spec)
        missing = set(client.offer_snapshot(prepared.snapshot))
    except Unavailable as fault:
        return Plan(prepared=prepared, notes=(f"{fault.message} Position and manifest are not known.",))
    files = {item.sha256: item for item in prepared.snapshot.files if item.sha256 in missing}
    return Plan(prepared=prepared, missing=tuple(files.values()), **answer)


def prepare(request: Request, *, on_progress: Progress = silent) -> Prepared:
    """Check the notebook, take the snapshot, prove the data; tells the launcher nothing."""
    from slicelift.snapshot import environment, find_project

    # read once: what was checked is what travels, whatever is saved meanwhile
    content = read_notebook(request.notebook)
    finding = _Background(lambda: find_project(request.notebook))
    preset = _chosen_preset(request)
    report = _timed(
        "preflight",
        lambda: check(
            request.notebook, python=request.python, parameters=request.parameters, content=content
        ),
        say=on_progress,
        text=_checked_text,
    )
    refuse_errors(report)
    project = finding.result()
    workers = preset.workers if request.workers is None else request.workers
    environment.check(report.environment, workers=workers)
    return _snapshot(request, report, project=project, preset=preset, content=content, say=on_progress)
