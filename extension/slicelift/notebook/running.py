"""`%run`: a notebook's cells are taken in as if they stood here, a script is started as IPython does it."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from slicelift.errors import SliceliftError, UserError
from slicelift.models import Finding, LinePlace, Severity
from slicelift.notebook.bindings import bound_names
from slicelift.notebook.document import Notebook, read_bytes
from slicelift.notebook.document import read as read_notebook
from slicelift.notebook.magics import Magic
from slicelift.notebook.pieces import DEEPEST, Line, Piece, is_too_deep, parse
from slicelift.notebook.walk import Child, Outcome, Unit, Walk

_FLAGS = frozenset({"-i", "-n", "-e", "-t", "-G"})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A `%run` that can be done. `written` is how the path was typed, `inside` is it from the project root."""

    written: str
    inside: str
    path: Path
    arguments: tuple[str, ...]
    flags: frozenset[str]
    notebook: Notebook | None = None


def read(walk: Walk, magic: Magic) -> Plan | tuple[str, str] | None:
    """The plan, or why it is refused and the way on, or None when a finding says it all."""
    words = _words(magic.line)
    flags = frozenset(word for word in words[: _first_plain(words)] if word.startswith("-"))
    rest = words[_first_plain(words) :]
    if flags - _FLAGS:
        return f"the option {min(flags - _FLAGS)} is not supported", "Import the module and call it instead."
    if not rest:
        return "no file is named", "Write %run file.py or %run other.ipynb."
    if any(mark in magic.line for mark in "{$"):
        return "the file is only known at run time", "Name the file."
    return _found(walk, magic, rest=rest, flags=flags)


def take_in(walk: Walk, magic: Magic, *, plan: Plan) -> list[Piece]:
    """The code cells of a notebook, all of them, as IPython runs them: tags do not count here."""
    assert plan.notebook is not None
    walk.note("magic-run", magic.place, message=f"%run {plan.written}: its cells run here.")
    before, walk.running = walk.running, (*walk.running, plan.path)
    pieces = []
    for cell in plan.notebook.cells:
        if cell.is_code:
            pieces += walk.expand(walk, cell.source, unit=Unit(cell=cell.index, file=plan.inside))
    walk.running = before
    return pieces


def start_script(walk: Walk, magic: Magic, *, plan: Plan, unit: Unit, nested: bool) -> Outcome:
    """The call that starts a script in a namespace of its own, whose names then come to the notebook."""
    tree = _parsed(walk, plan)
    if tree is None:
        return Outcome(lines=["pass"])
    child = Child(path=plan.inside, text=_source(walk, plan), tree=tree, shared="-i" in plan.flags)
    walk.scripts.append(child)
    walk.note("magic-run", magic.place, message=f"%run {plan.written}: the script runs here as __main__.")
    names = sorted(name for name in bound_names(tree.body) if not name.startswith("__"))
    call = f"_slicelift_run({plan.written!r}, {list(plan.arguments)!r}{_switches(plan)})"
    if nested:
        walk.lost.update(names)
        return Outcome(lines=[call])
    piece = plain_piece(call, unit=unit, place=magic.place)
    piece.binds = tuple(names)
    walk.bound.update(names)
    return Outcome(pieces=[piece])


def bind_lost_names(walk: Walk, magic: Magic) -> None:
    """A refused magic would have bound these; that they are missing is no fault of its own."""
    words = _words(magic.line)
    if magic.name == "store" and "-r" in words:
        walk.lost |= {word for word in words if word.isidentifier()}
    for option, name in pairwise(words):
        if option in ("--out", "--err", "--proc") and name.isidentifier():
            walk.lost.add(name)


def plain_piece(text: str, *, unit: Unit, place: LinePlace) -> Piece:
    """A line of ours as a piece."""
    lines = [Line(text=text, place=place)]
    return Piece(cell=unit.cell, file=unit.file, lines=lines, tree=parse(lines))


def _first_plain(words: list[str]) -> int:
    return next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _found(
    walk: Walk, magic: Magic, *, rest: list[str], flags: frozenset[str]
) -> Plan | tuple[str, str] | None:
    path = walk.resolve(rest[0])
    if path is None:
        return "the working directory is only known at run time", "Use a literal path in os.chdir."
    added = path.suffix not in (".py", ".ipynb", ".ipy") and not path.is_file()
    path = path.with_name(path.name + ".py") if added else path
    inside = _inside(walk, magic, path=path)
    if inside is None:
        return None
    if path in (walk.start, *walk.running):
        chain = " → ".join(item.name for item in (walk.start, *walk.running, path))
        return f"it runs in a circle ({chain})", "Move what both need into a notebook of its own."
    written, arguments = rest[0] + (".py" if added else ""), tuple(rest[1:])
    plan = Plan(written=written, inside=inside, path=path, arguments=arguments, flags=flags)
    return plan if path.suffix == ".py" else _with_notebook(walk, plan)


def _inside(walk: Walk, magic: Magic, *, path: Path) -> str | None:
    """The file's path from the project root, or None after a finding says why it cannot be run."""
    inside = walk.relative(path)
    if inside is None:
        message = f"{magic.told} lies outside the project."
        _tell(walk, magic, code="outside-path", message=message, fix="Copy it into the project.")
    elif not path.is_file() and inside not in walk.files:
        message = f"{magic.told}: there is no such file."
        _tell(walk, magic, code="missing-file", message=message, fix="Check the path.")
        return None
    return inside


def _with_notebook(walk: Walk, plan: Plan) -> Plan | tuple[str, str] | None:
    if plan.path.suffix == ".ipy":
        return "IPython scripts (.ipy) are not supported", "Save it as a notebook or as plain Python."
    try:
        notebook = read_notebook(plan.path)
    except SliceliftError as error:
        return f"it cannot be read ({error.message})", error.hint
    walk.findings += [replace(finding, file=plan.inside) for finding in notebook.findings]
    if any(finding.severity is Severity.ERROR for finding in notebook.findings):
        return None
    if notebook.language.lower() not in ("python", "ipython"):
        return f"it is a notebook for {notebook.language}, not for Python", "Drop the line."
    return replace(plan, notebook=notebook)


def _tell(walk: Walk, magic: Magic, *, code: str, message: str, fix: str) -> None:
    walk.add(code, Severity.ERROR, place=magic.place, message=message, fix=fix)


def _source(walk: Walk, plan: Plan) -> str:
    if plan.inside in walk.files:
        return walk.files[plan.inside]
    return read_bytes(plan.path).decode("utf-8-sig", errors="replace")


def _parsed(walk: Walk, plan: Plan) -> ast.Module | None:
    code, line = "syntax-error", None
    try:
        source = _source(walk, plan)
        if not is_too_deep(source):
            return ast.parse(source)
        code, message = "cell-too-complex", f"{plan.inside} nests code more than {DEEPEST} levels deep."
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        message = f"{plan.inside} is no valid Python: {getattr(error, 'msg', error)}."
    except UserError as error:
        code, message = error.code, error.message
    walk.findings.append(
        Finding(code=code, severity=Severity.ERROR, message=message, file=plan.inside, line=line)
    )
    return None


def _switches(plan: Plan) -> str:
    shared = ", shared=True" if "-i" in plan.flags else ""
    imported = f", name={plan.path.stem!r}" if "-n" in plan.flags else ""
    return shared + imported + (", ignore_exit=True" if "-e" in plan.flags else "")
