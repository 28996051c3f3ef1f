"""promoted.py: the pieces of a program in one file that a person can read and any Python can run.

What is at the top level of a cell stays at module level, under `if __name__ == "__main__":` where a child
process must not run it again (`guards`), in a coroutine where it awaits (`coroutines`), inside `with` where
`%%capture` stood. Every line keeps its place in the notebook.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from slicelift.models import Finding, LinePlace, Script, Severity, place_text
from slicelift.notebook.bindings import bound_names
from slicelift.notebook.coroutines import as_coroutine, loop_words, may_need_loop, must_stay, needs_loop
from slicelift.notebook.guards import guarded
from slicelift.notebook.parameters import Parameters, read_parameters
from slicelift.notebook.pieces import (
    Line,
    Piece,
    first_line,
    indented,
    join,
    last_line,
    parse,
    replaced,
    rows,
)
from slicelift.notebook.prelude import HEADER, LOOP_END, prelude
from slicelift.notebook.program import Transformed

MAIN = 'if __name__ == "__main__":'


@dataclass(kw_only=True)
class Row:
    """Statements that share lines, with the blank and comment lines above them."""

    nodes: list[ast.stmt]
    above: list[Line]
    lines: list[Line]
    guarded: bool = False
    loop: bool = False


@dataclass(kw_only=True)
class Section:
    """One piece, cut into rows; `below` are the comments at its end."""

    piece: Piece
    rows: list[Row]
    below: list[Line] = field(default_factory=list)


def write_script(transformed: Transformed) -> Script:
    """Put the file together. Pieces that are no valid Python are left out: preflight refuses them anyway."""
    pieces = [piece for piece in transformed.pieces if piece.tree is not None]
    parameters = read_parameters(pieces)
    futures, pieces = _without_futures(pieces)
    sections = [_section(piece) for piece in pieces]
    _decide(sections, lazy="annotations" in " ".join(futures))
    body = _body(sections, parameters)
    if any("_slicelift_loop" in line.text for line in body):
        body += [Line(text=""), *(Line(text=text) for text in LOOP_END)]
    above = [*HEADER, *futures, *prelude((line.text for line in body), display=_wants_display(sections))]
    lines = [*(Line(text=text) for text in above), *body]
    return Script(
        source=join(lines),
        places=tuple(line.place for line in lines),
        parameters=parameters.values if parameters else None,
        requirements=transformed.requirements,
        files=transformed.files,
        environment=transformed.environment,
    )


def check_script(script: Script) -> Finding | None:
    """The last resort: cells that are fine one by one, but not as one file. None when the file compiles."""
    try:
        compile(script.source, "promoted.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 0
        place = script.places[line - 1] if 0 < line <= len(script.places) else None
        return Finding(
            code="syntax-error",
            severity=Severity.ERROR,
            message=f"The cells cannot stand in one file: {getattr(error, 'msg', error)}.",
            cell=place.cell if place else None,
            line=place.line if place else None,
            file=place.file if place else None,
            fix="Rewrite this statement.",
        )
    return None


def _without_futures(pieces: Sequence[Piece]) -> tuple[list[str], list[Piece]]:
    """`from __future__` may only stand at the top of a file; a bare `global` may not follow its name there."""
    futures: list[str] = []
    cleaned = []
    for piece in pieces:
        lines, body = piece.lines, piece.tree.body if piece.tree else []
        for node in reversed([item for item in _module_level(body) if _must_go(item)]):
            if isinstance(node, ast.ImportFrom):
                futures.append(ast.unparse(node))
            lines = replaced(lines, node, texts=["pass"])
        same = lines is piece.lines
        cleaned.append(piece if same else _copy(piece, lines))
    return sorted(set(futures)), cleaned


def _module_level(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements of the module's scope, those inside blocks too, in order."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "handlers", "cases", "orelse", "finalbody"):
                found += _module_level(getattr(node, name, []))
    return found


def _must_go(node: ast.stmt) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _copy(piece: Piece, lines: list[Line]) -> Piece:
    return Piece(
        cell=piece.cell,
        file=piece.file,
        lines=lines,
        tree=parse(lines),
        binds=piece.binds,
        captures=piece.captures,
        parameters=piece.parameters,
    )


def _section(piece: Piece) -> Section:
    tree = piece.tree or ast.Module(body=[], type_ignores=[])
    found, done = [], 0
    for group in rows(tree):
        start, end = first_line(group[0]) - 1, last_line(group, piece.lines)
        found.append(Row(nodes=group, above=piece.lines[done:start], lines=piece.lines[start:end]))
        done = end
    return Section(piece=piece, rows=found, below=piece.lines[done:])


def _decide(sections: Sequence[Section], *, lazy: bool) -> None:
    """Which rows go under the guard, and which of those into a coroutine."""
    everything = [(section, row) for section in sections for row in section.rows]
    flags = guarded([row.nodes for _, row in everything], lazy_annotations=lazy)
    for (section, row), flag in zip(everything, flags, strict=True):
        # Parameters are for every process, whatever is done to them later.
        row.guarded = flag and not (section.piece.parameters and _assigns(row))
    if not may_need_loop(line.text for section in sections for line in section.piece.lines):
        return
    words = loop_words([s.piece.tree for s in sections if s.piece.tree])
    for section in sections:
        asking = [needs_loop(row.nodes, words) for row in section.rows]
        for row, asks in zip(section.rows, asking, strict=True):
            row.guarded = row.guarded or asks
            row.loop = row.guarded and (asks or (any(asking) and not must_stay(row.nodes)))


def _assigns(row: Row) -> bool:
    return all(isinstance(node, ast.Assign | ast.AnnAssign) for node in row.nodes)


def _wants_display(sections: Sequence[Section]) -> bool:
    if not any("display" in line.text for section in sections for line in section.piece.lines):
        return False
    nodes = [node for section in sections for row in section.rows for node in row.nodes]
    used = any(
        isinstance(item, ast.Name) and item.id == "display" for node in nodes for item in ast.walk(node)
    )
    return used and "display" not in bound_names(nodes)


def _body(sections: Sequence[Section], parameters: Parameters | None) -> list[Line]:
    lines: list[Line] = []
    started: set[int] = set()
    for (cell, file), group in groupby(
        sections, key=lambda section: (section.piece.cell, section.piece.file)
    ):
        mine = list(group)
        lines += [Line(text=""), Line(text=f"# %% {place_text(cell, file=file)}")]
        for section in mine:
            lines += _captures(section.piece, started)
            lines += _rows(section, number=len(lines))
        if parameters and mine[0].piece.parameters:
            lines += _overrides(parameters.cells.get(cell, []), parameters.values)
    return lines


def _captures(piece: Piece, started: set[int]) -> list[Line]:
    """The object behind each `%%capture`, made where it is first needed."""
    new = [capture for capture in piece.captures if capture.number not in started]
    started.update(capture.number for capture in new)
    made = "_slicelift_captured_{0.number} = _SliceliftCaptured({0.stdout}, {0.stderr})"
    return [Line(text=made.format(capture)) for capture in new]


def _overrides(names: Sequence[str], defaults: Mapping[str, Any]) -> list[Line]:
    lines = []
    for name in dict.fromkeys(names):
        given = f"_slicelift_given.get({name!r}, {name})"
        shaped = f"_slicelift_like({given}, {name})" if _has_tuple(defaults.get(name)) else given
        lines.append(Line(text=f"{name} = {shaped}"))
    return lines


def _has_tuple(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(_has_tuple(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, tuple)


def _rows(section: Section, *, number: int) -> list[Line]:
    lines: list[Line] = []
    for (is_guarded, loop), group in groupby(section.rows, key=lambda row: (row.guarded, row.loop)):
        mine = list(group)
        lines += mine[0].above
        code = [line for i, row in enumerate(mine) for line in [*(row.above if i else []), *row.lines]]
        if loop:
            lines += _in_coroutine(code, section.piece, name=f"_slicelift_await_{number + len(lines)}")
        else:
            lines += _wrapped(code, _openers(section.piece, is_guarded))
    return [*lines, *section.below]


def _openers(piece: Piece, is_guarded: bool) -> list[str]:
    guards = [MAIN] if is_guarded else []
    return [*guards, *(f"with _slicelift_captured_{capture.number}:" for capture in piece.captures)]


def _in_coroutine(code: list[Line], piece: Piece, *, name: str) -> list[Line]:
    coroutine = as_coroutine(code, name)
    call = [Line(text=f"_slicelift_loop.run({name}())", place=_first_place(code))]
    captured = _wrapped(call, _openers(piece, False))
    return _wrapped([*coroutine, *captured], [MAIN])


def _first_place(code: Sequence[Line]) -> LinePlace | None:
    return next((line.place for line in code if line.place), None)


def _wrapped(code: list[Line], openers: Sequence[str]) -> list[Line]:
    """`code` inside these blocks, the first one outermost."""
    for opener in reversed(openers):
        code = [Line(text=opener), *indented(code, "    ")]
    return code
