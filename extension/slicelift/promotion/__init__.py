"""From a notebook to an accepted job: the other rooms called in order, and side by side where they may be.

Nothing is decided here that a room decides: the preflight refuses notebooks, the snapshot refuses data,
the launcher refuses gangs. What is here is the order, the promotion id, and what to do when the launcher
goes away between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.errors import Unavailable
from slicelift.models import RunView, SnapshotFile
from slicelift.notebook.document import read_bytes as read_notebook
from slicelift.promotion.delivery import deliver
from slicelift.promotion.preparing import (
    Background,
    Prepared,
    accepted,
    check,
    finding_rows,
    freeze,
    prepare,
)
from slicelift.promotion.request import Progress, Request, Step, checked_id, mint_id, silent

__all__ = [
    "Plan",
    "Prepared",
    "Progress",
    "Request",
    "Step",
    "accepted",
    "check",
    "finding_rows",
    "mint_id",
    "plan",
    "promote",
    "read_notebook",
    "submit",
]


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
    frozen = freeze(request)
    # a cold launcher takes seconds: it starts while the notebook is checked
    starting = Background(
        lambda: ensure(home, on_progress=lambda text: on_progress(Step(name="launcher", text=text)))
    )
    try:
        prepared = prepare(frozen, on_progress=on_progress)
    except BaseException:
        Background(lambda: starting.result().close())
        raise
    first = [starting]
    return deliver(
        prepared,
        identity,
        connect=lambda: first.pop().result() if first else ensure(home),
        say=on_progress,
    )


def plan(request: Request, *, home: Path | None = None, on_progress: Progress = silent) -> Plan:
    """Everything that `submit` would do, without a job. Starts no launcher.

    The snapshot's commit is made in the repository, as a promotion does. Raises what `submit` raises.
    """
    from slicelift.launcher_client import find

    prepared = prepare(freeze(request), on_progress=on_progress)
    try:
        with find(home) as client:
            answer = client.plan(prepared.spec)
            missing = set(client.offer_snapshot(prepared.snapshot))
    except Unavailable as fault:
        return Plan(prepared=prepared, notes=(f"{fault.message} Position and manifest are not known.",))
    files = {item.sha256: item for item in prepared.snapshot.files if item.sha256 in missing}
    return Plan(prepared=prepared, missing=tuple(files.values()), **answer)
