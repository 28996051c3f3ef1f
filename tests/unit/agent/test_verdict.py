"""From what a gang leaves to the sentence a user reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Failure, JobSpec, Status
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.verdict import Verdict, data_changed, judge, words

SPEC = JobSpec(
    name="j",
    snapshot_id="s",
    notebook="n.ipynb",
    script=".slicelift/promoted.py",
    cwd=".",
    python="python",
)


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    found = AttemptFolder(tmp_path)
    (found.workspace / ".slicelift").mkdir(parents=True)
    places = [None, {"cell": 2, "line": 1, "file": None}, {"cell": 0, "line": 9, "file": "other.ipynb"}]
    (found.workspace / ".slicelift/promoted.map.json").write_text(json.dumps(places))
    return found


def error(folder: AttemptFolder, *lines: int) -> dict[str, Any]:
    script = str(folder.workspace / SPEC.script)
    frames: list[dict[str, Any]] = [
        {"file": script, "line": line, "function": "f", "source": f"line {line}"} for line in lines
    ]
    frames.append({"file": "/lib/torch.py", "line": 2, "function": "g", "source": "lib"})
    stack = "".join(f'  File "{frame["file"]}", line {frame["line"]}, in f\n' for frame in frames)
    return {
        "message": {"message": "E: m", "extraInfo": {"py_callstack": stack, "timestamp": "1"}},
        "rank": 1,
        "time": 2.0,
        "exception": "E",
        "text": "m",
        "frames": frames,
    }


def gang(folder: AttemptFolder, exit_code: int, *failures: dict[str, Any]) -> None:
    folder.gang.write_text(json.dumps({"exit_code": exit_code, "failures": failures}))


def test_the_innermost_line_of_the_notebook_is_named(folder: AttemptFolder) -> None:
    gang(
        folder,
        1,
        {"rank": 1, "exit_code": 1, "exception": "E", "message": "m", "error": error(folder, 2, 3, 1)},
    )
    verdict = judge(folder, SPEC, 1)
    assert verdict == Verdict(
        status=Status.FAILED,
        exit_code=1,
        reason="rank-failed",
        message="Rank 1 raised E: m",
        failure=Failure(
            message="Rank 1 raised E: m",
            rank=1,
            exit_code=1,
            exception="E",
            cell=0,
            line=9,
            file="other.ipynb",
            source="line 3",
            traceback=verdict.failure.traceback if verdict.failure else "",
        ),
    )
    assert verdict.failure is not None
    assert "n.ipynb, cell 3, line 1, in f" in verdict.failure.traceback
    assert '"/lib/torch.py", line 2' in verdict.failure.traceback


def test_the_gang_s_first_failure_is_the_verdict(folder: AttemptFolder) -> None:
    gang(
        folder, -9, {"rank": 1, "exit_code": -9, "error": None}, {"rank": 0, "exit_code": -15, "error": None}
    )
    verdict = judge(folder, SPEC, 1)
    assert (verdict.exit_code, verdict.failure and verdict.failure.rank) == (-9, 1)
    assert "dmesg" in verdict.message


def test_a_gang_without_a_result_is_told_by_its_ranks_errors(folder: AttemptFolder) -> None:
    (folder.root / "errors").mkdir()
    (folder.root / "errors/1.json").write_text(json.dumps(error(folder, 2)))
    verdict = judge(folder, SPEC, -9)
    assert (verdict.reason, verdict.exit_code) == ("rank-failed", -9)
    assert verdict.failure is not None
    assert (verdict.failure.cell, verdict.failure.line) == (2, 1)


def test_a_gang_without_any_word(folder: AttemptFolder) -> None:
    verdict = judge(folder, SPEC, -9)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "gang-failed")
    assert "SIGKILL" in verdict.message


def test_a_broken_line_map_costs_the_cell_only(folder: AttemptFolder) -> None:
    (folder.workspace / ".slicelift/promoted.map.json").write_text("{")
    gang(folder, 1, {"rank": 0, "exit_code": 1, "exception": "E", "message": "m", "error": error(folder, 2)})
    failure = judge(folder, SPEC, 1).failure
    assert failure is not None
    assert (failure.cell, failure.message) == (None, "Rank 0 raised E: m")


def test_changed_data_stands_above_a_good_end() -> None:
    verdict = data_changed(
        [f"d/{number}" for number in range(7)], Verdict(status=Status.FINISHED, exit_code=0)
    )
    assert (verdict.status, verdict.reason) == (Status.FAILED, "data-changed")
    assert "d/0, d/1, d/2, d/3, d/4 and 2 more" in verdict.message


def test_secrets_are_masked_in_what_is_told() -> None:
    failure = Failure(message="no hunter22", source="x('hunter22')", traceback="hunter22")
    verdict = Verdict(status=Status.FAILED, message="no hunter22", failure=failure).masked(["hunter22"])
    assert "hunter22" not in json.dumps(verdict.to_exit())
    assert verdict.message == "no ***"


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "ended with exit code 3"), (-11, "was ended by SIGSEGV"), (-99, "was ended by signal 99")],
)
def test_exit_codes_in_words(code: int, text: str) -> None:
    assert words(code) == text
