"""Whether the kernel's environment can run a gang."""

from __future__ import annotations

import dataclasses

import pytest
from slicelift.errors import Refused
from slicelift.models import Environment
from slicelift.snapshot.environment import check


def test_torch_is_wanted_for_gangs_only(environment: Environment) -> None:
    check(environment, workers=4)
    bare = dataclasses.replace(environment, packages={"numpy": "2.1.0"})
    check(bare, workers=1)
    with pytest.raises(Refused) as caught:
        check(bare, workers=2)
    assert caught.value.code == "torch-missing"
    assert environment.python in caught.value.message
    assert f"{environment.python} -m pip install torch" in caught.value.hint
    assert "--workers 1" in caught.value.hint


@pytest.mark.parametrize("version", ["3.11.0", "3.12.13", "3.13.1rc2"])
def test_pythons_that_run_jobs(environment: Environment, version: str) -> None:
    check(dataclasses.replace(environment, python_version=version), workers=2)


@pytest.mark.parametrize("version", ["3.10.14", "2.7.18", "3.14.0", "3.9", "", "3"])
def test_pythons_that_do_not(environment: Environment, version: str) -> None:
    with pytest.raises(Refused) as caught:
        check(dataclasses.replace(environment, python_version=version), workers=1)
    assert caught.value.code == "python-unsupported"
    assert "3.11 to 3.13" in caught.value.message
    assert "--python" in caught.value.hint
