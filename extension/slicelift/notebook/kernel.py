"""The kernel's own interpreter: where it is, and what it says of the code, the modules and itself.

Syntax and modules are judged by the interpreter that will run them, in one short process, so it works
with a busy kernel and for a kernel that has no slicelift installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift.errors import UserError
from slicelift.models import Environment
from slicelift.notebook import kernel_probe
from slicelift.notebook.document import Notebook

_TIMEOUT_SECONDS = 120.0
_OURS = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
_PYTHON_HINT = "Name the interpreter with --python, or choose another kernel for the notebook."


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the compiler says of one cell. `line` counts in the text that was sent."""

    ok: bool = True
    awaits: bool = False
    message: str = ""
    line: int = 1


@dataclass(frozen=True, kw_only=True)
class Module:
    """Where a module comes from; `local` is a file of the project."""

    found: bool = True
    origin: str | None = None
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What to ask. `paths` come before the interpreter's own module path; `root` is the project."""

    cells: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    stars: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    root: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The answer. `packages`: normalised project name -> version; a star's names are None if unknown."""

    python: str
    version: str
    platform: str
    packages: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, Verdict] = field(default_factory=dict)
    modules: Mapping[str, Module] = field(default_factory=dict)
    stars: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)


def find_interpreter(notebook: Notebook, *, python: str | None = None) -> str:
    """The interpreter behind the notebook's kernelspec, or `python` when given.

    A kernelspec that is not installed here, or that says just `python`, stands for our own interpreter.
    Raises UserError when the one that is meant does not exist.
    """
    if python is not None:
        return _existing(python, f"There is no interpreter {python}.")
    spec = _kernelspec(notebook.kernel) if notebook.kernel else None
    command = spec.get("argv") if spec else None
    if not isinstance(command, list) or not command or _OURS.fullmatch(str(command[0])):
        return sys.executable
    program = str(command[0])
    if not re.match(r"(python|pypy)", Path(program).name):
        message = f"Kernel {notebook.kernel} is started by {program}, which is not an interpreter."
        raise UserError("kernel-interpreter", message, _PYTHON_HINT)
    return _existing(program, f"Kernel {notebook.kernel} wants {program}, and that is not there.")


def is_stand_in(notebook: Notebook) -> bool:
    """Whether the notebook names a kernel that is not installed here, so that our own interpreter stands for it."""
    name = notebook.kernel
    return bool(name) and not _OURS.fullmatch(str(name)) and _kernelspec(str(name)) is None


class Pending:
    """A probe that runs beside us; `result` waits for it."""

    def __init__(self, python: str, request: ProbeRequest) -> None:
        self._python = python
        self._request = json.dumps(_asked(request)).encode("ascii")
        self._process = _start(python)

    def result(self) -> ProbeResult:
        """The answer. Raises UserError `kernel-interpreter` when there is none."""
        answer = _answer(self._python, self._process, request=self._request)
        return ProbeResult(
            python=self._python,
            version=str(answer["version"]),
            platform=str(answer["platform"]),
            packages=answer["packages"],
            cells={key: Verdict(**value) for key, value in answer["cells"].items()},
            modules={key: Module(**value) for key, value in answer["modules"].items()},
            stars={key: None if names is None else tuple(names) for key, names in answer["stars"].items()},
        )


def probe(python: str, request: ProbeRequest) -> ProbeResult:
    """Ask the interpreter, in one process. Raises UserError `kernel-interpreter` when it gives no answer."""
    return Pending(python, request).result()


def environment(result: ProbeResult, *, requirements: Iterable[str] = ()) -> Environment:
    """What a snapshot keeps of the interpreter."""
    return Environment(
        python=result.python,
        python_version=result.version,
        platform=result.platform,
        packages=result.packages,
        requirements=tuple(requirements),
    )


def _existing(program: str, message: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise UserError("kernel-interpreter", message, _PYTHON_HINT)
    return found


def _kernelspec(name: str) -> dict[str, Any] | None:
    """kernel.json of the first folder that has it. Names are compared without case, as Jupyter does."""
    for folder in _kernel_folders():
        try:
            names = {item.name.lower(): item for item in folder.iterdir()}
            if name.lower() in names:
                return dict(json.loads((names[name.lower()] / "kernel.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return None


def _kernel_folders() -> list[Path]:
    """Jupyter's data paths in its own order, without loading jupyter_client (0.5 s)."""
    named = [Path(item) for item in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if item]
    user = Path(os.environ.get("JUPYTER_DATA_DIR") or _user_data())
    own, system = Path(sys.prefix) / "share" / "jupyter", ["/usr/local/share/jupyter", "/usr/share/jupyter"]
    inner = [own, user] if sys.prefix != sys.base_prefix else [user, own]
    return [folder / "kernels" for folder in [*named, *inner, *map(Path, system)]]


def _user_data() -> str:
    if sys.platform == "darwin":
        return str(Path.home() / "Library" / "Jupyter")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(data) / "jupyter")


def _asked(request: ProbeRequest) -> dict[str, Any]:
    return {
        "cells": [{"id": key, "source": source} for key, source in request.cells.items()],
        "modules": list(request.modules),
        "stars": list(request.stars),
        "paths": list(request.paths),
        "root": request.root,
    }


def _start(python: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            [python, "-B", str(kernel_probe.__file__)], stdin=pipe, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise UserError(
            "kernel-interpreter", f"{python} cannot be started: {error}.", _PYTHON_HINT
        ) from error


def _answer(python: str, process: subprocess.Popen[bytes], *, request: bytes) -> dict[str, Any]:
    try:
        out, err = process.communicate(request, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        message = f"{python} gave no answer within {_TIMEOUT_SECONDS:.0f} s."
        raise UserError("kernel-interpreter", message, _PYTHON_HINT) from error
    _, found, answer = out.decode("ascii", errors="replace").rpartition(kernel_probe.MARKER)
    if not found:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        message = f"{python} could not look at the notebook: {last[0]}."
        raise UserError("kernel-interpreter", message, _PYTHON_HINT)
    return dict(json.loads(answer))
