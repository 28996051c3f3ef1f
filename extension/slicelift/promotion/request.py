"""What a user may ask of a promotion, and the names that are made for it."""

from __future__ import annotations

import re
import secrets as random_source
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift.errors import UserError

_ID_LENGTH, _TIME_LENGTH = 20, 9
# Base32's characters in ASCII order, so that a later id sorts later.
_ALPHABET = "234567abcdefghijklmnopqrstuvwxyz"
_ID = re.compile(rf"p-[{_ALPHABET}]{{{_ID_LENGTH}}}")
_NOT_IN_MODEL_NAMES = "/:"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that is done, told while the rest goes on. `seconds` is the time that it took by itself."""

    name: str
    text: str
    seconds: float = 0.0


Progress = Callable[[Step], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for. `parameters` are overrides, as text or as values of the default's type.

    None and "" mean what the preset or the notebook says.
    """

    notebook: Path
    workers: int | None = None
    slice: str | None = None
    gpus_per_worker: int | None = None
    queue: str = "default"
    preset: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    model_name: str | None = None
    python: str | None = None
    secrets: tuple[str, ...] = ()


def silent(_: Step) -> None:
    """Progress that nobody listens to."""


def mint_id() -> str:
    """A new promotion id. Ids minted later sort later; 55 bits are random."""
    moment, tail = time.time_ns() // 1_000_000, random_source.randbits(5 * (_ID_LENGTH - _TIME_LENGTH))
    return f"p-{_base32(moment, _TIME_LENGTH)}{_base32(tail, _ID_LENGTH - _TIME_LENGTH)}"


def checked_id(promotion_id: str) -> str:
    """The same id if it has the form of one. Raises `promotion-id-invalid`."""
    if _ID.fullmatch(promotion_id):
        return promotion_id
    raise UserError(
        "promotion-id-invalid",
        f"{promotion_id!r} is no promotion id.",
        f"It is p- and {_ID_LENGTH} characters of a-z and 2-7; leave the option out to get a new one.",
    )


def checked_model_name(name: str) -> str:
    """The same name if MLflow's registry takes it. Raises `model-name-invalid`."""
    if name.strip() and not set(name) & set(_NOT_IN_MODEL_NAMES):
        return name
    hint = "Give another with --model-name; it must not be empty nor hold '/' or ':'."
    raise UserError("model-name-invalid", f"{name!r} cannot be a model's name.", hint)


def make_model_name(stem: str) -> str:
    """A notebook's name as a model's name."""
    return "".join("-" if char in _NOT_IN_MODEL_NAMES else char for char in stem)


def _base32(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(length)))
