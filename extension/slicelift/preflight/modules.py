"""Imports: what is missing, what is the project's own, what hides names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicelift.models import Finding, Severity
from slicelift.notebook.kernel import Module
from slicelift.notebook.packages import requirement_name
from slicelift.notebook.static import text_of
from slicelift.preflight.view import View

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
# Distributions whose module has another name: only the usual suspects.
_MODULE_OF = {
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "opencv-python": "cv2",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "beautifulsoup4": "bs4",
    "python-dateutil": "dateutil",
    "pytorch-lightning": "pytorch_lightning",
    "msgpack-python": "msgpack",
    "protobuf": "google",
    "tensorboardx": "tensorboardX",
    "umap-learn": "umap",
    "faiss-cpu": "faiss",
    "faiss-gpu": "faiss",
    "attrs": "attr",
    "pyzmq": "zmq",
}


# What is there in every job, whatever the kernel lacks: the runtime travels with the snapshot.
_TRAVELS = frozenset({"slicelift"})


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module. `level` counts leading dots; `star` is True for `import *`."""

    name: str
    node: ast.stmt
    level: int = 0
    star: bool = False


@dataclass(frozen=True, kw_only=True)
class Available:
    """What there is to import: the kernel's answers, recorded requirements, modules that the code writes.

    `ignored` are modules of the project that git ignores.
    `complete` is False when the notebook changes the module path in a way that cannot be read.
    """

    modules: Mapping[str, Module]
    requirements: Collection[str] = ()
    written: Collection[str] = ()
    ignored: Collection[str] = ()
    complete: bool = True


def imports(view: View) -> list[Import]:
    """Every import of the program, in order."""
    found = [Import(name=item.name, node=node) for node in view.of(ast.Import) for item in node.names]
    for source in view.of(ast.ImportFrom):
        if source.module != "__future__":
            star = source.names[0].name == "*"
            found.append(Import(name=source.module or "", node=source, level=source.level, star=star))
    return sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))


def walk_imports(view: View) -> Iterator[str]:
    """The dotted names to ask the kernel about."""
    yield from dict.fromkeys(item.name for item in imports(view) if not item.level and item.name)


def search_paths(view: View) -> tuple[list[str], bool]:
    """Folders that the notebook puts on the module path, and whether all of them could be read.

    The notebook's own folder comes first. A folder that the code changes into counts too, since a kernel looks
    for modules in the current one.
    """
    paths, complete = [view.folder], True
    if any(node.attr == "path" for node in view.of(ast.Attribute)) or "sys.path" in view.aliases.values():
        added, complete = _added_paths(view)
        paths += added
    paths += [folder for _, folder in view.folders() if folder]
    return list(dict.fromkeys(paths)), complete


def check_modules(view: View, available: Available) -> list[Finding]:
    """Findings for all imports."""
    modules, written = available.modules, available.written
    answered = _TRAVELS | {requirement_name(item) for item in available.requirements}
    answered |= {_MODULE_OF[name] for name in answered if name in _MODULE_OF}
    findings: list[Finding] = []
    missing = _missing(view, modules, answered=answered, written=written)
    for item in imports(view):
        top = item.name.partition(".")[0]
        module = modules.get(item.name)
        if item.star:
            findings.append(_star(view, item))
        if top in written or (module and module.local and module.found):
            findings.append(_local(view, item, ignored=item.name in available.ignored and top not in written))
        elif item in missing and not _guarded(view, item.node, missing=missing):
            findings.append(_absent(view, item, complete=available.complete))
    return list(dict.fromkeys(findings))


def check_futures(view: View) -> list[Finding]:
    """`from __future__` counts for the whole script."""
    found = []
    for node in view.of(ast.ImportFrom):
        if node.module == "__future__":
            names = ", ".join(item.name for item in node.names)
            message = (
                f"from __future__ import {names} moves to the top of the script and counts for every cell."
            )
            found.append(view.finding("future-import", Severity.NOTE, node=node, message=message))
    return found


def _added_paths(view: View) -> tuple[list[str], bool]:
    texts = [
        text_of(node.args[-1], known=view.constants, folder=view.folder)
        for node in view.of(ast.Call)
        if view.called(node) in ("sys.path.append", "sys.path.insert") and node.args
    ]
    paths = [str(Path(view.folder, text)) for text in texts if text is not None]
    others = any(_changes_path(view, node) for node in view.of(ast.Call, ast.Assign, ast.AugAssign))
    return paths, len(paths) == len(texts) and not others


def _changes_path(view: View, node: ast.AST) -> bool:
    """True for changes of sys.path that cannot be followed (`sys.path += ...`, `sys.path[:0] = ...`)."""
    if isinstance(node, ast.Call):
        return view.called(node) in ("sys.path.extend", "site.addsitedir")
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        bases = [item.value if isinstance(item, ast.Subscript) else item for item in targets]
        return any(view.named(base) == "sys.path" for base in bases)
    return False


def _missing(
    view: View, modules: Mapping[str, Module], *, answered: Collection[str], written: Collection[str]
) -> list[Import]:
    found = []
    for item in imports(view):
        top = item.name.partition(".")[0]
        module = modules.get(item.name)
        absent = module is not None and not module.found
        known = top in written or top in answered or top.replace("_", "-").lower() in answered
        if item.level or (absent and not known):
            found.append(item)
    return found


def _guarded(view: View, node: ast.stmt, *, missing: Collection[Import]) -> bool:
    """True when the program expects that the import may fail."""
    inner: ast.AST = node
    for outer in view.above(node):
        if isinstance(outer, ast.If):
            return True
        if isinstance(outer, ast.Try) and _try_guards(outer, inner, missing=missing):
            return True
        if isinstance(outer, ast.With) and any(
            "suppress" in ast.unparse(i.context_expr) for i in outer.items
        ):
            return True
        inner = outer
    return False


def _try_guards(outer: ast.Try, inner: ast.AST, *, missing: Collection[Import]) -> bool:
    """In the body: when a handler takes the error. In a handler or `else`: when it will not come to that."""
    if inner in outer.body:
        return any(_takes_import_error(handler) for handler in outer.handlers)
    body = {id(node) for statement in outer.body for node in ast.walk(statement)}
    fails = any(id(item.node) in body for item in missing)
    if inner in outer.orelse:
        return fails
    return inner in outer.handlers and not fails


def _takes_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind).rpartition(".")[2] in _IMPORT_ERRORS for kind in kinds)


def _local(view: View, item: Import, *, ignored: bool) -> Finding:
    if ignored:
        message = f"{item.name} is a module of the project that git ignores, so it does not travel."
        fix = "Take it out of .gitignore."
        return view.finding("local-module", Severity.WARNING, node=item.node, message=message, fix=fix)
    message = f"{item.name} is a module of the project; it travels with the code."
    return view.finding("local-module", Severity.NOTE, node=item.node, message=message)


def _star(view: View, item: Import) -> Finding:
    message = f"from {item.name} import * hides where names come from."
    fix = "Import the names you use."
    return view.finding("star-import", Severity.WARNING, node=item.node, message=message, fix=fix)


def _absent(view: View, item: Import, *, complete: bool) -> Finding:
    if item.level:
        dots = "." * item.level + item.name
        message = f"from {dots} import ...: a notebook is no package, so a relative import fails."
        fix = "Name the module without the leading dots."
        return view.finding("missing-module", Severity.ERROR, node=item.node, message=message, fix=fix)
    # In a function it fails only when that is called; with an unreadable module path it may be found.
    certain = complete and not view.in_function(item.node)
    severity = Severity.ERROR if certain else Severity.WARNING
    message = f"No module {item.name} in the kernel's environment or on the notebook's module path."
    top = item.name.partition(".")[0]
    place = _place_above(Path(view.folder), top)
    fix = f"Install it in the kernel's environment (%pip install {top}), or correct the name."
    if place is not None:
        fix = f"It lies in {place}: put `import sys; sys.path.append({place!r})` above, or install it."
    return view.finding("missing-module", severity, node=item.node, message=message, fix=fix)


def _place_above(folder: Path, name: str) -> str | None:
    """The folder above the notebook that holds the module, as the notebook would write it."""
    for up, parent in enumerate(list(folder.parents)[:4], start=1):
        if (parent / f"{name}.py").is_file() or (parent / name / "__init__.py").is_file():
            return "/".join([".."] * up)
    return None
