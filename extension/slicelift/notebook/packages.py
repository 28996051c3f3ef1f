"""What `pip install` and its kin ask for, read from the command's words; nothing is installed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

# Options of `pip install` that take the next word with them.
_TAKES_VALUE = """
-c --constraint -i --index-url --extra-index-url -f --find-links -t --target --prefix --root --src --platform
--python-version --implementation --abi --no-binary --only-binary --progress-bar --timeout --retries --proxy
--cert --client-cert --cache-dir --trusted-host --config-settings -C --global-option --upgrade-strategy --log
--report --root-user-action --channel -n --name -p --python
"""
_JOINERS = frozenset({"&&", ";"})
_LOOKING = frozenset({"list", "freeze", "show", "check", "config", "cache", "debug", "help", "index", "info"})
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_PYTHON = re.compile(r"(python|pypy)[\d.]*$")
_CUT = re.compile(r"(\d|&)?>|\|")
_DYNAMIC = re.compile(r"[{}$`]")


@dataclass(frozen=True, kw_only=True)
class Packages:
    """What the commands want. `files` are requirement files; `local` are folders of the project itself."""

    requirements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    only_looks: bool = False


def read_command(command: str) -> Packages | None:
    """Read a shell line. None when any part of it is something other than an installer's command."""
    words = _words(command)
    parts = [_installer(part) for part in _split(words)]
    if not parts or not all(parts):
        return None
    return _joined([_arguments(part) for part in parts if part])


def read_requirements(text: str) -> tuple[str, ...]:
    """The requirements of a requirements file, without comments, options and hashes."""
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return tuple(line.split(" --hash")[0].strip() for line in lines if line and not line.startswith("-"))


def requirement_name(requirement: str) -> str:
    """The normalised project name of a requirement; empty for a URL or a path without a name."""
    name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[|[<>=!~;@]|$|\s)", requirement)
    egg = re.search(r"#egg=([A-Za-z0-9._-]+)", requirement)
    found = name or egg
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # an open quote
        return command.split()


def _split(words: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in _JOINERS:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def _installer(words: list[str]) -> list[str] | None:
    """The words after `pip`, `python -m pip`, `uv pip`, `conda`; None for anything else."""
    while words and re.fullmatch(r"[A-Za-z_]\w*=\S*", words[0]):
        words = words[1:]
    if not words:
        return None
    head, rest = PurePath(words[0]).name, words[1:]
    if (_PYTHON.match(head) or words[0] == "{sys.executable}" or words[0] == "$sys.executable") and rest[
        :1
    ] == ["-m"]:
        head, rest = (rest[1] if len(rest) > 1 else ""), rest[2:]
    if head == "uv" and rest[:1] in (["pip"], ["add"]):
        head, rest = "pip", rest[1:] if rest[0] == "pip" else ["install", *rest[1:]]
    known = re.fullmatch(r"pip[\d.]*", head) or head in _CONDA
    return _plain(rest) if known and rest else None


def _plain(words: list[str]) -> list[str] | None:
    """Up to a redirection or a pipe; None when a word is only known at run time."""
    kept: list[str] = []
    for word in words:
        if _CUT.match(word):
            break
        kept.append(word)
    return None if any(_DYNAMIC.search(word) for word in kept) else [word for word in kept if word != "\\"]


def _arguments(words: list[str]) -> Packages | None:
    verb, rest = words[0], iter(words[1:])
    if verb in _LOOKING or verb in ("-V", "--version"):
        return Packages(only_looks=True)
    if verb != "install":
        return None
    found: dict[str, list[str]] = {"requirements": [], "files": [], "local": []}
    for word in rest:
        _sort(word, rest, found=found)
    requirements, files, local = (tuple(found[key]) for key in ("requirements", "files", "local"))
    return Packages(requirements=requirements, files=files, local=local)


def _sort(word: str, following: Iterator[str], *, found: dict[str, list[str]]) -> None:
    if word in ("-r", "--requirement", "--file"):
        found["files"].append(next(following, ""))
    elif word.startswith(("-r", "--requirement=")) and word != "-r":
        found["files"].append(word.removeprefix("--requirement=").removeprefix("-r"))
    elif word in ("-e", "--editable"):
        _target(next(following, ""), found)
    elif word in _TAKES_VALUE.split():
        next(following, "")
    elif not word.startswith("-"):
        _target(word, found)


def _target(word: str, found: dict[str, list[str]]) -> None:
    local = word.startswith((".", "/", "~")) or word.endswith((".whl", ".tar.gz"))
    found["local" if local and "://" not in word else "requirements"].append(word)


def _joined(parts: list[Packages | None]) -> Packages | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return Packages(
        requirements=tuple(item for part in known for item in part.requirements),
        files=tuple(item for part in known for item in part.files),
        local=tuple(item for part in known for item in part.local),
        only_looks=all(part.only_looks for part in known),
    )
