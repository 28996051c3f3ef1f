"""The output of a run as it is saved in a notebook: our MIME type, a complete page, and plain text.

Whoever opens the notebook without the extension, or without a launcher, reads the page: it needs no script, no style
sheet and no network. The card of the extension begins with the data of our type and goes on from the launcher's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from slicelift.figures import (
    MEMORY,
    RATES,
    STEP_KEY,
    by_rank,
    duration,
    exact,
    figure,
    number,
    plural,
    user_metrics,
)
from slicelift.models import SUSPENDED, RunView, Status, from_dict, to_dict
from slicelift.sentences import elapsed, sentence
from slicelift.widgets.page import Page, Row, html, list_html

MIME = "application/vnd.slicelift.run+json"
JOBS_MIME = "application/vnd.slicelift.jobs+json"
VERSION = 1
# of all curves together: an output that is saved must stay small
MOST_POINTS = 300
_MOST_KEYS, _MOST_ROWS = 6, 9
_WORDS = {
    Status.WAITING: "Waiting",
    Status.STARTING: "Starting",
    Status.RUNNING: "Running",
    Status.CANCELLING: "Cancelling",
    Status.FINISHED: "Done",
    Status.FAILED: "Failed",
    Status.KILLED: "Cancelled",
    Status.UNKNOWN: "Unknown",
}

Series = Mapping[str, Any]


def make_bundle(
    view: RunView | Mapping[str, Any], series: Sequence[Series] = (), *, now: float | None = None
) -> dict[str, Any]:
    """MIME type -> data: what a notebook keeps of a run.

    `view` is a RunView or its JSON, `series` rows of the launcher's series, of which at most `MOST_POINTS` points stay.
    `now` (Unix seconds) is when a run that goes on was seen so. Pure; the same input makes the same output once the run
    is over.
    """
    run = view if isinstance(view, RunView) else _revived(view)
    kept = _kept(series, _keys(run, series))
    moment = time.time() if now is None else now
    data = {"version": VERSION, "run_id": run.run_id, "view": exact(to_dict(run)), "series": exact(kept)}
    page = _page(run, kept, now=moment)
    return {MIME: data, "text/html": html(page), "text/plain": _plain(page)}


def make_list_bundle(views: Sequence[RunView], *, now: float | None = None) -> dict[str, Any]:
    """MIME type -> data: the list of jobs, live where our extension is, elsewhere as it stood at `now` (Unix seconds)."""
    moment = time.time() if now is None else now
    rows = [(state_word(view.status, view.reason), view.name, view.run_id, sentence(view)) for view in views]
    lines = [" ".join(row[:3]) + ": " + row[3] for row in rows] or ["No job yet."]
    return {
        JOBS_MIME: {"version": VERSION},
        "text/html": list_html(rows, seen=moment),
        "text/plain": "\n".join(lines),
    }


def state_word(status: Status, reason: str = "") -> str:
    """One word for a status, as the card says it; `reason` tells a suspended run from a cancelled one."""
    return "Suspended" if status is Status.KILLED and reason.startswith(SUSPENDED) else _WORDS[status]


def _revived(data: Mapping[str, Any]) -> RunView:
    """From JSON, where NaN and the infinities are words."""
    latest = {key: (step, float(value)) for key, (step, value) in data.get("latest", {}).items()}
    return from_dict(RunView, {**data, "latest": latest})


def _keys(view: RunView, series: Sequence[Series]) -> list[str]:
    """A loss, throughput and memory first, as the card draws them."""
    known = {*by_rank(view).get(0, {}), *(str(row["key"]) for row in series)}
    own = [key for key in user_metrics(sorted(known)) if not key.startswith("rank/")]
    ours = [next((key for key in group if key in known), "") for group in ((*RATES, STEP_KEY), MEMORY)]
    return [key for key in (*own[:1], *ours, *own[1:]) if key]


def _kept(series: Sequence[Series], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The curves of these keys of rank 0, all attempts, newest attempts first where there are too many."""
    wanted = keys[:_MOST_KEYS]
    mine = [row for row in series if row["key"] in wanted and not row.get("rank") and row["points"]]
    mine.sort(key=lambda row: (-int(row.get("attempt") or 0), wanted.index(row["key"])))
    mine = mine[: MOST_POINTS // 10]
    budget = MOST_POINTS // max(len(mine), 1)
    return [
        {"key": row["key"], "attempt": row.get("attempt"), "rank": 0, "count": row.get("count", 0)}
        | {"points": _thinned(row["points"], budget)}
        for row in mine
    ]


def _thinned(points: Sequence[Sequence[Any]], budget: int) -> list[list[Any]]:
    """At most `budget` of them, evenly, the first and the last among them."""
    last = len(points) - 1
    chosen = range(len(points)) if last < budget else [last * i // (budget - 1) for i in range(budget)]
    return [[int(step), float(moment), float(value)] for step, moment, value in (points[i] for i in chosen)]


def _page(view: RunView, series: Sequence[Series], *, now: float) -> Page:
    seen = now if not view.status.terminal else None
    return Page(
        view=view,
        word=state_word(view.status, view.reason),
        sentence=sentence(view),
        size=_size(view),
        took=duration(elapsed(view, now=now)) if view.created else "",
        seen=seen,
        rows=_rows(view, series),
    )


def _size(view: RunView) -> str:
    """`2 workers × 1 GPU · slice 1g.10gb · queue vision · attempt 2`."""
    spec = view.spec
    gpus = f" × {spec.gpus_per_worker} GPU" if spec.gpus_per_worker else ""
    parts = [plural(spec.workers, "worker") + gpus, f"slice {spec.slice}" if spec.slice else ""]
    parts += [f"queue {spec.queue}", f"attempt {view.attempt}"]
    return " · ".join(part for part in parts if part)


def _rows(view: RunView, series: Sequence[Series]) -> list[Row]:
    latest = by_rank(view).get(0, {})
    curves = {row["key"]: row["points"] for row in series if row["attempt"] in (None, view.attempt)}
    return [
        Row(
            name=_name(key),
            value=_value(key, latest[key][1]),
            step=int(latest[key][0]),
            points=curves.get(key, ()),
        )
        for key in _keys(view, ())[:_MOST_ROWS]
        if key in latest
    ]


def _name(key: str) -> str:
    if key in RATES:
        return f"throughput ({RATES[key].partition('/')[0]})"
    return "step time" if key == STEP_KEY else MEMORY.get(key, key)


def _value(key: str, value: float) -> str:
    return f"{number(value)} {RATES[key]}" if key in RATES else figure(key, value)


def _plain(page: Page) -> str:
    view = page.view
    lines = [f"{view.name}: {page.word}. {page.sentence}", f"run {view.run_id} · {page.size}"]
    figures = " · ".join(f"{row.name} {row.value}" for row in page.rows[:4])
    return "\n".join([*lines, *([figures] if figures else [])])
