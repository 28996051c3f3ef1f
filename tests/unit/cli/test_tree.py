"""The tree of commands and its reference: complete, described once, and quick to list."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from slicelift.cli.reference import render, replaced
from slicelift.cli.tree import COMMANDS, slicelift

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
ROOT = click.Context(slicelift, info_name="slicelift")


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = slicelift.get_command(ROOT, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for child, inner in command.commands.items():
                yield f"{name} {child}", inner


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_summary_is_what_the_command_says(name: str) -> None:
    command = slicelift.get_command(ROOT, name)
    assert command is not None
    assert command.name in (name, None)
    assert COMMANDS[name].summary.rstrip(".").split(":")[0]
    assert command.help


def test_every_command_answers_in_json() -> None:
    lacking = [
        name
        for name, command in every_command()
        if not isinstance(command, click.Group)
        and "--json" not in {o for p in command.params for o in p.opts}
    ]
    assert lacking == []


def test_every_option_says_what_it_does() -> None:
    silent = [
        (name, option.name)
        for name, command in every_command()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_the_docs_hold_every_command_and_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, command in every_command():
        assert f"### `slicelift {name}" in page, name
        for option in command.params:
            assert isinstance(option, click.Argument) or all(f"{text}" in page for text in option.opts), name
    assert render() in page, "run: python -m slicelift.cli.reference docs/command-line.md"


def test_a_page_without_marks_is_not_written() -> None:
    with pytest.raises(ValueError, match="lacks"):
        replaced("# no marks")


def test_help_imports_only_what_it_needs() -> None:
    code = (
        "import sys; from slicelift.cli.faults import run; run(['--help']); "
        "heavy = {'httpx','rich','IPython','nbformat','mlflow','dvc','yaml','pyflakes','slicelift.models'}; "
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)


def test_show_is_status(cli: Any, empty_home: Path) -> None:
    assert cli("show", "last", "--json").json["code"] == "launcher-not-running"


def test_a_misspelt_command_is_met_with_the_nearest(cli: Any) -> None:
    done = cli("promot", "x.ipynb")
    assert done.code == 2
    assert "'promote'" in done.err
    assert "slicelift --help" in done.err


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_help_of_every_command(cli: Any, name: str) -> None:
    done = cli(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"slicelift {name}" in done.out


def test_version(cli: Any) -> None:
    from slicelift import __version__

    assert cli("--version").out == f"slicelift {__version__}\n"
