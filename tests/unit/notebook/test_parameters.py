"""Defaults read from the cells, and overrides by their types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.models import Script
from slicelift.notebook.parameters import parse_overrides

DEFAULTS: dict[str, Any] = {
    "lr": 0.1,
    "steps": 3,
    "flag": True,
    "name": "a",
    "seed": None,
    "sizes": [1],
    "pair": (1, 2),
    "extra": {},
}


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("lr", "1e-3", 0.001),
        ("lr", "2", 2.0),
        ("lr", 2, 2.0),
        ("lr", "inf", math.inf),
        ("steps", "10", 10),
        ("steps", " -4 ", -4),
        ("flag", "false", False),
        ("flag", "1", True),
        ("name", "3", "3"),
        ("name", "", ""),
        ("seed", "7", 7),
        ("seed", "None", None),
        ("seed", "plain words", "plain words"),
        ("seed", "[1, 2]", [1, 2]),
        ("sizes", "[2, 3]", [2, 3]),
        ("sizes", "(2, 3)", [2, 3]),
        ("pair", [3, 4], (3, 4)),
        ("extra", "{'a': 1}", {"a": 1}),
    ],
)
def test_text_is_read_by_the_type_of_the_default(name: str, given: Any, value: Any) -> None:
    result = parse_overrides(DEFAULTS, {name: given})
    assert result == {name: value}
    assert type(result[name]) is type(value)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(parse_overrides(DEFAULTS, {"lr": "nan"})["lr"])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("steps", "ten"),
        ("steps", "1.5"),
        ("steps", True),
        ("lr", "fast"),
        ("flag", "maybe"),
        ("sizes", "3"),
        ("sizes", "[1"),
        ("extra", "{1: 2}"),
        ("name", 3),
    ],
)
def test_a_wrong_type_is_told_with_what_is_wanted(name: str, given: Any) -> None:
    with pytest.raises(UserError) as error:
        parse_overrides(DEFAULTS, {name: given})
    assert error.value.code == "parameter-type"
    assert name in error.value.message
    assert repr(given) in error.value.message
    assert type(DEFAULTS[name]).__name__ in error.value.message


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(UserError) as error:
        parse_overrides({"lr": 1, "steps": 2}, {"rate": "1"})
    assert (error.value.code, error.value.hint) == ("parameter-unknown", "The parameters are: lr, steps.")


def test_without_a_parameters_cell_the_hint_says_how_to_tag_one() -> None:
    with pytest.raises(UserError, match="no parameters cell") as error:
        parse_overrides(None, {"lr": "1"})
    assert "parameters" in error.value.hint
    assert parse_overrides(None, {}) == {}


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("a = 1\nb: float = 2.5\nc = d = 'x'", {"a": 1, "b": 2.5, "c": "x", "d": "x"}),
        ("a, (b, c) = 1, (2, 3)", {"a": 1, "b": 2, "c": 3}),
        ("a = 2 * 32\nb = 2 ** 10\nc = -1 / 4", {"a": 64, "b": 1024, "c": -0.25}),
        ("'''about'''\n# note\nimport os\na = {'k': [1, (2,)]}", {"a": {"k": [1, (2,)]}}),
        ("", {}),
    ],
)
def test_defaults_are_read_from_the_cell(
    source: str, values: dict[str, Any], script_of: Callable[..., Script]
) -> None:
    assert script_of((source, "parameters"), "pass").parameters == values
