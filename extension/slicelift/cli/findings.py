"""The preflight's findings for reading: by cell, each with its line of source and its fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from slicelift.models import Finding, to_dict

Entry = Mapping[str, Any]
_ORDER = {"error": 0, "warning": 1, "note": 2}


def as_entries(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings in the form that crosses `--json`."""
    return [to_dict(finding) for finding in findings]


def finding_lines(findings: Sequence[Entry], *, sources: Mapping[int, str] | None = None) -> list[str]:
    """Grouped by place in the notebook's order; `sources` maps a cell to its text, for the line in question."""
    shown = _without_secrets(findings, sources or {})
    lines: list[str] = []
    for place, group in groupby(sorted(findings, key=_position), key=_place):
        lines.append(place)
        for finding in sorted(group, key=_by_severity):
            lines.extend(_told(finding, shown))
    return lines


def counted(findings: Sequence[Entry]) -> str:
    """`2 errors, 1 warning`; empty when there is nothing."""
    counts = [(name, sum(1 for item in findings if item["severity"] == name)) for name in _ORDER]
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts if count)


def _without_secrets(findings: Sequence[Entry], sources: Mapping[int, str]) -> dict[int, str]:
    """No line of a cell that holds a secret is ever printed, whichever finding points at it."""
    hidden = {finding.get("cell") for finding in findings if finding["code"] == "secret-in-source"}
    return {cell: text for cell, text in sources.items() if cell not in hidden}


def _position(finding: Entry) -> tuple[str, int]:
    cell = finding.get("cell")
    return str(finding.get("file") or ""), -1 if cell is None else int(cell)


def _place(finding: Entry) -> str:
    cell, file = finding.get("cell"), finding.get("file")
    inside = f" of {file}" if file else ""
    return f"cell {cell}{inside}" if cell is not None else (file or "the notebook")


def _by_severity(finding: Entry) -> tuple[int, int]:
    return _ORDER[str(finding["severity"])], int(finding.get("line") or 0)


def _told(finding: Entry, sources: Mapping[int, str]) -> list[str]:
    line = finding.get("line")
    where = f"line {line}: " if line else ""
    told = [f"  {finding['severity']:<7} {where}{finding['message']}  [{finding['code']}]"]
    source = None if finding.get("file") else _source_line(sources, finding.get("cell"), line)
    if source:
        told.append(f"          | {source}")
    if finding.get("fix"):
        told.append(f"          → {finding['fix']}")
    return told


def _source_line(sources: Mapping[int, str], cell: int | None, line: int | None) -> str:
    if cell is None or line is None or _absent(sources.get(cell, ""), line):
        return ""
    return sources[cell].splitlines()[line - 1].rstrip()[:160]


def _absent(source: str, line: int) -> bool:
    """True when there is no such line to show."""
    return not 0 < line <= len(source.splitlines())
