"""Imports that fail, imports that may, and modules of the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slicelift.preflight import Report

Told = Callable[..., list[tuple[Any, ...]]]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import zz_a", [("error", 1)]),
        ("import os.path, zz_a as z", [("error", 1)]),
        ("from zz_a.b import c", [("error", 1)]),
        ("from . import c", [("error", 1)]),
        ("import pack.gone", [("error", 1)]),
        ("import pack.here, pack", []),
        ("def f():\n    import zz_a", [("warning", 2)]),
        ("try:\n    import zz_a\nexcept ImportError:\n    zz_a = None", []),
        ("try:\n    import zz_a\nexcept (KeyError, ModuleNotFoundError):\n    pass", []),
        ("try:\n    import zz_a\nexcept KeyError:\n    pass", [("error", 2)]),
        ("try:\n    import zz_a\nexcept ImportError:\n    import zz_b", [("error", 4)]),
        ("try:\n    import json\nexcept ImportError:\n    import zz_b", []),
        ("try:\n    import zz_a\nexcept ImportError:\n    pass\nelse:\n    import zz_b", []),
        ("from contextlib import suppress\nwith suppress(ImportError):\n    import zz_a", []),
        ("if False:\n    import zz_a", []),
        ("import sys\nsys.path.append('lib')\nimport deep", []),
        ("import sys, os\nsys.path.insert(0, os.path.join(os.getcwd(), 'lib'))\nimport deep", []),
        ("import sys\nfrom pathlib import Path\nsys.path.append(str(Path.cwd() / 'lib'))\nimport deep", []),
        ("import deep", [("error", 1)]),
        ("import os\nos.chdir('lib')\nimport deep", []),
        ("%cd lib\nimport deep", []),
        ("import sys\nsys.path += folders()\nimport zz_a", [("warning", 3)]),
        ("%pip install zz-a scikit-zz\nimport zz_a", []),
        ("%pip install scikit-learn opencv-python\nimport cv2", []),
    ],
)
def test_missing_modules(source: str, found: list[Any], told: Told) -> None:
    files = {"pack/__init__.py": "", "pack/here.py": "", "lib/deep.py": ""}
    missing = [
        (severity, line) for severity, code, _, line in told(source, files=files) if code == "missing-module"
    ]
    assert missing == found


def test_modules_of_the_project_travel(look: Callable[..., Report]) -> None:
    files = {"own.py": "raise SystemExit('never run')", "nb/near.py": ""}
    report = look(
        "import sys\nsys.path.append('..')\nimport own, near, json, pytest",
        "%%writefile made.py\nx = 1",
        "import made",
        files=files,
        path="nb/笔记 本.ipynb",
    )
    assert report.verdict == "ok"
    local = [(f.cell, f.message.split()[0]) for f in report.findings if f.code == "local-module"]
    assert local == [(0, "own"), (0, "near"), (2, "made")]


def test_an_environment_inside_the_project_is_not_the_project(look: Callable[..., Report]) -> None:
    files = {"venv/lib/python3.12/site-packages/inner.py": ""}
    report = look(
        "import sys\nsys.path.append('venv/lib/python3.12/site-packages')\nimport inner", files=files
    )
    assert [f.code for f in report.findings] == []


def test_future_imports_are_told(look: Callable[..., Report]) -> None:
    report = look("x = 1", "# first\nfrom __future__ import annotations")
    assert [(f.code, f.cell, f.line) for f in report.findings] == [("future-import", 1, 2)]


@pytest.mark.parametrize(
    "cells",
    [
        [
            "%%writefile pack/__init__.py\nV = 1",
            "%%writefile pack/deep.py\nW = 2",
            "import pack.deep\nfrom pack import V",
        ],
        ["with open('made.py', 'w') as f:\n    f.write('x = 1')", "import made"],
    ],
)
def test_modules_that_the_code_writes_are_there(cells: list[str], told: Told) -> None:
    assert told(*cells) == []


def test_a_module_above_the_notebook_is_pointed_at(look: Callable[..., Report]) -> None:
    report = look("import own", files={"own.py": ""}, path="a/b/n.ipynb")
    assert [(f.code, "sys.path.append('../..')" in (f.fix or "")) for f in report.findings] == [
        ("missing-module", True)
    ]


def test_a_module_that_git_ignores_does_not_travel(told: Told) -> None:
    files = {"own.py": "", "near.py": "", ".gitignore": "/own.py\n"}
    assert told("import near\nimport own", files=files) == [("warning", "local-module", 0, 2)]
