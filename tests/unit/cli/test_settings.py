"""Secrets and profiles from the command line."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_secret_is_stored_listed_and_forgotten(
    cli: Any, launcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, "correct horse\n")
    done = cli("secrets", "set", "HUB_TOKEN", "--json")
    assert (done.code, done.json) == (0, {"name": "HUB_TOKEN", "stored": True})
    assert cli("secrets", "list", "--json").json == {"secrets": ["HUB_TOKEN"]}
    assert cli("secrets", "list").out == "HUB_TOKEN\n"
    assert '"HUB_TOKEN": "correct horse"' in next(launcher.rglob("secrets.json")).read_text()
    assert cli("secrets", "rm", "HUB_TOKEN").out == "Forgot HUB_TOKEN.\n"
    assert cli("secrets", "list", "--json").json == {"secrets": []}
    assert cli("secrets", "rm", "HUB_TOKEN", "--json").code == 2


def test_the_value_is_no_argument(cli: Any, launcher: Path) -> None:
    done = cli("secrets", "set", "HUB_TOKEN", "value", "--json")
    assert (done.code, done.json["code"]) == (2, "usage")


def test_an_empty_value_is_refused(cli: Any, launcher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, "\n")
    done = cli("secrets", "set", "HUB_TOKEN", "--json")
    assert (done.code, done.json["code"]) == (2, "secret-empty")


def test_a_secret_that_is_not_there(cli: Any, launcher: Path, project: Path, notebook_at: Any) -> None:
    path = notebook_at(project / "asks.ipynb", "print(1)")
    done = cli("promote", path, "--secret", "NOT_STORED", "--json")
    assert done.code in (1, 2)
    assert "NOT_STORED" in done.json["message"]


def test_the_shipped_profiles_are_fine(cli: Any) -> None:
    done = cli("profiles", "lint", "--json")
    assert (done.code, done.json["ok"], done.json["faults"]) == (0, True, [])
    assert [Path(name).name for name in done.json["files"]] == [
        "profiles.yaml",
        "presets.yaml",
        "policy.yaml",
    ]


@pytest.mark.parametrize("top", ["profiles", "presets", "rules"])
def test_a_fault_is_named_with_its_line(cli: Any, tmp_path: Path, top: str) -> None:
    path = tmp_path / "我 的.yaml"
    path.write_text(f"# mine\n{top}:\n  - nonsense: 1\n", encoding="utf-8")
    done = cli("profiles", "lint", path)
    assert done.code == 1
    assert f"{path}:3: error" in done.out
    told = cli("profiles", "lint", path, "--json").json
    assert told["ok"] is False
    assert {"file", "line", "code", "message", "fix", "severity"} == set(told["faults"][0])


def test_a_file_that_is_not_there(cli: Any, tmp_path: Path) -> None:
    done = cli("profiles", "lint", tmp_path / "none.yaml", "--json")
    assert done.code == 2
    assert "none.yaml" in done.json["message"]


def test_lint_needs_no_launcher() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slicelift", "profiles", "lint"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
