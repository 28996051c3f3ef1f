"""The report as a whole: verdicts, the JSON contract, magics at their places, faults of the surroundings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.notebook.kernel_probe import MARKER
from slicelift.notebook.pieces import DEEPEST
from slicelift.preflight import Report, check, project_root

Look = Callable[..., Report]
Told = Callable[..., list[tuple[Any, ...]]]


def test_the_contract(look: Look) -> None:
    report = look(
        ("lr = 0.1\nshape = (2, 3)", "parameters"), "%pip install a==1\nprint(lr)", parameters={"lr": "0.5"}
    )
    assert report.to_dict() == {
        "verdict": "ok",
        "selected_cells": [0, 1],
        "parameters": {"lr": 0.1, "shape": [2, 3]},
        "findings": [
            {
                "code": "magic-dependency",
                "severity": "note",
                "message": "Recorded as a requirement: a==1.",
                "cell": 1,
                "line": 1,
                "fix": None,
                "file": None,
                "defining_cell": None,
            }
        ],
    }
    assert report.overrides == {"lr": 0.5}
    assert report.script is not None
    assert report.script.requirements == ("a==1",)
    assert report.environment is not None
    assert report.environment.requirements == ("a==1",)


@pytest.mark.parametrize(
    ("cells", "metadata", "code"),
    [
        ([], None, "empty-selection"),
        ([("x = 1", "skip")], None, "empty-selection"),
        (["", "# only a comment", "%%time"], None, "empty-selection"),
        (["x <- 1"], {"kernelspec": {"name": "ir", "language": "R"}}, "non-python-kernel"),
    ],
)
def test_what_cannot_be_promoted_at_all(cells: list[Any], metadata: Any, code: str, look: Look) -> None:
    report = look(*cells, metadata=metadata)
    assert (report.verdict, report.script) == ("refused", None)
    assert [f.code for f in report.findings if f.severity.value == "error"] == [code]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["!ls", "x = !ls\n"], [(0, 1, "ls"), (1, 1, "ls")]),
        (["if True:\n    !nvidia-smi\n"], [(0, 2, "nvidia-smi")]),
        (
            ["%%bash\nls", "%%sh\nls", "!!ls", "ls"],
            [(0, 1, "bash"), (1, 1, "sh"), (2, 1, "ls"), (3, 1, "ls")],
        ),
        (["# why\n%%time\nx = 1"], [(0, 2, "time")]),
        (["%unknown x", "%%unknown\nx"], [(0, 1, "unknown"), (1, 1, "unknown")]),
        (
            ["%%time x = 1\ny = 2", "%%cd x\ny", "%writefile x"],
            [(0, 1, "time"), (1, 1, "cd"), (2, 1, "writefile")],
        ),
        (["name = 'ls'\nget_ipython().run_line_magic(name, '')"], [(0, 2, "get_ipython")]),
        (["x = %who_ls", "print(get_ipython().getoutput('ls'))"], [(0, 1, "who_ls"), (1, 1, "ls")]),
        (
            ["%cd -", "%cd", "%time --no-raise-error 1", "%prun -r 1"],
            [(0, 1, "cd"), (1, 1, "cd"), (2, 1, "time"), (3, 1, "prun")],
        ),
        (["%pip install {x}", "%pip uninstall x"], [(0, 1, "pip"), (1, 1, "pip")]),
        (
            ["%run -d x.py", "%run", "%run {x}.py", "%run self.ipynb"],
            [(0, 1, "-d"), (1, 1, "run"), (2, 1, "run"), (3, 1, "circle")],
        ),
        (["%%capture a b\nx"], [(0, 1, "capture")]),
        (["%pylab inline", "%load x.py", "%debug"], [(0, 1, "pylab"), (1, 1, "load"), (2, 1, "debug")]),
    ],
)
def test_refused_magics(cells: list[str], found: list[Any], look: Look) -> None:
    report = look(*cells, path="self.ipynb")
    refused = [f for f in report.findings if f.code == "magic-refused"]
    assert [(f.cell, f.line) for f in refused] == [(cell, line) for cell, line, _ in found]
    assert all(word in f.message and f.fix for f, (_, _, word) in zip(refused, found, strict=True))


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline", "magic-noop"),
        ("print?", "magic-noop"),
        ("%timeit 1", "magic-noop"),
        ("%%html\nx", "magic-noop"),
        ("!pip list", "magic-noop"),
        ("%env", "magic-noop"),
        ("!python -m pip install a", "magic-dependency"),
        ("%conda install a", "magic-dependency"),
        ("%set_env A b", "magic-env"),
        ("%cd .", "magic-env"),
        ("%%file x.txt\na", "magic-file"),
        ("%%prun\n1", "magic-inlined"),
        ("get_ipython().run_line_magic('env', 'A=1')", "magic-env"),
        ("get_ipython().magic('time x = 1')", "magic-inlined"),
        ("%promote", "promotes-itself"),
        ("%promote --workers 2 -p lr=0.1", "promotes-itself"),
        ("promote --workers 2", "promotes-itself"),
        ("run = %promote --workers 2", "promotes-itself"),
        ("get_ipython().run_line_magic('promote', '')", "promotes-itself"),
    ],
)
def test_magics_with_a_way(cell: str, code: str, look: Look) -> None:
    report = look(cell, "print(1)")
    assert [(f.code, f.cell, f.line) for f in report.findings] == [(code, 0, 1)]
    assert report.verdict == "ok"


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("import slicelift\nrun = slicelift.promote(workers=2)", 2),
        ("import slicelift as sl\nsl.promote('train.ipynb').wait()", 2),
        ("from slicelift import show\n\nshow('last')", 3),
        ("import slicelift\nslicelift.jobs()", 2),
    ],
)
def test_calls_of_a_session_are_told_and_stay(cell: str, line: int, look: Look) -> None:
    report = look(cell, "print(1)")
    assert [(f.code, f.severity.value, f.line) for f in report.findings] == [
        ("promotes-itself", "note", line)
    ]
    assert report.verdict == "ok"


def test_a_notebook_that_promotes_itself_runs_on_in_the_job(look: Look, tmp_path: Path) -> None:
    report = look(
        "%load_ext slicelift\nimport slicelift",
        "run = %promote --workers 2\nif True:\n    %promote",
        "other = slicelift.promote('me.ipynb')\nslicelift.show(other)\nslicelift.jobs()",
        "print(run.wait().status, other.refresh().status, repr(run))",
    )
    assert report.verdict == "ok"
    assert report.script is not None
    script = tmp_path / "promoted.py"
    script.write_text(report.script.source)
    environment = os.environ | {"SLICELIFT_ATTEMPT_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.stdout == "KILLED KILLED nothing: slicelift.promote does nothing inside a job\n"
    assert done.stderr.count("\n") == 1


def test_run_is_followed_into_files(look: Look) -> None:
    child = {
        "cells": [
            {"cell_type": "code", "metadata": {"tags": ["skip"]}, "outputs": [], "source": "a = 1\n!ls"}
        ]
    }
    files = {
        "in/child.ipynb": json.dumps({**child, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}),
        "tool.py": "import zz_gone\nprint(nothing)\nb = 1",
        "bad.py": "x = 1\ndef f(:",
    }
    report = look(
        "%run in/child.ipynb", "%run tool", "%run bad.py", "%run gone.py", "print(a, b)", files=files
    )
    found = [(f.code, f.file, f.cell, f.line) for f in report.findings if f.severity.value == "error"]
    assert sorted(found, key=str) == sorted(
        [
            ("magic-refused", "in/child.ipynb", 0, 2),
            ("missing-module", "tool.py", None, 1),
            ("undefined-name", "tool.py", None, 2),
            ("syntax-error", "bad.py", None, 2),
            ("missing-file", None, 3, 1),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("cell", "code", "line"),
    [
        ("x = 1\nfor k in x\n", "syntax-error", 2),
        ("%pip install \\\n  a\nprint 'x'", "syntax-error", 3),
        ("if 1:\n    return", "return-outside-function", 2),
        ("await f()\nreturn 1", "return-outside-function", 2),
        ("yield 1", "syntax-error", 1),
        ("%%time\n\nx = (", "syntax-error", 3),
        ("'\\ud800'\nx = '\ud800'", "syntax-error", 1),
        ("x = 1\0", "syntax-error", 1),
        ("y = 1\nx = " + "[" * 300 + "]" * 300, "syntax-error", 2),
        ("x = " + "-" * 2000 + "1", "cell-too-complex", 1),
        ("x = " + "-" * 20_000 + "1", "cell-too-complex", 1),
        ("x = f" + ".a" * 1500, "cell-too-complex", 1),
        ("x = " + "+".join("1" * 400), "cell-too-complex", 1),
        ("if f == 0:\n    pass\n" + "elif f == 1:\n    pass\n" * 400, "cell-too-complex", 1),
        ("%time x = 1\nd = [" + "1," * 20_000 + "]", "cell-too-complex", 2),
    ],
    ids=str,
)
def test_broken_cells(cell: str, code: str, line: int, look: Look) -> None:
    report = look("f = 1", cell)
    assert [(f.code, f.cell, f.line) for f in report.findings if f.severity.value == "error"] == [
        (code, 1, line)
    ]


def test_cells_that_do_not_fit_into_one_file_are_refused(look: Look) -> None:
    deep = "\n".join("    " * n + "if 1:" for n in range(99)) + "\n" + "    " * 99 + "print(1)"
    report = look("x = 1", deep)
    assert [(f.code, f.cell) for f in report.findings] == [("syntax-error", 1)]


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("a = 1\na = 2", [("warning", "duplicate-parameter", 0, 2)]),
        ("a = b", [("error", "parameters-not-literal", 0, 1), ("error", "undefined-name", 0, 1)]),
        (
            "a = dict()\nb = {1}\nc = b''",
            [("error", "parameters-not-literal", 0, line) for line in (1, 2, 3)],
        ),
        ("print(1)\nif 1:\n    a = 1", [("error", "parameters-not-literal", 0, line) for line in (1, 2)]),
    ],
)
def test_parameters_cells(cell: str, found: list[Any], told: Told) -> None:
    assert told((cell, "parameters")) == found


def test_wrong_overrides_raise(look: Look) -> None:
    with pytest.raises(UserError) as error:
        look(("n = 1", "parameters"), parameters={"n": "ten"})
    assert error.value.code == "parameter-type"


def test_unsaved_bytes_count_instead_of_the_file(project: Path, look: Look) -> None:
    look("print(1)")
    path = project / "notebook.ipynb"
    report = check(path, content=path.read_bytes().replace(b"print(1)", b"print(gone)"))
    assert [f.code for f in report.findings] == ["undefined-name"]
    assert report.notebook.sha256 != check(path).notebook.sha256


def test_the_project_is_the_repository_or_the_folder(tmp_path: Path, project: Path) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    assert project_root(inner) == project.resolve()
    assert project_root(tmp_path) == tmp_path.resolve()


def test_an_interpreter_that_is_too_old_is_refused(tmp_path: Path, look: Look, project: Path) -> None:
    look("x = 1")
    answer = {"version": "3.9.1", "platform": "linux", "packages": {}, "modules": {}, "stars": {}}
    told = json.dumps({**answer, "cells": {"0": {"ok": True}}})
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{MARKER}{told}'\n")
    old.chmod(0o755)
    report = check(project / "notebook.ipynb", python=str(old))
    assert [f.code for f in report.findings] == ["python-mismatch"]


def test_nothing_of_the_notebook_is_run(look: Look, project: Path) -> None:
    touch = "open('touched', 'w').close()"
    report = look(f"import own\n{touch}\nfrom own import *", files={"own.py": touch})
    assert report.verdict == "ok"
    assert not (project / "touched").exists()


def test_start_up_stays_light() -> None:
    heavy = "{'IPython', 'nbformat', 'pyflakes', 'yaml', 'mlflow'}"
    code = f"import sys, slicelift.preflight, slicelift.notebook.places; print({heavy} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


@pytest.mark.parametrize("depth", [DEEPEST - 10])
def test_what_is_not_too_deep_is_checked_to_its_end(depth: int, look: Look) -> None:
    """In a thread, as in the worker, and however deep the caller stands."""
    cells = [
        "x = " + "-" * depth + "gone",
        "x = " + "+".join(["1"] * depth) + " + gone",
        "x = print" + ".a" * depth + "(gone)",
        "if print == 0:\n    pass\n" + "elif print == 1:\n    pass\n" * (depth - 5) + "else:\n    gone",
        "x = " + "print(" * 90 + "gone" + ")" * 90,
    ]
    for cell in cells:
        assert [(f.code, f.cell) for f in look("f = 1", cell).findings] == [("undefined-name", 1)]


def test_deep_code_in_other_files(look: Look) -> None:
    deep = "x = " + "-" * 2000 + "1"
    report = look("%run deep.py", "from deep import *", files={"deep.py": deep})
    found = [(f.code, f.file) for f in report.findings if f.severity.value == "error"]
    assert found == [("cell-too-complex", "deep.py")]
    report = look(f"exec({deep!r})\nfrom deep import *\nprint(x)", files={"deep.py": deep})
    assert report.verdict == "ok"


def test_repeated_keys_cost_nothing(look: Look) -> None:
    """pyflakes compares each repeated key with all keys: 15 s for these."""
    pairs = ",".join(f"'k{number % 10_000}':{number}" for number in range(20_000))
    began = time.process_time()
    assert look(f"d = {{{pairs}}}").verdict == "ok"
    assert time.process_time() - began < 5
