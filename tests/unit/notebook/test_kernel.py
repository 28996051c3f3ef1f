"""The kernel's interpreter: found by its kernelspec, asked once, never running the notebook."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.notebook.document import Notebook
from slicelift.notebook.kernel import Module, ProbeRequest, Verdict, environment, find_interpreter, probe


def notebook(kernel: str) -> Notebook:
    return Notebook(path=Path("/x.ipynb"), sha256="", kernel=kernel)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))

    def put(name: str, content: Any) -> None:
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(content if isinstance(content, str) else json.dumps(content))

    return put


def test_the_kernelspec_names_the_interpreter(install: Any) -> None:
    install("My-Env", {"argv": [sys.executable, "-m", "ipykernel_launcher"], "language": "python"})
    assert find_interpreter(notebook("my-env")) == sys.executable


@pytest.mark.parametrize(
    "content", [{"argv": ["python"]}, {"argv": ["python3.12"]}, {"argv": []}, "no json", {}]
)
def test_a_plain_python_is_ours(install: Any, content: Any) -> None:
    install("some", content)
    assert find_interpreter(notebook("some")) == sys.executable


@pytest.mark.parametrize("name", ["", "python3-that-is-not-installed"])
def test_an_unknown_kernel_is_ours(install: Any, name: str) -> None:
    assert find_interpreter(notebook(name)) == sys.executable


@pytest.mark.parametrize("argv", [["/gone/bin/python", "-m"], ["/bin/bash", "-c", "python"]])
def test_a_kernel_without_interpreter_is_told(install: Any, argv: list[str]) -> None:
    install("gone", {"argv": argv})
    with pytest.raises(UserError) as error:
        find_interpreter(notebook("gone"))
    assert error.value.code == "kernel-interpreter"
    assert argv[0] in error.value.message
    assert "--python" in error.value.hint


def test_a_given_interpreter_must_exist() -> None:
    assert find_interpreter(notebook("any"), python=sys.executable) == sys.executable
    with pytest.raises(UserError, match="no interpreter"):
        find_interpreter(notebook("any"), python="/gone/python")


def test_one_answer_for_everything(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('never imported')")
    (tmp_path / "own.py").write_text("raise SystemExit('never imported')")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "inner.py").touch()
    request = ProbeRequest(
        cells={"fine": "x = 1", "await": "await x", "return": "if x:\n    return", "broken": "for x\n"},
        modules=("os.path", "own", "pack.inner", "pack.none", "zz_none", "zz_none.deep", "pytest"),
        stars=("math", "own", "zz_none"),
        paths=(str(tmp_path),),
        root=str(tmp_path),
    )
    result = probe(sys.executable, request)
    assert result.cells == {
        "fine": Verdict(),
        "await": Verdict(awaits=True),
        "return": Verdict(ok=False, message="'return' outside function", line=2),
        "broken": Verdict(ok=False, message="invalid syntax", line=1),
    }
    assert {name for name, module in result.modules.items() if not module.found} == {
        "pack.none",
        "zz_none",
        "zz_none.deep",
    }
    assert result.modules["own"] == Module(origin=str(tmp_path / "own.py"), local=True)
    assert {name for name, module in result.modules.items() if module.local} == {
        "own",
        "pack.inner",
        "pack.none",
    }
    assert "sqrt" in (result.stars["math"] or ())
    assert (result.stars["own"], result.stars["zz_none"]) == (None, None)


def test_the_environment_is_that_of_the_interpreter() -> None:
    found = environment(probe(sys.executable, ProbeRequest()), requirements=["a==1"])
    assert found.python == sys.executable
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert found.packages["pytest"] == pytest.__version__
    assert found.requirements == ("a==1",)


def test_what_is_no_python_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(UserError, match="could not look at the notebook: broken") as error:
        probe(str(fake), ProbeRequest())
    assert error.value.code == "kernel-interpreter"
