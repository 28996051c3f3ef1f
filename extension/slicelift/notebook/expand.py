"""IPython's `{name}` and `$name` in the line of a magic, as a Python expression."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator


def as_expression(text: str, *, bound: Collection[str]) -> tuple[str, bool]:
    """The Python expression that gives what IPython would put into the line, and whether it is a constant.

    IPython leaves the whole text alone when any of its fields cannot be evaluated; so a name that is not
    `bound` (nor a builtin) makes it a plain literal.
    """
    if "{" not in text and "$" not in text:
        return repr(text), True
    try:
        parts = list(_fields(text))
        trees = [ast.parse(field, mode="eval") for _, field, _, _ in parts if field is not None]
    except (ValueError, SyntaxError):
        return repr(text), True
    names = {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}
    if any(name not in bound and not hasattr(builtins, name) for name in names):
        return repr(text), True
    if not names:
        return repr(_constant(text, parts)), True
    return _format_call(parts), False


Part = tuple[str, "str | None", "str | None", "str | None"]


def _fields(text: str) -> Iterator[Part]:
    # Part of IPython, which the translation has loaded already.
    from IPython.utils.text import DollarFormatter

    yield from DollarFormatter().parse(text)


def _constant(text: str, parts: list[Part]) -> str:
    """The text with fields that name nothing (`{{`, `{1}`) evaluated; unchanged when one of them fails."""
    result = []
    for literal, field, spec, conversion in parts:
        result.append(literal)
        if field is None:
            continue
        try:
            value = ast.literal_eval(field)
            result.append(format(repr(value) if conversion == "r" else value, spec or ""))
        except (ValueError, SyntaxError, TypeError):
            return text
    return "".join(result)


def _format_call(parts: list[Part]) -> str:
    pattern, fields = "", []
    for literal, field, spec, conversion in parts:
        pattern += literal.replace("{", "{{").replace("}", "}}")
        if field is not None:
            pattern += "{" + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
            fields.append(field.strip())
    return f"{pattern!r}.format({', '.join(fields)})"
