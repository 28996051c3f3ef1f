"""The names behind `from module import *`, for modules of the project by reading them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from slicelift.errors import UserError
from slicelift.notebook.bindings import bound_names
from slicelift.notebook.document import read_bytes
from slicelift.notebook.kernel import ProbeResult
from slicelift.notebook.pieces import parse_text
from slicelift.preflight.modules import imports
from slicelift.preflight.view import View


def star_names(
    view: View, result: ProbeResult, *, files: Mapping[str, str]
) -> dict[str, tuple[str, ...] | None]:
    """For each `import *` of the program its names, or None when they are unknown.

    `files` are what `%%writefile` makes. A module of the project is read, never imported; for the others the
    kernel's interpreter has imported them.
    """
    found: dict[str, tuple[str, ...] | None] = {}
    for item in imports(view):
        if item.star:
            found[item.name] = _names(item.name, view, result=result, files=files)
    return found


def _names(name: str, view: View, *, result: ProbeResult, files: Mapping[str, str]) -> tuple[str, ...] | None:
    module = result.modules.get(name)
    written = [text for path, text in files.items() if Path(path).stem == name]
    if written:
        return _of_text(written[-1].encode(), Path(view.folder), depth=0)
    if module is not None and module.local and module.origin:
        return _of_file(Path(module.origin), depth=0)
    return result.stars.get(name)


def _of_file(path: Path, *, depth: int) -> tuple[str, ...] | None:
    try:
        return _of_text(read_bytes(path), path.parent, depth=depth)
    except UserError:
        return None


def _of_text(text: bytes, folder: Path, *, depth: int) -> tuple[str, ...] | None:
    tree = parse_text(text)
    if tree is None:
        return None
    exported = _exported(tree)
    return _public(tree, folder, depth=depth) if exported is None else exported


def _public(tree: ast.Module, folder: Path, *, depth: int) -> tuple[str, ...] | None:
    """All names without an underscore, those of its own `import *` too, which may go five modules deep."""
    found = {name for name in bound_names(tree.body) if not name.startswith("_")}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            inner = folder / f"{(node.module or '').replace('.', '/')}.py"
            more = _of_file(inner, depth=depth + 1) if depth < 5 else None
            if more is None:
                return None
            found.update(more)
    return tuple(sorted(found))


def _exported(tree: ast.Module) -> tuple[str, ...] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            try:
                return tuple(str(name) for name in ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return None
    return None
