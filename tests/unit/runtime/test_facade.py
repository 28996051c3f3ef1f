"""`import slicelift`: light, complete, and honest about what is not there inside a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import slicelift

TRAVELS = ("checkpoint", "data", "history", "log", "resume", "save_model", "UserError", "__version__")


def test_all_is_sorted_and_resolves() -> None:
    assert list(slicelift.__all__) == sorted(slicelift.__all__)
    assert dir(slicelift) == sorted([*slicelift.__all__, "data"])
    for name in dir(slicelift):
        assert getattr(slicelift, name) is not None


def test_a_star_import_leaves_the_notebooks_data_alone() -> None:
    names: dict[str, object] = {"data": "the notebook's"}
    exec("from slicelift import *", names)
    assert names["data"] == "the notebook's"
    assert "log" in names


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
run = slicelift.promote("train.ipynb").wait()
slicelift.show(run)
slicelift.jobs()
slicelift.load_ipython_extension(None)
print(run.status, repr(run.run_id), run.logs() == "", run.refresh() is run)
"""
    # -S: no site-packages at all
    assert _run(program, "-S", "-E").strip() == "KILLED '' True True"


def test_inside_a_job_the_calls_of_a_session_do_nothing_and_say_so_once(tmp_path: Path) -> None:
    program = """
import sys
import slicelift
from slicelift import promote
run = promote(workers=8)
assert slicelift.show(run) is None and slicelift.jobs() is None
slicelift.load_ipython_extension(None)
assert run.status.terminal and run.run_id == "r-a" and run.cancel() is run
print("promotion" in " ".join(sys.modules), run)
"""
    environment = os.environ | {"SLICELIFT_ATTEMPT_DIR": str(tmp_path), "SLICELIFT_RUN_ID": "r-a"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False nothing: slicelift.promote does nothing inside a job\n"
    assert done.stderr.count("\n") == 1
    assert "inside a job they do nothing" in done.stderr


def _run(program: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
