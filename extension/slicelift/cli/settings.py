"""Secrets of the user, and the files of profiles, presets and policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicelift.cli.access import connect, json_option
from slicelift.cli.outcomes import FAILED, FINE
from slicelift.cli.printing import print_json
from slicelift.errors import UserError
from slicelift.figures import plural

if TYPE_CHECKING:
    from slicelift_profiles import Fault


@click.group()
def secrets() -> None:
    """Keep values that jobs need and nobody should read.

    A value is read from stdin or asked for, never taken from the command line, where every user of the machine
    sees it. Jobs get it by name: slicelift promote --secret NAME.
    """


@secrets.command("set")
@click.argument("name", metavar="NAME")
@json_option
def set_secret(name: str, as_json: bool) -> None:
    """Store a value under NAME, from stdin or a prompt; a former value is replaced."""
    value = _read_value(name)
    connect().set_secret(name, value)
    if as_json:
        print_json({"name": name, "stored": True})
    else:
        print(f"Stored {name}. Give it to a job with --secret {name}.")


@secrets.command("list")
@json_option
def list_secrets(as_json: bool) -> None:
    """List the names; values never come back."""
    names = list(connect().secrets())
    if as_json:
        print_json({"secrets": names})
    else:
        print("\n".join(names) or "No secrets. Store one: slicelift secrets set NAME")


@secrets.command("rm")
@click.argument("name", metavar="NAME")
@json_option
def remove_secret(name: str, as_json: bool) -> None:
    """Forget NAME. Running jobs keep what they have."""
    connect().delete_secret(name)
    if as_json:
        print_json({"name": name, "stored": False})
    else:
        print(f"Forgot {name}.")


@click.group()
def profiles() -> None:
    """Check the files of choices: spawner profiles, launch presets, policy."""


@profiles.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@json_option
def lint(file: Path | None, as_json: bool) -> int:
    """Name every fault of a profiles, presets or policy file with its line. Exit status 1 when there is an error.

    Without FILE the shipped ones are checked. A file with a `presets:` key holds presets, one with `rules:` a policy.
    """
    faults, checked = _lint(file)
    failed = any(fault.severity == "error" for fault in faults)
    if as_json:
        rows = [{name: getattr(fault, name) for name in fault.__dataclass_fields__} for fault in faults]
        print_json({"ok": not failed, "files": [str(path) for path in checked], "faults": rows})
    elif faults:
        print("\n".join(str(fault) for fault in faults))
    else:
        print(f"{plural(len(checked), 'file')} fine: {', '.join(str(path) for path in checked)}")
    return FAILED if failed else FINE


def _lint(file: Path | None) -> tuple[list[Fault], list[Path]]:
    """All faults of the file, or of the shipped three, and which files were looked at."""
    from slicelift_profiles import ProfileError, catalog, documents, presets, rules

    checked = [file] if file else [catalog.SHIPPED, presets.SHIPPED, rules.SHIPPED]
    linters = {"presets": presets.lint, "rules": rules.lint}
    faults: list[Fault] = []
    for path in checked:
        try:
            data = documents.read(path).data
            kinds = [key for key in linters if isinstance(data, dict) and key in data]
            faults += linters[kinds[0]](path) if kinds else catalog.lint(path)
        except ProfileError as error:
            raise UserError(error.code, error.message, error.hint) from error
    return faults, checked


def _read_value(name: str) -> str:
    """From a prompt without echo on a terminal, else all of stdin without its last line end."""
    if sys.stdin.isatty():
        value = str(click.prompt(f"Value of {name}", hide_input=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise UserError(
            "secret-empty", f"No value came for {name}.", f"Try: slicelift secrets set {name} < FILE"
        )
    return value
