"""Projects made on the spot: a git repository with a notebook in it, and what the preflight says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.preflight import Report, check

from tests.notebooks import notebook_bytes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty git repository."""
    root = tmp_path / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def look(project: Path) -> Callable[..., Report]:
    """The report on some cells, with `files` (path -> text or bytes) beside them."""

    def report(
        *cells: Any,
        files: dict[str, str | bytes] | None = None,
        path: str = "notebook.ipynb",
        metadata: dict[str, Any] | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> Report:
        for name, content in (files or {}).items():
            place = project / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        notebook = project / path
        notebook.parent.mkdir(parents=True, exist_ok=True)
        notebook.write_bytes(notebook_bytes(list(cells), metadata=metadata))
        return check(notebook, parameters=parameters)

    return report


@pytest.fixture
def told(look: Callable[..., Report]) -> Callable[..., list[tuple[Any, ...]]]:
    """Errors and warnings only, as (severity, code, cell, line)."""

    def short(*cells: Any, **more: Any) -> list[tuple[Any, ...]]:
        found = look(*cells, **more).findings
        return [
            (finding.severity.value, finding.code, finding.cell, finding.line)
            for finding in found
            if finding.severity.value != "note"
        ]

    return short
