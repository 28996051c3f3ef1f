"""Cells tagged `parameters`: their literal defaults, and overrides typed after them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicelift.errors import UserError
from slicelift.models import Finding, LinePlace, Script, Severity
from slicelift.notebook.pieces import Piece

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_LARGEST = 10**6
_TAG_HINT = "Tag the cell that sets the defaults `parameters` (JupyterLab: property inspector, gear icon)."


@dataclass(kw_only=True)
class Parameters:
    """The defaults in force after all `parameters` cells; `cells` says which names each of them sets."""

    values: dict[str, Any] = field(default_factory=dict)
    cells: dict[int, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read_parameters(pieces: Sequence[Piece]) -> Parameters | None:
    """The parameters of a program, or None without such a cell."""
    chosen = [piece for piece in pieces if piece.parameters]
    if not chosen:
        return None
    found = Parameters()
    for piece in chosen:
        _begin_cell(found, piece)
        for node in piece.tree.body if piece.tree else ():
            _statement(found, piece, node=node)
    return found


def parse_overrides(
    defaults: Script | Mapping[str, Any] | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Overrides by the types of their defaults: text is read, other values are checked.

    Raises UserError `parameter-unknown` or `parameter-type`, naming the parameter, what was given and what
    is wanted.
    """
    known = defaults.parameters if isinstance(defaults, Script) else defaults
    if overrides and known is None:
        first = next(iter(overrides))
        raise UserError(
            "parameter-unknown", f"{first} was given, but the notebook has no parameters cell.", _TAG_HINT
        )
    for name in overrides:
        if name not in (known or {}):
            listed = ", ".join(known or {}) or "none"
            raise UserError(
                "parameter-unknown", f"There is no parameter {name}.", f"The parameters are: {listed}."
            )
    return {name: _typed(name, (known or {})[name], given=given) for name, given in overrides.items()}


def _begin_cell(found: Parameters, piece: Piece) -> None:
    """A second cell with the tag works, since the later assignment wins, but is seldom meant."""
    if found.cells and piece.cell not in found.cells:
        message = "A second cell is tagged `parameters`; the later assignment wins."
        found.findings.append(
            _finding("duplicate-parameter", Severity.WARNING, message=message, cell=piece.cell)
        )
    found.cells.setdefault(piece.cell, [])


def _statement(found: Parameters, piece: Piece, *, node: ast.stmt) -> None:
    place = piece.lines[node.lineno - 1].place
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) or _is_text(node) or place is None:
        return
    if _is_ours(node):
        return
    pairs = _pairs(node)
    if pairs is None:
        message = "Only assignments of literals may stand in a parameters cell."
        fix = "Move other code into a cell below."
        found.findings.append(
            _at(place, "parameters-not-literal", severity=Severity.ERROR, message=message, fix=fix)
        )
        return
    for name, value in pairs:
        _assign(found, name, value=value, place=place)


def _assign(found: Parameters, name: str, *, value: ast.expr, place: LinePlace) -> None:
    if any(name in names for names in found.cells.values()):
        message = f"{name} is assigned twice; the last value counts."
        found.findings.append(
            _at(place, "duplicate-parameter", severity=Severity.WARNING, message=message, fix=None)
        )
    found.cells[place.cell].append(name)
    try:
        found.values[name] = _literal(value)
    except (ValueError, TypeError, ArithmeticError):
        message = f"The default of {name} is not a literal, so it cannot be shown or typed."
        fix = f"Write a plain value, and compute {name} in a cell below."
        found.findings.append(
            _at(place, "parameters-not-literal", severity=Severity.ERROR, message=message, fix=fix)
        )


def _pairs(node: ast.stmt) -> list[tuple[str, ast.expr]] | None:
    """Names and values of an assignment, unpacking included; None for any other statement."""
    if isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
        return [(node.target.id, node.value)]
    if not isinstance(node, ast.Assign):
        return None
    pairs: list[tuple[str, ast.expr]] = []
    for target in node.targets:
        unpacked = _unpacked(target, node.value)
        if unpacked is None:
            return None
        pairs += unpacked
    return pairs


def _unpacked(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]] | None:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(value, ast.Tuple | ast.List):
        return None
    inner = [_unpacked(*pair) for pair in zip(target.elts, value.elts, strict=False)]
    if len(target.elts) != len(value.elts) or any(item is None for item in inner):
        return None
    return [pair for item in inner if item is not None for pair in item]


def _literal(node: ast.expr) -> Any:
    """The value of a literal or of arithmetic on numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.BinOp):
        left, right = _literal(node.left), _literal(node.right)
        numbers = all(isinstance(item, int | float) and abs(item) < _LARGEST for item in (left, right))
        if not numbers or type(node.op) not in _OPERATORS or (isinstance(node.op, ast.Pow) and right > 64):
            raise ValueError("not plain arithmetic")
        return _OPERATORS[type(node.op)](left, right)
    value = ast.literal_eval(node)
    if not _plain(value):
        raise ValueError("no JSON form")
    return value


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_ours(node: ast.stmt) -> bool:
    return any(isinstance(item, ast.Name) and item.id.startswith("_slicelift_") for item in ast.walk(node))


def _at(place: LinePlace, code: str, *, severity: Severity, message: str, fix: str | None) -> Finding:
    return _finding(code, severity, message=message, cell=place.cell, line=place.line, fix=fix)


def _finding(
    code: str, severity: Severity, *, message: str, cell: int, line: int | None = None, fix: str | None = None
) -> Finding:
    return Finding(code=code, severity=severity, message=message, cell=cell, line=line, fix=fix)


def _typed(name: str, default: Any, *, given: Any) -> Any:
    try:
        return _from_text(default, given) if isinstance(given, str) else _checked(default, given)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        wanted = "any literal" if default is None else f"{type(default).__name__}, like {default!r}"
        raise UserError(
            "parameter-type",
            f"Parameter {name}: {given!r} was given, {wanted} is wanted.",
            f"Give it as -p {name}=<value>.",
        ) from None


def _from_text(default: Any, text: str) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return _boolean(text)
    if isinstance(default, int):
        return int(text.strip())
    if isinstance(default, float):
        return float(text.strip())
    return _checked(default, _any_literal(text, default))


def _boolean(text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.strip().lower()]


def _any_literal(text: str, default: Any) -> Any:
    """A literal. Where the default is None there is no type to go by, so a bare word counts as text."""
    stripped = text.strip()
    if stripped.lower() in _SPECIAL:
        return _SPECIAL[stripped.lower()]
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError):
        if default is None:
            return text
        raise


def _checked(default: Any, given: Any) -> Any:
    """A value of the default's type; a whole number will do for a float, a list for a tuple."""
    if default is None or (type(given) is type(default) and _plain(given)):
        return given
    if isinstance(default, float) and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if isinstance(default, list | tuple) and isinstance(given, list | tuple):
        return type(default)(given)
    raise TypeError(type(given).__name__)
