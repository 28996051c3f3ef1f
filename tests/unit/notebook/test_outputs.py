"""What of a notebook travels: its cells, never what running them left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from slicelift.notebook import document
from slicelift.notebook.outputs import without_outputs


def made(tmp_path: Path) -> dict[str, Any]:
    """A notebook that was never run, as Jupyter writes it."""
    node = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    node.cells = [
        nbformat.v4.new_markdown_cell("# 标题\nmore", id="a"),
        nbformat.v4.new_code_cell("x = 1\nprint(x)", id="b", metadata={"tags": ["parameters"]}),
    ]
    nbformat.write(node, tmp_path / "nb.ipynb")
    return dict(json.loads((tmp_path / "nb.ipynb").read_text()))


def run_and_saved(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same after a run, with a card under the cell, folded and with widgets."""
    data = {"application/vnd.slicelift.run+json": {"run_id": "r-a"}, "text/html": "<div>secret</div>"}
    output = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 3}
    after: dict[str, Any] = json.loads(json.dumps(notebook))
    after["cells"][1] |= {"outputs": [output], "execution_count": 3}
    after["cells"][1]["metadata"] |= {"scrolled": True, "execution": {"iopub.status.busy": "now"}}
    after["metadata"] |= {"widgets": {"state": {"a": 1}}, "language_info": {"version": "3.12.1"}}
    return after


def test_a_run_changes_nothing(tmp_path: Path) -> None:
    before = made(tmp_path)
    bare = without_outputs(json.dumps(before).encode())
    assert without_outputs(json.dumps(run_and_saved(before)).encode()) == bare
    assert without_outputs(bare) == bare
    assert b"secret" not in bare
    assert bare == (tmp_path / "nb.ipynb").read_bytes()


def test_cells_tags_and_kernel_stay(tmp_path: Path) -> None:
    after = run_and_saved(made(tmp_path))
    after["cells"].append({"cell_type": "code", "metadata": {}, "source": "y = '\\ud800'", "id": "c"})
    content = json.dumps(after).encode()
    path = tmp_path / "nb.ipynb"
    before, bare = document.read(path, content=content), document.read(path, content=without_outputs(content))
    assert [(c.source, c.tags, c.id) for c in before.cells] == [(c.source, c.tags, c.id) for c in bare.cells]
    assert before.kernel == bare.kernel == "python3"
    nbformat.validate(nbformat.reads(without_outputs(content).decode(), as_version=4))


def test_another_source_is_another_notebook(tmp_path: Path) -> None:
    before = made(tmp_path)
    bare = without_outputs(json.dumps(before).encode())
    for change in ({"source": "x = 2"}, {"cell_type": "raw"}, {"metadata": {"tags": ["skip"]}}):
        after = json.loads(json.dumps(before))
        after["cells"][1] |= change
        assert without_outputs(json.dumps(after).encode()) != bare


def test_half_a_character_is_written_as_an_escape() -> None:
    cell = {"cell_type": "markdown", "metadata": {}, "source": "\ud800"}
    content = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}).encode()
    assert json.loads(without_outputs(content))["cells"][0]["source"] == ["\ud800"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"nbformat": 3, "cells": []}', b'{"nbformat": 4}', b"[" * 9999],
)
def test_what_is_no_notebook_passes_as_it_is(content: bytes) -> None:
    assert without_outputs(content) == content
