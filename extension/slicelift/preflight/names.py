"""Names that will not be there: pyflakes over the whole program, and what pyflakes cannot know.

A finding is an error only when the name is certain to be missing. A name that `exec`, `globals()[...]` or an
unreadable `import *` may have made gives a warning.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from slicelift.models import Finding, Severity
from slicelift.notebook.bindings import Comprehension, bound_names, deleted_names, own_scope
from slicelift.preflight.view import OURS, View

_SESSION_NAMES = frozenset(
    {"_", "__", "___", "In", "Out", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "get_ipython"}
)


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A name that is read and not bound. `certain` is False when it may yet come to be at run time."""

    name: str
    node: ast.AST
    certain: bool = True
    deleted: bool = False


def check_names(
    view: View,
    *,
    stars: Mapping[str, tuple[str, ...] | None],
    known: Collection[str],
    defining_cell: Callable[[str, int], int | None],
) -> list[Finding]:
    """Findings for missing names, one for each name and cell.

    `stars` are the names behind each `import *`, `known` names that exist for other reasons, and
    `defining_cell(name, cell)` the unselected cell that defines a name.
    """
    _resolve_stars(view.tree, stars)
    found: dict[tuple[object, ...], Finding] = {}
    for missing in [*_reported(view, known), *_class_reads(view)]:
        place = view.place(missing.node)
        key = (missing.name, place.cell if place else None, place.file if place else None)
        finding = _finding(view, missing, defining_cell)
        if key not in found or (found[key].line or 0) > (finding.line or 0):
            found[key] = finding
    return list(found.values())


def _resolve_stars(tree: ast.Module, stars: Mapping[str, tuple[str, ...] | None]) -> None:
    """Spell out each `import *` whose names are known, so that it hides nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names = stars.get(node.module or "")
            if names:
                node.names = [ast.copy_location(ast.alias(name=name), node) for name in names]


def _reported(view: View, known: Collection[str]) -> Iterator[Missing]:
    # Loaded here: the command line needs it only once a notebook is really checked.
    from pyflakes import checker, messages

    result = checker.Checker(view.tree, builtins={*known, "display"})
    unsure = _makes_names(view)
    bound = bound_names(view.tree.body) | _global_names(view.tree)
    deletions = _deletions(view.tree)
    hints = _hint_positions(view.tree)
    loads = _loads(view)
    for message in result.messages:
        star = isinstance(message, messages.ImportStarUsage)
        if not star and not isinstance(message, messages.UndefinedName):
            continue
        name, position = str(message.message_args[0]), (message.lineno, message.col)
        if name.startswith(OURS) or position in hints:
            continue
        node = loads.get((name, *position)) or _at(message.lineno)
        if name in bound and view.in_function(node):
            continue  # read when the function is called, and by then it may well be there
        deleted = any(line < message.lineno for line in deletions.get(name, ()))
        yield Missing(name=name, node=node, certain=not (star or unsure), deleted=deleted)


def _at(line: int) -> ast.AST:
    return ast.Pass(lineno=line, col_offset=0)


def _loads(view: View) -> dict[tuple[str, int, int], ast.AST]:
    names = (node for node in ast.walk(view.tree) if isinstance(node, ast.Name))
    return {(node.id, node.lineno, node.col_offset): node for node in names}


def _deletions(tree: ast.Module) -> dict[str, list[int]]:
    """Lines on which a name of the module is deleted."""
    found: dict[str, list[int]] = {}
    for node in tree.body:
        for name in deleted_names([node]):
            found.setdefault(name, []).append(node.lineno)
    return found


def _global_names(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _hint_positions(tree: ast.Module) -> set[tuple[int, int]]:
    """Places of names that only type hints use and that are never evaluated."""
    lazy = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
    hints = list(_hints(tree, lazy=lazy))
    names = (item for hint in hints for item in ast.walk(hint))
    # pyflakes reads strings as hints in many places; a string never fails for a name at run time.
    texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {(n.lineno, n.col_offset) for n in [*names, *texts] if isinstance(n, ast.expr)}


def _hints(tree: ast.Module, *, lazy: bool) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if lazy and isinstance(node, ast.arg) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if lazy and node.returns:
                yield node.returns
            yield from (n.annotation for n in ast.walk(node) if isinstance(n, ast.AnnAssign))
        elif lazy and isinstance(node, ast.AnnAssign):
            yield node.annotation


def _makes_names(view: View) -> bool:
    """True when the code makes names that cannot be seen: exec, globals()[...], setattr on the module."""
    return any(isinstance(node, ast.Call) and _may_make_names(view, node) for node in ast.walk(view.tree))


def _may_make_names(view: View, call: ast.Call) -> bool:
    name = view.called(call)
    if name in ("exec", "builtins.exec"):
        return True
    if name == "setattr" and call.args and "modules" in ast.dump(call.args[0]):
        return True
    if name not in ("globals", "locals", "vars") or call.args:
        return False
    parent = next(view.above(call), None)
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("update", "setdefault", "__setitem__")
    # Given away (`fill(globals())`, `g = globals()`) it may be written to; a comparison only looks.
    return not isinstance(parent, ast.Compare)


def _class_reads(view: View) -> Iterator[Missing]:
    """Names of a class that its own comprehensions read: they are not in scope there."""
    outer = bound_names(view.tree.body)
    for node in ast.walk(view.tree):
        if isinstance(node, ast.ClassDef) and not view.in_function(node):
            own = bound_names(node.body)
            inner = (item for statement in node.body for item in own_scope(statement))
            for item in inner:
                if isinstance(item, Comprehension):
                    yield from _hidden_reads(item, own - outer)


def _hidden_reads(node: Comprehension, names: set[str]) -> Iterator[Missing]:
    local = {n.id for item in node.generators for n in ast.walk(item.target) if isinstance(n, ast.Name)}
    first = {id(n) for n in ast.walk(node.generators[0].iter)}
    for item in ast.walk(node):
        read = isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and id(item) not in first
        if read and item.id in names - local:
            yield Missing(name=item.id, node=item)


def _finding(view: View, missing: Missing, defining_cell: Callable[[str, int], int | None]) -> Finding:
    name, severity = missing.name, Severity.ERROR if missing.certain else Severity.WARNING
    place = view.place(missing.node)
    if missing.deleted:
        message = f"{name} was deleted by `del` before this line."
        fix = f"Take away the `del {name}`, or make {name} again."
        return view.finding("use-after-del", severity, missing.node, message=message, fix=fix)
    other = defining_cell(name, place.cell) if place and place.file is None and place.cell >= 0 else None
    if other is not None:
        message = f"{name} is defined in cell {other}, which is not promoted."
        fix = f"Tag cell {other} `promote`, or take it in by removing its skip tag."
        finding = view.finding("defined-in-unselected-cell", severity, missing.node, message=message, fix=fix)
        return replace(finding, defining_cell=other)
    message, fix = _undefined(view, missing)
    return view.finding("undefined-name", severity, missing.node, message=message, fix=fix)


def _undefined(view: View, missing: Missing) -> tuple[str, str]:
    name = missing.name
    if name in _SESSION_NAMES:
        return f"{name} exists in a notebook session only.", "Give the value a name of its own and use that."
    later = _first_binding(view, name)
    if later is not None:
        return f"{name} is used before cell {later} defines it.", "Move the definition above this cell."
    if not missing.certain:
        return f"{name} is not defined in a way that can be seen.", f"Assign {name} plainly if you can."
    return f"{name} is not defined.", f"Define {name}, import it, or correct the spelling."


def _first_binding(view: View, name: str) -> int | None:
    for node in view.tree.body:
        if name in bound_names([node]):
            place = view.place(node)
            return place.cell if place and place.cell >= 0 else None
    return None
