"""The newest figures of every rank, with their units, as rows for a table or as one line."""

from __future__ import annotations

from collections.abc import Mapping

from slicelift.figures import (
    MEMORY,
    RATES,
    STEP_KEY,
    WAIT_KEY,
    Latest,
    by_rank,
    figure,
    heading,
    user_metrics,
)
from slicelift.models import RunView

_SHOWN = 3


def rank_table(view: RunView) -> tuple[list[str], list[list[str]]]:
    """Headings and one row per rank; columns that no rank has are left out."""
    ranks = by_rank(view)
    keys = _columns(ranks)
    headings = ["rank", "step", *(heading(key) for key in keys)]
    rows = [
        [str(rank), _step(latest), *(_cell(key, latest) for key in keys)] for rank, latest in ranks.items()
    ]
    return headings, rows


def metrics_line(view: RunView) -> str:
    """Rank 0's figures on one line, empty before it has logged."""
    latest = by_rank(view).get(0, {})
    if not latest:
        return ""
    return f"step {_step(latest)}  " + "  ".join(_worded(key, latest) for key in _columns({0: latest}))


def _columns(ranks: Mapping[int, Latest]) -> list[str]:
    present = {key for latest in ranks.values() for key in latest}
    own = user_metrics(sorted(present))[:_SHOWN]
    ours = [key for key in (*RATES, STEP_KEY, WAIT_KEY, *MEMORY) if key in present]
    return own + ours


def _cell(key: str, latest: Latest) -> str:
    return figure(key, float(latest[key][1])) if key in latest else "-"


def _worded(key: str, latest: Latest) -> str:
    cell = _cell(key, latest)
    if key == STEP_KEY:
        return f"{cell}/step"
    if key in RATES:
        return f"{cell} {RATES[key]}"
    return f"{heading(key)} {cell}"


def _step(latest: Latest) -> str:
    """The step of the notebook's own metrics; memory is logged once a second and lags behind."""
    return str(max((int(step) for step, _ in latest.values()), default="-"))
