"""Figures in words: durations, metrics with their names and units. The same on a terminal, a card and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicelift.models import RunView

STEP_KEY = "step_time_seconds"
RATES = {
    "throughput_samples_per_second": "samples/s",
    "throughput_steps_per_second": "steps/s",
}
# host memory is never shown under a GPU's name
MEMORY = {"peak_gpu_memory_bytes": "peak GPU memory", "peak_host_memory_bytes": "peak host memory"}
# of the time of a rank's last half minute or so (runtime/feeding.py)
WAIT_KEY = "data_wait_fraction"
_AUTOMATIC = (STEP_KEY, *RATES, *MEMORY, WAIT_KEY)

Latest = Mapping[str, tuple[int, float]]


def duration(seconds: float) -> str:
    """`0.3 s`, `12 s`, `3 min 12 s`, `1 h 02 min`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(value: object) -> str:
    """A metric's value for reading: four significant digits, NaN and infinities as themselves."""
    if not isinstance(value, int | float | str):
        return "-"
    figure = float(value)
    if not math.isfinite(figure):
        return "NaN" if math.isnan(figure) else ("∞" if figure > 0 else "-∞")
    if figure.is_integer() and abs(figure) < 1e6:
        return str(int(figure))
    return f"{figure:.4g}"


def plural(count: int, noun: str) -> str:
    """`1 cell`, `12 cells`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")


def percent(fraction: float) -> str:
    """0.639 -> `63 %`: never more than it was."""
    return f"{int(fraction * 100)} %"


def exact(value: Any) -> Any:
    """The same value in what strict JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): exact(item) for key, item in value.items()}
    return [exact(item) for item in value] if isinstance(value, list | tuple) else value


def user_metrics(keys: Mapping[str, object] | list[str]) -> list[str]:
    """The keys that the notebook logged, a loss first; ours (step time, throughput, memory, waiting) left out."""
    own = [key for key in keys if key not in _AUTOMATIC and not key.startswith("system/")]
    return sorted(own, key=lambda key: ("loss" not in key, key))


def by_rank(view: RunView) -> dict[int, Latest]:
    """`RunView.latest` taken apart: rank -> key -> (step, value)."""
    ranks: dict[int, dict[str, tuple[int, float]]] = {int(row["rank"]): {} for row in view.ranks}
    for name, point in view.latest.items():
        rank, key = _split(name)
        ranks.setdefault(rank, {})[key] = point
    return dict(sorted(ranks.items()))


def heading(key: str) -> str:
    """What a metric is called where its figure stands below: a rate by its unit."""
    if key == STEP_KEY:
        return "step time"
    if key == WAIT_KEY:
        return "waiting for data"
    return RATES.get(key) or MEMORY.get(key) or key


def figure(key: str, value: float) -> str:
    """A metric's value with its unit, as far as the heading does not say it."""
    from slicelift.models import size_text  # `slicelift --help` prints through this module

    if key in MEMORY:
        return size_text(value)
    if key == WAIT_KEY and 0 <= value <= 1:
        return percent(value)
    return _seconds(value) if key == STEP_KEY else number(value)


def _split(name: str) -> tuple[int, str]:
    """`rank/3/loss` -> (3, loss); a name without it is rank 0's."""
    head, _, rest = name.partition("/")
    rank, _, key = rest.partition("/")
    return (int(rank), key) if head == "rank" and rank.isdigit() and key else (0, name)


def _seconds(value: float) -> str:
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"
