"""Every text of the TypeScript sources has its Chinese, with the same places for the figures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import slicelift

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "extension/frontend/src"
CHINESE = Path(slicelift.__file__).parent / "locale/zh_CN/LC_MESSAGES/slicelift.json"
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
SINGLE = re.compile(rf"\.__\(\s*({LITERAL})\s*[,)]")
PLURAL = re.compile(rf"\._n\(\s*({LITERAL})\s*,\s*({LITERAL})\s*,")
CALL = re.compile(r"\.(?:__|_n)\(")


@dataclass(frozen=True)
class Text:
    """One text and the form for many, if it has one."""

    one: str
    many: str | None = None


def find_texts(source: str) -> set[Text]:
    """The texts that a TypeScript source asks a translation for."""
    single = {Text(json.loads(literal)) for literal in SINGLE.findall(source)}
    return single | {Text(json.loads(one), json.loads(many)) for one, many in PLURAL.findall(source)}


def count_unread(source: str) -> int:
    """Calls whose text is no literal, so that no extractor could find it."""
    return len(CALL.findall(source)) - len(SINGLE.findall(source)) - len(PLURAL.findall(source))


def places(text: str) -> set[str]:
    return set(re.findall(r"%\d", text))


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    paths = sorted(SOURCES.rglob("*.ts"))
    return {path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def texts(sources: dict[str, str]) -> set[Text]:
    return set().union(*(find_texts(source) for source in sources.values()))


@pytest.fixture(scope="module")
def chinese() -> dict[str, list[str]]:
    """Those of the views; what the server says is test_sentences.py's."""
    found = json.loads(CHINESE.read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key and not key.startswith("server\4")}


def test_extractor_reads_calls_over_several_lines() -> None:
    source = 'words.__("a \\"b\\"", x); this.words._n(\n  "%1 job",\n  "%1 jobs",\n  n,\n); words.__(picked);'
    assert find_texts(source) == {Text('a "b"'), Text("%1 job", "%1 jobs")}
    assert count_unread(source) == 1


def test_every_call_has_a_literal(sources: dict[str, str]) -> None:
    assert {name: count for name, source in sources.items() if (count := count_unread(source))} == {}


def test_sources_have_texts(texts: set[Text]) -> None:
    assert len(texts) > 50


def test_every_text_has_chinese(texts: set[Text], chinese: dict[str, list[str]]) -> None:
    missing = sorted(text.one for text in texts if not chinese.get(text.one, [""])[0].strip())
    assert missing == []


def test_nothing_is_left_over(texts: set[Text], chinese: dict[str, list[str]]) -> None:
    assert sorted(set(chinese) - {text.one for text in texts}) == []


def test_form_is_the_one_that_jupyterlab_reads(texts: set[Text], chinese: dict[str, list[str]]) -> None:
    """It takes an entry with two forms for `_n` only, and one with one form for `__` only."""
    wanted = {text.one: 2 if text.many else 1 for text in texts}
    assert {key: len(forms) for key, forms in chinese.items()} == wanted


def test_no_text_is_both_single_and_plural(texts: set[Text]) -> None:
    assert len({text.one for text in texts}) == len(texts)


def test_chinese_has_the_same_places(texts: set[Text], chinese: dict[str, list[str]]) -> None:
    wrong = {
        text.one: chinese[text.one][0]
        for text in texts
        if text.one in chinese and places(text.many or text.one) != places(chinese[text.one][0])
    }
    assert wrong == {}


def test_head_names_the_language_as_the_page_does() -> None:
    """JupyterLab looks for `zh-CN`, though the folder and its setting say zh_CN: else all stays English."""
    head = json.loads(CHINESE.read_text(encoding="utf-8"))[""]
    assert (head["language"], head["domain"]) == ("zh-CN", "slicelift")
    assert head["plural_forms"] == "nplurals=1; plural=0;"


def test_jupyterlab_finds_the_chinese() -> None:
    """By the entry point, through the function that its own server calls."""
    from jupyterlab_server.translation_utils import get_installed_packages_locale

    assert [point.value for point in entry_points(group="jupyterlab.locale", name="slicelift")] == [
        "slicelift"
    ]
    packages, message = get_installed_packages_locale("zh_CN")
    assert message.strip() == ""
    assert packages["slicelift"] == json.loads(CHINESE.read_text(encoding="utf-8"))
