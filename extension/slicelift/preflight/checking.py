"""The checks in order, in one report. Nothing of the notebook is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slicelift.models import Environment, Finding, LinePlace, Script, Severity, to_dict
from slicelift.notebook.coroutines import first_await
from slicelift.notebook.document import Notebook, read, select
from slicelift.notebook.kernel import Pending, ProbeRequest, ProbeResult, environment, find_interpreter
from slicelift.notebook.parameters import Parameters, parse_overrides, read_parameters
from slicelift.notebook.pieces import DEEPEST, Piece, is_too_deep
from slicelift.notebook.program import Transformed, names_of, transform
from slicelift.notebook.script import check_script, write_script
from slicelift.preflight.credentials import check_credentials, check_text, masked
from slicelift.preflight.files import check_files, ignored_by_git, opened
from slicelift.preflight.habits import check_habits
from slicelift.preflight.modules import (
    Available,
    check_futures,
    check_modules,
    imports,
    search_paths,
    walk_imports,
)
from slicelift.preflight.names import check_names
from slicelift.preflight.order import check_order
from slicelift.preflight.stars import star_names
from slicelift.preflight.view import View, make_script_view, make_view

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the preflight found. `verdict` is `refused` exactly when a finding is an error.

    `script` is None for a refused notebook, `overrides` the typed values of the parameters that were given.
    """

    verdict: str
    notebook: Notebook
    selected_cells: tuple[int, ...] = ()
    parameters: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    script: Script | None = None
    environment: Environment | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract: verdict, selected_cells, parameters, findings. Secrets are masked."""
        return {
            "verdict": self.verdict,
            "selected_cells": list(self.selected_cells),
            "parameters": _without(to_dict(self.parameters), self.hidden),
            "findings": [to_dict(finding) for finding in self.findings],
        }


def check(
    path: str | Path,
    *,
    python: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    content: bytes | None = None,
) -> Report:
    """Check one notebook. `content` are unsaved bytes that count instead of the file.

    Raises NotFound or UserError for a file that cannot be opened, a kernel without an interpreter, and
    parameters that are unknown or of the wrong type; everything else is a finding.
    """
    notebook = read(path, content=content)
    selected = select(notebook)
    stop = _stop(notebook, selected)
    if stop is not None:
        return _report(notebook, findings=[*notebook.findings, *stop])
    transformed = transform(notebook, selected=selected, root=project_root(notebook.folder))
    if not _has_code(transformed.pieces):
        return _report(notebook, selected=selected, findings=[*notebook.findings, _empty(notebook)])
    interpreter = find_interpreter(notebook, python=python)
    return _checked(transformed, python=interpreter, overrides=parameters or {})


def project_root(folder: Path) -> Path:
    """The top of the git repository around a folder, or the folder itself without one."""
    place = folder.resolve()
    return next((item for item in [place, *place.parents] if (item / ".git").exists()), place)


def _stop(notebook: Notebook, selected: Sequence[int]) -> list[Finding] | None:
    """What makes every further look pointless, or None for a Python notebook with cells to run."""
    if any(finding.severity is Severity.ERROR for finding in notebook.findings):
        return []
    if notebook.language.lower() not in ("python", "ipython", "python3"):
        message = f"The kernel's language is {notebook.language}; only Python notebooks can be promoted."
        return [_whole("non-python-kernel", message, fix="Choose a Python kernel for the notebook.")]
    return None if selected else [_empty(notebook)]


def _has_code(pieces: Sequence[Piece]) -> bool:
    return any(piece.tree is None or piece.tree.body for piece in pieces)


def _empty(notebook: Notebook) -> Finding:
    code = sum(cell.is_code for cell in notebook.cells)
    message = f"Nothing is left to run: of {code} code cells, none is chosen and holds code."
    return _whole(
        "empty-selection", message, fix="Take away a `skip` tag, or tag the cells to run `promote`."
    )


def _whole(code: str, message: str, *, fix: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, fix=fix)


def _checked(transformed: Transformed, *, python: str, overrides: Mapping[str, Any]) -> Report:
    view = make_view(transformed)
    paths, complete = search_paths(view)
    # The kernel's interpreter looks at the cells while we look at everything else.
    pending = Pending(python, _request(transformed, view, paths=paths))
    known = read_parameters(transformed.pieces)
    secrets, hidden = _credentials(transformed, view)
    local = _local(transformed, view, known=known)
    script = _script([*local, *secrets], transformed)
    result = pending.result()
    findings = [
        *local,
        *secrets,
        *_python_version(result),
        *_syntax(transformed.pieces, result),
        *_program(transformed, view, result=result, complete=complete),
    ]
    report = Report(
        verdict="",
        notebook=transformed.notebook,
        parameters=known.values if known else None,
        script=script,
        environment=environment(result, requirements=transformed.requirements),
        overrides=parse_overrides(known.values if known else None, overrides),
        hidden=frozenset(hidden),
    )
    return _finished(report, transformed, findings=[_masked(finding, hidden) for finding in findings])


def _local(transformed: Transformed, view: View, *, known: Parameters | None) -> list[Finding]:
    """The findings that need no interpreter."""
    found = [
        *transformed.notebook.findings,
        *transformed.findings,
        *_awaits(transformed.pieces),
        *(known.findings if known else ()),
        *check_futures(view),
        *check_habits(view),
        *check_files(view, root=transformed.root, written=transformed.files),
    ]
    # a cell that promotes the notebook is run last and again, wherever it stands
    own = {finding.cell for finding in found if finding.code == "promotes-itself" and not finding.file}
    ordered = [transformed.notebook.cells[index] for index in transformed.selected if index not in own]
    return [*found, *check_order(ordered)]


def _script(findings: Sequence[Finding], transformed: Transformed) -> Script | None:
    return (
        None if any(finding.severity is Severity.ERROR for finding in findings) else write_script(transformed)
    )


def _request(transformed: Transformed, view: View, *, paths: Sequence[str]) -> ProbeRequest:
    views = [view, *_script_views(transformed)]
    stars = (item.name for one in views for item in imports(one) if item.star and not item.level)
    return ProbeRequest(
        cells={str(number): piece.text for number, piece in enumerate(transformed.pieces)},
        modules=tuple(dict.fromkeys(name for one in views for name in walk_imports(one))),
        stars=tuple(dict.fromkeys(stars)),
        paths=tuple(paths),
        root=str(transformed.root),
    )


def _script_views(transformed: Transformed) -> list[View]:
    return [make_script_view(child, folder=str(transformed.folder)) for child in transformed.scripts]


def _python_version(result: ProbeResult) -> list[Finding]:
    version = tuple(int(part) for part in result.version.split(".")[:2])
    if version >= OLDEST_PYTHON:
        return []
    message = f"The kernel runs Python {result.version}; a job needs 3.11 or newer."
    return [_whole("python-mismatch", message, fix="Choose a kernel with a newer Python.")]


def _syntax(pieces: Sequence[Piece], result: ProbeResult) -> list[Finding]:
    """The kernel's compiler on each piece by itself."""
    found = []
    for number, piece in enumerate(pieces):
        verdict = result.cells[str(number)]
        if piece.tree is None and is_too_deep(piece.text):
            found.append(_too_deep(piece))
        elif verdict.ok and piece.tree is None:
            fix = "Start slicelift with the kernel's version of Python."
            message = f"Python {result.version} reads this cell, and the Python that runs slicelift does not."
            found.append(_at(piece, 1, code="python-mismatch", message=message, fix=fix))
        elif not verdict.ok:
            outside = "'return'" in verdict.message
            code = "return-outside-function" if outside else "syntax-error"
            fix = "Put it into a function, or use an `if`." if outside else "Correct the line."
            found.append(
                _at(
                    piece,
                    verdict.line,
                    code=code,
                    message=f"{verdict.message[:1].upper()}{verdict.message[1:]}.",
                    fix=fix,
                )
            )
    return found


def _too_deep(piece: Piece) -> Finding:
    message = (
        f"Code of this cell is nested more than {DEEPEST} levels deep (brackets, operators, `elif` or dots)."
    )
    fix = "Split it into several statements, or read the values from a file."
    return _at(piece, 1, code="cell-too-complex", message=message, fix=fix)


def _at(
    piece: Piece,
    line: int,
    *,
    code: str,
    message: str,
    fix: str | None = None,
    severity: Severity = Severity.ERROR,
) -> Finding:
    index = min(max(line, 1), len(piece.lines)) - 1
    place = piece.lines[index].place or LinePlace(cell=piece.cell, line=line, file=piece.file)
    return Finding(
        code=code,
        severity=severity,
        message=message,
        cell=place.cell,
        line=place.line,
        file=place.file,
        fix=fix,
    )


def _awaits(pieces: Sequence[Piece]) -> list[Finding]:
    """One note for each cell that awaits, at the first place."""
    found: dict[tuple[int, str | None], Finding] = {}
    for piece in pieces:
        node = first_await(piece.tree.body) if piece.tree else None
        if node is not None and (piece.cell, piece.file) not in found:
            message = "Top-level await: the job runs it in one event loop for all cells."
            line = getattr(node, "lineno", None) or _first_line(piece)
            note = _at(piece, line, code="top-level-await", message=message, severity=Severity.NOTE)
            found[piece.cell, piece.file] = note
    return list(found.values())


def _first_line(piece: Piece) -> int:
    return piece.tree.body[0].lineno if piece.tree else 1


def _program(transformed: Transformed, view: View, *, result: ProbeResult, complete: bool) -> list[Finding]:
    """The checks on the cells as a whole, and on each script that `%run` starts."""
    available = Available(
        modules=result.modules,
        requirements=transformed.requirements,
        written=_written_modules(transformed, view),
        ignored=_ignored_modules(transformed, result),
        complete=complete,
    )
    findings = [
        *check_modules(view, available),
        *check_names(
            view,
            stars=star_names(view, result, files=transformed.files),
            known=transformed.lost,
            defining_cell=_definers(transformed),
        ),
    ]
    for child, one in zip(transformed.scripts, _script_views(transformed), strict=True):
        findings += check_modules(one, available)
        stars = star_names(one, result, files=transformed.files)
        if not child.shared:
            findings += check_names(one, stars=stars, known=(), defining_cell=lambda _name, _cell: None)
    return findings


def _written_modules(transformed: Transformed, view: View) -> frozenset[str]:
    """Names of the modules that the code writes, with `%%writefile` or by opening a .py file for writing."""
    paths = [transformed.root / path for path in transformed.files]
    paths += [item.path for item in opened(view) if item.writes and item.path]
    inside = [path.relative_to(transformed.root) for path in paths if path.is_relative_to(transformed.root)]
    # A package is written file by file, and any of its folders may be where it is imported from.
    return frozenset(part for path in inside if path.suffix == ".py" for part in path.with_suffix("").parts)


def _ignored_modules(transformed: Transformed, result: ProbeResult) -> frozenset[str]:
    local = {name: Path(item.origin) for name, item in result.modules.items() if item.local and item.origin}
    ignored = ignored_by_git(transformed.root, local.values())
    return frozenset(name for name, path in local.items() if path in ignored)


def _definers(transformed: Transformed) -> Callable[[str, int], int | None]:
    """Which unselected cell defines a name: the nearest above the use, else the first below."""
    chosen = set(transformed.selected)
    others = [cell for cell in transformed.notebook.cells if cell.is_code and cell.index not in chosen]
    names: dict[int, set[str]] = {}

    def find(name: str, cell: int) -> int | None:
        names.update({other.index: names_of(other) for other in others if other.index not in names})
        found = [index for index, known in names.items() if name in known]
        above = [index for index in found if index < cell]
        return max(above) if above else min(found, default=None)

    return find


def _credentials(transformed: Transformed, view: View) -> tuple[list[Finding], set[str]]:
    looks = [check_credentials(one) for one in [view, *_script_views(transformed)]]
    values = {item for _, found in looks for item in found}
    looks.append(check_text(transformed.notebook.cells, found=values))
    return [finding for found, _ in looks for finding in found], {
        item for _, found in looks for item in found
    }


def _masked(finding: Finding, hidden: Iterable[str]) -> Finding:
    fix = masked(finding.fix, hidden) if finding.fix else finding.fix
    return replace(finding, message=masked(finding.message, hidden), fix=fix)


def _finished(report: Report, transformed: Transformed, *, findings: list[Finding]) -> Report:
    """The report with its verdict; a script that does not compile as one file is the last thing to refuse for."""
    judged = _report(report.notebook, selected=transformed.selected, findings=findings)
    script = report.script if judged.verdict == "ok" else None
    fault = check_script(script) if script else None
    if fault is not None:
        judged, script = (
            _report(report.notebook, selected=transformed.selected, findings=[*findings, fault]),
            None,
        )
    return replace(
        report,
        verdict=judged.verdict,
        selected_cells=judged.selected_cells,
        findings=judged.findings,
        script=script,
    )


def _report(notebook: Notebook, *, findings: Sequence[Finding], selected: Sequence[int] = ()) -> Report:
    refused = any(finding.severity is Severity.ERROR for finding in findings)
    return Report(
        verdict="refused" if refused else "ok",
        notebook=notebook,
        selected_cells=tuple(selected),
        findings=tuple(sorted(dict.fromkeys(findings), key=_order)),
    )


def _order(finding: Finding) -> tuple[int, str, int]:
    cell = -1 if finding.cell is None else finding.cell
    return (cell, finding.file or "", finding.line or 0)


def _without(value: Any, hidden: frozenset[str]) -> Any:
    """`value` with every text that holds a secret replaced."""
    if isinstance(value, dict):
        return {key: _without(item, hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, hidden) for item in value]
    return masked(value, hidden) if isinstance(value, str) else value
