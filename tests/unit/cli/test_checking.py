"""`preflight` and `script` as a user and a script see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOKEN = "hf_" + "Ab1" * 12


@pytest.fixture
def broken(project: Path, notebook_at: Any) -> Path:
    path = notebook_at(project / "子 folder" / "broken.ipynb", "x = 1", "print(x)\nprint(nowhere)")
    assert isinstance(path, Path)
    return path


def test_the_whole_stdout_is_one_object(cli: Any, broken: Path) -> None:
    done = cli("preflight", broken, "--json")
    assert (done.code, done.err) == (1, "")
    told = json.loads(done.out)
    assert set(told) == {"verdict", "selected_cells", "parameters", "findings"}
    [found] = [finding for finding in told["findings"] if finding["severity"] == "error"]
    assert (found["code"], found["cell"], found["line"]) == ("undefined-name", 1, 2)
    assert told["verdict"] == "refused"


def test_findings_are_shown_with_their_line(cli: Any, broken: Path) -> None:
    done = cli("preflight", broken)
    assert done.code == 1
    lines = done.out.split("\n")
    assert lines[0].startswith("broken.ipynb cannot be promoted: 1 error")
    assert "cell 2" in lines
    assert "          | print(nowhere)" in lines


def test_a_path_from_another_folder(cli: Any, broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(broken.parent)
    assert cli("preflight", "broken.ipynb").code == 1
    monkeypatch.chdir(broken.parent.parent)
    assert cli("preflight", Path("子 folder") / ".." / "子 folder" / "broken.ipynb").code == 1


def test_a_fine_notebook(cli: Any, project: Path, notebook_at: Any) -> None:
    path = notebook_at(project / "fine.ipynb", ("lr = 0.1", "parameters"), "print(lr)")
    done = cli("preflight", path, "-p", "lr=1e-3")
    assert done.code == 0
    assert done.out.startswith("fine.ipynb can be promoted\n2 of 2 code cells travel · parameters lr = 0.1")
    assert cli("preflight", path, "--json").json["parameters"] == {"lr": 0.1}


@pytest.mark.parametrize(
    ("given", "code"),
    [("lr=fast", "parameter-type"), ("rate=1", "parameter-unknown"), ("=1", "usage"), ("lr", "usage")],
)
def test_parameters_that_do_not_fit(cli: Any, project: Path, notebook_at: Any, given: str, code: str) -> None:
    path = notebook_at(project / "fine.ipynb", ("lr = 0.1", "parameters"), "print(lr)")
    done = cli("preflight", path, "-p", given, "--json")
    assert (done.code, done.json["code"]) == (2, code)


def test_script_prints_the_file_and_nothing_else(cli: Any, project: Path, notebook_at: Any) -> None:
    path = notebook_at(project / "脚本 s.ipynb", "print('数字', 6 * 7)")
    done = cli("script", path)
    assert (done.code, done.err) == (0, "")
    ran = subprocess.run([sys.executable, "-c", done.out], capture_output=True, text=True, check=True)
    assert ran.stdout == "数字 42\n"
    target = project / "出 out.py"
    done = cli("script", path, "-o", target)
    assert done.out == ""
    assert (
        subprocess.run([sys.executable, target], capture_output=True, check=True).stdout
        == ran.stdout.encode()
    )
    assert cli("script", path, "--json").json["source"] == target.read_text(encoding="utf-8")


def test_a_refused_notebook_prints_no_script(cli: Any, broken: Path) -> None:
    done = cli("script", broken)
    assert (done.code, done.out) == (1, "")
    assert "nowhere" in done.err
    assert "cell 2" in done.err
    told = cli("script", broken, "--json").json
    assert told["code"] == "preflight-refused"
    assert told["detail"]["findings"][0]["source"] == "print(nowhere)"


def test_a_secret_is_never_shown(cli: Any, project: Path, notebook_at: Any) -> None:
    cell = f"import os\nos.environ['HF_TOKEN'] = '{TOKEN}'\nprint(nowhere)"
    path = notebook_at(project / "secret.ipynb", cell, f"print(nowhere, '{TOKEN}')")
    for command in (("preflight",), ("preflight", "--json"), ("script",), ("script", "--json")):
        done = cli(command[0], path, *command[1:])
        assert done.code == 1
        assert "secret-in-source" in done.out + done.err
        assert TOKEN not in done.out + done.err


def test_promote_refuses_with_the_findings(cli: Any, launcher: Path, broken: Path) -> None:
    done = cli("promote", broken, "--json")
    assert (done.code, done.json["code"]) == (1, "preflight-refused")
    assert "print(nowhere)" in done.err
    assert done.json["hint"]


def test_an_offer_to_make_a_repository(
    cli: Any, launcher: Path, tmp_path: Path, notebook_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", os.fspath(tmp_path))
    path = notebook_at(tmp_path / "new 项目" / "n b.ipynb", "print(1)")
    done = cli("promote", path, "--json")
    assert (done.code, done.json["code"]) == (2, "no-git")
    assert "--init-git" in done.json["hint"]
    for name in (".env", "ssl/server.PEM", ".env.example", "credentials-prod.json"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text("x")
    (path.parent / ".gitignore").write_text("*.json\n")
    done = cli("promote", path, "--init-git", "--json")
    assert (done.code, done.json["code"]) == (1, "credentials-in-commit")
    assert done.json["detail"] == {"paths": [".env", "ssl/server.PEM"]}
    assert ".gitignore" in done.json["hint"]
    done = cli("promote", path, "--init-git", "--yes", "--json")
    assert done.code == 0, done
    assert "The first commit holds 5 files" in done.err
    assert "n b.ipynb" in done.err
    count = ["git", "rev-list", "--count", "HEAD"]
    assert subprocess.run(count, cwd=path.parent, capture_output=True, text=True, check=True).stdout == "1\n"
    cli("cancel", "last")
