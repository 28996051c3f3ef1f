"""Finding the magics in a translated cell: calls of `get_ipython()`, in statements and in values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from slicelift.models import LinePlace

_SHELL_METHODS = frozenset({"system", "getoutput", "system_raw", "system_piped", "getoutputs"})


@dataclass(frozen=True, kw_only=True)
class Magic:
    """One call. `name` has no percent signs; `body` is None for a line magic.

    `statement` is the statement it makes up on its own, or None; `value` is True when its result is used.
    A `name` that is empty means a call that cannot be read from the source.
    """

    name: str
    line: str = ""
    body: str | None = None
    shell: bool = False
    node: ast.Call
    statement: ast.stmt | None = None
    value: bool = False
    place: LinePlace
    body_places: tuple[LinePlace, ...] = ()

    @property
    def told(self) -> str:
        """As the user wrote it, for messages: one line, cut when long."""
        sign = "!" if self.shell else "%" if self.body is None else "%%"
        text = f"{sign}{self.name} {self.line}".strip() if not self.shell else f"!{self.line.strip()}"
        first = text.split("\n")[0]
        return first if len(first) <= 80 else first[:77] + "..."


@dataclass(frozen=True, kw_only=True)
class Found:
    """A call and how it stands in the code."""

    node: ast.Call
    statement: ast.stmt | None
    value: bool


def find(node: ast.AST) -> Iterator[Found]:
    """Every `get_ipython().method(...)` below `node`, in the order of the source."""
    if isinstance(node, ast.Expr) and is_magic_call(node.value):
        yield Found(node=node.value, statement=node, value=False)
    elif isinstance(node, ast.Call) and is_magic_call(node):
        yield Found(node=node, statement=None, value=True)
    else:
        for child in ast.iter_child_nodes(node):
            yield from find(child)


def is_magic_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for `get_ipython().anything(...)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call)
        and isinstance(node.func.value.func, ast.Name)
        and node.func.value.func.id == "get_ipython"
    )


def read(found: Found, *, place: LinePlace, body_places: tuple[LinePlace, ...]) -> Magic:
    """What the call says, as far as its arguments are literals."""
    name, line, body, shell = _said(found.node)
    return Magic(
        name=name,
        line=line,
        body=body,
        shell=shell,
        node=found.node,
        statement=found.statement,
        value=found.value,
        place=place,
        body_places=body_places,
    )


def _said(call: ast.Call) -> tuple[str, str, str | None, bool]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    texts = _texts(call)
    if texts is None:
        return "", f"get_ipython().{method}(...)", None, False
    if method in _SHELL_METHODS and texts:
        return "!", texts[0], None, True
    if method == "run_line_magic" and texts:
        return texts[0], texts[1] if len(texts) > 1 else "", None, False
    if method == "run_cell_magic" and len(texts) == 3:
        return texts[0], texts[1], texts[2], False
    if method == "magic" and texts:
        name, _, line = texts[0].lstrip("%").partition(" ")
        return name, line.strip(), None, False
    if method == "show_usage":
        return "quickref", "", None, False
    return "", f"get_ipython().{method}(...)", None, False


def _texts(call: ast.Call) -> list[str] | None:
    """The arguments in order when all of them are literal strings."""
    order = {"magic_name": 0, "line": 1, "cell": 2, "cmd": 0}
    named = sorted(
        (word for word in call.keywords if word.arg in order), key=lambda word: order[word.arg or ""]
    )
    values = [*call.args, *(word.value for word in named)]
    texts = [
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    return texts if len(texts) == len(call.args) + len(call.keywords) else None
