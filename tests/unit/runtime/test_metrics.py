"""Names, values and steps that log() takes, and how it says no."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slicelift.errors import UserError
from slicelift.runtime.metrics import NAME_LENGTH, as_float, as_samples, as_step, check_name

GOOD_VALUES = [
    (0.25, 0.25),
    (3, 3.0),
    (True, 1.0),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.int64(7), 7.0),
    (np.bool_(True), 1.0),
    (np.array(2.5), 2.5),
    (np.array([2.5]), 2.5),
    (torch.tensor(0.5), 0.5),
    (torch.tensor([4]), 4.0),
    (torch.tensor(0.5, requires_grad=True), 0.5),
    (float("inf"), math.inf),
    (torch.tensor(float("-inf")), -math.inf),
]


@pytest.mark.parametrize(("value", "wanted"), GOOD_VALUES)
def test_values(value: Any, wanted: float) -> None:
    found = as_float("loss", value)
    assert type(found) is float
    assert found == wanted


def test_nan_stays_nan() -> None:
    assert math.isnan(as_float("loss", torch.tensor(float("nan"))))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0.5", "is str;"),
        (None, "is NoneType;"),
        ([0.5], "is list;"),
        (Decimal(1), "decimal.Decimal"),
        (1 + 2j, "is complex;"),
        (10**400, "is int;"),
        (np.zeros(3), "numpy.ndarray of shape (3,)"),
        (torch.zeros(2, 3), "torch.Tensor of shape (2, 3)"),
        (torch.tensor(1j), "torch.Tensor"),
        (np.datetime64("2026-01-01"), "numpy.datetime64"),
    ],
)
def test_wrong_values_name_the_key_and_the_type(value: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        as_float("val/loss", value)
    assert caught.value.code == "metric-type"
    assert "'val/loss'" in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["loss", "val/loss", "top 1", "a:b", "损失", "x" * NAME_LENGTH, "...a", ".hidden"]
)
def test_names(name: str) -> None:
    if name == "...a":  # MLflow takes it for a way out of the folder
        with pytest.raises(UserError):
            check_name(name)
    else:
        check_name(name)


@pytest.mark.parametrize(
    "name", ["", "a\n", "a//b", "/a", "a/", "../a", ".", "a,b", "a%s", "x" * (NAME_LENGTH + 1)]
)
def test_wrong_names(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_name(name)
    assert caught.value.code == "metric-name"


# loading MLflow's validators takes seconds
@given(st.text(alphabet="ab9_-.:/ \n\t,é损%\\", min_size=1, max_size=8))
@settings(deadline=None, max_examples=300)
def test_every_name_we_take_mlflow_takes(name: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric_name

    try:
        _validate_metric_name(f"rank/12345/{name}"[:250])
        _validate_metric_name(name)
        mlflow_takes_it = not name.endswith("\n")
    except MlflowException:
        mlflow_takes_it = False
    try:
        check_name(name)
        we_take_it = True
    except UserError:
        we_take_it = False
    assert we_take_it == mlflow_takes_it


@pytest.mark.parametrize(("value", "wanted"), [(0, 0), (-3, -3), (np.int32(5), 5), (torch.tensor(6), 6)])
def test_steps(value: Any, wanted: int) -> None:
    assert as_step(value) == wanted


@pytest.mark.parametrize("value", [1.5, "3", 2**63, None])
def test_wrong_steps(value: Any) -> None:
    with pytest.raises(UserError) as caught:
        as_step(value)
    assert caught.value.code == "metric-step"


def test_a_dict_of_metrics_given_as_the_step_is_explained() -> None:
    with pytest.raises(UserError, match="Give metrics by name"):
        as_step({"loss": 1.0})


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "many"])
def test_wrong_samples(value: Any) -> None:
    with pytest.raises(UserError):
        as_samples(value)
