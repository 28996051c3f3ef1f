"""A figure of a benchmark, how it is summed up from rounds, and where it is kept."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")

RESAMPLES = 4_000
SEED = 20_250  # the same rounds give the same interval


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. `goal` is an upper bound, None where a figure has none.

    `interval` is the 95 % bootstrap interval of `value`, over `rounds` rounds or pairs of rounds. `load` is
    how many processes wanted a core before the run: above 1 the times are not the program's own.
    """

    id: str
    what: str
    value: float
    unit: str
    goal: float | None = None
    interval: tuple[float, float] | None = None
    rounds: int = 1
    command: str = ""
    load: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None when there is none."""
        return None if self.goal is None else self.value <= self.goal

    def to_dict(self) -> dict[str, Any]:
        """The form kept in results.json."""
        return {**asdict(self), "met": self.met}


Statistic = Callable[[Sequence[float]], float]


def interval(values: Sequence[float], *, statistic: Statistic = statistics.median) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a statistic; rounds are drawn with replacement.

    Raises ValueError on no values. One value gives an interval of no width.
    """
    if not values:
        raise ValueError("an interval needs at least one round")
    draw = random.Random(SEED)
    means = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)]


def figure(
    identifier: str,
    what: str,
    values: Sequence[float],
    *,
    unit: str,
    goal: float | None = None,
    statistic: Statistic = statistics.median,
) -> Figure:
    """A figure from the values of its rounds: the statistic and its interval."""
    low, high = interval(values, statistic=statistic)
    return Figure(
        id=identifier,
        what=what,
        value=_short(statistic(values)),
        unit=unit,
        goal=goal,
        interval=(_short(low), _short(high)),
        rounds=len(values),
    )


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """One ratio per pair: both sides of a pair were measured one right after the other."""
    return [a / b for a, b in zip(over, under, strict=True)]


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, by the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * 95 // 100) - 1)]


def keep(
    found: Iterable[Figure], *, command: str, load: float = 0.0, path: Path = RESULTS
) -> list[dict[str, Any]]:
    """Write figures into the results file: those of the same id are replaced, the others stay."""
    rows = {row["id"]: row for row in _kept(path)}
    for item in found:
        rows[item.id] = replace(item, command=command, load=round(load, 1)).to_dict()
    ordered = [rows[identifier] for identifier in sorted(rows)]
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ordered


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """The table of docs/benchmarks.md."""
    lines = [
        "| figure | value | 95 % interval | goal | met | load | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        goal = "" if row["goal"] is None else f"≤ {row['goal']:g} {row['unit']}"
        met = {True: "yes", False: "no", None: ""}[row["met"]]
        low, high = row["interval"] or ("", "")
        lines.append(
            f"| `{row['id']}`: {row['what']} | {row['value']:g} {row['unit']} | {low:g} – {high:g} ({row['rounds']}) "
            f"| {goal} | {met} | {row['load']:g} | `{row['command']}` |"
        )
    return "\n".join(lines)


def _kept(path: Path) -> list[dict[str, Any]]:
    """What an earlier run left; a file that is no list of figures is started anew."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [row for row in rows if isinstance(row, dict) and "id" in row] if isinstance(rows, list) else []


def _short(value: float) -> float:
    """Four significant digits: more is noise."""
    return float(f"{value:.4g}")
