"""Every sentence that Python makes and a view shows has its Chinese: the f-strings are read out of the sources."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import slicelift
import yaml
from slicelift import promotion
from slicelift.errors import SliceliftError

ROOT = Path(__file__).parents[3]
CHINESE = Path(slicelift.__file__).parent / "locale/zh_CN/LC_MESSAGES/slicelift.json"
PACKAGES = ("extension/slicelift", "spawner_profiles/slicelift_profiles", "hub/slicelift_hub/launcher")
CONTEXT = "server\4"

# No view shows what these say: a terminal, a notebook's own output, the words of an exception in a user's program, a
# log, an admin's command, the answer to an agent or to MLflow's client.
UNSEEN = re.compile(
    r"slicelift/(cli|widgets)/|slicelift/(__init__|registry|tracking|figures|sentences|findings|models)\.py"
    r"|notebook/kernel_probe\.py|runtime/(checkpoint|delivery|metrics|mlflow_\w+|model|modelcode|script|session|shipping|sink|spool)\.py"
    r"|profiles/(catalog|documents|slices)\.py"
    r"|launcher/(app|assembly|backend|bodies|daemon|hub_pages|ledger|ledger_events|lines|logs|mlflow_\w+|passthrough"
    r"|routes_agent|routes_service|tar|vault)\.py"
)
# where a sentence is given: arguments and variables of these names, what is handed to these calls, an error's words
NAMES = {"message", "hint", "fix", "reason", "told", "STOPPED", "NOTHING_WHY", "WAY_ON"}
SAYING = {"say", "_tell", "append", "_died", "_bad", "_say"}
ERRORS = {
    "SliceliftError",
    "UserError",
    "Refused",
    "NotFound",
    "Conflict",
    "Denied",
    "Unavailable",
    "ProfileError",
}
ERRORS |= {"StoreFull", "TooLarge"}

# a magic and why it is refused, each with its own Chinese; one word; what a hint on names is put together of; a place
OTHERS = {"%1: %2.", "Ending", "cell %1", "Did you mean %1?", "Presets: %1."}

VALUE = "\0"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Texts = frozenset[str]
Node = TypeVar("Node", bound=ast.AST)
UNKNOWN: Texts = frozenset({VALUE})


class Source:
    """One module, and the texts that an expression in it may have, with `VALUE` for what is not written there."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        self.above = {below: node for node in self.nodes for below in ast.iter_child_nodes(node)}
        self.functions = {node.name: node for node in self.of(ast.FunctionDef, ast.AsyncFunctionDef)}
        self.calls = list(self.of(ast.Call))
        self.assignments = list(self.of(ast.Assign))

    def of(self, *kinds: type[Node]) -> Iterator[Node]:
        return (node for node in self.nodes if isinstance(node, kinds))

    def told(self) -> Iterator[ast.expr]:
        """The expressions that are sentences for a person."""
        for call in self.calls:
            yield from (keyword.value for keyword in call.keywords if keyword.arg in NAMES)
            yield from call.args[1:3] if called(call) in ERRORS else ()
            yield from call.args[:1] if called(call) in SAYING else ()
            yield from (word.value for word in call.keywords if word.arg == "text" and called(call) == "Step")
            yield from (value for name, value in self.bound(call) if name in NAMES)
        for assignment in self.assignments:
            if any(isinstance(target, ast.Name) and target.id in NAMES for target in assignment.targets):
                value = assignment.value
                yield from value.values if isinstance(value, ast.Dict) else [value]
        for node in self.of(ast.Return, ast.Yield):
            yield from node.value.elts if isinstance(node.value, ast.Tuple) else ()

    def bound(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Arguments of a call of a function of this module by the names of its parameters."""
        function = self.functions.get(called(call))
        if function is not None:
            yield from zip((item.arg for item in function.args.args), call.args, strict=False)
            yield from ((item.arg, item.value) for item in call.keywords if item.arg)

    def texts(self, node: ast.AST | None, index: int | None = None, depth: int = 0) -> Texts:
        """`index` is which element of a tuple is meant."""

        def inner(part: ast.AST, at: int | None = index) -> Texts:
            return self.texts(part, at, depth + 1)

        if depth > 7:
            return UNKNOWN
        match node:
            case ast.Constant(value=str() as text):
                return frozenset({text})
            case ast.Constant(value=None):
                return frozenset()
            case ast.Tuple() if index is not None and index < len(node.elts):
                return inner(node.elts[index], None)
            case ast.JoinedStr():
                return joined([self.piece(part, depth) for part in node.values])
            case ast.BinOp(op=ast.Add()):
                return joined([inner(node.left), inner(node.right)])
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str() as ending)):  # 's' * (count > 1)
                return frozenset({"", ending})
            case ast.IfExp():
                return inner(node.body) | inner(node.orelse)
            case ast.BoolOp():
                return union(inner(value) for value in node.values)
            case ast.Name():
                return self.named(node, index, depth)
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                return union(inner(value) for value in self.returned(self.functions[name]))
            case ast.Call(func=ast.Attribute(attr="strip")):
                return inner(node.func.value)
            case ast.Call(func=ast.Attribute(attr="get", value=ast.Name(id=name)), args=[_, *otherwise]):
                found = union(
                    inner(value) for value in self.values(name)
                )  # UNKNOWN: a dict of another module
                return found | union(inner(value) for value in otherwise)
            case ast.Subscript(value=ast.Name(id=name)) if index is not None:  # one of a table of tuples
                return union(inner(value) for value in self.values(name)) or UNKNOWN
        return UNKNOWN

    def piece(self, part: ast.expr, depth: int) -> Texts:
        """A part of an f-string. A value of many forms is a value like any other."""
        if not isinstance(part, ast.FormattedValue):
            return self.texts(part)
        found = self.texts(part.value, None, depth + 1)
        return found if 0 < len(found) <= 12 else UNKNOWN

    def named(self, node: ast.Name, index: int | None, depth: int) -> Texts:
        """What a variable was given, in its function or the module; a parameter: what the callers here give."""
        scope = self.scope(node)
        assigned = [
            self.texts(value, index if at is None else at, depth + 1)
            for value, at in self.assigned(node.id, scope)
        ]
        if not assigned and scope is not None:
            given = (
                value
                for call in self.calls
                if called(call) == scope.name
                for name, value in self.bound(call)
                if name == node.id
            )
            assigned = [self.texts(value, index, depth + 1) for value in given]
        if not assigned:
            assigned = [self.texts(value, index, depth + 1) for value, _ in self.assigned(node.id, None)]
        return union(assigned)

    def assigned(self, name: str, scope: Function | None) -> Iterator[tuple[ast.expr, int | None]]:
        for node in self.assignments:
            for at, target in enumerate_names(node):
                if target == name and self.scope(node) is scope:
                    yield node.value, at

    def returned(self, function: Function) -> list[ast.expr]:
        found = (node for node in self.of(ast.Return) if self.scope(node) is function)
        return [node.value for node in found if node.value is not None]

    def values(self, name: str) -> Iterator[ast.expr]:
        """The values of a dict of the module."""
        for value, _ in self.assigned(name, None):
            if isinstance(value, ast.Dict):
                yield from value.values

    def scope(self, node: ast.AST) -> Function | None:
        while node in self.above:
            node = self.above[node]
            if isinstance(node, Function):
                return node
        return None


def called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def enumerate_names(assignment: ast.Assign) -> Iterator[tuple[int | None, str]]:
    """The names that are assigned, each with its place in a tuple."""
    for target in assignment.targets:
        if isinstance(target, ast.Tuple):
            yield from ((at, getattr(item, "id", "")) for at, item in enumerate(target.elts))
        else:
            yield None, getattr(target, "id", "")


def union(found: Iterable[Texts]) -> Texts:
    return frozenset().union(*found) or UNKNOWN


def joined(parts: list[Texts]) -> Texts:
    return frozenset("".join(chosen) for chosen in itertools.product(*parts))


def is_sentence(text: str) -> bool:
    """More than a name or a code: two words that are written there, or a heading."""
    written = text.replace(VALUE, " ")
    words = len(re.findall(r"[A-Za-z]{2,}", written))
    return (
        " " in text.strip()
        and "\n" not in text
        and (words > 1 or bool(re.search(r"(^|\0 )[A-Z][a-z]+: ", text)))
    )


def numbered(text: str) -> str:
    """With `%1`, `%2` for the values, as the catalogue has it."""
    count = itertools.count(1)
    return re.sub(VALUE, lambda _: f"%{next(count)}", text.strip())


def find_sentences(source: Source) -> set[str]:
    texts = union(source.texts(node) for node in source.told())
    return {numbered(text) for text in texts if is_sentence(text)}


@pytest.fixture(scope="module")
def sentences() -> dict[str, set[str]]:
    """File -> its sentences."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    sources = [Source(path) for path in paths if not UNSEEN.search(path.relative_to(ROOT).as_posix())]
    found = {source.name: find_sentences(source) for source in sources}
    presets = ROOT / "spawner_profiles/slicelift_profiles/presets.yaml"
    listed = yaml.safe_load(presets.read_text(encoding="utf-8"))["presets"]
    told = {preset[name] for preset in listed for name in ("display_name", "description")}
    return found | {presets.name: told, "": OTHERS}


@pytest.fixture(scope="module")
def chinese() -> dict[str, str]:
    """Sentence -> how it reads in Chinese."""
    found = json.loads(CHINESE.read_text(encoding="utf-8"))
    return {key.removeprefix(CONTEXT): forms[0] for key, forms in found.items() if key.startswith(CONTEXT)}


def places(text: str) -> set[str]:
    return set(re.findall(r"%\d", text))


SNIPPET = """
import errors

HINTS = {"a": "Look at a.", "b": "Look at b."}

def refuse(name, count):
    message = f"{name!r} has {count} file{'' if count == 1 else 's'}."
    hint = HINTS.get(name) or _hint(name)
    raise errors.Refused("odd-files", message + " Nothing was sent.", hint)

def _hint(name, *, why="none"):
    if name:
        return f"Mend {name} first: {why}."
    return None

def check(found):
    told, fix = _pair(found)
    yield Finding(code="x-y", message=told, fix=fix)
    yield note("x", reason="it is too late"), _hint("n", why="it moves")

def _pair(found):
    return f"{found.name} has come{' late' * found.late}.", "Wait a little."
"""


def test_extractor_follows_values_to_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET, encoding="utf-8")
    assert find_sentences(Source(path)) == {
        "%1 has %2 file.",
        "%1 has %2 files.",
        "%1 has %2 file. Nothing was sent.",
        "%1 has %2 files. Nothing was sent.",
        "Look at a.",
        "Look at b.",
        "Mend %1 first: it moves.",
        "Mend n first: it moves.",
        "%1 has come.",
        "%1 has come late.",
        "Wait a little.",
        "it is too late",
    }


def test_sources_have_sentences(sentences: dict[str, set[str]]) -> None:
    rooms = {name.split("/")[-2] for name, found in sentences.items() if found and "/" in name}
    assert {"notebook", "preflight", "promotion", "snapshot", "server", "runtime", "launcher"} <= rooms


def test_every_sentence_has_chinese(sentences: dict[str, set[str]], chinese: dict[str, str]) -> None:
    missing = {
        file: sorted(found - set(chinese)) for file, found in sentences.items() if found - set(chinese)
    }
    assert missing == {}
    assert [text for text, said in chinese.items() if not re.search(r"[\u4e00-\u9fff：]", said)] == []


def test_no_chinese_is_left_over(sentences: dict[str, set[str]], chinese: dict[str, str]) -> None:
    assert sorted(set(chinese) - set().union(*sentences.values())) == []


def test_chinese_has_the_same_places(chinese: dict[str, str]) -> None:
    assert {text: said for text, said in chinese.items() if places(text) != places(said)} == {}
    assert max(len(places(text)) for text in chinese) < 10


BROKEN = [
    "%matplotlib inline\n%store x\n!ls",
    "from nowhere_at_all import *\nimport nowhere_else",
    "open('/etc/hosts')\nprint(undefined_name)\ninput('?')",
    'token = "hf_' + "a" * 30 + '"\ndevice = "cuda:0"',
    "def f():\n    pass\nreturn 1",
]


def test_a_real_check_reads_in_chinese(tmp_path: Path, answered: Callable[..., Any]) -> None:
    """Each finding of a notebook with much amiss, and refusals as they are raised."""
    report = promotion.check(_notebook(tmp_path, BROKEN))
    rows = promotion.finding_rows(report)
    errors = [
        _error(lambda: promotion.check(tmp_path / "gone.ipynb")),
        _error(lambda: promotion.accepted(report)),
    ]
    errors.append(
        _error(lambda: promotion.plan(promotion.Request(notebook=tmp_path / "n.ipynb", preset="odd")))
    )
    texts = [row["message"] for row in rows if row["code"] not in OF_PYTHON]
    texts += [row["fix"] for row in rows if row["fix"]]
    texts += [text for error in errors for text in (error.message, error.hint)]
    catalogue = json.loads(CHINESE.read_text(encoding="utf-8"))
    said = answered("said.ts", {"catalogue": catalogue, "texts": texts})
    assert [text for text in said if not re.search(r"[\u4e00-\u9fff]", text)] == []
    assert len({row["code"] for row in rows}) > 8


# the compiler's own words
OF_PYTHON = {"return-outside-function", "syntax-error"}


def _notebook(folder: Path, sources: list[str]) -> Path:
    cells = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in sources]
    path = folder / "n.ipynb"
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}), encoding="utf-8"
    )
    return path


def _error(act: Callable[[], object]) -> SliceliftError:
    with pytest.raises(SliceliftError) as caught:
        act()
    return caught.value
