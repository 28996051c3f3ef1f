"""What runs leave behind: files and model versions."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from slicelift.cli.access import connect, find_run, json_option, run_argument
from slicelift.cli.files import write_file
from slicelift.cli.printing import ago, print_json, table
from slicelift.errors import NotFound, UserError
from slicelift.models import ModelVersionView, Output, size_text, to_dict

if TYPE_CHECKING:
    from slicelift.launcher_client import Client


@click.command()
@run_argument
@click.option("--get", "path", metavar="PATH", help="Write this file to stdout, or to -o FILE.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for --get.")
@click.option(
    "--all",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Fetch all files of the attempt into a folder.",
)
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Attempt. By default the last.")
@json_option
def outputs(
    run: str, path: str | None, output: Path | None, folder: Path | None, attempt: int | None, as_json: bool
) -> None:
    """List or fetch the files that a run left under ./outputs."""
    client = connect()
    view = find_run(client, run)
    number = attempt or view.attempt
    left = client.outputs(view.run_id)
    found = [each for each in left if each.attempt == number]
    if path is not None:
        _get(client, view.run_id, found=_named(left, path, number=number), target=output, as_json=as_json)
    elif folder is not None:
        _get_all(client, view.run_id, found=found, folder=folder, as_json=as_json)
    elif as_json:
        print_json({"run_id": view.run_id, "attempt": number, "outputs": [to_dict(each) for each in found]})
    elif found:
        print(table(["attempt", "size", "path"], [_output_row(each) for each in found]))
    else:
        print(f"Attempt {number} left no files. {_elsewhere(left)}")


@click.command()
@click.option("--name", metavar="NAME", help="Only this model.")
@click.option(
    "--set-alias",
    "alias",
    metavar="NAME@ALIAS=VERSION",
    help="Let an alias point at a version, as in digits@champion=3.",
)
@json_option
def models(name: str | None, alias: str | None, as_json: bool) -> None:
    """List registered model versions, newest first, or set an alias."""
    client = connect()
    if alias is not None:
        model = client.set_alias(*_alias(alias))
        if as_json:
            print_json(to_dict(model))
        else:
            print(f"{model.name} version {model.version} is now @{', @'.join(model.aliases)}")
        return
    found = [model for model in client.models() if name in (None, model.name)]
    if as_json:
        print_json({"models": [to_dict(model) for model in found]})
    elif found:
        print(table(["model", "version", "aliases", "run", "registered"], [_model_row(m) for m in found]))
    else:
        print("No versions yet. In a notebook: slicelift.save_model(model)")


def _named(left: list[Output], path: str, *, number: int) -> Output:
    """The attempt's file of that path."""
    found = {each.path: each for each in left if each.attempt == number}
    if path in found:
        return found[path]
    names = f"Outputs: {', '.join(sorted(found)[:10])}." if found else _elsewhere(left)
    raise NotFound("output-unknown", f"Attempt {number} of the run has no output {path!r}.", names)


def _elsewhere(left: list[Output]) -> str:
    """Where to look instead, once an attempt left nothing."""
    attempts = ", ".join(f"--attempt {number}" for number in sorted({each.attempt for each in left}))
    return f"Others did: {attempts}." if left else "A job leaves what it writes under ./outputs."


def _get(client: Client, run_id: str, *, found: Output, target: Path | None, as_json: bool) -> None:
    """Bytes to stdout, or to a file; with --json always to a file, named after the output."""
    if target is None and as_json:
        target = Path(PurePosixPath(found.path).name)
    if target is None:
        sys.stdout.flush()
        for chunk in client.output(run_id, found.attempt, found.path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return
    _write(client, run_id, found=found, target=target)
    if as_json:
        print_json(to_dict(found) | {"file": str(target)})


def _get_all(client: Client, run_id: str, *, found: list[Output], folder: Path, as_json: bool) -> None:
    for each in found:
        _write(client, run_id, found=each, target=_inside(folder, each.path))
    if as_json:
        print_json({"run_id": run_id, "folder": str(folder), "outputs": [to_dict(each) for each in found]})
    else:
        total = size_text(sum(each.size_bytes for each in found))
        print(f"Fetched {len(found)} files, {total}, into {folder}.")


def _inside(folder: Path, path: str) -> Path:
    """A job chooses its outputs' names; none may lead out of the folder."""
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute() or ".." in parts:
        raise UserError("output-path", f"Output {path!r} would be written outside {folder}.", "Use --get.")
    return folder.joinpath(*parts)


def _write(client: Client, run_id: str, *, found: Output, target: Path) -> None:
    write_file(target, client.output(run_id, found.attempt, found.path))


def _alias(text: str) -> tuple[str, str, str]:
    """`digits@champion=3` as (name, alias, version)."""
    model, at, rest = text.rpartition("@")
    alias, sign, version = rest.partition("=")
    if not (at and sign and model and alias and version):
        raise click.BadParameter(f"{text!r} is not NAME@ALIAS=VERSION, as in digits@champion=3.")
    return model, alias, version.removeprefix("v")


def _output_row(each: Output) -> list[str]:
    return [str(each.attempt), size_text(each.size_bytes), each.path]


def _model_row(model: ModelVersionView) -> list[str]:
    names = " ".join(f"@{alias}" for alias in model.aliases)
    return [model.name, model.version, names, model.run_id, ago(model.created)]
