"""The examples of docs/notebook-api.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "notebook-api.md"


def test_the_examples_run(
    launcher: Path,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from slicelift.widgets import live

    script = tmp_path / "widget.js"
    script.write_text("export default { render() {} };")
    monkeypatch.setattr(live, "SCRIPT", script)
    monkeypatch.setattr(live, "_classes", [])
    monkeypatch.chdir(project)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    assert len(blocks) == 4
    assert "preflight-refused ['undefined-name', 'magic-refused']" in printed
    assert "FINISHED trained 3" in printed


def test_every_option_of_the_magic_is_told() -> None:
    from slicelift.widgets.magic import _options

    text = PAGE.read_text()
    for parameter in _options.params:
        assert any(f"`{word}" in text for word in parameter.opts if word != "--parameter"), parameter.name
