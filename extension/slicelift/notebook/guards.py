"""What of the script must not run again in a child process.

A pool that spawns imports the script as `__mp_main__`. It must find imports, functions, classes and plain
constants there, and must not train a second time. So every other statement goes under
`if __name__ == "__main__":`, and with it each definition that needs a name which is only bound there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slicelift.notebook.bindings import (
    bound_names,
    definition_parts,
    deleted_names,
    global_needs,
    loaded_names,
    own_scope,
    signature_annotations,
    type_parameters,
)

_PURE = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.Dict,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Starred,
    ast.Lambda,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.keyword,
)
# Calls that only build a value; a class made this way must exist in the child, or nothing of it unpickles.
_BUILDERS = """
namedtuple NamedTuple TypedDict NewType TypeVar ParamSpec Path PurePath compile getLogger
frozenset set tuple list dict int float str bool
"""
_CHANGING = (
    "append extend insert remove pop clear sort reverse update setdefault add discard popitem appendleft"
)
_MUTATORS = frozenset(_CHANGING.split())
_TELLING = frozenset(["print", "warn", "info", "warning", "debug", "error", "exception"])
_CLASS_BODY = (
    ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass | ast.Import
)


@dataclass(kw_only=True)
class Scope:
    """What is known at one point of the script.

    `hidden` names are bound under a guard only, or differ there. `touched` names are rebound or changed under
    one somewhere, so that their constant would be stale in the child. `needs` are the globals that each
    function or class may read once it is called.
    """

    touched: frozenset[str]
    lazy_annotations: bool
    hidden: set[str] = field(default_factory=set)
    needs: dict[str, set[str]] = field(default_factory=dict)

    def reaches_hidden(self, names: Iterable[str]) -> bool:
        """True when one of these names, or what it calls, is only there under a guard."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in self.hidden:
                return True
            if name not in seen:
                seen.add(name)
                waiting += self.needs.get(name, ())
        return False


def guarded(rows: Sequence[Sequence[ast.stmt]], *, lazy_annotations: bool) -> list[bool]:
    """For each row of statements, in order, whether it goes under the guard."""
    facts = [_facts(row) for row in rows]
    touched: frozenset[str] = frozenset()
    while True:
        flags = _pass(facts, Scope(touched=touched, lazy_annotations=lazy_annotations))
        more = touched.union(*(fact.changed for fact, flag in zip(facts, flags, strict=True) if flag))
        if more == touched:
            return flags
        touched = more


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What does not change from one pass to the next."""

    nodes: Sequence[ast.stmt]
    bound: set[str]
    changed: set[str]
    needs: Mapping[str, set[str]]


def _facts(row: Sequence[ast.stmt]) -> _Facts:
    definitions = [
        node for node in row if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return _Facts(
        nodes=row,
        bound=bound_names(row),
        changed=_changed(row),
        needs={node.name: global_needs(node) for node in definitions},
    )


def _pass(facts: Sequence[_Facts], scope: Scope) -> list[bool]:
    flags = []
    for fact in facts:
        lifted = all(_liftable(node, scope) for node in fact.nodes)
        if lifted:
            scope.hidden -= fact.bound
        else:
            scope.hidden |= fact.bound
        scope.needs.update(fact.needs)
        flags.append(not lifted)
    return flags


def _changed(row: Sequence[ast.stmt]) -> set[str]:
    """Names that a row rebinds, deletes or changes in place."""
    found = bound_names(row) | deleted_names(row)
    for node in (item for statement in row for item in own_scope(statement)):
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found |= _base(node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            found |= _base(node.func)
    return found


def _base(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _liftable(node: ast.stmt, scope: Scope) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.Global):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    rule = _RULES.get(type(node).__name__)
    return rule(node, scope) if rule else False


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> bool:
    parts = definition_parts(node) + ([] if scope.lazy_annotations else signature_annotations(node))
    names = {name for part in parts for name in loaded_names(part)} - type_parameters(node)
    return not scope.reaches_hidden(names)


def _class(node: ast.ClassDef, scope: Scope) -> bool:
    if not all(isinstance(item, _CLASS_BODY) or _liftable(item, scope) for item in node.body):
        return False
    names = {name for part in definition_parts(node) for name in loaded_names(part)}
    own = bound_names(node.body) | type_parameters(node)
    inner = {name for item in node.body for name in _class_reads(item, scope)}
    return not scope.reaches_hidden(names | (inner - own))


def _class_reads(node: ast.stmt, scope: Scope) -> set[str]:
    """Names that a statement of a class body reads while the class is made."""
    names = loaded_names(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not scope.lazy_annotations:
        names |= {name for part in signature_annotations(node) for name in loaded_names(part)}
    if isinstance(node, ast.ClassDef):
        names |= {name for item in node.body for name in _class_reads(item, scope)}
    return names


def _assign(node: ast.Assign, scope: Scope) -> bool:
    simple = all(_plain_target(target) for target in node.targets)
    return simple and _constant(node.value, scope) and not bound_names([node]) & scope.touched


def _annotated(node: ast.AnnAssign, scope: Scope) -> bool:
    if not isinstance(node.target, ast.Name):
        return False
    if not scope.lazy_annotations and scope.reaches_hidden(loaded_names(node.annotation)):
        return False
    return node.value is None or (_constant(node.value, scope) and node.target.id not in scope.touched)


def _plain_target(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_plain_target(item) for item in target.elts)
    return isinstance(target, ast.Name)


def _constant(node: ast.expr, scope: Scope) -> bool:
    """True for a value that is the same in every process and made without running code of the notebook."""
    names = loaded_names(node)
    if names & scope.touched or scope.reaches_hidden(names):
        return False
    return all(_pure(item) for item in own_scope(node))


def _pure(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        func = node.func
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        return name in _BUILDERS.split()
    return isinstance(node, _PURE)


def _if(node: ast.If, scope: Scope) -> bool:
    if "__name__" in loaded_names(node.test) or not _constant(node.test, scope):
        return False
    return all(_liftable(item, scope) for item in [*node.body, *node.orelse])


def _try(node: ast.Try, scope: Scope) -> bool:
    main = [*node.body, *node.orelse, *node.finalbody]
    imports = any(isinstance(item, ast.Import | ast.ImportFrom) for item in node.body)
    handled = [item for handler in node.handlers for item in handler.body]
    return all(_liftable(item, scope) for item in main) and all(
        _liftable(item, scope) or (imports and _only_tells(item)) for item in handled
    )


def _only_tells(node: ast.stmt) -> bool:
    """`print("no cupy")` beside an import: said twice, but a child without the import would not run."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    func = node.value.func
    name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
    return name in _TELLING


def _with(node: ast.With, scope: Scope) -> bool:
    calls = [item.context_expr for item in node.items]
    quiet = all(isinstance(call, ast.Call) and ast.unparse(call.func).endswith("suppress") for call in calls)
    return quiet and all(_liftable(item, scope) for item in node.body)


def _alias(node: ast.stmt, scope: Scope) -> bool:  # noqa: ARG001  one of the rules
    return True


_RULES: dict[str, Callable[..., bool]] = {
    "FunctionDef": _function,
    "AsyncFunctionDef": _function,
    "ClassDef": _class,
    "Assign": _assign,
    "AnnAssign": _annotated,
    "If": _if,
    "Try": _try,
    "With": _with,
    "TypeAlias": _alias,
}
