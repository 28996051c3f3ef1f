"""Runs of translated lines, and the text surgery on them: replacing a statement, indenting a block."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicelift.models import LinePlace
from slicelift.notebook.bindings import children

# Every check goes down a tree by recursion, pyflakes with three frames a level: of Python's thousand, some are for the
# program that calls.
DEEPEST = 250
_LEAVES = (ast.Constant, ast.Name)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of Python and where it comes from; `place` is None for a line of ours."""

    text: str
    place: LinePlace | None = None


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One `%%capture`: `name` is the variable that gets the output, or empty."""

    number: int
    name: str = ""
    stdout: bool = True
    stderr: bool = True


@dataclass(kw_only=True)
class Piece:
    """Lines of one cell that are compiled together. `tree` is None when they are no valid Python.

    `binds` are names that come to be without being seen in the source (`%run script.py`), `captures` the
    `%%capture` cells around it from the outside in.
    """

    cell: int
    lines: list[Line]
    tree: ast.Module | None
    file: str | None = None
    binds: tuple[str, ...] = ()
    captures: tuple[Capture, ...] = ()
    parameters: bool = False

    @property
    def text(self) -> str:
        """The lines as one string that ends in a newline."""
        return join(self.lines)


def join(lines: Iterable[Line]) -> str:
    """The text of these lines."""
    return "".join(line.text + "\n" for line in lines)


def parse(lines: Sequence[Line]) -> ast.Module | None:
    """The syntax tree, or None when the lines are no valid Python for this interpreter, or `is_too_deep`."""
    return parse_text(join(lines))


def parse_text(text: str | bytes) -> ast.Module | None:
    """As `parse`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if _is_deeper(tree) else tree


def is_too_deep(text: str) -> bool:
    """Whether code is valid Python, but nested deeper than anybody here can go down."""
    try:
        return _is_deeper(ast.parse(text))
    except (SyntaxError, ValueError):
        return False
    except (RecursionError, MemoryError):  # Python's own parser gives up with these
        return True


def _is_deeper(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST + 1):
        level = [below for node in level if not isinstance(node, _LEAVES) for below in children(node)]
        if not level:
            return False
    return True


def alone(node: ast.stmt, lines: Sequence[Line]) -> bool:
    """True when a statement shares its lines with nothing but a comment."""
    before, after = around(node, lines)
    return not before.strip() and (not after.strip() or after.lstrip().startswith("#"))


def around(node: ast.stmt | ast.expr, lines: Sequence[Line]) -> tuple[str, str]:
    """The text before and after a node on its first and its last line."""
    first, last = lines[node.lineno - 1].text, lines[(node.end_lineno or node.lineno) - 1].text
    before = first.encode()[: node.col_offset].decode()
    after = last.encode()[node.end_col_offset or 0 :].decode()
    return before, after


def replaced(lines: list[Line], node: ast.stmt | ast.expr, *, texts: Sequence[str]) -> list[Line]:
    """`lines` with the node's text replaced; a first and a last new line join what stands around it."""
    before, after = around(node, lines)
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    place = lines[start].place
    new = [before + texts[0], *texts[1:]]
    new[-1] += after
    return [*lines[:start], *(Line(text=text, place=place) for text in new), *lines[end:]]


def indented(lines: Sequence[Line], prefix: str) -> list[Line]:
    """Each line with `prefix` before it, but for blank ones and for the inside of strings, which must not change."""
    inside = _string_lines(lines)
    return [
        line if number in inside or not line.text.strip() else Line(text=prefix + line.text, place=line.place)
        for number, line in enumerate(lines, start=1)
    ]


def rows(tree: ast.Module) -> list[list[ast.stmt]]:
    """Top-level statements, those that share a line (`a = 1; b = 2`) in one group."""
    groups: list[list[ast.stmt]] = []
    end = 0
    for node in tree.body:
        if groups and first_line(node) <= end:
            groups[-1].append(node)
        else:
            groups.append([node])
        end = max(end, node.end_lineno or node.lineno)
    return groups


def first_line(node: ast.stmt) -> int:
    """The line a statement begins on, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])


def last_line(group: Sequence[ast.stmt], lines: Sequence[Line]) -> int:
    """The line a row ends on. A backslash after the last statement takes the empty line below with it."""
    node = max(group, key=lambda item: item.end_lineno or item.lineno)
    end = node.end_lineno or node.lineno
    rest = around(node, lines)[1].replace(";", "").strip()
    while rest == "\\" and end < len(lines):
        rest = lines[end].text.strip()
        end += 1
    return end


def _string_lines(lines: Sequence[Line]) -> set[int]:
    """Line numbers that begin inside a string: there, white space is content."""
    # Most code has no string over several lines, and parsing it to find none would take a while.
    if not any('"""' in line.text or "'''" in line.text or line.text.endswith("\\") for line in lines):
        return set()
    found: set[int] = set()
    for node in ast.walk(ast.parse(join(lines))):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if text or isinstance(node, ast.JoinedStr):
            found.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return found
