"""Which names a statement binds, reads and needs: questions about scopes that several steps share.

A notebook of hundreds of cells asks them thousands of times, so the nodes of a scope are found once for
each statement and kept with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BINDERS = frozenset(
    {
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.Import,
        ast.ImportFrom,
        ast.ExceptHandler,
        ast.MatchAs,
        ast.MatchStar,
        ast.MatchMapping,
    }
)
# Fields without names or code in them.
_BARE_FIELDS = frozenset({"ctx", "op", "ops", "type_ignores", "kind", "value_kind"})
_KEPT = "_slicelift_scope"


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, but for operators and contexts."""
    found: list[ast.AST] = []
    for name in node._fields:
        if name in _BARE_FIELDS:
            continue
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def own_scope(node: ast.AST) -> list[ast.AST]:
    """`node` and what is evaluated or bound in its own scope, in order: never the inside of functions or classes."""
    kept: list[ast.AST] | None = node.__dict__.get(_KEPT)
    if kept is None:
        kept = []
        _gather(node, kept)
        node.__dict__[_KEPT] = kept
    return kept


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names bound in the scope these nodes stand in, however deep inside `if`, `for`, `try` or `with`.

    A bare annotation (`x: int`) binds nothing.
    """
    found: set[str] = set()
    for node in nodes:
        for inner in own_scope(node):
            _bind(inner, found)
    return found


def deleted_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a `del` of this scope removes."""
    inner = (item for node in nodes for item in own_scope(node))
    return {item.id for item in inner if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Del)}


def loaded_names(node: ast.AST) -> set[str]:
    """Names this statement reads from its own scope when it is reached."""
    inner = own_scope(node)
    return {item.id for item in inner if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}


def definition_parts(node: ast.AST) -> list[ast.expr]:
    """The expressions that a `def`, `class` or `lambda` evaluates when it is reached."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(word.value for word in node.keywords)]
    if isinstance(node, ast.Lambda | Function):
        given = node.args
        defaults = [*given.defaults, *(value for value in given.kw_defaults if value is not None)]
        return [*getattr(node, "decorator_list", []), *defaults]
    return []


def signature_annotations(node: Function) -> list[ast.expr]:
    """The annotations of a function's signature."""
    given = node.args
    everyone = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    found = [arg.annotation for arg in everyone if arg is not None and arg.annotation is not None]
    return [*found, node.returns] if node.returns is not None else found


def global_needs(node: ast.AST) -> set[str]:
    """Names a function or class may read from the module when it is used: all it reads minus its locals."""
    free: set[str] = set()
    _free(node, frozenset(), free=free)
    return free


def type_parameters(node: ast.AST) -> set[str]:
    """The `T` of `def f[T]` and `class C[T]`."""
    return {str(item.name) for item in getattr(node, "type_params", [])}


def _gather(node: ast.AST, found: list[ast.AST]) -> None:
    found.append(node)
    if isinstance(node, ast.Name | ast.Constant):
        return
    if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
        return
    if isinstance(node, _COMPREHENSIONS):
        found += _comprehension_scope(node)
        return
    below = definition_parts(node) if isinstance(node, _DEFINITIONS) else children(node)
    for child in below:
        _gather(child, found)


def _comprehension_scope(node: Comprehension) -> list[ast.AST]:
    """What is inside, but for the loop variables; a walrus binds outside and stays."""
    inner: list[ast.AST] = []
    for part in children(node):
        _gather(part, inner)
    targets = {name for item in node.generators for name in _targets(item.target)}
    walrus = {id(item.target) for item in inner if isinstance(item, ast.NamedExpr)}
    return [
        item
        for item in inner
        if not (isinstance(item, ast.Name) and item.id in targets) or id(item) in walrus
    ]


def _targets(target: ast.expr) -> set[str]:
    return {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}


def _bind(node: ast.AST, found: set[str]) -> None:
    """Add what this one node binds."""
    if type(node) is ast.Name:  # nearly all of them
        if type(node.ctx) is ast.Store:
            found.add(node.id)
    elif type(node) in _BINDERS:
        _bind_other(node, found)


def _bind_other(node: ast.AST, found: set[str]) -> None:
    if isinstance(node, ast.ClassDef | Function):
        found.add(node.name)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        found.update(item.asname or item.name.split(".")[0] for item in node.names if item.name != "*")
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        found.update([node.name] if node.name else [])
    elif isinstance(node, ast.MatchMapping) and node.rest:
        found.add(node.rest)


def _free(node: ast.AST, local: frozenset[str], *, free: set[str]) -> None:
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in local:
            free.add(node.id)
        return
    inside = local
    if isinstance(node, ast.Lambda | Function):
        inside = local | _parameters(node.args) | _locals(node)
    elif isinstance(node, _COMPREHENSIONS):
        inside = local | {name for item in node.generators for name in _targets(item.target)}
    for child in children(node):
        _free(child, inside, free=free)


def _parameters(given: ast.arguments) -> set[str]:
    everyone = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {arg.arg for arg in everyone if arg is not None}


def _locals(node: ast.Lambda | Function) -> set[str]:
    if isinstance(node, ast.Lambda):
        return set()
    inner = (item for statement in node.body for item in own_scope(statement))
    shared = {name for item in inner if isinstance(item, ast.Global) for name in item.names}
    return (bound_names(node.body) | type_parameters(node)) - shared
