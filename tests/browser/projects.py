"""What a person works on: notebooks written for one test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

# the notebook's own promotion, with the card as the cell's output
PROMOTES = "import slicelift\n\n# in the job this does nothing\nrun = slicelift.promote(workers=1)\nrun"

# points come with a pause between them, for as long as a test needs
TRAINS = """
import time, slicelift
for step in range({steps}):
    slicelift.log(step=step, loss=1.0 / (step + 1), accuracy=step / {steps})
    time.sleep({pause})
print("trained to the end")
"""

# ends when a test says so, and leaves a file behind
WAITS = """
import pathlib, time, slicelift
slicelift.log(step=0, loss=1.0)
while not pathlib.Path({flag!r}).exists():
    time.sleep(0.1)
slicelift.log(step=1, loss=0.5)
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/left behind.txt").write_text("until you are back")
"""


def write_notebook(path: Path, *cells: str, outputs: Sequence[Any] = ()) -> Path:
    """Code cells, and outputs dealt out to them, as if they had been run."""
    made = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        }
    )
    made.cells = [nbformat.v4.new_code_cell(source, id=f"cell{i}") for i, source in enumerate(cells)]
    share = -(-len(outputs) // len(cells))
    for index, cell in enumerate(made.cells):
        cell.outputs = list(outputs[index * share : (index + 1) * share])
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return path
