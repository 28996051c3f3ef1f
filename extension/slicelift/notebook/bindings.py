"""Which names a statement binds, reads and needs: questions about scopes that several steps share."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names bound in the scope these nodes stand in, however deep inside `if`, `for`, `try` or `with`.

    A bare annotation (`x: int`) binds nothing.
    """
    found: set[str] = set()
    for node in nodes:
        for inner in own_scope(node):
            found.update(_bound_by(inner))
    return found


def deleted_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a `del` of this scope removes."""
    inner = (item for node in nodes for item in own_scope(node))
    return {item.id for item in inner if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Del)}


def own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is evaluated or bound in its own scope: never the inside of functions or classes."""
    yield node
    if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
        return
    if isinstance(node, Comprehension):
        yield from _comprehension_scope(node)
        return
    for child in definition_parts(node) if _is_definition(node) else ast.iter_child_nodes(node):
        yield from own_scope(child)


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


def loaded_names(node: ast.AST) -> set[str]:
    """Names this statement reads from its own scope when it is reached."""
    inner = own_scope(node)
    return {item.id for item in inner if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)}


def global_needs(node: ast.AST) -> set[str]:
    """Names a function or class may read from the module when it is used: all it reads minus its locals."""
    free: set[str] = set()
    _free(node, frozenset(), free)
    return free


def type_parameters(node: ast.AST) -> set[str]:
    """The `T` of `def f[T]` and `class C[T]`."""
    return {str(item.name) for item in getattr(node, "type_params", [])}


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef | ast.Lambda | Function)


def _comprehension_scope(node: Comprehension) -> Iterator[ast.AST]:
    """The first iterator, names from outside, and walruses, which bind outside; never the loop variables."""
    inner = [item for part in ast.iter_child_nodes(node) for item in own_scope(part)]
    targets = {name for item in node.generators for name in _targets(item.target)}
    for item in inner:
        local = isinstance(item, ast.Name) and item.id in targets
        if not local or any(isinstance(w, ast.NamedExpr) and w.target is item for w in inner):
            yield item


def _targets(target: ast.expr) -> set[str]:
    return {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}


def _bound_by(node: ast.AST) -> set[str]:
    """What this one node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.ClassDef | Function):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {item.asname or item.name.split(".")[0] for item in node.names if item.name != "*"}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return {node.name} if node.name else set()
    return {node.rest} if isinstance(node, ast.MatchMapping) and node.rest else set()


def _free(node: ast.AST, local: frozenset[str], free: set[str]) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
        free.add(node.id)
    inside = local
    if isinstance(node, ast.Lambda | Function):
        inside = local | _parameters(node.args) | _locals(node)
    elif isinstance(node, Comprehension):
        inside = local | {name for item in node.generators for name in _targets(item.target)}
    for child in ast.iter_child_nodes(node):
        _free(child, inside, free)


def _parameters(given: ast.arguments) -> set[str]:
    everyone = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {arg.arg for arg in everyone if arg is not None}


def _locals(node: ast.Lambda | Function) -> set[str]:
    if isinstance(node, ast.Lambda):
        return set()
    shared = {name for item in ast.walk(node) if isinstance(item, ast.Global) for name in item.names}
    return (bound_names(node.body) | type_parameters(node)) - shared
