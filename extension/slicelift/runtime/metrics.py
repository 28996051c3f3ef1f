"""What may be logged as a metric: names that MLflow takes, values that are one real number."""

from __future__ import annotations

import operator
import posixpath
import re
from typing import Any

from slicelift.errors import UserError

# MLflow's bound is 250 characters; a rank above 0 is exported as rank/<r>/<name>
NAME_LENGTH = 240
LONGEST_STEP = 2**63 - 1
_NAME = re.compile(r"[/\w.\- :]+")


def check_name(name: str) -> None:
    """Raises UserError `metric-name` unless MLflow takes `name` as the key of a metric."""
    if len(name) > NAME_LENGTH:
        raise UserError(
            "metric-name",
            f"The metric name {name[:40]!r}... has {len(name)} characters.",
            f"Use at most {NAME_LENGTH}.",
        )
    # MLflow's own rules: a name may become a path, so it must not resolve to another one
    tidy = posixpath.normpath(name)
    if not _NAME.fullmatch(name) or tidy != name or tidy == "." or tidy.startswith(("..", "/")):
        raise UserError(
            "metric-name",
            f"{name!r} cannot be the name of a metric.",
            "Use letters, digits, '_', '-', '.', ':', spaces and slashes inside, for example 'val/loss'.",
        )


def as_float(name: str, value: Any) -> float:
    """The one number in `value`: float, int, bool, or anything with one element and `.item()` (NumPy, torch).

    NaN and infinities pass. A tensor on an accelerator is waited for. Raises UserError `metric-type`.
    """
    number = value
    if not isinstance(value, float | int) and hasattr(value, "item"):
        try:
            number = value.item()
        except (RuntimeError, ValueError, TypeError) as error:
            raise _wrong_type(name, value) from error
    if not isinstance(number, float | int):
        raise _wrong_type(name, value)
    try:
        return float(number)
    except OverflowError as error:
        raise _wrong_type(name, value) from error


def as_step(value: Any) -> int:
    """A whole number of 64 bits. Raises UserError `metric-step`, with a hint for a dict of metrics."""
    if isinstance(value, dict):
        raise UserError(
            "metric-step",
            "slicelift.log() was given a dict as its step.",
            "Give metrics by name: slicelift.log(step=10, **metrics).",
        )
    try:
        step = operator.index(value)
    except TypeError as error:
        raise _wrong_step(value) from error
    if abs(step) > LONGEST_STEP:
        raise _wrong_step(value)
    return step


def as_samples(value: Any) -> float:
    """How many samples a step took in: a number from 0 up. Raises UserError `metric-samples`."""
    count = as_float("samples", value)
    if not 0 <= count < float("inf"):
        raise UserError(
            "metric-samples",
            f"samples={value!r} is not a count.",
            "Give the number of samples since the last log() of this rank, for example the batch size.",
        )
    return count


def _wrong_type(name: str, value: Any) -> UserError:
    shape = getattr(value, "shape", None)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    what = f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) and shape else kind
    return UserError(
        "metric-type",
        f"The metric {name!r} is {what}; a metric is one real number.",
        "Give a float, an int, a bool or a tensor with one element, for example loss.mean().",
    )


def _wrong_step(value: Any) -> UserError:
    return UserError(
        "metric-step",
        f"step={value!r} ({type(value).__qualname__}) is not a whole number of 64 bits.",
        "Give an int, or leave step out: then log() counts its calls.",
    )
