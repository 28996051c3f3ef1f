"""The generated script: what it prints, where its lines come from, what a child process of it finds."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import LinePlace, Script
from slicelift.notebook.places import locate, map_traceback, places_from_json, places_to_json

Make = Callable[..., Script]
Run = Callable[..., str]


@pytest.mark.parametrize(
    ("cells", "printed"),
    [
        (["\n\n%%time\nx = 1", "print(x)"], "1\n"),
        (["%%capture\nprint('hidden')\nx = 2", "print(x)"], "2\n"),
        (["%%capture out\nprint('kept')", "print(out.stdout + str(out), end='')"], "kept\nkept\n"),
        (["%%capture --no-stdout\nprint('shown')"], "shown\n"),
        (["%%capture\n%%time\ndef f():\n    return 3\nprint('no')", "print(f())"], "3\n"),
        (["%%capture\nif True:\n    %time x = 4\n    print('no')", "print(x)"], "4\n"),
        (["def f():\n    %time print('in f')\nf()"], "in f\n"),
        (["%timeit print('never')", "%%timeit\nprint('never')", "%%html\n<b>never</b>"], ""),
        (["%prun -q print('once')", "%%prun\nprint('twice')"], "once\ntwice\n"),
        (["x = %time 40 + 2\nprint(x)"], "42\n"),
        (["%env A_B=1=2\n%env C D E\nimport os\nprint(os.environ['A_B'], os.environ['C'])"], "1=2 D E\n"),
        (
            ["v = 'w'\n%env A={v}!\n%env B=$v\n%env C={gone}\nimport os\nprint(*map(os.getenv, 'ABC'))"],
            "w! w {gone}\n",
        ),
        (["here = %pwd\nimport os\nprint(here == os.getcwd())"], "True\n"),
        (["%%writefile a b.txt\none"], ""),
        (
            ["%%writefile 'a b.txt'\none", "%%writefile -a 'a b.txt'\ntwo", "print(open('a b.txt').read())"],
            "one\ntwo\n\n",
        ),
        (["%%writefile made_now.py\nX = 5", "from made_now import *\nprint(X)"], "5\n"),
        (["global g\ng = 1", "g = 2\nif g:\n    global g\nprint(g)"], "2\n"),
        (["# -*- coding: latin-1 -*-\nprint('你好')"], "你好\n"),
        (["from __future__ import annotations\ndef f(x: Unknown) -> Gone: ...\nprint('ok')"], "ok\n"),
        (["display(3, 'text')"], "3\n'text'\n"),
        (["def display(x):\n    print('mine', x)\ndisplay(1)"], "mine 1\n"),
        (["if 1:\n\tx = 1\n\tif x:\n\t\tprint('''a\n\tb''')"], "a\n\tb\n"),
        (["s = 'a\\\n  b'\nprint(s)", "print(f'''{1\n  + 1}\n  x''')"], "a  b\n2\n  x\n"),
        (["x = 1 \\\n\nprint(x)", "print(2) ; \\\n\nprint(3)"], "1\n2\n3\n"),
        (["x?", "?x", "x = 1\nx?\nprint(x)"], "1\n"),
        (["pip install something", "print('ok')"], "ok\n"),
        (["who = 3", "who", "print(who)"], "3\n"),
        (["print('\\u2028|\\x0c|')\r\nprint('x')"], "\u2028|\x0c|\nx\n"),
    ],
)
def test_it_prints_what_the_cells_print(cells: list[str], printed: str, script_of: Make, run: Run) -> None:
    assert run(script_of(*cells)) == printed


ASYNC = """
import asyncio
async def twice(n):
    await asyncio.sleep(0)
    return n * 2
"""


@pytest.mark.parametrize(
    ("cells", "printed"),
    [
        (["x: int = await twice(1)", "print(x)"], "2\n"),
        (["t = asyncio.create_task(twice(2))", "print(await t)"], "4\n"),
        (["def start():\n    return asyncio.ensure_future(twice(3))\nt = start()", "print(await t)"], "6\n"),
        (
            ["x = [await twice(n) for n in range(2)]\nprint(x, [y async for y in g()] if 0 else 1)"],
            "[0, 2] 1\n",
        ),
        (["exec('z = 5')\nawait twice(1)\nprint(z)"], "5\n"),
        (["for i in range(1):\n    s = '''a\n  b'''\n    await twice(i)\nprint(s, i)"], "a\n  b 0\n"),
        (
            [
                "try:\n    await twice(1)\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(type(e).__name__)"
            ],
            "ZeroDivisionError\n",
        ),
        (
            ["match await twice(4):\n    case 8 as got:\n        pass\nprint(got, (w := await twice(1)), w)"],
            "8 2 2\n",
        ),
        (["loop = asyncio.get_event_loop()", "t = loop.create_task(twice(5))", "print(await t)"], "10\n"),
        (["print(asyncio.run(twice(6)))", "print(await twice(1))"], "12\n2\n"),
        (["%%capture out\nprint('in', await twice(1))", "print(out.stdout)"], "in 2\n\n"),
    ],
)
def test_await_at_the_top_level(cells: list[str], printed: str, script_of: Make, run: Run) -> None:
    assert run(script_of(ASYNC, *cells)) == printed


def test_it_runs_scripts_and_notebooks_as_ipython_does(script_of: Make, run: Run, tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(
        "import sys\nSEEN = sys.argv\nif __name__ == '__main__':\n    print('main')\n"
    )
    (tmp_path / "shared.py").write_text("TOTAL = BASE + 1\n")
    (tmp_path / "quiet.py").write_text(
        "if __name__ == '__main__':\n    print('no')\nimport sys\nsys.exit(0)\n"
    )
    script = script_of(
        "BASE = 1\n%run tool.py one 'two words'",
        "%run -i shared.py",
        "%run -n quiet.py",
        "print(SEEN, TOTAL, __name__)",
    )
    assert run(script) == "main\n['tool.py', 'one', 'two words'] 2 __main__\n"


def test_every_line_knows_its_place(script_of: Make, tmp_path: Path) -> None:
    child = {"cell_type": "code", "metadata": {}, "outputs": [], "source": "\nchild = 1"}
    whole = {"cells": [child], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "child.ipynb").write_text(json.dumps(whole))
    script = script_of(
        "%pip install -q \\\n    a\n\nfirst = 1", "%run child.ipynb", "\n\n%%time\nif first:\n    print(2)"
    )
    lines = script.source.split("\n")
    assert len(script.places) == len(lines) - 1
    assert locate(script, lines.index("first = 1") + 1) == LinePlace(cell=0, line=4)
    assert locate(script, lines.index("child = 1") + 1) == LinePlace(cell=0, line=2, file="child.ipynb")
    assert locate(script, lines.index("        print(2)") + 1) == LinePlace(cell=2, line=5)
    assert locate(script, 1) is None
    assert locate(script, 10_000) is None
    assert places_from_json(places_to_json(script)) == script.places


def test_a_traceback_speaks_of_cells(script_of: Make, tmp_path: Path) -> None:
    script = script_of(
        "def divide(x):\n    return 1 / x", "import asyncio\n\nawait asyncio.sleep(0)\ndivide(0)"
    )
    place = tmp_path / "promoted.py"
    place.write_text(script.source)
    done = subprocess.run([sys.executable, str(place)], capture_output=True, text=True, check=False)
    told = map_traceback(done.stderr, "promoted.py", script, notebook="train.ipynb")
    assert "train.ipynb, cell 2, line 4, in <module>\n    divide(0)" in told.replace(
        "        divide(0)", "    divide(0)"
    )
    assert "train.ipynb, cell 1, line 2, in divide" in told
    assert told.endswith("ZeroDivisionError: division by zero\n")
    assert "promoted.py" not in told.split("asyncio/runners.py")[-1]


@pytest.mark.parametrize(
    ("cells", "unguarded"),
    [
        (["import os", "X = 3", "Y = X * 2 + 1", "def f(): ...", "class A: ..."], {"os", "X", "Y", "f", "A"}),
        (["x = load()", "def f(y=x): ...", "def g(): return x"], {"g"}),
        (
            ["x = load()", "def deco(f):\n    return wrap(f, x)", "@deco\ndef g(): ...", "def h(): ..."],
            {"deco", "h"},
        ),
        (
            [
                "B = base()",
                "class A(B): ...",
                "class C:\n    size = B.size",
                "class D:\n    n = 1\n    m = n",
            ],
            {"D"},
        ),
        (["class A:\n    print('made')"], set()),
        (["n = 0", "for n in range(3): ...", "m = 1"], {"m"}),
        (["xs = []", "xs.append(1)", "ys = [1]"], {"ys"}),
        (["a = 1", "a = make()", "b = a"], set()),
        (["try:\n    import q\nexcept ImportError:\n    print('no q')\n    q = None"], {"q"}),
        (["if __name__ == '__main__':\n    import os"], set()),
        (["from collections import namedtuple\nP = namedtuple('P', 'x')"], {"namedtuple", "P"}),
        (["f = lambda x: x", "kind: int = 1"], {"f", "kind"}),
        (["%%capture\nimport os\ndef f(): ...\nx = f()"], {"os", "f"}),
        ([("lr = 0.1", "parameters"), "lr = decay(lr)", "lr"], {"lr"}),
    ],
)
def test_a_child_process_finds_definitions_and_constants(
    cells: list[Any], unguarded: set[str], script_of: Make, tmp_path: Path
) -> None:
    place = tmp_path / "promoted.py"
    place.write_text(script_of(*cells).source)
    names = runpy.run_path(str(place), run_name="__mp_main__")
    assert {name for name in names if not name.startswith("_")} == unguarded


def test_a_spawned_pool_works(script_of: Make, run: Run) -> None:
    # Two interpreters start: about 1 s.
    script = script_of(
        "from multiprocessing import get_context\nfrom dataclasses import dataclass",
        "@dataclass\nclass Job:\n    size: int\nSCALE = 3\ndef work(job):\n    return Job(job.size * SCALE)",
        "print('once')\nwith get_context('spawn').Pool(1) as pool:\n    print(pool.map(work, [Job(2)]))",
    )
    assert run(script) == "once\n[Job(size=6)]\n"


def test_parameters_are_set_after_each_cell_and_not_in_the_file(script_of: Make, run: Run) -> None:
    cells = [
        ("lr = 0.1\nname = 'a'", "parameters"),
        "step = lr * 10",
        ("seed = 1", "parameters"),
        "print(lr, name, step, seed)",
    ]
    script = script_of(*cells)
    assert run(script) == "0.1 a 1.0 1\n"
    assert run(script, SLICELIFT_PARAMETERS="{'lr': 0.5, 'seed': nan}") == "0.5 a 5.0 nan\n"
    assert script.parameters == {"lr": 0.1, "name": "a", "seed": 1}


def test_a_tuple_comes_back_as_one_though_json_made_it_a_list(script_of: Make, run: Run) -> None:
    defaults = (
        "shape = (1, 2)\nsteps = ((1, (2,)), [3])\ngrid = {'a': (1,), 'b': [1]}\nnone = ()\nlist_ = [1]"
    )
    script = script_of((defaults, "parameters"), "print(shape, steps, grid, none, list_)")
    plain = "(1, 2) ((1, (2,)), [3]) {'a': (1,), 'b': [1]} () [1]\n"
    assert run(script) == plain
    given = {"shape": [5], "steps": [[4, [5]], [6], [7, 8]], "grid": {"a": [2, 3], "c": [4]}, "none": [1]}
    assert run(script, SLICELIFT_PARAMETERS=repr(given)) == (
        "(5,) ((4, (5,)), [6], [7, 8]) {'a': (2, 3), 'c': [4]} (1,) [1]\n"
    )
    assert "_slicelift_like" not in script_of(("list_ = [1]", "parameters")).source


def test_the_same_cells_give_the_same_bytes(script_of: Make) -> None:
    cells = ["import os\n%env A=1", "async def f(): ...\nawait f()", "b, a = 1, 2\nfor c, d in {}: ..."]
    assert script_of(*cells) == script_of(*cells)
    assert "slicelift" not in {name.split(".")[0] for name in _imports(script_of(*cells).source)}


def _imports(source: str) -> list[str]:
    return [
        item.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for item in node.names
    ]


def test_frames_behind_torch_s_rank_prefix_and_warnings_are_mapped() -> None:
    script = Script(source="a\nb\n", places=(None, LinePlace(cell=4, line=7)))
    text = (
        '[rank1]:   File "/w o/.slicelift/promoted.py", line 2, in <module>\n'
        "/w o/.slicelift/promoted.py:2: UserWarning: careful\n"
        '[rank1]:   File "/other.py", line 2, in f\n'
    )
    assert map_traceback(text, ".slicelift/promoted.py", script, notebook="n.ipynb") == (
        "[rank1]:   n.ipynb, cell 5, line 7, in <module>\n"
        "n.ipynb, cell 5, line 7: UserWarning: careful\n"
        '[rank1]:   File "/other.py", line 2, in f\n'
    )
