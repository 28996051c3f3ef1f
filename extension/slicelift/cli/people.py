"""`slicelift hub`: the people who may sign in."""

from __future__ import annotations

import sys
from typing import Any

import click

from slicelift.cli import hubs
from slicelift.cli.access import json_option
from slicelift.cli.printing import ago, dim, print_json, table

_STDIN_HELP = "Read the pass phrase from stdin; without it one is made and printed once."


@click.group("hub")
def people() -> None:
    """Say who may sign in to the hub of this machine.

    Each has a pass phrase of their own, kept as a hash only. Changes hold at once, also while the hub runs.
    """


@people.command("add-user")
@click.argument("name", metavar="NAME")
@click.option("--admin", is_flag=True, help="May see, stop and enter the sessions of others.")
@click.option("--group", "groups", metavar="G", multiple=True, help="A group for profiles; may be repeated.")
@click.option("--password-stdin", is_flag=True, help=_STDIN_HELP)
@json_option
def add_user(name: str, admin: bool, groups: tuple[str, ...], password_stdin: bool, as_json: bool) -> None:
    """Make an account for NAME and print its pass phrase, once."""
    options = [*(["--admin"] if admin else []), *[f"--group={group}" for group in groups]]
    told = _change("add", name, options, password_stdin=password_stdin)
    _tell(told, f"{told['name']} may sign in{' as an admin' if admin else ''}.", as_json=as_json)


@people.command("set-password")
@click.argument("name", metavar="NAME")
@click.option("--password-stdin", is_flag=True, help=_STDIN_HELP)
@json_option
def set_password(name: str, password_stdin: bool, as_json: bool) -> None:
    """Give NAME a new pass phrase; the former one opens nothing any more. Who is signed in stays so."""
    told = _change("password", name, [], password_stdin=password_stdin)
    _tell(told, f"{told['name']} has a new pass phrase.", as_json=as_json)


@people.command("remove-user")
@click.argument("name", metavar="NAME")
@json_option
def remove_user(name: str, as_json: bool) -> None:
    """Take NAME's account away and end their sessions. Jobs, models and files stay."""
    told = hubs.accounts("remove", f"--name={name}")
    hub = hubs.running()
    known = hub is not None and hubs.forget_user(hub, str(told["name"]))
    rest = "Their sessions are over." if known else "The hub forgets them at its next start."
    _tell(told, f"{told['name']} may not sign in any more. {rest}", as_json=as_json)


@people.command("users")
@json_option
def users(as_json: bool) -> None:
    """List who may sign in."""
    found = hubs.accounts("list")["users"]
    if as_json:
        print_json({"users": found})
        return
    if not found:
        print("Nobody yet. Add somebody: slicelift hub add-user NAME")
        return
    rows = [
        [user["name"], "admin" if user["admin"] else "", ", ".join(user["groups"]), ago(user["since"])]
        for user in found
    ]
    print(table(["name", "role", "groups", "since"], rows))


def _change(what: str, name: str, options: list[str], *, password_stdin: bool) -> dict[str, Any]:
    given = sys.stdin.readline() if password_stdin else None
    words = [*options, *(["--password-stdin"] if password_stdin else [])]
    return hubs.accounts(what, *words, f"--name={name}", given=given)


def _tell(told: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    print(text)
    if told.get("password"):
        print(f"\n  pass phrase  {told['password']}\n")
        print(dim("It is shown this once. A new one: slicelift hub set-password " + str(told["name"])))
