"""The newest figures of every rank, with their units, as rows for a table or as one line."""

from __future__ import annotations

from collections.abc import Mapping

from slicelift.cli.printing import number
from slicelift.cli.sentences import STEP_KEY, user_metrics
from slicelift.models import RunView, size_text

Latest = Mapping[str, tuple[int, float]]
_SHOWN = 3
_RATES = {
    "throughput_samples_per_second": "samples/s",
    "throughput_steps_per_second": "steps/s",
}
# host memory is never shown under a GPU's name
_MEMORY = {"peak_gpu_memory_bytes": "peak GPU memory", "peak_host_memory_bytes": "peak host memory"}


def by_rank(view: RunView) -> dict[int, Latest]:
    """`RunView.latest` taken apart: rank -> key -> (step, value)."""
    ranks: dict[int, dict[str, tuple[int, float]]] = {int(row["rank"]): {} for row in view.ranks}
    for name, point in view.latest.items():
        rank, key = _split(name)
        ranks.setdefault(rank, {})[key] = point
    return dict(sorted(ranks.items()))


def rank_table(view: RunView) -> tuple[list[str], list[list[str]]]:
    """Headings and one row per rank; columns that no rank has are left out."""
    ranks = by_rank(view)
    keys = _columns(ranks)
    headings = ["rank", "step", *(_heading(key) for key in keys)]
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
    ours = [key for key in (*_RATES, STEP_KEY, *_MEMORY) if key in present]
    return own + ours


def _split(name: str) -> tuple[int, str]:
    """`rank/3/loss` -> (3, loss); a name without it is rank 0's."""
    head, _, rest = name.partition("/")
    rank, _, key = rest.partition("/")
    return (int(rank), key) if head == "rank" and rank.isdigit() and key else (0, name)


def _heading(key: str) -> str:
    if key == STEP_KEY:
        return "step time"
    return _RATES.get(key) or _MEMORY.get(key) or key


def _cell(key: str, latest: Latest) -> str:
    if key not in latest:
        return "-"
    value = float(latest[key][1])
    if key in _MEMORY:
        return size_text(value)
    return _seconds(value) if key == STEP_KEY else number(value)


def _worded(key: str, latest: Latest) -> str:
    cell = _cell(key, latest)
    if key == STEP_KEY:
        return f"{cell}/step"
    if key in _RATES:
        return f"{cell} {_RATES[key]}"
    return f"{_heading(key)} {cell}"


def _seconds(value: float) -> str:
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"


def _step(latest: Latest) -> str:
    """The step of the notebook's own metrics; memory is logged once a second and lags behind."""
    return str(max((int(step) for step, _ in latest.values()), default="-"))
