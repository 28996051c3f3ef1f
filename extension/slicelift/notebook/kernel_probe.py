"""Runs in the kernel's own interpreter, as a file: standard library only, and no import of slicelift.

Reads a JSON request from stdin and writes one line of JSON after a marker. Nothing of the notebook or of
the project is executed; modules outside the project are imported only where `import *` needs their names.

request: {cells: [{id, source}], modules: [dotted name], stars: [dotted name], paths: [folder], root: folder}
answer:  {python, version, platform, prefix, packages: {name: version},
          cells: {id: {ok, awaits, message, line}}, modules: {name: {found, origin, local, distributions}},
          stars: {name: [names] or null}}
"""

# Paths are plain strings here: that is quick, and this must run in any interpreter.
# ruff: noqa: PTH110, PTH112, PTH117, PTH118, PTH206, PTH208
from __future__ import annotations

import sys

# The folder of this file is no place to find modules in; it must go before anything else is imported.
if __name__ == "__main__" and sys.path and sys.path[0] and __file__.startswith(sys.path[0]):
    sys.path.pop(0)

import ast
import importlib.util
import json
import os
import platform
import re
import warnings
from typing import Any

MARKER = "@@slicelift-probe@@"
_CLOSED_FLAGS = 0
_OPEN_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_DIST = re.compile(r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist-info|egg-info)$")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that was asked, in one go."""
    places = [*sys.path]
    sys.path[:0] = [path for path in request.get("paths", []) if path not in sys.path]
    root = os.path.realpath(request.get("root") or os.sep)
    modules = {name: find_module(name, root) for name in request.get("modules", [])}
    stars = {
        name: star_names(name, modules.get(name) or find_module(name, root))
        for name in request.get("stars", [])
    }
    packages = installed(places)
    return {
        "python": sys.executable,
        "version": platform.python_version(),
        "platform": sys.platform + "-" + platform.machine(),
        "prefix": sys.prefix,
        "packages": packages,
        "cells": {cell["id"]: judge(cell["source"]) for cell in request.get("cells", [])},
        "modules": modules,
        "stars": stars,
    }


def judge(source: str) -> dict[str, Any]:
    """Compile a cell as a module and, if that fails, as IPython does, with await at the top level."""
    closed = _compiled(source, _CLOSED_FLAGS)
    if closed is None:
        return {"ok": True, "awaits": False}
    opened = _compiled(source, _OPEN_FLAGS)
    if opened is None:
        return {"ok": True, "awaits": True}
    return {"ok": False, "awaits": False, "message": opened[0], "line": opened[1]}


def find_module(name: str, root: str) -> dict[str, Any]:
    """Where `import name` would look, without importing its parents; `local` means a file of the project."""
    top, _, rest = name.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:
        return {
            "found": top in sys.builtin_module_names or top in sys.modules,
            "origin": None,
            "local": False,
        }
    origin = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    local = bool(origin) and _is_local(str(origin), root)
    if local and rest:
        origin = _submodule(spec, rest)
    return {"found": origin is not None or not local, "origin": origin, "local": local}


def star_names(name: str, module: dict[str, Any]) -> list[str] | None:
    """The names that `from name import *` binds; None when they cannot be told."""
    if module["local"]:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = importlib.import_module(name)
    except BaseException:  # noqa: BLE001  an import may raise anything, SystemExit included
        return None
    public = getattr(loaded, "__all__", None)
    return [str(item) for item in public] if public else [item for item in vars(loaded) if item[:1] != "_"]


def installed(places: list[str]) -> dict[str, str]:
    """Normalised project name -> version, from the names of the metadata folders alone: quick."""
    found: dict[str, str] = {}
    for place in places:
        try:
            entries = sorted(os.listdir(place))
        except OSError:
            continue
        for entry in entries:
            name, version = _distribution(place, entry)
            if name:
                found.setdefault(name, version)
    return found


def _compiled(source: str, flags: int) -> tuple[str, int] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<cell>", "exec", flags=flags, dont_inherit=True)
    except SyntaxError as error:
        return error.msg or "invalid syntax", error.lineno or 1
    except (RecursionError, MemoryError):
        return "the code is nested too deeply for Python's compiler", 1
    except (ValueError, OverflowError) as error:
        return str(error) or type(error).__name__, 1
    return None


def _is_local(origin: str, root: str) -> bool:
    """A file below the project that is not part of an environment which happens to lie there."""
    if not os.path.isabs(origin):  # "built-in", "frozen"
        return False
    path = os.path.realpath(origin)
    if not path.startswith(root.rstrip(os.sep) + os.sep):
        return False
    installed_here = any(part in ("site-packages", "dist-packages") for part in path.split(os.sep))
    return not installed_here and not path.startswith(os.path.realpath(sys.prefix) + os.sep)


def _submodule(spec: Any, rest: str) -> str | None:
    """The file of `rest` below a package, found by looking at its folders."""
    folders = list(spec.submodule_search_locations or [])
    origin = None
    for part in rest.split("."):
        found = [os.path.join(folder, part) for folder in folders]
        origin = next((path for base in found for path in _candidates(base) if os.path.exists(path)), None)
        if origin is None:
            return None
        folders = [base for base in found if os.path.isdir(base)]
    return origin


def _candidates(base: str) -> list[str]:
    return [os.path.join(base, "__init__.py"), base + ".py", base]


def _distribution(place: str, entry: str) -> tuple[str, str]:
    match = _DIST.match(entry)
    if match:
        return _normalised(match["name"]), match["version"]
    if not entry.endswith((".egg-info", ".egg-link")):
        return "", ""
    version = _header(os.path.join(place, entry), "Version")
    return _normalised(entry.rpartition(".")[0]), version or "0"


def _header(folder: str, key: str) -> str:
    path = os.path.join(folder, "PKG-INFO") if os.path.isdir(folder) else folder
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith(key + ": ")]
    except OSError:
        return ""
    return lines[0].partition(": ")[2].strip() if lines else ""


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """One request in, one answer out; whatever else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    result = answer(json.loads(sys.stdin.buffer.read()))
    out.write("\n" + MARKER + json.dumps(result) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
