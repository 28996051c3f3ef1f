"""Names that will not be there, and names that will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slicelift.preflight import Report

Told = Callable[..., list[tuple[Any, ...]]]


@pytest.mark.parametrize(
    "cells",
    [
        ["def f(): return later", "later = 1\nf()"],
        ["x = 1\ndef f(): return x", "f()\ndel x"],
        ["def bump():\n    global n\n    n = 1", "bump()\nprint(n)"],
        ["try:\n    maybe\nexcept NameError:\n    maybe = 1\nprint(maybe)"],
        ["for i in range(2):\n    t = i\n    del t", "t = 1\nprint(t, i)"],
        ["exec('made = 1')", "print(made)"],
        ["x: 'Gone' = 1\ndef f(a: 'Gone') -> 'list[Gone]':\n    y: Gone = a\n    return y"],
        ["from __future__ import annotations", "def f(a: Gone, b: Gone = 1) -> Gone: ..."],
        ["from typing import cast\nx = cast('Gone', 1)"],
        ["class A:\n    n = 2\n    xs = [i for i in range(n)]\n    def f(self): return [n for n in self.xs]"],
        ["class A[T]:\n    def f[U](self, x: T, y: U) -> U: ...", "type P[T] = list[T]"],
        ["[last := i for i in range(3)]\nprint(last, __file__, __name__, exit)"],
        ["match [1, 2]:\n    case [first, *rest] | {'a': first, **rest}:\n        print(first, rest)"],
        ["print('hits' in globals())"],
        ["files = !ls", "%store -r tuned", "%%bash --out got\nls", "print(files, tuned, got)"],
        ["lambda q: q", "print({k: v for k, v in {}.items()})", "k = 1\nprint(k)"],
        ["import os.path, json as j\nfrom os import path as p\nprint(os, j, p)"],
    ],
)
def test_no_name_is_missing_here(cells: list[str], look: Callable[..., Report]) -> None:
    codes = {finding.code for finding in look(*cells).findings}
    assert not codes & {"undefined-name", "use-after-del", "defined-in-unselected-cell"}


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["print(gone)\ngone\nprint(gone)"], [("error", "undefined-name", 0, 1)]),
        (["print(x)", "x = 1"], [("error", "undefined-name", 0, 1)]),
        (["x: int", "print(x)"], [("error", "undefined-name", 1, 1)]),
        (["x = 1\ndel x", "print(x)"], [("error", "use-after-del", 1, 1)]),
        (["x = 1\ndel x\nx = 2", "print(x)"], []),
        (["[i for i in range(3)]\nprint(i)"], [("error", "undefined-name", 0, 2)]),
        (["try:\n    pass\nexcept OSError as e:\n    pass\nprint(e)"], [("error", "undefined-name", 0, 5)]),
        (
            ["1 + 1", "print(_, Out[0])\n_3"],
            [("error", "undefined-name", 1, 1)] * 2 + [("error", "undefined-name", 1, 2)],
        ),
        (["for _ in range(2):\n    print(_)"], []),
        (["class A:\n    n = 1\n    xs = [n for i in range(n)]"], [("error", "undefined-name", 0, 3)]),
        (["def f(a: Gone): ..."], [("error", "undefined-name", 0, 1)]),
        (["k = 'w1'\nexec(f'{k} = 1')", "print(w1)"], [("warning", "undefined-name", 1, 1)]),
        (["globals()['g'] = 1", "print(g)"], [("warning", "undefined-name", 1, 1)]),
        (["globals().update(a=1)\nprint(a)"], [("warning", "undefined-name", 0, 2)]),
        (["print(get_ipython())"], [("error", "undefined-name", 0, 1)]),
        (["%env A={1}\n%time print(gone)"], [("error", "undefined-name", 0, 2)]),
        (["def f(:", "x = gone"], [("error", "syntax-error", 0, 1), ("error", "undefined-name", 1, 1)]),
        (["y = 1\nfor", "print(y)"], [("error", "syntax-error", 0, 2)]),
    ],
)
def test_missing_names(cells: list[str], found: list[Any], told: Told) -> None:
    assert told(*cells) == found


@pytest.mark.parametrize(
    ("cells", "cell", "defining"),
    [
        ([("x = 1", "skip"), "print(x)"], 1, 0),
        ([("x = 1", "skip"), ("x = 2", "skip"), "print(x)", ("x = 3", "skip")], 2, 1),
        (["print(x)", ("x = 3", "skip")], 0, 1),
        ([("%%time\nx = 3", "skip"), "print(x)"], 1, 0),
        ([("def x(): ...", ""), ("x()", "promote")], 1, 0),
    ],
)
def test_the_cell_that_was_left_behind_is_named(
    cells: list[Any], cell: int, defining: int, look: Callable[..., Report]
) -> None:
    found = [f for f in look(*cells).findings if f.code == "defined-in-unselected-cell"]
    assert [(f.cell, f.defining_cell) for f in found] == [(cell, defining)]


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("from math import *\nsqrt(tau)", ["star-import"]),
        ("from math import *\nsqrt(gone)", ["star-import", "undefined-name"]),
        ("from own import *\nprint(one)", ["star-import"]),
        ("from own import *\nprint(_two)", ["star-import", "undefined-name"]),
        ("from chosen import *\nprint(a)", ["star-import"]),
        ("from chosen import *\nprint(b)", ["star-import", "undefined-name"]),
        ("from chain import *\nprint(one, c)", ["star-import"]),
    ],
)
def test_star_imports_are_resolved(source: str, codes: list[str], told: Told) -> None:
    files = {
        "own.py": "one = 1\n_two = 2\nraise SystemExit('never run')",
        "chosen.py": "__all__ = ['a']\na = b = 1",
        "chain.py": "from own import *\nc = 1",
    }
    assert [code for _, code, _, _ in told(source, files=files)] == codes
