"""The whole program as one syntax tree with places: what every check looks at."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from slicelift.models import Finding, LinePlace, Severity
from slicelift.notebook.bindings import bound_names, children
from slicelift.notebook.pieces import Line, join
from slicelift.notebook.program import Transformed
from slicelift.notebook.static import dotted, folder_after
from slicelift.notebook.walk import Child

Node = TypeVar("Node", bound=ast.AST)

OURS = "_slicelift_"
# The cell number of a script, which has none.
NO_CELL = -1


@dataclass(kw_only=True)
class View:
    """`places[i]` belongs to line `i + 1` of `tree`. `aliases` maps an imported name to its dotted origin.

    `kinds` holds all nodes by their class, `parents` the node around each: one walk serves every check.
    """

    tree: ast.Module
    places: Sequence[LinePlace | None]
    folder: str
    kinds: Mapping[type[ast.AST], list[ast.AST]] = field(default_factory=dict)
    parents: Mapping[ast.AST, ast.AST] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, ast.expr] = field(default_factory=dict)

    def of(self, *kinds: type[Node]) -> list[Node]:
        """All nodes of these classes, in the order of the source within each."""
        return [node for kind in kinds for node in self.kinds.get(kind, [])]  # type: ignore[misc]

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every `def` of the program."""
        return [*self.of(ast.FunctionDef), *self.of(ast.AsyncFunctionDef)]

    def place(self, node: ast.AST) -> LinePlace | None:
        """Where a node stands in the notebook; None for a line that is ours."""
        line = getattr(node, "lineno", 0)
        return self.places[line - 1] if 0 < line <= len(self.places) else None

    def finding(
        self, code: str, severity: Severity, *, node: ast.AST, message: str, fix: str | None = None
    ) -> Finding:
        """A finding at a node."""
        place = self.place(node)
        cell = place.cell if place and place.cell != NO_CELL else None
        line, file = (place.line, place.file) if place else (None, None)
        return Finding(
            code=code, severity=severity, message=message, cell=cell, line=line, file=file, fix=fix
        )

    def called(self, node: ast.Call) -> str:
        """The dotted name of what is called, imports resolved: `pd.read_csv` -> `pandas.read_csv`."""
        return self.named(node.func)

    def named(self, node: ast.AST) -> str:
        """The dotted name of an expression, imports resolved; empty when it has none."""
        head, _, rest = dotted(node).partition(".")
        origin = self.aliases.get(head, head)
        return f"{origin}.{rest}" if rest else origin

    def folders(self) -> Iterator[tuple[ast.stmt, str | None]]:
        """Each top-level statement with the working directory before it; None once that is unknown."""
        folder: str | None = self.folder
        moves = any(dotted(call.func).endswith("chdir") for call in self.of(ast.Call))
        for statement in self.tree.body:
            yield statement, folder
            if moves:
                folder = folder_after([statement], known=self.constants, folder=folder)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def in_function(self, node: ast.AST) -> bool:
        """True when the node runs only once a function is called."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        return any(isinstance(item, kinds) for item in self.above(node))


def make_view(transformed: Transformed) -> View:
    """The selected cells, `%run` notebooks included, as one tree."""
    lines: list[Line] = []
    for piece in transformed.pieces:
        if piece.tree is None:
            continue
        lines += piece.lines
        place = piece.lines[0].place if piece.lines else None
        lines += [Line(text=f"{name} = {OURS}run", place=place) for name in piece.binds]
    return _view(lines, str(transformed.folder))


def make_script_view(child: Child, *, folder: str) -> View:
    """A script that `%run` starts."""
    texts = child.text.split("\n")
    lines = [
        Line(text=text, place=LinePlace(cell=NO_CELL, line=number, file=child.path))
        for number, text in enumerate(texts, start=1)
    ]
    return _view(lines, folder)


def _view(lines: list[Line], folder: str) -> View:
    tree = ast.parse(join(lines))
    view = View(tree=tree, places=[line.place for line in lines], folder=folder)
    view.kinds, view.parents = _walked(tree)
    view.aliases = _aliases(view)
    view.constants = _constants(view)
    return view


def _walked(tree: ast.Module) -> tuple[dict[type[ast.AST], list[ast.AST]], dict[ast.AST, ast.AST]]:
    kinds: dict[type[ast.AST], list[ast.AST]] = {}
    parents: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        kinds.setdefault(type(node), []).append(node)
        below = children(node)
        parents.update(dict.fromkeys(below, node))
        waiting.extend(reversed(below))
    return kinds, parents


def _aliases(view: View) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in view.of(ast.Import):
        found.update({item.asname or item.name.split(".")[0]: _origin(item) for item in node.names})
    for source in view.of(ast.ImportFrom):
        if source.module and not source.level:
            found.update({item.asname or item.name: f"{source.module}.{item.name}" for item in source.names})
    return found


def _origin(item: ast.alias) -> str:
    return item.name if item.asname else item.name.split(".")[0]


def _constants(view: View) -> dict[str, ast.expr]:
    """Names that the whole program assigns exactly once, at the top level, with what they are assigned."""
    counts: dict[str, int] = {}
    for node in view.tree.body:
        for name in bound_names([node]):
            counts[name] = counts.get(name, 0) + 1
    found = {}
    for node in view.tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    shared = {name for node in view.of(ast.Global) for name in node.names}
    return {name: value for name, value in found.items() if counts.get(name) == 1 and name not in shared}
