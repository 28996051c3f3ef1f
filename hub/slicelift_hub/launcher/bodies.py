"""JSON bodies become frozen dataclasses, or a 400 that names the field."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from slicelift.errors import UserError
from slicelift.models import from_dict, type_hints

T = TypeVar("T")


def parse(kind: type[T], data: object) -> T:
    """One of `slicelift.models` from decoded JSON, every type checked. Raises `bad-body`."""
    wrong = _misfit(kind, data, kind.__name__)
    if wrong or not isinstance(data, dict):
        raise _bad(kind, wrong)
    try:
        return from_dict(kind, data)
    except (TypeError, ValueError) as error:
        raise _bad(kind, str(error)) from error


def text_field(body: Mapping[str, Any], name: str) -> str:
    """A field that must be text. Raises `bad-body`."""
    value = body.get(name)
    if not isinstance(value, str):
        raise UserError("bad-body", f"The body has no text field {name!r}.", "See docs/architecture.md.")
    return value


def depth(value: Any, *, most: int) -> int:
    """Levels of lists and objects, without recursion; `most` and one stands for all deeper ones."""
    found, level = 0, [value]
    while found <= most:
        level = [child for item in level for child in _children(item)]
        if not level:
            break
        found += 1
    return found


def _bad(kind: type[Any], why: str) -> UserError:
    return UserError(
        "bad-body", f"This is no {kind.__name__}: {why}.", "See slicelift.models for its fields."
    )


def _misfit(hint: Any, value: object, name: str) -> str:
    """Where JSON does not fit an annotation, in words; "" when all of it does. A missing field is not ours to say."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            return f"{name} is {type(value).__name__}, not an object"
        hints = type_hints(hint)
        found = (_misfit(kind, value[key], f"{name}.{key}") for key, kind in hints.items() if key in value)
        return next(filter(None, found), "")
    return "" if _fits(hint, value) else f"{name} is {type(value).__name__}, not {hint}"


def _fits(hint: Any, value: object) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_fits(arg, value) for arg in args)
    if origin is tuple:
        return isinstance(value, list) and all(_fits(args[0], item) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(args[1], item) for item in value.values())
    if dataclasses.is_dataclass(hint):
        return not _misfit(hint, value, "")
    return type(value) is hint


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
