"""How long the preflight of a 400-cell notebook takes inside a warm process."""

from __future__ import annotations

import time
from pathlib import Path

from bench import project
from bench.figures import Figure, figure

CELLS = 400
ROUNDS = 15
GOAL_SECONDS = 0.5


def run(place: Path) -> list[Figure]:
    """One figure; every check starts the kernel's interpreter once, as it does for a user."""
    from slicelift import preflight

    root = project.make(place / "project")
    notebook = project.write_notebook(root / "long.ipynb", [_cell(number) for number in range(CELLS)])
    report = preflight.check(notebook)  # warms the imports
    if report.verdict != "ok":
        raise RuntimeError(f"the notebook of the benchmark is refused: {report.to_dict()['findings'][:3]}")
    seconds = [_timed(notebook) for _ in range(ROUNDS)]
    what = f"preflight of {CELLS} cells of six lines, in a warm process"
    return [figure("preflight-400", what, seconds, unit="s", goal=GOAL_SECONDS)]


def _timed(notebook: Path) -> float:
    from slicelift import preflight

    start = time.perf_counter()
    preflight.check(notebook)
    return time.perf_counter() - start


def _cell(number: int) -> str:
    """Six lines, as people write them: a function, a loop over what it gives, a use of the cell before."""
    before = f"total_{number - 1}" if number else "0"
    return "\n".join(
        [
            f"def area_{number}(radius, *, scale=1.0):",
            "    return scale * 3.14159 * radius**2",
            f"total_{number} = {before}",
            "for radius in range(10):",
            f"    total_{number} += area_{number}(radius, scale=0.5)",
            f'print(f"cell {number}: {{total_{number}:.3f}}")',
        ]
    )
