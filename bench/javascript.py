"""How much JavaScript JupyterLab loads for Slicelift, compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

from bench.figures import Figure, figure

BUILT = Path(__file__).resolve().parent.parent / "extension" / "slicelift" / "labextension" / "static"
WIDGET = BUILT.parents[1] / "widgets" / "static" / "widget.js"
GOAL_KILOBYTES = 150


def run(_: Path) -> list[Figure]:
    """Every script of the built extension, each by gzip -9, in kB of 1,000 bytes."""
    scripts = sorted(BUILT.glob("*.js"))
    what = f"JavaScript of the JupyterLab extension, gzip ({len(scripts)} files)"
    return [
        figure("javascript", what, [sum(map(_kilobytes, scripts))], unit="kB", goal=GOAL_KILOBYTES),
        figure("javascript-widget", "JavaScript of the widget, gzip", [_kilobytes(WIDGET)], unit="kB"),
    ]


def _kilobytes(path: Path) -> float:
    return len(gzip.compress(path.read_bytes(), 9)) / 1000
