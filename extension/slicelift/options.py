"""Arguments and options of a promotion, the same in the terminal and in a notebook (`%promote`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def notebook_argument(function: F) -> F:
    """NOTEBOOK as a path from wherever the command is called."""
    return click.argument("notebook", metavar="NOTEBOOK", type=click.Path(path_type=Path))(function)


def python_option(function: F) -> F:
    """`--python`: which interpreter stands for the notebook's kernel."""
    text = "Interpreter of the job, instead of the notebook's kernel."
    return click.option("--python", metavar="PATH", help=text)(function)


def parameters_option(function: F) -> F:
    """`-p name=value`, as often as wanted; the last one of a name counts."""
    return click.option(
        "-p",
        "--parameter",
        "parameters",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="Override a parameter of the notebook; may be repeated.",
    )(function)


def gang_options(function: F) -> F:
    """What is to run where: the same for `promote` and `plan`."""
    for decorate in reversed(_GANG):
        function = decorate(function)
    return function


_GANG: tuple[Callable[[F], F], ...] = (
    click.option("--workers", metavar="N", type=click.IntRange(min=1), help="Processes of the gang."),
    click.option("--slice", metavar="SLICE", help="Run one worker on a slice of a GPU, such as 1g.10gb."),
    click.option(
        "--gpus-per-worker",
        metavar="N",
        type=click.IntRange(min=0),
        help="Whole GPUs for each worker. By default none.",
    ),
    parameters_option,
    click.option(
        "--preset", metavar="NAME", help="Launch preset. By default torchrun, or slice with --slice."
    ),
    click.option("--queue", metavar="NAME", default="default", show_default=True, help="Queue to wait in."),
    click.option("--name", metavar="NAME", help="Name of the run. By default the notebook's."),
    click.option(
        "--model-name", metavar="NAME", help="Name that saved models get. By default the notebook's."
    ),
    python_option,
    click.option(
        "--secret",
        "secrets",
        metavar="NAME",
        multiple=True,
        help="Put a stored secret into the job's environment; may be repeated.",
    ),
)


def _pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as a dict. The value may hold further `=`, and may be empty."""
    pairs: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip().isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, as in -p epochs=3.")
        pairs[name.strip()] = value
    return pairs
