"""Numbers, sentences and tables as a reader sees them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from slicelift.cli.metrics import metrics_line, rank_table
from slicelift.cli.outcomes import summary
from slicelift.cli.printing import ago, table, width
from slicelift.cli.sentences import next_step
from slicelift.cli.standing import fate
from slicelift.figures import duration, exact, number
from slicelift.findings import counted, finding_lines
from slicelift.models import Failure, ModelVersionView, Status, StatusChange, size_text
from slicelift.sentences import failure_lines, failure_sentence, sentence

from tests.sample import RUN

# a first attempt of 20 s, a minute in which it was over, and a second one of 12 s
AGAIN: dict[str, Any] = {
    "attempt": 2,
    "previous": "Worker 1 ended without a word.",
    "checkpoint": 10,
    "history": (
        StatusChange(time=10.0, attempt=1, status=Status.WAITING),
        StatusChange(time=30.0, attempt=1, status=Status.STARTING),
        StatusChange(time=31.0, attempt=1, status=Status.RUNNING),
        StatusChange(time=50.0, attempt=1, status=Status.FAILED),
        StatusChange(time=110.0, attempt=2, status=Status.WAITING),
        StatusChange(time=110.0, attempt=2, status=Status.STARTING),
    ),
}
MODEL = ModelVersionView(name="digits", version="3", run_id=RUN.run_id)


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (123_456, "121 KiB"), (61.25 * 1024**3, "61.2 GiB")],
)
def test_sizes(count: float, told: str) -> None:
    assert size_text(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-1, "0.0 s"), (0.31, "0.3 s"), (12.4, "12 s"), (192, "3 min 12 s"), (3725, "1 h 02 min")],
)
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("passed", "told"),
    [(0, "just now"), (5, "5 s ago"), (61, "1 min ago"), (90_000, "25 h ago"), (3 * 86400, "3 days ago")],
)
def test_ago(passed: float, told: str) -> None:
    assert ago(1000.0, now=1000.0 + passed) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (40, "40"),
        (0.08395123, "0.08395"),
        (math.nan, "NaN"),
        (-math.inf, "-∞"),
        ("Infinity", "∞"),
        (None, "-"),
        (10960.4, "1.096e+04"),
    ],
)
def test_numbers(value: object, told: str) -> None:
    assert number(value) == told


def test_json_is_strict_and_keeps_nan() -> None:
    told = json.dumps(exact({"a": [math.nan, (math.inf, 1)], "b": -math.inf}), allow_nan=False)
    assert json.loads(told) == {"a": ["NaN", ["Infinity", 1]], "b": "-Infinity"}


def test_a_table_counts_what_a_terminal_shows() -> None:
    lines = table(["a", "b"], [["数字", "x"], ["ab", "y"]]).split("\n")
    assert [width(line.rpartition(" ")[0]) for line in lines] == [5, 5, 5]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": Status.WAITING}, "Waiting: next in line"),
        ({"status": Status.WAITING, "position": 2}, "Waiting: 1 job ahead"),
        (
            {"status": Status.WAITING, "position": 3, "message": "2 of 4 slots free."},
            "Waiting: 2 jobs ahead; 2 of 4 slots free",
        ),
        ({"status": Status.STARTING}, "Starting: preparing the processes"),
        ({"status": Status.STARTING, "message": "Linking data"}, "Starting: Linking data"),
        ({}, "Running: no step logged yet"),
        (
            {"latest": {"loss": (40, 0.31), "rank/1/loss": (39, 1.0), "step_time_seconds": (40, 0.1)}},
            "Running: step 40, loss 0.31",
        ),
        ({"status": Status.CANCELLING}, "Cancelling: ending every process"),
        ({"status": Status.FINISHED}, "Finished in 12 s"),
        ({"status": Status.FINISHED, "models": (MODEL,)}, "Finished in 12 s: digits version 3"),
        ({"status": Status.FAILED, "message": "No space.\nmore"}, "Failed: No space"),
        ({"status": Status.FAILED}, "Failed: no reason is known"),
        ({"status": Status.KILLED, "reason": "cancelled by ann"}, "Cancelled: cancelled by ann"),
        (
            {"status": Status.KILLED, "reason": "suspended by ann", "checkpoint": 40},
            "Suspended by ann: its checkpoint is at step 40",
        ),
        (
            {"status": Status.KILLED, "reason": "suspended by ann"},
            "Suspended by ann: no checkpoint is known",
        ),
        (
            {"status": Status.CANCELLING, "reason": "suspended by ann"},
            "Suspending: waiting for a checkpoint, then ending every process",
        ),
        (
            AGAIN | {"status": Status.STARTING},
            "Starting again, attempt 2: Worker 1 ended without a word, goes on from step 10",
        ),
        (
            AGAIN | {"status": Status.STARTING, "message": "Linking data", "previous": ""},
            "Starting again, attempt 2: goes on from step 10; Linking data",
        ),
        (AGAIN, "Running again, attempt 2: Worker 1 ended without a word, goes on from step 10"),
        ({"attempt": 2}, "Running: no step logged yet"),
        (AGAIN | {"latest": {"loss": (11, 0.31)}}, "Running: step 11, loss 0.31"),
        ({"attempt": 2, "status": Status.STARTING}, "Starting again, attempt 2: preparing the processes"),
        (
            AGAIN | {"status": Status.WAITING, "checkpoint": None},
            "Waiting to start again, attempt 2: next in line; Worker 1 ended without a word",
        ),
        (
            AGAIN | {"status": Status.WAITING, "message": "Q is full.", "previous": ""},
            "Waiting to start again, attempt 2: next in line; Q is full; goes on from step 10",
        ),
        (
            AGAIN | {"status": Status.FINISHED, "models": (MODEL,)},
            "Finished in 32 s, 2 attempts: digits version 3",
        ),
        (
            {"status": Status.UNKNOWN, "phase": "Odd", "message": "Not found."},
            "Unknown: Not found (the backend says 'Odd')",
        ),
    ],
)
def test_one_sentence_says_what_is_going_on(change: dict[str, Any], told: str) -> None:
    assert sentence(replace(RUN, **change)) == told


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            Failure(rank=1, message="bad", exception="ValueError", cell=4, line=2),
            "Rank 1 failed in cell 5, line 2: ValueError: bad",
        ),
        (
            Failure(rank=0, message="ValueError: bad", exception="ValueError", cell=1, file="b.ipynb"),
            "Rank 0 failed in cell 2 of b.ipynb: ValueError: bad",
        ),
        (Failure(rank=2, message="", exception="KeyError"), "Rank 2 failed: KeyError"),
        (Failure(message="The disk is full."), "The job failed: The disk is full"),
        (
            Failure(
                rank=1, message="Rank 1 raised ValueError: x", exception="ValueError", file="n.ipynb", cell=2
            ),
            "Rank 1 failed in cell 3: ValueError: x",
        ),
        (
            Failure(rank=1, message="Rank 1 was killed by SIGKILL; see dmesg."),
            "Rank 1 was killed by SIGKILL; see dmesg",
        ),
    ],
)
def test_a_failure_names_rank_cell_and_line(failure: Failure, told: str) -> None:
    assert failure_sentence(failure, notebook="n.ipynb") == told


def test_a_failure_is_told_with_source_and_traceback() -> None:
    failure = Failure(rank=0, message="bad", source="  f(x)\n", traceback="Traceback\n  here\n")
    assert failure_lines(failure) == ["Rank 0 failed: bad", "    f(x)", "", "Traceback", "  here"]


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (Status.FAILED, "slicelift logs r-abcdefghijkl --rank 1"),
        (Status.KILLED, "slicelift retry r-abcdefghijkl"),
        ("suspended by ann", "slicelift resume r-abcdefghijkl"),
        (Status.FINISHED, "slicelift outputs r-abcdefghijkl"),
        (Status.RUNNING, "slicelift cancel r-abcdefghijkl"),
    ],
)
def test_every_state_has_a_next_step(status: Status | str, part: str) -> None:
    stands = {"status": status} if isinstance(status, Status) else {"status": Status.KILLED, "reason": status}
    assert part in next_step(replace(RUN, **stands, failure=Failure(message="x", rank=1)))


def test_figures_by_rank_with_units_and_host_memory_called_so() -> None:
    latest = {
        "loss": (40, 0.5),
        "rank/1/loss": (39, math.nan),
        "accuracy": (40, 0.9),
        "step_time_seconds": (40, 0.0101),
        "throughput_samples_per_second": (40, 512.0),
        "rank/1/data_wait_fraction": (30, 0.639),
        "rank/1/peak_host_memory_bytes": (30, 2.0**30),
    }
    headings, rows = rank_table(replace(RUN, latest=latest))
    own = ["rank", "step", "loss", "accuracy"]
    assert headings == [*own, "samples/s", "step time", "waiting for data", "peak host memory"]
    assert rows == [
        ["0", "40", "0.5", "0.9", "512", "10.1 ms", "-", "-"],
        ["1", "39", "NaN", "-", "-", "-", "63 %", "1.0 GiB"],
    ]
    line = metrics_line(replace(RUN, latest=latest))
    assert line == "step 40  loss 0.5  accuracy 0.9  512 samples/s  10.1 ms/step"


def test_findings_are_grouped_by_cell_with_errors_first() -> None:
    base = {"line": 2, "fix": None, "file": None, "source": ""}
    rows = [
        base | {"code": "b", "severity": "note", "cell": 9, "message": "M1"},
        base | {"code": "c", "severity": "error", "cell": 9, "message": "M2", "fix": "F", "source": "x = 1"},
        base | {"code": "a", "severity": "warning", "cell": None, "line": None, "message": "M3"},
        base | {"code": "d", "severity": "error", "cell": 0, "message": "M4", "file": "other.ipynb"},
    ]
    assert finding_lines(rows) == [
        "the notebook",
        "  warning M3  [a]",
        "cell 10",
        "  error   line 2: M2  [c]",
        "          | x = 1",
        "          → F",
        "  note    line 2: M1  [b]",
        "cell 1 of other.ipynb",
        "  error   line 2: M4  [d]",
    ]
    assert counted(rows) == "2 errors, 1 warning, 1 note"


def test_the_answer_for_scripts() -> None:
    assert summary(replace(RUN, status=Status.FINISHED, models=(MODEL,), mlflow_run_id="m")) == {
        "promotion_id": "p-" + "a" * 20,
        "run_id": "r-abcdefghijkl",
        "mlflow_run_id": "m",
        "status": "FINISHED",
        "attempt": 1,
        "model_name": "digits",
        "model_version": "3",
        "models": [{"name": "digits", "version": "3"}],
        "message": "",
    }
    failed = summary(replace(RUN, status=Status.FAILED, failure=Failure(message="m", cell=1, line=2)))
    assert (failed["model_name"], failed["model_version"]) == (None, None)
    assert (failed["failure"]["cell"], failed["failure"]["line"]) == (1, 2)


def test_what_became_of_the_jobs_when_all_is_stopped() -> None:
    """Those that waited on this machine start with the next launcher: they have not ended."""
    running, waiting = replace(RUN, status=Status.RUNNING), replace(RUN, run_id="r-b", status=Status.WAITING)
    assert fate([], keep_jobs=False) == "No job was running."
    told = fate([running, waiting], keep_jobs=False)
    assert told.startswith(
        f"1 job ended: {RUN.run_id} ({RUN.name}). Once it is up again: slicelift retry RUN."
    )
    assert "1 job still waited: r-b" in told
    assert fate([running] * 6, keep_jobs=True).endswith("and 1 more; the next `slicelift up` finds them.")
