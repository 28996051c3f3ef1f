"""Faults as words, as JSON and as exit statuses; never a raw traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from slicelift.cli.faults import report
from slicelift.errors import Conflict, Denied, NotFound, Refused, SliceliftError, Unavailable, UserError


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (Refused("r", "No.", "Do."), 1, {"code": "r", "message": "No.", "hint": "Do."}),
        (UserError("u", "Bad.", "Do."), 2, {"code": "u", "message": "Bad.", "hint": "Do."}),
        (NotFound("n", "None.", "Do."), 2, {"code": "n", "message": "None.", "hint": "Do."}),
        (Conflict("c", "Two.", "Do."), 2, {"code": "c", "message": "Two.", "hint": "Do."}),
        (Denied("d", "Not you.", "Do."), 2, {"code": "d", "message": "Not you.", "hint": "Do."}),
        (Unavailable("a", "Away.", "Do."), 3, {"code": "a", "message": "Away.", "hint": "Do."}),
        (SliceliftError("s", "Odd.", "Do."), 1, {"code": "s", "message": "Odd.", "hint": "Do."}),
        (
            UserError("u", "Bad.", "Do.", detail=[1]),
            2,
            {"code": "u", "message": "Bad.", "hint": "Do.", "detail": [1]},
        ),
        (KeyboardInterrupt(), 130, {"code": "interrupted", "message": "Interrupted.", "hint": ""}),
        (click.Abort(), 130, {"code": "interrupted", "message": "Interrupted.", "hint": ""}),
        (
            click.BadParameter("x is wrong"),
            2,
            {"code": "usage", "message": "Invalid value: x is wrong", "hint": "See `slicelift --help`."},
        ),
    ],
)
def test_one_place_turns_faults_into_words(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, body: dict[str, Any]
) -> None:
    assert report(error, as_json=True) == status
    told = capsys.readouterr()
    assert json.loads(told.out) == body
    assert told.err == "\n".join(part for part in (f"error: {body['message']}", body["hint"]) if part) + "\n"


def test_without_json_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    report(UserError("u", "Bad.", "Do."), as_json=False)
    assert capsys.readouterr().out == ""


def test_a_refusal_tells_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"code": "undefined-name", "severity": "error", "cell": 3, "line": 1, "message": "x is not there"}
    report(Refused("preflight-refused", "No.", "Mend.", detail={"findings": [row]}), as_json=False)
    assert capsys.readouterr().err.split("\n") == [
        "error: No.",
        "cell 4",
        "  error   line 1: x is not there  [undefined-name]",
        "Mend.",
        "",
    ]


def test_a_fault_of_ours_goes_to_a_file(capsys: pytest.CaptureFixture[str], empty_home: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("secret sauce")
    assert report(caught.value, as_json=True) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["code"] == "internal"
    assert "Traceback" not in told.out + told.err
    [log] = empty_home.glob("slicelift-errors-*.log")
    assert str(log) in told.err
    assert log.stat().st_mode & 0o777 == 0o600
    assert "ZeroDivisionError: secret sauce" in log.read_text()
    assert "Traceback" in log.read_text()


def test_a_fault_of_ours_without_a_home(capsys: pytest.CaptureFixture[str], empty_home: Path) -> None:
    empty_home.write_text("a file where the folder should be")
    assert report(RuntimeError("x"), as_json=False) == 1
    assert "slicelift-errors-" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (["jobs", "--json"], "launcher-not-running", 3),
        (["jobs", "--bad", "--json"], "usage", 2),
        (["promote", "nowhere.ipynb", "--json"], "notebook-not-found", 2),
        (["promote", "nowhere.ipynb", "-p", "novalue", "--json"], "usage", 2),
        (["promote", "nowhere.ipynb", "--workers", "0", "--json"], "usage", 2),
        (["promote", "nowhere.ipynb", "--preset", "odd", "--json"], "unknown-preset", 2),
        (["promote", "nowhere.ipynb", "--promotion-id", "p-1", "--json"], "promotion-id-invalid", 2),
        (["preflight", ".", "--json"], "notebook-unreadable", 2),
        (["models", "--set-alias", "digits", "--json"], "launcher-not-running", 3),
        (["down", "--json"], None, 0),
    ],
)
def test_exit_statuses_of_real_commands(
    cli: Any, empty_home: Path, arguments: list[str], code: str | None, status: int
) -> None:
    done = cli(*arguments)
    assert done.code == status, done
    assert done.json.get("code") == code
    assert not empty_home.exists(), "a command that only reads started or wrote something"


def test_a_reader_that_leaves_is_no_fault() -> None:
    command = f"{sys.executable} -m slicelift --help | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(("\n0\n", "\n141\n", "0\n", "141\n"))
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_a_narrow_locale_does_not_crash(project: Path, notebook_at: Any) -> None:
    path = notebook_at(project / "笔记.ipynb", "print('数字'\n")
    done = subprocess.run(
        [sys.executable, "-m", "slicelift", "preflight", str(path)],
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "HOME": str(project)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"cannot be promoted" in done.stdout
