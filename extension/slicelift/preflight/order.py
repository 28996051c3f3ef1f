"""What the saved execution counts say about the state the notebook was left in."""

from __future__ import annotations

from collections.abc import Sequence

from slicelift.models import Finding, Severity
from slicelift.notebook.document import Cell


def check_order(cells: Sequence[Cell]) -> list[Finding]:
    """`out-of-order` for a cell run before one above it, `not-executed` for one left out. Empty cells never count."""
    real = [cell for cell in cells if cell.source.strip()]
    counts = [cell.execution_count for cell in real]
    findings: list[Finding] = []
    highest = 0
    for position, cell in enumerate(real):
        count = cell.execution_count
        if count is None:
            if any(later is not None for later in counts[position + 1 :]):
                findings.append(_not_executed(cell))
            continue
        if count < highest:
            findings.append(_out_of_order(cell, highest))
        highest = max(highest, count)
    return findings


def _out_of_order(cell: Cell, highest: int) -> Finding:
    return Finding(
        code="out-of-order",
        severity=Severity.WARNING,
        message=f"This cell was last run as [{cell.execution_count}], before a cell above it ([{highest}]).",
        cell=cell.index,
        fix="Restart the kernel and run all cells, to see what a job will see.",
    )


def _not_executed(cell: Cell) -> Finding:
    return Finding(
        code="not-executed",
        severity=Severity.NOTE,
        message="This cell was not run in this session, but it is promoted.",
        cell=cell.index,
    )
