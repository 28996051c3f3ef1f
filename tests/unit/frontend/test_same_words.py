"""The views say of a run what the command line says: TypeScript beside Python, on the same runs and figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slicelift.cli.printing import ago
from slicelift.figures import duration, exact, number, user_metrics
from slicelift.models import Failure, ModelVersionView, Status, StatusChange, size_text, to_dict
from slicelift.sentences import remarks, sentence
from slicelift.widgets.bundle import state_word

from tests.sample import RUN

ROOT = Path(__file__).parents[3]
SOURCES = ("extension/slicelift", "extension/frontend/src", "hub/slicelift_hub")

RAISED = Failure(
    message="Rank 1 raised ValueError: bad", rank=1, exception="ValueError", cell=4, line=2, file="n.ipynb"
)
FAILURES = [
    RAISED,
    replace(RAISED, file="other.ipynb", line=None),
    replace(RAISED, message="Rank 1 raised ValueError", cell=None),
    replace(RAISED, message="", exception="KeyError"),
    Failure(message="Rank 0 was killed by SIGKILL; if nobody did that, see dmesg.", rank=0, cell=3),
    Failure(message="The gang ended with exit code 1.", exit_code=1),
    Failure(message="The job could not start.\nAnd more."),
]
AGAIN = replace(
    RUN,
    attempt=2,
    checkpoint=10,
    previous="Worker 1 ended without a word, and the cluster ended the others.",
    history=(
        StatusChange(time=10.0, attempt=1, status=Status.WAITING),
        StatusChange(time=30.0, attempt=1, status=Status.RUNNING),
        StatusChange(time=50.0, attempt=1, status=Status.KILLED, reason="suspended by ann"),
        StatusChange(time=110.0, attempt=2, status=Status.WAITING),
        StatusChange(time=110.0, attempt=2, status=Status.STARTING),
    ),
)
MUCH = replace(
    RUN,
    status=Status.FINISHED,
    phase="delivering",
    message="The disk was full.",
    latest={"loss": (1, 0.5)},
    dropped_points=12,
    dropped_by={"spool-full": 2, "too-many-names": 4, "name-too-long": 2, "not-understood": 1},
    tracker_message="It said no.",
)
HUNGRY = replace(
    RUN,
    network="All-reduce: 41 Gbit/s, latency 35 µs; the preset expects 20 Gbit/s",
    latest={"data_wait_fraction": (9, 0.2), "rank/1/data_wait_fraction": (9, 0.639), "loss": (9, 0.5)},
)
VIEWS = [
    MUCH,
    HUNGRY,
    *(
        replace(HUNGRY, latest={"data_wait_fraction": (1, share)})
        for share in (0.5, 0.57, 1.0, 1.5, math.nan)
    ),
    replace(HUNGRY, status=Status.FINISHED),
    replace(RUN, dropped_points=3),
    replace(RUN, status=Status.KILLED, phase="delivering", tracker_message="It said no."),
    *(replace(RUN, status=status) for status in Status),
    *(replace(AGAIN, status=status) for status in Status),
    *(replace(AGAIN, status=status, checkpoint=None) for status in Status),
    *(replace(AGAIN, status=status, previous="", message="Why it is so.") for status in Status),
    *(replace(AGAIN, status=status, reason="suspended by ann") for status in Status),
    *(replace(RUN, status=status, reason="suspended by ann") for status in Status),
    replace(AGAIN, status=Status.FINISHED, history=()),
    *(replace(RUN, status=status, message="Why it is so.\nMore.") for status in Status),
    *(replace(RUN, status=status, reason="a reason") for status in Status),
    *(replace(RUN, status=Status.FAILED, failure=failure) for failure in FAILURES),
    *(replace(RUN, status=Status.WAITING, position=place) for place in (1, 2, 5)),
    replace(RUN, status=Status.UNKNOWN, phase="Odd"),
    replace(
        RUN, latest={"throughput_steps_per_second": (3, 9.5), "val_loss": (7, 0.08395123), "acc": (2, 0.5)}
    ),
    replace(RUN, latest={"step_time_seconds": (3, 0.2)}),
    replace(RUN, latest={"loss": (3, math.nan)}),
    replace(
        RUN, status=Status.FINISHED, models=(ModelVersionView(name="m", version="3", run_id=RUN.run_id),)
    ),
]
SECONDS = [-1.0, 0.31, 9.96, 12.4, 59.6, 60.0, 192.0, 3599.7, 3725.0, 90_000.0]
BYTES = [0, 1023, 1024, 123_456, 412 * 1024**2, int(61.3 * 1024**3)]
NUMBERS = [40, 0, -3, 0.08395123, 1.5, "NaN", "Infinity", "-Infinity", 999_999]
AGO = [0, 1.9, 5, 61, 3599, 90_000, 3 * 86_400]
KEYS = [
    "step_time_seconds",
    "val_loss",
    "data_wait_fraction",
    "acc",
    "system/cpu",
    "peak_gpu_memory_bytes",
    "a_loss",
]


@pytest.fixture(scope="module")
def views(answered: Callable[..., Any]) -> dict[str, list[str]]:
    """What TypeScript says."""
    given = {
        "views": [exact(to_dict(view)) for view in VIEWS],
        "statuses": [str(status) for status in Status],
    }
    figures = {"seconds": SECONDS, "bytes": BYTES, "numbers": NUMBERS, "ago": AGO, "keys": KEYS}
    return dict(answered("words.ts", given | figures))


def test_sentences_of_runs(views: dict[str, list[str]]) -> None:
    assert views["views"] == [sentence(view) for view in VIEWS]


def test_remarks_on_runs(views: dict[str, list[Any]]) -> None:
    assert views["remarks"] == [remarks(view) for view in VIEWS]
    assert remarks(MUCH) == [
        "The disk was full",
        "Still delivering logs and outputs",
        "5 logged points were thinned out: the spool was full",
        "4 logged points of names beyond the first 1 are not shown",
        "2 logged points are not shown: their name is too long",
        "1 logged points could not be understood",
        "MLflow does not take this run, and is asked again: It said no",
    ]


def test_remarks_on_what_a_gang_waits_for() -> None:
    network = "All-reduce: 41 Gbit/s, latency 35 µs; the preset expects 20 Gbit/s"
    assert remarks(HUNGRY) == [
        network,
        "Waits for data 63 % of the time: more DataLoader workers or a faster store help more than GPUs",
    ]
    assert remarks(replace(HUNGRY, status=Status.FINISHED)) == [network]
    assert remarks(replace(RUN, latest={"data_wait_fraction": (1, 0.5)})) == []


def test_one_function_of_each_language_words_a_place() -> None:
    """Whoever counts a cell on its own sooner or later counts it from 0."""
    words = re.compile(r"""["`'][^"`'\n]*\b[Cc]ells? (\{|%\d|\$\{)""")
    sources = [
        path for place in SOURCES for kind in ("*.py", "*.ts") for path in sorted((ROOT / place).rglob(kind))
    ]
    found = {
        path.name
        for path in sources
        if "node_modules" not in path.parts and words.search(path.read_text("utf-8"))
    }
    assert found == {"models.py", "sentences.ts"}


def test_words_of_a_status(views: dict[str, list[str]]) -> None:
    assert views["statuses"] == [state_word(status) for status in Status]
    assert views["suspended"] == [state_word(status, "suspended by ann") for status in Status]


def test_figures(views: dict[str, list[str]]) -> None:
    assert views["seconds"] == [duration(seconds) for seconds in SECONDS]
    assert views["bytes"] == [size_text(count) for count in BYTES]
    assert views["numbers"] == [number(value) for value in NUMBERS]
    assert views["ago"] == [ago(1000.0, now=1000.0 + passed) for passed in AGO]


def test_the_users_own_metrics_come_first_and_alone(views: dict[str, list[str]]) -> None:
    assert views["keys"] == user_metrics(KEYS)
