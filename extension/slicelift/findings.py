"""The preflight's findings for reading: by cell, each with its line of source and its fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from slicelift.models import place_text

Entry = Mapping[str, Any]
_ORDER = {"error": 0, "warning": 1, "note": 2}


def finding_lines(findings: Sequence[Entry]) -> list[str]:
    """Grouped by place in the notebook's order; an entry is a finding with its `source` line."""
    lines: list[str] = []
    for place, group in groupby(sorted(findings, key=_position), key=_place):
        lines.append(place)
        for finding in sorted(group, key=_by_severity):
            lines.extend(_told(finding))
    return lines


def counted(findings: Sequence[Entry]) -> str:
    """`2 errors, 1 warning`; empty when there is nothing."""
    counts = [(name, sum(1 for item in findings if item["severity"] == name)) for name in _ORDER]
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts if count)


def _position(finding: Entry) -> tuple[str, int]:
    cell = finding.get("cell")
    return str(finding.get("file") or ""), -1 if cell is None else int(cell)


def _place(finding: Entry) -> str:
    cell, file = finding.get("cell"), finding.get("file")
    return place_text(int(cell), file=file) if cell is not None else (file or "the notebook")


def _by_severity(finding: Entry) -> tuple[int, int]:
    return _ORDER[str(finding["severity"])], int(finding.get("line") or 0)


def _told(finding: Entry) -> list[str]:
    line = finding.get("line")
    where = f"line {line}: " if line else ""
    told = [f"  {finding['severity']:<7} {where}{finding['message']}  [{finding['code']}]"]
    if finding.get("source"):
        told.append(f"          | {finding['source']}")
    if finding.get("fix"):
        told.append(f"          → {finding['fix']}")
    return told
