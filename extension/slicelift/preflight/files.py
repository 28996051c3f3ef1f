"""Files that the code opens by a path which can be read from the source."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicelift.models import Finding, Severity, size_text
from slicelift.notebook.static import text_of
from slicelift.preflight.tracked import Tracked
from slicelift.preflight.view import View

LARGE_BYTES = 10 * 2**20
_SCRATCH = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")  # noqa: S108  looked at, not used
_OPENERS = frozenset({"open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open"})
_ARCHIVES = frozenset({"zipfile.ZipFile", "h5py.File"})
_FOLDERS = frozenset({"os.listdir", "os.scandir", "os.walk"})
_LOADERS = """
numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile torch.load joblib.load cv2.imread PIL.Image.open
xarray.open_dataset scipy.io.loadmat
"""
_READER_HOMES = ("pandas.read_", "polars.read_", "polars.scan_", "geopandas.read_")
_PATH_READS = frozenset({"read_text", "read_bytes", "iterdir"})
_PATH_WRITES = frozenset({"write_text", "write_bytes", "mkdir", "touch"})
_FILE_WORDS = ("file", "path", "filepath_or_buffer", "fname", "filename", "f", "io", "path_or_buf", "source")
_ABSENT_ERRORS = ("FileNotFoundError", "OSError", "IOError", "Exception")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """One path in the code. `written` is its text, `path` where it leads, None while the folder is unknown."""

    written: str
    path: Path | None
    node: ast.Call
    writes: bool


def check_files(view: View, *, root: Path, written: Collection[str]) -> list[Finding]:
    """Findings for files outside the project, absent ones, large ones. `written`: paths that the code makes."""
    known = {root / path for path in written}
    tracked = Tracked(root)
    findings: list[Finding] = []
    reads: list[Opened] = []
    for item in opened(view):
        outside = _outside(view, item, root=root, tracked=tracked)
        if outside is not None:
            findings += outside
        elif item.writes and item.path:
            known.add(item.path)
        elif item.path and not _made(item.path, known, root=root) and item.path not in tracked:
            reads.append(item)
    ignored = ignored_by_git(root, [item.path for item in reads if item.path])
    for item in reads:
        finding = _about(view, item, ignored=ignored)
        findings += [finding] if finding else []
    return list(dict.fromkeys(findings))


def opened(view: View) -> Iterator[Opened]:
    """Every opening call with a readable path, in order, with the working directory of that moment."""
    calls = view.of(ast.Call)
    for statement, folder in view.folders():
        while calls and calls[0].lineno <= (statement.end_lineno or statement.lineno):
            yield from _opening(view, calls.pop(0), folder=folder)


def ignored_by_git(root: Path, paths: Iterable[Path]) -> set[Path]:
    """Those that git ignores, asked once; none without git or without a repository."""
    listed = sorted({str(path) for path in paths})
    if not listed or not (root / ".git").exists():
        return set()
    command = ["git", "-C", str(root), "check-ignore", "-z", "--stdin"]
    try:
        done = subprocess.run(
            command,
            input=os.fsencode("\0".join(listed)),
            capture_output=True,
            env=_without_git(os.environ),
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {Path(os.fsdecode(item)) for item in done.stdout.split(b"\0") if item}


def _without_git(environ: Mapping[str, str]) -> dict[str, str]:
    """Less what a git hook or alias sets: GIT_DIR and others would have git answer for another repository."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")
    }


def _opening(view: View, node: ast.Call, *, folder: str | None) -> Iterator[Opened]:
    found = _path_argument(view, node)
    if found is None:
        return
    argument, writes, expands = found
    text = text_of(argument, known=view.constants, folder=folder or "/")
    if not text or "://" in text or "\0" in text:
        return
    full = os.path.expanduser(text) if expands else text  # noqa: PTH111  the text decides, not a Path
    path = Path(os.path.normpath(Path(folder or "/") / full))
    unknown = folder is None and not os.path.isabs(full)  # noqa: PTH117
    yield Opened(
        written=_as_written(argument, view) or text, path=None if unknown else path, node=node, writes=writes
    )


def _path_argument(view: View, node: ast.Call) -> tuple[ast.expr, bool, bool] | None:
    """The argument that names the file, whether it is written to, and whether `~` is expanded."""
    name = view.called(node)
    if name in _OPENERS or name in _ARCHIVES:
        argument = _first(node)
        return (argument, _is_write(node, 1), False) if argument is not None else None
    if name in _LOADERS.split() or name in _FOLDERS or name.startswith(_READER_HOMES):
        argument = _first(node)
        expands = name.startswith(_READER_HOMES)
        return (argument, False, expands) if argument is not None else None
    return _method(node, view)


def _method(node: ast.Call, view: View) -> tuple[ast.expr, bool, bool] | None:
    func = node.func
    if not isinstance(func, ast.Attribute) or not _is_path(func.value, view):
        return None
    if func.attr in _PATH_READS:
        return func.value, False, False
    if func.attr in _PATH_WRITES:
        return func.value, True, False
    return (func.value, _is_write(node, 0), False) if func.attr == "open" else None


def _is_path(node: ast.expr, view: View) -> bool:
    """True for an expression that is a Path rather than a string."""
    if isinstance(node, ast.Name):
        value = view.constants.get(node.id)
        return value is not None and not isinstance(value, ast.Name) and _is_path(value, view)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and _is_path(node.left, view)
    if isinstance(node, ast.Attribute):
        return node.attr == "parent" and _is_path(node.value, view)
    if not isinstance(node, ast.Call):
        return False
    if view.called(node).startswith("pathlib."):
        return True
    return isinstance(node.func, ast.Attribute) and _is_path(node.func.value, view)


def _first(node: ast.Call) -> ast.expr | None:
    if node.args:
        return node.args[0]
    named = {word.arg: word.value for word in node.keywords}
    return next((named[word] for word in _FILE_WORDS if word in named), None)


def _is_write(node: ast.Call, position: int) -> bool:
    named = [word.value for word in node.keywords if word.arg == "mode"]
    mode = named[0] if named else node.args[position] if len(node.args) > position else None
    text = mode.value if isinstance(mode, ast.Constant) else "r"
    return isinstance(text, str) and bool(set(text) & set("wax"))


def _as_written(node: ast.expr, view: View) -> str:
    """The first literal inside the expression: what the user will recognise."""
    parts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    if not parts and isinstance(node, ast.Name) and node.id in view.constants:
        return _as_written(view.constants[node.id], view)
    return parts[0] if len(parts) == 1 else ""


def _outside(view: View, item: Opened, *, root: Path, tracked: Tracked) -> list[Finding] | None:
    """Findings for a path that is not below the project; None for one that is, or that cannot be told."""
    if item.path is None:
        return []
    absolute = item.written.startswith(("/", "~"))
    if item.path.is_relative_to(root) and not (absolute and item.written.startswith("/")):
        return (
            None if not _leaves(item.path, root) or item.path in tracked else [_outside_finding(view, item)]
        )
    if item.path.is_relative_to(root):
        relative = os.path.relpath(item.path, view.folder)
        return [
            _outside_finding(view, item, fix=f"Write {relative!r}: in the job the project lies elsewhere.")
        ]
    if item.written.startswith(tuple(f"{place}/" for place in _SCRATCH)):
        return _scratch(view, item)
    return [_outside_finding(view, item)]


def _scratch(view: View, item: Opened) -> list[Finding]:
    """A device is everywhere, and a job may write scratch files; a scratch file of this machine is not there."""
    if item.writes or not str(item.path).startswith(("/tmp/", "/var/tmp/")):  # noqa: S108
        return []
    message = f"{item.written} is a scratch file; the job starts without it."
    fix = "Make it in the notebook, or put it into the project."
    return [view.finding("outside-path", Severity.WARNING, node=item.node, message=message, fix=fix)]


def _outside_finding(view: View, item: Opened, *, fix: str | None = None) -> Finding:
    message = f"{item.written} lies outside the project; the job has only the project's files."
    way = fix or "Copy it into the project (large data: `dvc add`) and use a relative path."
    return view.finding("outside-path", Severity.ERROR, node=item.node, message=message, fix=way)


def _leaves(path: Path, root: Path) -> bool:
    """True when a link on the way leads out of the project; the link alone would travel."""
    return path.exists() and not path.resolve().is_relative_to(root.resolve())


def _made(path: Path, known: Collection[Path], *, root: Path) -> bool:
    """True when the code has written the file, or a folder around it, before."""
    return any(item in known for item in [path, *path.parents] if item != root)


def _about(view: View, item: Opened, *, ignored: Collection[Path]) -> Finding | None:
    path = item.path
    if path is None or _expected_to_fail(view, item.node):
        return None
    if not path.exists():
        message = f"{item.written} is not in the project and not tracked by DVC."
        fix = "Check the path, or pull the data first (`dvc pull`)."
        return view.finding("missing-file", Severity.WARNING, node=item.node, message=message, fix=fix)
    if path in ignored:
        message = f"{item.written} is ignored by git and not tracked by DVC, so it does not travel."
        fix = f"Track it: `dvc add {item.written}`, or take it out of .gitignore."
        return view.finding("missing-file", Severity.WARNING, node=item.node, message=message, fix=fix)
    size = path.stat().st_size if path.is_file() else 0
    if size > LARGE_BYTES:
        message = f"{item.written} has {size_text(size)} and would travel with the code."
        fix = f"Track it as data: `dvc add {item.written}`."
        return view.finding(
            "large-file-in-snapshot", Severity.WARNING, node=item.node, message=message, fix=fix
        )
    return None


def _expected_to_fail(view: View, node: ast.AST) -> bool:
    """True inside `if os.path.exists(...)` or `try ... except FileNotFoundError`."""
    for outer in view.above(node):
        if isinstance(outer, ast.If | ast.IfExp) and "exists" in ast.unparse(outer.test):
            return True
        if isinstance(outer, ast.If) and "is_file" in ast.unparse(outer.test):
            return True
        if isinstance(outer, ast.Try) and any(_takes_absence(handler) for handler in outer.handlers):
            return True
    return False


def _takes_absence(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(word in ast.unparse(handler.type) for word in _ABSENT_ERRORS)
