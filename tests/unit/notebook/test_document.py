"""Reading notebooks: formats, faults, tags, and the kernel's language."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import NotFound, UserError
from slicelift.notebook import read, select
from slicelift.notebook.document import LARGEST_BYTES

PATH = Path("/nowhere/笔记 本.ipynb")


def whole(**changes: Any) -> bytes:
    return json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **changes}).encode()


def code(source: Any, *tags: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {"tags": list(tags)}, "source": source, "outputs": []}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"print(1)", "it is no JSON"),
        (b"\xff\xfe{", "it is not UTF-8"),
        (b"[]", "it is JSON, but no notebook"),
        (b'{"cells": []}', "`nbformat` is missing"),
        (b'{\n<<<<<<< HEAD\n"a": 1\n', "git's conflict markers"),
        (b"[" * 100_000, "nested too deeply"),
        (whole(nbformat=5), "its format 5 is not one of"),
        (whole(cells={}), "`cells` is not a list"),
        (whole(cells=[{"source": "x"}]), "cell 1 has no cell_type"),
        (whole(cells=[{"cell_type": "code", "source": 3}]), "the source of cell 1 is not text"),
    ],
)
def test_what_is_no_notebook_is_one_finding(content: bytes, reason: str) -> None:
    notebook = read(PATH, content=content)
    assert [finding.code for finding in notebook.findings] == ["nb-invalid"]
    assert reason in notebook.findings[0].message
    assert notebook.cells == ()


def test_a_missing_file_and_a_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as missing:
        read(tmp_path / "none.ipynb")
    assert missing.value.code == "notebook-not-found"
    with pytest.raises(UserError) as folder:
        read(tmp_path)
    assert folder.value.code == "notebook-unreadable"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST_BYTES + 1)  # no byte of it is on the disk


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [_pipe, _large, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_of_a_sane_size_is_refused_at_once(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "odd.ipynb"
    make(path)
    with pytest.raises(UserError) as refused:
        read(path)
    assert refused.value.code == "notebook-unreadable"
    assert str(path) in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("name", ["a\0b.ipynb", "\ud800.ipynb"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(UserError) as refused:
        read(name)
    assert refused.value.code in ("notebook-unreadable", "notebook-not-found")


def test_a_mark_and_windows_line_ends_are_taken_away() -> None:
    notebook = read(PATH, content=b"\xef\xbb\xbf" + whole(cells=[code(["a = 1\r\n", "b = 2\rc = 3"])]))
    assert notebook.cells[0].source == "a = 1\nb = 2\nc = 3"
    assert notebook.findings == ()


def test_an_old_format_is_upgraded_with_a_note() -> None:
    old = {
        "metadata": {"name": "old"},
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "level": 1, "metadata": {}, "source": "Old"},
                    {
                        "cell_type": "code",
                        "input": "x = 1",
                        "language": "python",
                        "metadata": {},
                        "outputs": [],
                    },
                ],
                "metadata": {},
            }
        ],
    }
    notebook = read(PATH, content=json.dumps(old).encode())
    assert [(cell.kind, cell.source) for cell in notebook.cells] == [("markdown", "# Old"), ("code", "x = 1")]
    assert [finding.code for finding in notebook.findings] == ["nb-v3"]


def test_doubled_and_missing_ids_are_no_fault() -> None:
    cells = [{**code("a = 1"), "id": "same"}, {**code("b = 2"), "id": "same"}, code("c = 3")]
    assert [cell.id for cell in read(PATH, content=whole(cells=cells)).cells] == ["same", "same", "cell-2"]


@pytest.mark.parametrize(
    ("metadata", "language"),
    [
        ({}, "python"),
        ({"kernelspec": {"name": "python3"}}, "python"),
        ({"kernelspec": {"name": "my-course", "language": "python"}}, "python"),
        ({"kernelspec": {"name": "ir"}}, "R"),
        ({"kernelspec": {"name": "julia-1.10"}}, "julia"),
        ({"language_info": {"name": "R"}}, "R"),
        ({"kernelspec": None, "language_info": 3}, "python"),
    ],
)
def test_the_language_comes_from_the_metadata(metadata: dict[str, Any], language: str) -> None:
    assert read(PATH, content=whole(metadata=metadata)).language == language


@pytest.mark.parametrize(
    ("tags", "chosen"),
    [
        ([[], [], []], (0, 1, 2)),
        ([["skip"], ["skip-execution"], ["active-ipynb"]], ()),
        ([["promote"], [], ["imports"]], (0, 2)),
        ([["parameters"], ["promote"], []], (0, 1)),
        ([["promote", "skip"], [], ["parameters"]], (2,)),
    ],
)
def test_tags_choose_cells(tags: list[list[str]], chosen: tuple[int, ...]) -> None:
    assert select(read(PATH, content=whole(cells=[code("x", *one) for one in tags]))) == chosen


def test_promote_on_a_text_cell_chooses_nothing() -> None:
    text = {"cell_type": "markdown", "metadata": {"tags": ["promote"]}, "source": "# Title"}
    assert select(read(PATH, content=whole(cells=[text, code("x = 1")]))) == (1,)
