"""The chosen cells as one program: translated, magics put into plain Python, `%run` notebooks taken in."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicelift.models import Finding, LinePlace, Severity
from slicelift.notebook import actions, magics
from slicelift.notebook.bindings import bound_names
from slicelift.notebook.document import Cell, Notebook
from slicelift.notebook.pieces import Line, Piece, alone, first_line, last_line, parse, replaced, rows
from slicelift.notebook.static import folder_after
from slicelift.notebook.translate import translate
from slicelift.notebook.walk import Child, Unit, Walk


@dataclass(frozen=True, kw_only=True)
class Transformed:
    """The program in pieces, before guards and line numbers of its own.

    `folder` is the notebook's folder and `root` the project's, both resolved. `files` are what `%%writefile`
    writes, by path relative to the root; `scripts` the Python files that `%run` starts.
    """

    notebook: Notebook
    selected: tuple[int, ...]
    root: Path
    folder: Path
    pieces: tuple[Piece, ...]
    findings: tuple[Finding, ...] = ()
    requirements: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    scripts: tuple[Child, ...] = ()
    lost: frozenset[str] = frozenset()


def transform(notebook: Notebook, *, selected: Sequence[int], root: Path) -> Transformed:
    """Translate the selected cells. Nothing is run and nothing raised: faults are findings or broken pieces."""
    folder = notebook.folder.resolve()
    walk = Walk(root=root.resolve(), folder=str(folder), start=notebook.path.resolve(), expand=_expand)
    pieces = [piece for index in selected for piece in _cell(walk, notebook.cells[index])]
    return Transformed(
        notebook=notebook,
        selected=tuple(selected),
        root=walk.root,
        folder=folder,
        pieces=tuple(pieces),
        findings=tuple(walk.findings),
        requirements=tuple(dict.fromkeys(walk.requirements)),
        files=walk.files,
        environment=walk.environment,
        scripts=tuple(walk.scripts),
        lost=frozenset(walk.lost),
    )


def names_of(cell: Cell, *, bound: Collection[str] = ()) -> set[str]:
    """The names that a cell binds, for cells that are not selected."""
    translated = translate(cell.source, bound=bound)
    lines = [Line(text=text) for text in translated.lines]
    if translated.body and (tree := parse(lines)) and (calls := list(magics.find(tree))):
        body = magics.read(calls[0], place=LinePlace(cell=0, line=1), body_places=()).body
        lines = [Line(text=text) for text in translate(body or "").lines]
    tree = parse(lines)
    return bound_names(tree.body) if tree else _salvaged(lines)


def _cell(walk: Walk, cell: Cell) -> list[Piece]:
    pieces = _expand(walk, cell.source, unit=Unit(cell=cell.index))
    for piece in pieces:
        piece.parameters = "parameters" in cell.tags and piece.file is None
    return pieces


def _expand(walk: Walk, source: str, *, unit: Unit) -> list[Piece]:
    """Translate one source text into pieces, and note what it changes for those after it."""
    translated = translate(source, bound=walk.bound)
    lines = [
        Line(text=text, place=unit.place(origin))
        for text, origin in zip(translated.lines, translated.origins, strict=True)
    ]
    body = tuple(unit.place(origin) for origin in translated.body)
    if translated.too_long:
        return _given_up(walk, lines, place=unit.place(translated.too_long), unit=unit)
    tree = parse(lines)
    if tree is None:
        walk.lost |= _salvaged(lines)
        return [_piece(lines, None, unit=unit)]
    if not any("get_ipython" in line.text for line in lines):
        walk.bound |= bound_names(tree.body)
        if any("chdir" in line.text for line in lines):
            walk.folder = folder_after(tree.body, known={}, folder=walk.folder)
        return [_piece(lines, tree, unit=unit)]
    return _with_magics(walk, lines, tree=tree, unit=unit, body=body)


def _given_up(walk: Walk, lines: list[Line], *, place: LinePlace, unit: Unit) -> list[Piece]:
    """A finding, and nothing in the place of the cell."""
    walk.lost |= _salvaged(lines)
    message = "The line is too long to look for magics in a cell that has some or is no valid Python."
    fix = "Break the line, put it into a cell without magics, or read the values from a file."
    walk.add("cell-too-complex", Severity.ERROR, place=place, message=message, fix=fix)
    nothing = [Line(text="pass", place=place)]
    return [_piece(nothing, parse(nothing), unit=unit)]


def _with_magics(
    walk: Walk, lines: list[Line], *, tree: ast.Module, unit: Unit, body: tuple[LinePlace, ...]
) -> list[Piece]:
    pieces: list[Piece] = []
    pending: list[Line] = []
    done = 0
    for group in rows(tree):
        start, end = first_line(group[0]) - 1, last_line(group, lines)
        pending += lines[done:start]
        done = end
        whole = _whole_magic(group, lines)
        if whole is None:
            pending += _spliced(walk, lines[:end], group=group, unit=unit)[start:]
            _advance(walk, group)
            continue
        place = lines[start].place or unit.place(1)
        outcome = actions.act(walk, magics.read(whole, place=place, body_places=body), unit=unit)
        if outcome.pieces is None:
            pending += [Line(text=text, place=place) for text in outcome.lines]
            continue
        pieces += [*_flushed(pending, unit), *outcome.pieces]
        pending = []
    return [*pieces, *_flushed([*pending, *lines[done:]], unit)]


def _whole_magic(group: list[ast.stmt], lines: list[Line]) -> magics.Found | None:
    """The magic that a row consists of, when nothing else stands on its lines."""
    if len(group) > 1 or not isinstance(group[0], ast.Expr) or not magics.is_magic_call(group[0].value):
        return None
    return next(magics.find(group[0])) if alone(group[0], lines) else None


def _spliced(walk: Walk, lines: list[Line], *, group: list[ast.stmt], unit: Unit) -> list[Line]:
    """`lines` with the magics inside these statements replaced, the last one first so that places stay true."""
    found = [call for node in group for call in magics.find(node)]
    # Acted on in reading order, since one may change the folder for the next; put in from the end.
    calls = [magics.read(call, place=_place(lines, call, unit=unit), body_places=()) for call in found]
    texts = [_text(walk, call, lines=lines, unit=unit) for call in calls]
    for call, new in sorted(zip(calls, texts, strict=True), key=_position, reverse=True):
        lines = replaced(lines, call.statement or call.node, texts=new)
    return lines


def _place(lines: list[Line], call: magics.Found, *, unit: Unit) -> LinePlace:
    return lines[call.node.lineno - 1].place or unit.place(1)


def _position(pair: tuple[magics.Magic, list[str]]) -> tuple[int, int]:
    return pair[0].node.lineno, pair[0].node.col_offset


def _text(walk: Walk, call: magics.Magic, *, lines: list[Line], unit: Unit) -> list[str]:
    """What stands for a magic inside a block or an expression."""
    if call.statement is None:
        return [actions.value(walk, call)]
    outcome = actions.act(walk, call, unit=unit, nested=True)
    texts = (
        outcome.lines
        if outcome.pieces is None
        else actions.block_lines(walk, call, pieces=outcome.pieces, unit=unit)
    )
    if len(texts) > 1 and not alone(call.statement, lines):
        return actions.refused(
            walk, call, reason="it shares its line with other code", fix="Put it on a line of its own."
        )
    prefix = lines[call.statement.lineno - 1].text[: call.statement.col_offset]
    return [texts[0], *(prefix + text if text.strip() else text for text in texts[1:])]


def _advance(walk: Walk, nodes: Sequence[ast.stmt]) -> None:
    walk.bound |= bound_names(nodes)
    walk.folder = folder_after(nodes, known={}, folder=walk.folder)


def _flushed(lines: list[Line], unit: Unit) -> list[Piece]:
    return [_piece(lines, parse(lines), unit=unit)] if lines else []


def _piece(lines: list[Line], tree: ast.Module | None, *, unit: Unit) -> Piece:
    return Piece(cell=unit.cell, file=unit.file, lines=lines, tree=tree, captures=unit.captures)


def _salvaged(lines: Sequence[Line]) -> set[str]:
    """Names that a broken cell would bind, line by line, so that one fault is not reported as many."""
    found: set[str] = set()
    for line in lines:
        text = line.text.strip()
        for attempt in (text, text + " pass", text + ": pass"):
            tree = parse([Line(text=attempt)])
            if tree is not None:
                found |= bound_names(tree.body)
                break
    return found
