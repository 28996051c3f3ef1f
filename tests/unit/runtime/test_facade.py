"""`import slicelift`: light, complete, and honest about what is not there inside a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import slicelift

TRAVELS = ("checkpoint", "history", "log", "resume", "save_model", "UserError", "__version__")


def test_all_is_sorted_and_resolves() -> None:
    assert list(slicelift.__all__) == sorted(slicelift.__all__)
    assert dir(slicelift) == slicelift.__all__
    for name in slicelift.__all__:
        assert getattr(slicelift, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'logg'"):
        _ = slicelift.logg  # type: ignore[attr-defined]


def test_import_loads_nothing_else() -> None:
    program = """
import sys
before = set(sys.modules)
import slicelift
print(*sorted(set(sys.modules) - before))
"""
    assert _run(program).split() == ["__future__", "slicelift", "slicelift._version"]


def test_what_travels_needs_the_standard_library_only(traveller: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(traveller)!r})
import slicelift
assert slicelift.__file__.startswith({str(traveller)!r})
for name in {TRAVELS!r}: getattr(slicelift, name)
import slicelift.runtime.gang, slicelift.runtime.script
print(hasattr(slicelift, "promote"))
"""
    # -S: no site-packages at all
    assert _run(program, "-S", "-E").strip() == "False"


def _run(program: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
