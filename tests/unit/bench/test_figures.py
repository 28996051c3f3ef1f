"""How the benchmarks sum up rounds and keep figures; the measuring itself is `make bench`."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_figures", ROOT / "bench" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_interval_holds_the_value_and_is_the_same_every_time(figures: ModuleType) -> None:
    values = [1.0, 1.1, 0.9, 1.3, 1.05, 0.97]
    low, high = figures.interval(values)
    assert low < statistics.median(values) < high
    assert (low, high) == figures.interval(values)
    assert figures.interval([2.0]) == (2.0, 2.0)


def test_the_interval_of_a_mean_is_as_wide_as_theory_says(figures: ModuleType) -> None:
    values = [float(number % 10) for number in range(400)]
    low, high = figures.interval(values, statistic=statistics.fmean)
    expected = 2 * 1.96 * statistics.pstdev(values) / 400**0.5
    assert high - low == pytest.approx(expected, rel=0.1)


def test_no_rounds_are_no_figure(figures: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one round"):
        figures.figure("x", "x", [], unit="s")


def test_ratios_are_taken_pair_by_pair(figures: ModuleType) -> None:
    assert figures.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        figures.ratios([1.0, 2.0], [1.0])


def test_p95_is_the_nearest_rank(figures: ModuleType) -> None:
    assert figures.p95([float(number) for number in range(1, 101)]) == 95.0
    assert figures.p95([7.0]) == 7.0


@pytest.mark.parametrize(("value", "goal", "met"), [(0.4, 0.5, True), (0.6, 0.5, False), (0.6, None, None)])
def test_a_goal_is_an_upper_bound(
    figures: ModuleType, value: float, goal: float | None, met: bool | None
) -> None:
    found = figures.figure("x", "what", [value], unit="s", goal=goal)
    assert found.met is met
    assert found.to_dict() == {
        "id": "x",
        "what": "what",
        "value": value,
        "unit": "s",
        "goal": goal,
        "interval": (value, value),
        "rounds": 1,
        "command": "",
        "load": 0.0,
        "met": met,
    }


def test_a_run_replaces_its_own_figures_only(figures: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = [figures.figure("b", "b", [1.0], unit="s"), figures.figure("a", "a", [1.0], unit="s")]
    figures.keep(first, command="one", path=path)
    figures.keep([figures.figure("a", "a", [2.0], unit="s", goal=3.0)], command="two", path=path)
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [(row["id"], row["value"], row["command"], row["met"]) for row in rows] == [
        ("a", 2.0, "two", True),
        ("b", 1.0, "one", None),
    ]
    assert "| `a`: a | 2 s | 2 – 2 (1) | ≤ 3 s | yes | 0 | `two` |" in figures.markdown(rows)


def test_a_torn_results_file_is_started_anew(figures: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"id": "a", ', encoding="utf-8")
    assert len(figures.keep([figures.figure("b", "b", [1.0], unit="s")], command="c", path=path)) == 1


def test_every_listed_benchmark_is_a_module_and_runs_by_name() -> None:
    listed = subprocess.run(
        [sys.executable, "bench/run.py", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert all("def run(" in (ROOT / "bench" / f"{name}.py").read_text(encoding="utf-8") for name in names)
    refused = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, "log_share" in refused.stderr) == (2, True)
