"""Values that can be told from the source alone: literals, constants, and paths put together from them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from slicelift.notebook.bindings import own_scope

Known = Mapping[str, ast.expr]
_PATH_CLASSES = frozenset({"Path", "PurePath", "PosixPath", "PurePosixPath"})
_DEPTH = 20


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute chain; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def text_of(node: ast.expr, *, known: Known, folder: str, depth: int = 0) -> str | None:
    """The string or path that an expression gives, or None when that is only known at run time.

    `known` maps names that are assigned exactly once to what they are assigned; `folder` stands for the
    working directory (`Path.cwd()`, `os.getcwd()`, `abspath`).
    """
    if depth > _DEPTH:
        return None
    reader = _READERS.get(type(node))
    return reader(node, _Scope(known, folder, depth=depth + 1)) if reader else None


class _Scope:
    """What an expression is read with."""

    def __init__(self, known: Known, folder: str, *, depth: int) -> None:
        self.known = known
        self.folder = folder
        self.depth = depth

    def read(self, node: ast.expr) -> str | None:
        return text_of(node, known=self.known, folder=self.folder, depth=self.depth)

    def all(self, nodes: list[ast.expr]) -> list[str] | None:
        texts = [self.read(node) for node in nodes]
        return None if None in texts else [text for text in texts if text is not None]


def _constant(node: Any, _: _Scope) -> str | None:
    return node.value if isinstance(node.value, str) else None


def _name(node: Any, scope: _Scope) -> str | None:
    value = scope.known.get(node.id)
    return None if value is None else scope.read(value)


def _fstring(node: Any, scope: _Scope) -> str | None:
    parts = [_fstring_part(part, scope) for part in node.values]
    return None if None in parts else "".join(part for part in parts if part is not None)


def _fstring_part(part: ast.expr, scope: _Scope) -> str | None:
    if isinstance(part, ast.FormattedValue):
        plain = part.format_spec is None and part.conversion == -1
        return scope.read(part.value) if plain else None
    return scope.read(part)


def _operator(node: Any, scope: _Scope) -> str | None:
    left, right = scope.read(node.left), scope.read(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add):
        return left + right
    return str(PurePosixPath(left) / right) if isinstance(node.op, ast.Div) else None


def _attribute(node: Any, scope: _Scope) -> str | None:
    if node.attr != "parent":
        return None
    base = scope.read(node.value)
    return None if base is None else str(PurePosixPath(base).parent)


def _call(node: Any, scope: _Scope) -> str | None:
    name = dotted(node.func)
    last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    if node.keywords and last != "resolve":
        return None
    if name.endswith((".cwd", "getcwd")) and not node.args:
        return scope.folder
    if last == "home" and name.count(".") and not node.args:
        return os.path.expanduser("~")  # noqa: PTH111  a string, like all paths here
    if last in _PATH_CLASSES or name in ("str", "os.fspath") or name.endswith("path.join"):
        return _join(scope.all(node.args))
    if name.endswith(("path.expanduser", "path.abspath", "path.realpath", "path.normpath", "path.dirname")):
        return _path_function(last, scope.all(node.args), folder=scope.folder)
    return _method(node, last, scope=scope)


def _join(texts: list[str] | None) -> str | None:
    if texts is None:
        return None
    return str(PurePosixPath(*texts)) if len(texts) != 1 else texts[0]


def _path_function(name: str, texts: list[str] | None, *, folder: str) -> str | None:
    if not texts or len(texts) != 1:
        return None
    if name == "expanduser":
        return os.path.expanduser(texts[0])  # noqa: PTH111  a string that may be no path
    if name == "dirname":
        return os.path.dirname(texts[0])  # noqa: PTH120
    return os.path.normpath(os.path.join(folder, texts[0]))  # noqa: PTH118


def _method(node: Any, name: str, *, scope: _Scope) -> str | None:
    if not isinstance(node.func, ast.Attribute):
        return None
    base = scope.read(node.func.value)
    if base is None:
        return None
    if name in ("expanduser", "resolve", "absolute"):
        return _path_function(
            "expanduser" if name == "expanduser" else "abspath", [base], folder=scope.folder
        )
    texts = scope.all(node.args)
    return str(PurePosixPath(base, *texts)) if name == "joinpath" and texts is not None else None


_READERS = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.JoinedStr: _fstring,
    ast.BinOp: _operator,
    ast.Attribute: _attribute,
    ast.Call: _call,
}


def folder_after(nodes: Iterable[ast.AST], *, known: Known, folder: str | None) -> str | None:
    """The working directory after these statements, which may call `os.chdir`; None once it is unknown."""
    for node in nodes:
        for call in own_scope(node):
            if isinstance(call, ast.Call) and dotted(call.func).endswith("chdir") and call.args:
                target = None if folder is None else text_of(call.args[0], known=known, folder=folder)
                folder = None if target is None else os.path.normpath(os.path.join(folder or "", target))  # noqa: PTH118
    return folder
