"""What is known while the cells are walked through in order."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slicelift.models import Finding, LinePlace, Severity
from slicelift.notebook.pieces import Capture, Piece


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A source text that is being translated: which cell of which file, and where its lines come from.

    `lines` maps its own lines to the cell's; None means they are the cell's own.
    """

    cell: int
    file: str | None = None
    lines: tuple[int, ...] | None = None
    captures: tuple[Capture, ...] = ()

    def place(self, line: int) -> LinePlace:
        """The place of line `line` (from 1) of this text."""
        if self.lines is None:
            return LinePlace(cell=self.cell, line=line, file=self.file)
        known = self.lines[min(line, len(self.lines)) - 1] if self.lines else 1
        return LinePlace(cell=self.cell, line=known, file=self.file)


@dataclass(frozen=True, kw_only=True)
class Child:
    """A Python file that `%run` starts; `path` is relative to the project root."""

    path: str
    text: str
    tree: ast.Module
    shared: bool = False


class Expand(Protocol):
    """How a source text becomes pieces; what a magic holds goes the same way again."""

    def __call__(self, walk: Walk, source: str, *, unit: Unit) -> list[Piece]:
        """Translate `source`, whose lines come from `unit`."""
        ...


@dataclass(kw_only=True)
class Outcome:
    """What stands for a magic: lines, or whole pieces, which only the top level of a cell can take."""

    lines: list[str] = field(default_factory=list)
    pieces: list[Piece] | None = None


@dataclass(kw_only=True)
class Walk:
    """The state of the walk: names bound so far, the working directory (None: unknown), what was recorded.

    `lost` are names that something refused or nested would bind: never reported as undefined.
    """

    root: Path
    folder: str | None
    start: Path
    expand: Expand
    bound: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    scripts: list[Child] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    running: tuple[Path, ...] = ()
    captured: int = 0

    def resolve(self, path: str) -> Path | None:
        """The absolute place of a path used now; None when the working directory is unknown."""
        if self.folder is None and not os.path.isabs(path):  # noqa: PTH117
            return None
        return Path(os.path.normpath(os.path.join(self.folder or "", os.path.expanduser(path))))  # noqa: PTH111, PTH118

    def relative(self, path: Path) -> str | None:
        """The path from the project root, POSIX style; None for one outside."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def note(self, code: str, place: LinePlace, *, message: str) -> None:
        """Record a note."""
        self.add(code, Severity.NOTE, place=place, message=message)

    def add(
        self, code: str, severity: Severity, *, place: LinePlace, message: str, fix: str | None = None
    ) -> None:
        """Record a finding at a place."""
        self.findings.append(
            Finding(
                code=code,
                severity=severity,
                message=message,
                cell=place.cell,
                line=place.line,
                file=place.file,
                fix=fix,
            )
        )
