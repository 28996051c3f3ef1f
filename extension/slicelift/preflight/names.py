"""Names that will not be there: pyflakes over the whole program, and what pyflakes cannot know.

A finding is an error only when the name is certain to be missing. A name that `exec`, `globals()[...]` or an
unreadable `import *` may have made gives a warning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from slicelift.models import Finding, Severity, place_text
from slicelift.notebook.bindings import Comprehension, bound_names, deleted_names, own_scope
from slicelift.notebook.pieces import parse_text
from slicelift.preflight.view import OURS, View

_SESSION_NAMES = re.compile(r"_{1,3}|_i{0,3}\d*|In|Out|_[iod]h|get_ipython")


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
    _resolve_stars(view, stars)
    found: dict[tuple[object, ...], Finding] = {}
    for missing in [*_reported(view, known), *_class_reads(view)]:
        place = view.place(missing.node)
        key = (missing.name, place.cell if place else None, place.file if place else None)
        finding = _finding(view, missing, defining_cell=defining_cell)
        if key not in found or (found[key].line or 0) > (finding.line or 0):
            found[key] = finding
    return list(found.values())


def _resolve_stars(view: View, stars: Mapping[str, tuple[str, ...] | None]) -> None:
    """Spell out each `import *` whose names are known, so that it hides nothing."""
    for node in view.of(ast.ImportFrom):
        if node.names[0].name == "*":
            names = stars.get(node.module or "")
            if names:
                node.names = [ast.copy_location(ast.alias(name=name), node) for name in names]


def _reported(view: View, known: Collection[str]) -> Iterator[Missing]:
    # Loaded here: the command line needs it only once a notebook is really checked.
    from pyflakes import checker, messages

    class Checker(checker.Checker):  # type: ignore[misc]
        # pyflakes looks for repeated keys in a time that grows with their square, and nobody here asks for them
        DICT = checker.Checker.handleChildren

    result = Checker(view.tree, builtins={*known, "display"})
    unsure = _makes_names(view)
    executed = {name for call in view.of(ast.Call) for name in _exec_names(call) or ()}
    bound = bound_names(view.tree.body) | _global_names(view)
    deletions = _deletions(view.tree)
    hints = _hint_positions(view)
    loads = _loads(view)
    for message in result.messages:
        star = isinstance(message, messages.ImportStarUsage)
        if not star and not isinstance(message, messages.UndefinedName):
            continue
        name, position = str(message.message_args[0]), (message.lineno, message.col)
        if name.startswith(OURS) or name in executed or position in hints:
            continue
        node = loads.get((name, *position)) or _at(message.lineno)
        if name in bound and view.in_function(node):
            continue  # read when the function is called, and by then it may well be there
        deleted = any(line < message.lineno for line in deletions.get(name, ()))
        yield Missing(name=name, node=node, certain=not (star or unsure), deleted=deleted)


def _at(line: int) -> ast.AST:
    return ast.Pass(lineno=line, col_offset=0)


def _loads(view: View) -> dict[tuple[str, int, int], ast.AST]:
    return {(node.id, node.lineno, node.col_offset): node for node in view.of(ast.Name)}


def _deletions(tree: ast.Module) -> dict[str, list[int]]:
    """Lines on which a name of the module is deleted."""
    found: dict[str, list[int]] = {}
    for node in tree.body:
        for name in deleted_names([node]):
            found.setdefault(name, []).append(node.lineno)
    return found


def _global_names(view: View) -> set[str]:
    return {name for node in view.of(ast.Global) for name in node.names}


def _hint_positions(view: View) -> set[tuple[int, int]]:
    """Places of names that only type hints use and that are never evaluated."""
    lazy = any(node.module == "__future__" for node in view.of(ast.ImportFrom))
    names = [item for hint in _hints(view, lazy=lazy) for item in ast.walk(hint)]
    # pyflakes reads strings as hints in many places; a string never fails for a name at run time.
    texts = [node for node in view.of(ast.Constant) if isinstance(node.value, str)]
    return {(node.lineno, node.col_offset) for node in [*names, *texts] if isinstance(node, ast.expr)}


def _hints(view: View, *, lazy: bool) -> Iterator[ast.expr]:
    for node in view.of(ast.AnnAssign):
        if lazy or view.in_function(node):
            yield node.annotation
    if lazy:
        yield from (arg.annotation for arg in view.of(ast.arg) if arg.annotation)
        yield from (node.returns for node in view.functions if node.returns)


def _makes_names(view: View) -> bool:
    """True when the code makes names that cannot be seen: exec, globals()[...], setattr on the module."""
    return any(_may_make_names(view, node) for node in view.of(ast.Call))


def _may_make_names(view: View, call: ast.Call) -> bool:
    name = view.called(call)
    if name in ("exec", "builtins.exec"):
        return _exec_names(call) is None
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


def _exec_names(call: ast.Call) -> set[str] | None:
    """The names that `exec` of a literal text binds; None for a text that is only known at run time."""
    if not isinstance(call.func, ast.Name) or call.func.id != "exec" or len(call.args) != 1:
        return None
    text = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    tree = parse_text(text) if isinstance(text, str) else None
    return bound_names(tree.body) if tree else None


def _class_reads(view: View) -> Iterator[Missing]:
    """Names of a class that its own comprehensions read: they are not in scope there."""
    outer = bound_names(view.tree.body)
    for node in view.of(ast.ClassDef):
        if not view.in_function(node):
            own = bound_names(node.body) - outer
            inner = [item for statement in node.body for item in own_scope(statement)]
            comprehensions = [item for item in inner if isinstance(item, Comprehension)]
            yield from (missing for item in comprehensions for missing in _hidden_reads(item, own))


def _hidden_reads(node: Comprehension, names: set[str]) -> Iterator[Missing]:
    local = {n.id for item in node.generators for n in ast.walk(item.target) if isinstance(n, ast.Name)}
    first = {id(n) for n in ast.walk(node.generators[0].iter)}
    for item in ast.walk(node):
        if isinstance(item, ast.Name) and item.id in names - local and id(item) not in first:
            yield Missing(name=item.id, node=item)


def _finding(view: View, missing: Missing, *, defining_cell: Callable[[str, int], int | None]) -> Finding:
    name, severity = missing.name, Severity.ERROR if missing.certain else Severity.WARNING
    place = view.place(missing.node)
    if missing.deleted:
        message = f"{name} was deleted by `del` before this line."
        fix = f"Take away the `del {name}`, or make {name} again."
        return view.finding("use-after-del", severity, node=missing.node, message=message, fix=fix)
    other = defining_cell(name, place.cell) if place and place.file is None and place.cell >= 0 else None
    if other is not None:
        message = f"{name} is defined in {place_text(other)}, which is not promoted."
        fix = f"Tag {place_text(other)} `promote`, or take it in by removing its skip tag."
        finding = view.finding(
            "defined-in-unselected-cell", severity, node=missing.node, message=message, fix=fix
        )
        return replace(finding, defining_cell=other)
    message, fix = _undefined(view, missing)
    return view.finding("undefined-name", severity, node=missing.node, message=message, fix=fix)


def _undefined(view: View, missing: Missing) -> tuple[str, str]:
    name = missing.name
    if _SESSION_NAMES.fullmatch(name):
        return f"{name} exists in a notebook session only.", "Give the value a name of its own and use that."
    later = _later_binding(view, missing)
    if later is not None:
        return (
            f"{name} is used before {place_text(later)} defines it.",
            "Move the definition above this cell.",
        )
    if not missing.certain:
        return f"{name} is not defined in a way that can be seen.", f"Assign {name} plainly if you can."
    return f"{name} is not defined.", f"Define {name}, import it, or correct the spelling."


def _later_binding(view: View, missing: Missing) -> int | None:
    """The cell below the use that binds the name first."""
    line = getattr(missing.node, "lineno", 0)
    for node in view.tree.body:
        if node.lineno > line and missing.name in bound_names([node]):
            place = view.place(node)
            return place.cell if place and place.cell >= 0 else None
    return None
