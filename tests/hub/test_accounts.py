"""The file of accounts: who is in it, how a pass phrase is kept, and what cannot be a name."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Conflict, NotFound, SliceliftError, UserError
from slicelift_hub.accounts import Accounts
from slicelift_hub.launcher.auth import whoami


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    return Accounts(tmp_path / "家 home")


def file_of(accounts: Accounts) -> Path:
    return accounts._file


def run(home: Path, *arguments: str, given: str = "") -> tuple[int, dict[str, Any]]:
    """The program that the command line calls."""
    done = subprocess.run(
        [sys.executable, "-m", "slicelift_hub.accounts", "--home", str(home), *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_pass_phrase_is_made_once_and_kept_as_a_hash(accounts: Accounts) -> None:
    account, password = accounts.add("李雷", groups=("ml",))
    assert (account.name, account.admin, account.groups) == ("李雷", False, ("ml",))
    assert len(password) == 24
    text = file_of(accounts).read_text()
    assert password not in text
    assert file_of(accounts).stat().st_mode & 0o777 == 0o600
    assert file_of(accounts).parent.stat().st_mode & 0o777 == 0o700
    assert accounts.verify("李雷", password) == account
    assert accounts.verify("李雷", password + "x") is None
    assert accounts.verify("nobody", password) is None
    assert accounts.add("anna")[1] != password


def test_a_new_pass_phrase_ends_the_former_one_and_a_removed_account_all(accounts: Accounts) -> None:
    _, former = accounts.add("ben", admin=True)
    account, password = accounts.set_password("BEN", "a phrase of my own")
    assert (account.name, account.admin, password) == ("ben", True, "a phrase of my own")
    assert accounts.verify("ben", former) is None
    assert accounts.verify("ben", password)
    assert accounts.remove("Ben").name == "ben"
    assert accounts.verify("ben", password) is None
    for call in (accounts.remove, accounts.set_password):
        with pytest.raises(NotFound):
            call("ben")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-a", ".", "a b", "a\n", "x" * 65, "a:b", "a\u202eb"])
def test_what_cannot_be_a_name(accounts: Accounts, name: str) -> None:
    with pytest.raises(UserError) as caught:
        accounts.add(name)
    assert caught.value.code == "bad-user-name"
    assert accounts.all() == []


def test_names_that_look_alike_are_one_person(accounts: Accounts) -> None:
    accounts.add("José")
    for name in ("josé", "JOSE\u0301"):
        with pytest.raises(Conflict):
            accounts.add(name)
        found = accounts.find(name)
        assert found is not None
        assert found.name == "José"


def test_a_broken_file_is_said_and_never_overwritten(accounts: Accounts) -> None:
    accounts.add("anna")
    file_of(accounts).write_text('{"users": {"anna": 7}}')
    for call in (accounts.all, lambda: accounts.add("ben"), lambda: accounts.verify("anna", "x")):
        with pytest.raises(SliceliftError) as caught:
            call()
        assert caught.value.code == "accounts-unreadable"
    assert file_of(accounts).read_text() == '{"users": {"anna": 7}}'
    assert not accounts.exists()


def test_many_at_once_lose_nobody(accounts: Accounts) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: accounts.add(f"user{number}"), range(16)))
    assert len(accounts.all()) == 16


def test_the_first_account_is_made_once(tmp_path: Path) -> None:
    code, told = run(tmp_path, "first", "--name=anna")
    assert (code, told["name"], told["admin"]) == (0, "anna", True)
    assert Accounts(tmp_path).verify("anna", told["password"])
    code, again = run(tmp_path, "first", "--name=ben")
    assert (code, again["name"], again["password"]) == (0, "anna", None)
    code, added = run(tmp_path, "add", "--password-stdin", "--name=ben", given="short\n")
    assert (code, added["code"]) == (1, "password-short")
    code, added = run(tmp_path, "add", "--password-stdin", "--name=ben", given="x" * 1001)
    assert (code, added["code"]) == (1, "password-long")
    code, added = run(
        tmp_path, "add", "--password-stdin", "--group=ml", "--name=ben", given="long enough it is\r\n"
    )
    assert (code, added["groups"], added["password"]) == (0, ["ml"], None)
    assert Accounts(tmp_path).verify("ben", "long enough it is")


def test_the_first_account_is_named_as_the_launcher_names_who_runs_it(tmp_path: Path) -> None:
    assert run(tmp_path, "first")[1]["name"] == whoami()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("a file")
    code, told = run(tmp_path, "add", "--name=ben")
    assert (code, told["code"]) == (1, "accounts-unwritable")
    assert "SLICELIFT_HOME" in told["hint"]


def test_a_system_name_that_is_no_users_name_becomes_admin(tmp_path: Path) -> None:
    assert run(tmp_path, "first", "--name=svc$")[1]["name"] == "admin"
