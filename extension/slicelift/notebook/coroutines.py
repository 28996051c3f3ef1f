"""Top-level `await`: which statements need the event loop, and how they become a coroutine.

A coroutine's names are local, a cell's are global: so all of them are declared `global`, and annotations,
which may not stand on a global name, are taken off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from slicelift.notebook.bindings import bound_names, deleted_names, loaded_names, own_scope
from slicelift.notebook.pieces import Line, indented, join, replaced

# In a kernel the loop always runs, so a cell without any await may use these.
_WANTS_LOOP = frozenset({"create_task", "ensure_future", "get_running_loop", "current_task", "all_tasks"})
_STARTS_LOOP = frozenset({"run_until_complete", "run_forever", "new_event_loop"})
# What sees the difference between a function and a module.
_MODULE_ONLY = frozenset({"exec", "eval", "locals", "vars", "dir"})


def first_await(nodes: Iterable[ast.stmt]) -> ast.AST | None:
    """The first thing at the top level that only a coroutine may do."""
    return next((item for node in nodes for item in own_scope(node) if _awaits(item)), None)


def may_need_loop(texts: Iterable[str]) -> bool:
    """False when no line has a word that could ask for the loop; then nothing need be looked at."""
    words = ("await", "async", "get_event_loop", *_WANTS_LOOP)
    return any(word in text for text in texts for word in words)


def loop_words(trees: Sequence[ast.Module]) -> set[str]:
    """Names whose mention asks for a running loop: asyncio's, and functions of the notebook that use them.

    `get_event_loop` gives a kernel's running loop, unless the notebook starts loops itself.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own_loops = any(isinstance(node, ast.Attribute) and node.attr in _STARTS_LOOP for node in nodes)
    words = {*_WANTS_LOOP} if own_loops else {*_WANTS_LOOP, "get_event_loop"}
    return words | _functions(trees, words)


def needs_loop(row: Sequence[ast.stmt], words: set[str]) -> bool:
    """True when a row awaits, or calls something that wants a running loop."""
    if first_await(row) is not None:
        return True
    return any(_mentioned(own_scope(node)) & words for node in row)


def must_stay(row: Sequence[ast.stmt]) -> bool:
    """True for a row that would mean something else inside a function."""
    names = {name for node in row for name in loaded_names(node)}
    inner = [item for node in row for item in own_scope(node)]
    stars = any(isinstance(item, ast.ImportFrom) and item.names[0].name == "*" for item in inner)
    return stars or bool(names & _MODULE_ONLY)


def as_coroutine(lines: Sequence[Line], name: str) -> list[Line]:
    """`lines` as `async def name():` with their names global."""
    plain = _without_annotations(list(lines))
    tree = ast.parse(join(plain))
    names = sorted(bound_names(tree.body) | deleted_names(tree.body))
    head = [Line(text=f"async def {name}():")]
    if names:
        head.append(Line(text=f"    global {', '.join(names)}"))
    return [*head, *indented(plain, "    ")]


def _functions(trees: Iterable[ast.Module], words: set[str]) -> set[str]:
    """Functions and classes that mention one of these words, directly or through others."""
    bodies: dict[str, set[str]] = {}
    for node in (item for tree in trees for item in tree.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bodies[node.name] = _mentioned(ast.walk(node))
    found: set[str] = set()
    while more := {name for name, used in bodies.items() if used & (words | found)} - found:
        found |= more
    return found


def _awaits(node: ast.AST) -> bool:
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        return any(item.is_async for item in node.generators)
    return isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)


def _mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
    return found


def _without_annotations(lines: list[Line]) -> list[Line]:
    tree = ast.parse(join(lines))
    found = [
        item
        for node in tree.body
        for item in own_scope(node)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    for node in reversed(found):
        text = "pass" if node.value is None else f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
        lines = replaced(lines, node, texts=[text])
    return lines
