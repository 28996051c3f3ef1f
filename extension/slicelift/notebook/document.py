"""A notebook as it stands in its file: cells, tags, kernel. Nothing of it is run."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift.errors import NotFound, UserError
from slicelift.models import Finding, Severity, place_text

SKIP_TAGS = frozenset({"skip", "skip-execution", "active-ipynb"})
LARGEST_BYTES = 512 * 1024**2
CHOSEN_TAGS = frozenset({"promote", "parameters", "imports"})
# Kernels whose metadata often names no language; whatever else is unnamed counts as Python.
FOREIGN_KERNELS = {"ir": "R", "bash": "Bash", "javascript": "JavaScript", "xcpp17": "C++", "sos": "SoS"}


class InvalidNotebookError(Exception):
    """Why the bytes are no notebook, in words that end a sentence."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the file. `index` counts all cells from 0; `source` has `\\n` line ends only."""

    index: int
    id: str
    kind: str
    source: str
    tags: tuple[str, ...] = ()
    execution_count: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """True for a code cell."""
        return self.kind == "code"


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """A notebook that was read. With an error among `findings` the cells may be missing."""

    path: Path
    sha256: str
    cells: tuple[Cell, ...] = ()
    kernel: str = ""
    language: str = "python"
    findings: tuple[Finding, ...] = ()

    @property
    def folder(self) -> Path:
        """The notebook's folder: the working directory of the job."""
        return self.path.parent


def read(path: str | Path, *, content: bytes | None = None) -> Notebook:
    """Read `path`, or the unsaved bytes in `content`, which then count instead of the file.

    What is wrong inside the file becomes a finding (`nb-invalid`, `nb-v3`); only a file that cannot be
    opened raises: NotFound or UserError.
    """
    place = Path(path).absolute()
    data = read_bytes(path) if content is None else content
    digest = hashlib.sha256(data).hexdigest()
    try:
        node, version = _parse(data)
        cells = tuple(_cell(index, cell) for index, cell in enumerate(_listed(node, "cells")))
    except InvalidNotebookError as error:
        return Notebook(path=place, sha256=digest, findings=(_invalid(str(error)),))
    kernel, language = _kernel(node.get("metadata", {}))
    notes = (_upgraded(version),) if version < 4 else ()
    return Notebook(path=place, sha256=digest, cells=cells, kernel=kernel, language=language, findings=notes)


def read_bytes(path: str | Path) -> bytes:
    """A file's bytes, at once or never. Raises NotFound `notebook-not-found`, UserError `notebook-unreadable`."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            _check_plain(os.fstat(file.fileno()))
            return file.read()
    except FileNotFoundError:
        where = "" if Path(path).is_absolute() else f" (looked in {Path.cwd()})"
        hint = "Check the path; quote it if it has spaces."
        raise NotFound("notebook-not-found", f"There is no notebook {path}{where}.", hint) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        hint = "Name a notebook file (.ipynb) that you may read."
        raise UserError("notebook-unreadable", f"{path} cannot be read: {reason}.", hint) from error


def _without_waiting(path: str, flags: int) -> int:
    # a pipe that nobody writes to would be waited for as it is opened
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_plain(found: os.stat_result) -> None:
    """Raises ValueError for pipes and devices, which may have no end, and for what is too large for memory."""
    if not stat.S_ISREG(found.st_mode):
        reason = "it is a pipe, a socket or a device, not a file"
        raise ValueError(reason)
    if found.st_size > LARGEST_BYTES:
        reason = f"it has {found.st_size:,} bytes, and {LARGEST_BYTES:,} are the most"
        raise ValueError(reason)


def select(notebook: Notebook) -> tuple[int, ...]:
    """The cells that are promoted: all code cells, or, once one is tagged `promote`, only the chosen ones.

    `skip`, `skip-execution` and `active-ipynb` always leave a cell out.
    """
    code = [cell for cell in notebook.cells if cell.is_code]
    if any("promote" in cell.tags for cell in code):
        code = [cell for cell in code if CHOSEN_TAGS.intersection(cell.tags)]
    return tuple(cell.index for cell in code if not SKIP_TAGS.intersection(cell.tags))


def _parse(data: bytes) -> tuple[dict[str, Any], int]:
    """The file as format 4 and the major version it had. Raises InvalidNotebookError with the reason in plain words."""
    text = _text(data)
    try:
        raw = json.loads(text)
    except RecursionError:
        raise InvalidNotebookError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidNotebookError(_json_fault(text, error)) from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidNotebookError(f"its JSON cannot be read: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("nbformat"), int):
        raise InvalidNotebookError("it is JSON, but no notebook: `nbformat` is missing")
    version = int(raw["nbformat"])
    if not 1 <= version <= 4:
        raise InvalidNotebookError(f"its format {version} is not one of 1, 2, 3, 4")
    return (raw if version == 4 else _convert(text)), version


def _text(data: bytes) -> str:
    if not data.strip():
        raise InvalidNotebookError("the file is empty")
    try:
        # Jupyter refuses a byte order mark; editors on Windows write it, and the meaning is clear.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidNotebookError(f"it is not UTF-8 (byte {error.start})") from None


def _json_fault(text: str, error: json.JSONDecodeError) -> str:
    if any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines()):
        return f"it holds git's conflict markers (near line {error.lineno}); resolve the conflict first"
    return f"it is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _convert(text: str) -> dict[str, Any]:
    # nbformat loads jsonschema: 0.5 s that a notebook of today's format does not need.
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = nbformat.convert(nbformat.reader.reads(text), 4)
    except Exception as error:  # noqa: BLE001  an old file can break the converter in any way
        raise InvalidNotebookError(
            f"it cannot be upgraded to format 4: {type(error).__name__}: {error}"
        ) from None
    return dict(node)


def _listed(node: Mapping[str, Any], key: str) -> list[Any]:
    value = node.get(key, [])
    if not isinstance(value, list):
        raise InvalidNotebookError(f"`{key}` is not a list")
    return value


def _cell(index: int, raw: Any) -> Cell:
    if not isinstance(raw, dict) or not isinstance(raw.get("cell_type"), str):
        raise InvalidNotebookError(f"{place_text(index)} has no cell_type")
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    count = raw.get("execution_count")
    return Cell(
        index=index,
        id=str(raw.get("id") or f"cell-{index}"),
        kind=raw["cell_type"],
        source=_source(index, raw.get("source", "")),
        tags=_tags(metadata or {}),
        execution_count=count if isinstance(count, int) else None,
        metadata=metadata or {},
    )


def _source(index: int, raw: Any) -> str:
    parts = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidNotebookError(f"the source of {place_text(index)} is not text")
    return "".join(parts).replace("\r\n", "\n").replace("\r", "\n")


def _tags(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    raw = metadata.get("tags")
    tags = raw if isinstance(raw, list) else [raw]
    return tuple(tag.strip() for tag in tags if isinstance(tag, str))


def _kernel(metadata: Any) -> tuple[str, str]:
    """The kernelspec's name and the language; no metadata at all means Python."""
    known = metadata if isinstance(metadata, dict) else {}
    spec, info = (known.get(key) for key in ("kernelspec", "language_info"))
    spec, info = (part if isinstance(part, dict) else {} for part in (spec, info))
    name = str(spec.get("name") or "")
    guess = FOREIGN_KERNELS.get(name, "julia" if name.startswith("julia-") else "python")
    return name, str(info.get("name") or spec.get("language") or guess)


def _invalid(reason: str) -> Finding:
    return Finding(
        code="nb-invalid",
        severity=Severity.ERROR,
        message=f"This file is not a valid notebook: {reason}.",
        fix="Open it in JupyterLab and save it again, or restore an older version.",
    )


def _upgraded(version: int) -> Finding:
    return Finding(
        code="nb-v3",
        severity=Severity.NOTE,
        message=f"The notebook has the old format {version}; it was read as format 4.",
        fix="Open and save it in JupyterLab to keep the new format.",
    )
