"""`slicelift.promote`: from a notebook to a run, with the card as its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicelift.figures import duration
from slicelift.widgets.faults import told_briefly
from slicelift.widgets.place import own_notebook
from slicelift.widgets.progress import progress_line
from slicelift.widgets.shown import ShownRun

if TYPE_CHECKING:
    from slicelift.promotion import Request, Step


def promote(
    notebook: str | Path | None = None,
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
    on_progress: Callable[[Step], None] | None = None,
) -> ShownRun:
    """Run a notebook as a gang, as it is saved on disk: check, snapshot, prove the data, submit.

    `notebook` left out is the one that this kernel belongs to. Returns once the job is accepted; the result shows itself
    as the card, and the job needs neither the kernel nor the browser. `parameters` override the notebook's, `secrets` are
    names in the launcher's store. The same `promotion_id` again makes no second job. `on_progress` takes the place of the
    line that tells how far it is. Raises what `slicelift.promotion.promote` raises (`Refused` with the findings in
    `detail`, ...), and `notebook-unnamed`.
    """
    with told_briefly():
        from slicelift.promotion import Request  # preflight and snapshot: 0.2 s

        request = Request(
            notebook=own_notebook() if notebook is None else Path(notebook),
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
        return submitted(request, promotion_id=promotion_id, home=home, on_progress=on_progress)


def submitted(
    request: Request,
    *,
    promotion_id: str | None = None,
    home: Path | None = None,
    on_progress: Callable[[Step], None] | None = None,
) -> ShownRun:
    """Submit a request, telling in one line how far it is. `%promote` and `promote` both end here."""
    from slicelift.promotion import submit

    if on_progress is not None:
        view = submit(request, promotion_id=promotion_id, home=home, on_progress=on_progress)
        return ShownRun.of(view, home=home)
    begun = time.monotonic()
    with progress_line(_opening(request.notebook)) as line:
        view = submit(
            request, promotion_id=promotion_id, home=home, on_progress=lambda step: line.say(step.text)
        )
        line.end(
            f"{request.notebook.name} is run {view.run_id}, accepted in {duration(time.monotonic() - begun)}"
        )
    return ShownRun.of(view, home=home)


def _opening(notebook: Path) -> str:
    """What is on disk counts, which a user who has typed since should know."""
    try:
        age = time.time() - notebook.stat().st_mtime
    except OSError:
        return f"Promoting {notebook.name}"
    return f"Promoting {notebook.name} as it was saved {duration(age)} ago"
