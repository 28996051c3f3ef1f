"""The reference part of docs/command-line.md, made from the commands themselves.

`python -m slicelift.cli.reference docs/command-line.md` writes it between the page's two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from slicelift.cli.tree import COMMANDS, slicelift

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


def render() -> str:
    """All commands with all arguments and options, in the order of `slicelift --help`."""
    lines: list[str] = []
    root = click.Context(slicelift, info_name="slicelift")
    for name in COMMANDS:
        command = slicelift.get_command(root, name)
        if command is not None:
            lines += _command(command, click.Context(command, info_name=name, parent=root))
    return "\n".join(lines).strip() + "\n"


def replaced(page: str) -> str:
    """The page with its reference made anew. Raises ValueError when the marks are missing."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page lacks {BEGIN} or {END}.")
    return f"{head}{BEGIN}\n\n{render()}\n{END}{tail}"


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A heading, the usage, the help text, and one line per option."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    children = command.list_commands(ctx) if isinstance(command, click.Group) else []
    usage = [ctx.command_path, *(["COMMAND"] if children else []), *(_argument(each) for each in arguments)]
    yield f"### `{' '.join([*usage, *(['[OPTIONS]'] if options else [])])}`"
    yield ""
    for paragraph in (command.help or "").split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""
    yield from (_option(each) for each in options)
    yield ""
    for name in children:
        child = command.get_command(ctx, name) if isinstance(command, click.Group) else None
        if child is not None:
            yield from _command(child, click.Context(child, info_name=name, parent=ctx))


def _argument(argument: click.Argument) -> str:
    return argument.metavar or (argument.name or "").upper()


def _option(option: click.Option) -> str:
    """Written here and not taken from click, whose wording changes from version to version."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {_value(option)}"
    default = f" Default: {option.default}." if option.show_default else ""
    return f"- `{names}{value}`: {option.help or ''}{default}"


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.metavar or option.type.name.upper()


def main(arguments: list[str]) -> None:
    """Rewrite the page in place."""
    page = Path(arguments[0])
    page.write_text(replaced(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
