"""What the script does in place of each magic. Every way through here leaves a finding."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from dataclasses import replace

from slicelift.models import LinePlace, Severity
from slicelift.notebook import running
from slicelift.notebook.expand import as_expression
from slicelift.notebook.magics import Magic
from slicelift.notebook.packages import Packages, read_command, read_requirements
from slicelift.notebook.pieces import Capture, Piece
from slicelift.notebook.policies import NOTHING_WHY, WAY_ON, Policy, is_known, policy_of
from slicelift.notebook.walk import Outcome, Unit, Walk

_DISPLAY_CELLS = frozenset({"html", "HTML", "svg", "SVG", "javascript", "js", "latex", "markdown", "timeit"})
_CELL_ONLY = (Policy.CAPTURE, Policy.FILE)
_LINE_ONLY = (Policy.ENVIRONMENT, Policy.FOLDER, Policy.RUN, Policy.PACKAGES, Policy.PROMOTE)
_PRUN_VALUES = ("-l", "-s", "-T", "-D")


def act(walk: Walk, magic: Magic, *, unit: Unit, nested: bool = False) -> Outcome:
    """What a magic that is a statement becomes. `nested` is True inside a block."""
    if magic.shell:
        return _shell(walk, magic)
    policy = policy_of(magic.name)
    wrong = _misplaced(magic, policy)
    if wrong:
        return Outcome(lines=refused(walk, magic, reason=wrong[0], fix=wrong[1]))
    if policy is Policy.RUN:
        return _run(walk, magic, unit=unit, nested=nested)
    if policy in (Policy.INLINE, Policy.CAPTURE):
        return (
            _inline(walk, magic, unit=unit) if policy is Policy.INLINE else _capture(walk, magic, unit=unit)
        )
    return Outcome(lines=_PLAIN[policy](walk, magic))


def value(walk: Walk, magic: Magic) -> str:
    """The expression for a magic whose result is used (`x = %time f()`); most are refused."""
    if magic.name in ("time", "prun") and magic.body is None:
        code = _without_options(magic) or ""
        if _is_expression(code):
            walk.note(
                "magic-inlined",
                magic.place,
                message=f"{magic.told}: the expression is kept, the timing is not.",
            )
            return f"({code})"
    if magic.name == "pwd" and magic.body is None:
        walk.note("magic-noop", magic.place, message="%pwd becomes os.getcwd().")
        return "_slicelift_os.getcwd()"
    if (
        magic.name == "env"
        and magic.body is None
        and magic.line.strip()
        and not set("= ") & set(magic.line.strip())
    ):
        name = magic.line.strip()
        walk.note("magic-env", magic.place, message=f"%env {name} reads the variable {name}.")
        return f"_slicelift_os.environ[{name!r}]"
    if magic.name == "promote" and magic.body is None:
        _promotes(walk, magic)
        # the facade of a job gives a run that is over, so that `run.wait()` below does not break
        return '__import__("slicelift").promote()'
    reason = _reason(magic)
    refused(
        walk, magic, reason=f"its result is used, and {reason}", fix=WAY_ON.get(magic.name, _way_on(magic))
    )
    return "None"


def refused(walk: Walk, magic: Magic, *, reason: str, fix: str) -> list[str]:
    """Record the refusal; the line that stays keeps the block around it whole."""
    walk.add("magic-refused", Severity.ERROR, place=magic.place, message=f"{magic.told}: {reason}.", fix=fix)
    return ["pass"]


def block_lines(walk: Walk, magic: Magic, *, pieces: list[Piece], unit: Unit) -> list[str]:
    """Pieces as the lines of a block, where they can be that."""
    here = (unit.captures, unit.file)
    if any(piece.tree is None or (piece.captures, piece.file) != here for piece in pieces):
        return refused(
            walk,
            magic,
            reason="it cannot stand inside a block",
            fix="Put it at the top of a cell of its own.",
        )
    return [line.text for piece in pieces for line in piece.lines] or ["pass"]


def _misplaced(magic: Magic, policy: Policy) -> tuple[str, str] | None:
    """Why IPython itself would not take the magic here."""
    if not magic.name:
        return "what it does is only known at run time", "Write the magic out, or tag the cell `skip`."
    if magic.name.startswith("%"):
        first = f"%{magic.name} must be the first line of its cell, and something stands above it"
        return first, "Move it to the first line, or take it away."
    if magic.body is None and policy in _CELL_ONLY:
        return (
            "it is a cell magic and needs two percent signs",
            f"Write %%{magic.name} on the cell's first line.",
        )
    if magic.body is not None and policy in _LINE_ONLY:
        return "it is a line magic and takes no cell", f"Write %{magic.name} on a line of its own."
    if policy is Policy.NOTHING and magic.body is not None and magic.name not in _DISPLAY_CELLS:
        return "it is a line magic and takes no cell", f"Write %{magic.name} on a line of its own."
    return None


def _reason(magic: Magic) -> str:
    if magic.shell or policy_of(magic.name) is Policy.SHELL:
        return "a job runs no shell commands of a notebook"
    if not is_known(magic.name):
        return "slicelift does not know this magic"
    return "it only works in a session"


def _way_on(magic: Magic) -> str:
    if magic.shell or policy_of(magic.name) is Policy.SHELL:
        return (
            "Do it in Python (pathlib, shutil, subprocess), or tag the cell `skip` if the job can do without."
        )
    return "Write it as plain Python, or tag the cell `skip` if the job can do without it."


def _kept(magic: Magic) -> list[str]:
    """A line that does nothing and shows what stood there."""
    return [f"pass  # {magic.told}"]


def _shell(walk: Walk, magic: Magic) -> Outcome:
    found = read_command(magic.line)
    if found is not None:
        return Outcome(lines=_recorded(walk, magic, found=found))
    return Outcome(lines=_refuse(walk, magic))


def _refuse(walk: Walk, magic: Magic) -> list[str]:
    running.bind_lost_names(walk, magic)
    return refused(walk, magic, reason=_reason(magic), fix=WAY_ON.get(magic.name, _way_on(magic)))


def _packages(walk: Walk, magic: Magic) -> list[str]:
    found = read_command(f"{magic.name} {magic.line}")
    if found is None:
        reason = "only `install` with names that stand in the notebook can be recorded"
        return refused(
            walk, magic, reason=reason, fix="Install by hand in the kernel's environment and drop the line."
        )
    return _recorded(walk, magic, found=found)


def _recorded(walk: Walk, magic: Magic, *, found: Packages) -> list[str]:
    if found.only_looks:
        walk.note("magic-noop", magic.place, message=f"{magic.told} only looks; nothing is done in the job.")
        return _kept(magic)
    wanted = [*found.requirements]
    for name in found.files:
        wanted += _from_file(walk, magic, name=name)
    walk.requirements += wanted
    told = ", ".join(wanted) or "nothing"
    extra = f" Project folder {', '.join(found.local)} travels with the code." if found.local else ""
    walk.note("magic-dependency", magic.place, message=f"Recorded as a requirement: {told}.{extra}")
    # What was typed may hold a password for a package index, so the requirements alone are shown.
    return [f"pass  # requires {told}".replace("\n", " ")]


def _from_file(walk: Walk, magic: Magic, *, name: str) -> tuple[str, ...]:
    path = walk.resolve(name)
    try:
        return read_requirements(path.read_text(encoding="utf-8")) if path else ()
    except (OSError, UnicodeDecodeError):
        message = f"The requirements file {name} is not there."
        walk.add("missing-file", Severity.WARNING, place=magic.place, message=message, fix="Check the path.")
        return ()


def _environment(walk: Walk, magic: Magic) -> list[str]:
    """`%env K=V` and `%env K V`, as IPython splits them: no quotes are taken away."""
    text = magic.line.strip()
    mark = "=" if "=" in text else " "
    if mark not in text:
        walk.note(
            "magic-noop",
            magic.place,
            message=f"%{magic.name} {text}".strip() + " only shows the environment.",
        )
        return _kept(magic)
    name, _, raw = (part.strip() for part in text.partition(mark))
    if not name or any(character.isspace() for character in name):
        return refused(
            walk, magic, reason="the name of the variable has a space", fix="Write %env NAME=value."
        )
    code, constant = as_expression(raw, bound=walk.bound)
    if constant:
        walk.environment[name] = str(ast.literal_eval(code))
    walk.note(
        "magic-env", magic.place, message=f"%{magic.name} sets the environment variable {name} in the job."
    )
    return [f"_slicelift_os.environ[{name!r}] = {code}"]


def _folder(walk: Walk, magic: Magic) -> list[str]:
    text = magic.line.strip().removeprefix("-q ").strip()
    if text.startswith("-") or not text:
        return refused(
            walk, magic, reason="the folder is only known in a session", fix="Name the folder: %cd data."
        )
    text = text[1:-1] if text[0] == text[-1] and text[0] in "'\"" and len(text) > 1 else text
    code, constant = as_expression(text, bound=walk.bound)
    target = walk.resolve(str(ast.literal_eval(code))) if constant else None
    walk.folder = str(target) if target else None
    if target is not None and walk.relative(target) is None:
        message = f"%cd {text} leaves the project; the job has only the project's files."
        fix = "Use a folder inside the project."
        walk.add("outside-path", Severity.ERROR, place=magic.place, message=message, fix=fix)
        return ["pass"]
    walk.note("magic-env", magic.place, message=f"%cd {text} changes the working directory in the job.")
    home = f"_slicelift_os.path.expanduser({code})" if text.startswith("~") else code
    return [f"_slicelift_chdir({home})"]


def _file(walk: Walk, magic: Magic) -> list[str]:
    words = _split(magic.line)
    append = any(word in ("-a", "--append") for word in words)
    names = [word for word in words if word not in ("-a", "--append")]
    if len(names) != 1 or names[0].startswith("-"):
        return refused(walk, magic, reason="one file name is wanted", fix="Write %%writefile name.py.")
    code, constant = as_expression(names[0], bound=walk.bound)
    path = walk.resolve(str(ast.literal_eval(code))) if constant else None
    inside = walk.relative(path) if path else None
    if path is not None and inside is None:
        message = f"%%{magic.name} {names[0]} writes outside the project."
        fix = "Write into a folder of the project."
        walk.add("outside-path", Severity.ERROR, place=magic.place, message=message, fix=fix)
        return ["pass"]
    walk.note(
        "magic-file",
        magic.place,
        message=f"%%{magic.name} {names[0]} writes the file when the job comes to this cell.",
    )
    return _written(walk, magic, code=code, inside=inside, append=append)


def _written(walk: Walk, magic: Magic, *, code: str, inside: str | None, append: bool) -> list[str]:
    """The call that writes the file. The ranks of a gang all run it, so adding is made a whole write where it can."""
    text = magic.body or ""
    if append and inside in walk.files:
        text, append = walk.files[inside] + text, False
    if inside is not None and not append:
        walk.files[inside] = text
    body = [f"    {line!r}" for line in text.splitlines(keepends=True)] or ["    ''"]
    return [f"_slicelift_write({code}, {'a' if append else 'w'!r}, (", *body, "))"]


def _nothing(walk: Walk, magic: Magic) -> list[str]:
    why = NOTHING_WHY.get(magic.name, "it only matters in a session")
    shown = (
        f"{magic.line.strip()}? ({magic.told})" if magic.name.startswith(("pinfo", "psearch")) else magic.told
    )
    walk.note("magic-noop", magic.place, message=f"{shown} does nothing in the job: {why}.")
    return _kept(magic)


def _promotes(walk: Walk, magic: Magic) -> list[str]:
    message = f"{magic.told} does nothing in the job: otherwise each rank would promote the notebook again."
    walk.note("promotes-itself", magic.place, message=message)
    return _kept(magic)


_PLAIN: dict[Policy, Callable[[Walk, Magic], list[str]]] = {
    Policy.ENVIRONMENT: _environment,
    Policy.FOLDER: _folder,
    Policy.FILE: _file,
    Policy.PACKAGES: _packages,
    Policy.NOTHING: _nothing,
    Policy.PROMOTE: _promotes,
    Policy.SHELL: _refuse,
    Policy.REFUSE: _refuse,
}


def _run(walk: Walk, magic: Magic, *, unit: Unit, nested: bool) -> Outcome:
    """A notebook is taken in, a script is started; both need to be known beforehand."""
    plan = running.read(walk, magic)
    if isinstance(plan, tuple):
        return Outcome(lines=refused(walk, magic, reason=plan[0], fix=plan[1]))
    if plan is None:
        return Outcome(lines=["pass"])
    if plan.notebook is None:
        return running.start_script(walk, magic, plan=plan, unit=unit, nested=nested)
    if nested:
        lines = refused(
            walk,
            magic,
            reason="a notebook cannot be taken into a block",
            fix="Put %run into a cell of its own.",
        )
        return Outcome(lines=lines)
    return Outcome(pieces=running.take_in(walk, magic, plan=plan))


def _inline(walk: Walk, magic: Magic, *, unit: Unit) -> Outcome:
    code = _without_options(magic)
    if code is None:
        return Outcome(
            lines=refused(
                walk, magic, reason="its options change what the code does", fix="Drop the options."
            )
        )
    if magic.body is not None and code:
        reason = "code stands on the line of the cell magic itself"
        return Outcome(lines=refused(walk, magic, reason=reason, fix="Move it down into the cell."))
    if magic.body is None and not code:
        walk.note("magic-noop", magic.place, message=f"{magic.told} without code does nothing.")
        return Outcome(lines=_kept(magic))
    walk.note("magic-inlined", magic.place, message=f"{magic.told}: the code is kept, the timing is not.")
    return Outcome(pieces=walk.expand(walk, magic.body or code, unit=_inside(magic, unit)))


def _without_options(magic: Magic) -> str | None:
    """The code on the magic's line; None when an option has an effect that a script cannot have."""
    words = magic.line.strip()
    while magic.name == "prun" and words.startswith("-"):
        option, _, words = words.partition(" ")
        if option == "-r":
            return None
        if option in _PRUN_VALUES:
            words = words.strip().partition(" ")[2]
        words = words.strip()
    return None if words.startswith("--no-raise-error") else words


def _inside(magic: Magic, unit: Unit) -> Unit:
    """The unit for the code that a magic holds: a cell's body has lines of its own, a line's code has one."""
    own = (magic.place.line,) * (1 + (magic.body or "").count("\n"))
    lines = tuple(place.line for place in magic.body_places) or own
    return replace(unit, lines=lines)


def _capture(walk: Walk, magic: Magic, *, unit: Unit) -> Outcome:
    words = _split(magic.line)
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 1 or any(not name.isidentifier() for name in names):
        return Outcome(
            lines=refused(walk, magic, reason="one variable name is wanted", fix="Write %%capture output.")
        )
    walk.captured += 1
    capture = Capture(
        number=walk.captured,
        name=names[0] if names else "",
        stdout="--no-stdout" not in words,
        stderr="--no-stderr" not in words,
    )
    walk.note(
        "magic-inlined",
        magic.place,
        message=f"{magic.told}: the code is kept, and what it prints is kept back.",
    )
    inside = replace(_inside(magic, unit), captures=(*unit.captures, capture))
    pieces = walk.expand(walk, magic.body or "", unit=inside)
    if capture.name:
        walk.bound.add(capture.name)
        pieces.append(_named(capture, unit, place=magic.place))
    return Outcome(pieces=pieces)


def _named(capture: Capture, unit: Unit, *, place: LinePlace) -> Piece:
    return running.plain_piece(
        f"{capture.name} = _slicelift_captured_{capture.number}", unit=unit, place=place
    )


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _is_expression(code: str) -> bool:
    try:
        ast.parse(code, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True
