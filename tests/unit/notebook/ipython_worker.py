"""A real IPython shell: one line of JSON in (cells, folder), one line out (stdout, error)."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    shell = InteractiveShell.instance()
    shell.display_trap.hook = lambda value: None
    # The first use of a magic loads its class and looks the magic up again; only then can it be replaced.
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_line_magic("cd", ".")
        shell.run_line_magic("time", "1")
    magics = shell.magics_manager.magics
    for name in ("env", "cd", "writefile"):
        for kind in ("line", "cell"):
            if name in magics[kind]:
                magics[kind][name] = _quiet(magics[kind][name])
    for kind in ("line", "cell"):
        magics[kind]["time"] = _only_the_code(shell)
    start, environment = os.getcwd(), dict(os.environ)
    for line in sys.stdin:
        answer = _run(shell, json.loads(line))
        os.chdir(start)
        os.environ.clear()
        os.environ.update(environment)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(shell: Any, request: dict[str, Any]) -> dict[str, Any]:
    shell.reset(new_session=True)
    shell.user_ns["__name__"] = "__main__"
    os.chdir(request["folder"])
    out, error = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        for cell in request["cells"]:
            result = shell.run_cell(cell)
            if not result.success:
                error = repr(result.error_before_exec or result.error_in_exec)
                break
    return {"stdout": out.getvalue(), "error": error}


def _quiet(magic: Callable[..., Any]) -> Callable[..., Any]:
    def silenced(*args: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return magic(*args)

    return silenced


def _only_the_code(shell: Any) -> Callable[..., Any]:
    """%time without the times."""

    def time(line: str, cell: str | None = None) -> Any:
        tree = ast.parse(shell.transform_cell(cell or line))
        if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
            return eval(compile(ast.Expression(tree.body[0].value), "<time>", "eval"), shell.user_ns)
        exec(compile(tree, "<time>", "exec"), shell.user_ns)
        return None

    return time


if __name__ == "__main__":
    main()
