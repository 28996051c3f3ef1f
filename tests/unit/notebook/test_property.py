"""The script prints what IPython prints: random notebooks of awkward statements, run both ways."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slicelift.models import Script

FIRST = """
a, b, c = 1, 2, 3
xs = [3, 1, 2]
config = {"lr": 0.1, "steps": 2}
import asyncio, contextlib, functools, os
"""
STATEMENTS = [
    "print(a, b, c)",
    "a = b + c",
    "b += 1",
    "xs.append(len(xs))\nprint(xs)",
    "for i in range(2):\n    c += i\n    print('i', i, c)\nelse:\n    print('done')",
    "text = '''one\n  two\n\tthree'''\nprint(text)",
    'print(f"""{a}\n   {b!r:>4}\n""")',
    "def add(x, y=a):\n    '''doc\n      string'''\n    return x + y + b\nprint(add(1), add.__doc__)",
    "class Box:\n    size = a\n    def get(self):\n        return f'''box\n {self.size} {c}'''\nprint(Box().get())",
    "@functools.lru_cache(maxsize=None)\ndef cached(n):\n    print('once', n)\n    return n\ncached(1); cached(1)",
    "try:\n    1 / 0\nexcept ZeroDivisionError as err:\n    print('caught', err)\nfinally:\n    a = 0",
    "with contextlib.suppress(KeyError):\n    print(config['nothing'])",
    "total = 1 + \\\n    2 + \\\n    a\nprint(total)",
    "a = 5; b = 6; print(a * b)",
    "a",
    "'just a text'",
    "del xs[0:1]\nprint(len(xs))",
    "tmp = a\ndel tmp\nprint('tmp' in globals())",
    "def bump():\n    global c\n    c += 10\nbump()\nprint(c)",
    "print([x * a for x in xs], {k: v for k, v in config.items()})",
    "if (n := len(xs)) > 1:\n    print('many', n)",
    "match (a, b):\n    case (0, other):\n        print('zero', other)\n    case [*rest]:\n        print('rest', rest)",
    "value: int = a * 2\nprint(value)",
    "exec('made = a + 1')\nprint(made)",
    "print(sorted(config), end=' ')\nprint()",
    "print('%d%% of !ls', 'x?')  # df? !ls",
    "%time timed = a + b\nprint(timed)",
    "%time print('timed', c)",
    "%env SLICELIFT_TEST_VALUE={a}-$b\nprint(os.environ['SLICELIFT_TEST_VALUE'])",
    "if b:\n    %time inner = b * 2\n    print(inner)",
    "answer = %time a + 40\nprint(answer)",
    "got = await asyncio.sleep(0, a)\nprint('got', got)",
    "async def later(n):\n    await asyncio.sleep(0)\n    return n * 2\nprint(await asyncio.gather(later(a), later(b)))",
    "async def count(n):\n    for k in range(n):\n        yield k\nprint([k async for k in count(3)], a)",
    "task = asyncio.ensure_future(asyncio.sleep(0, 'task'))\nprint(await task)",
    "for step in range(2):\n    await asyncio.sleep(0)\n    print('''step\n  ''', step)",
    "os.makedirs('deep', exist_ok=True)\n%cd deep\nprint(os.path.basename(os.getcwd()))\n%cd ..",
]
HEADS = [
    "",
    "",
    "",
    "\n\n",
    "%%time\n",
    "\n%%time\n",
    "%%capture\n",
    "%%capture held\n",
    "%%capture\n%%time\n",
]


def cell() -> st.SearchStrategy[str]:
    """One cell: some statements under a head, perhaps indented as a whole or pasted with prompts."""
    body = st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4).map("\n".join)
    return st.tuples(
        st.sampled_from(HEADS), body, st.sampled_from(["plain", "plain", "indent", "prompt"])
    ).map(dressed)


def dressed(parts: tuple[str, str, str]) -> str:
    head, body, way = parts
    strings = "'''" in body or '"""' in body or "\\\n" in body
    if head or way == "plain" or strings:
        return head + _without_await(head, body)
    if way == "indent":
        return textwrap.indent(body, "    ")
    lines = body.split("\n")
    return "\n".join(
        (">>> " if not line.startswith((" ", "else", "except", "finally")) else "... ") + line
        for line in lines
    )


def _without_await(head: str, body: str) -> str:
    # IPython itself refuses await below %%time.
    return "print('no await here')" if "%%time" in head and ("await" in body or "async" in body) else body


@given(cells=st.lists(cell(), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_prints_what_ipython_prints(
    cells: list[str],
    tmp_path: Path,
    ipython: Callable[[list[str], Path], str],
    script_of: Callable[..., Script],
    run: Callable[..., str],
) -> None:
    # 15 examples, each with a process of its own: about 3 s.
    notebook = [FIRST, *cells]
    assert run(script_of(*notebook)) == ipython(notebook, tmp_path)
