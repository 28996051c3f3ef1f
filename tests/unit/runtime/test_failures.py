"""Which of several failed ranks failed first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slicelift.runtime.failures import Exit, collect, describe
from slicelift.runtime.world import World

T = 1_764_469_000.0
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6011"


@pytest.mark.parametrize(
    ("name", "exits", "errors", "order"),
    [
        (
            "an error before its victim's",
            [(0, 1, 10.5), (1, 1, 10.4)],
            {0: (10.2, LOST), 1: (10.1, "bad")},
            [1, 0],
        ),
        ("a kill before its victim's error", [(0, 1, 10.3), (1, -9, 10.1)], {0: (10.2, LOST)}, [1, 0]),
        ("a kill that is seen late", [(0, 1, 10.3), (1, -9, 10.4)], {0: (10.2, LOST)}, [1, 0]),
        ("an error, then a kill", [(0, 1, 10.3), (1, -9, 14.0)], {0: (10.2, "bad")}, [0, 1]),
        ("a rank ended while it was starting", [(0, -15, 10.1), (1, -9, 10.3)], {}, [1, 0]),
        ("a victim alone is the failure", [(0, 1, 10.3)], {0: (10.2, LOST)}, [0]),
        ("a rank that ended well is none", [(0, 0, 10.3), (1, 3, 10.4)], {}, [1]),
    ],
)
def test_order(
    tmp_path: Path,
    name: str,
    exits: list[tuple[int, int, float]],
    errors: dict[int, tuple[float, str]],
    order: list[int],
) -> None:
    for rank, (seconds, text) in errors.items():
        found = {"rank": rank, "time": T + seconds, "exception": "RuntimeError", "text": text}
        (tmp_path / "errors").mkdir(exist_ok=True)
        (tmp_path / "errors" / f"{rank}.json").write_text(json.dumps(found))
    ends = [Exit(rank=rank, exit_code=code, time=T + seconds) for rank, code, seconds in exits]
    assert [failure["rank"] for failure in collect(tmp_path, ends)] == order, name


def test_ranks_that_we_ended_come_last(tmp_path: Path) -> None:
    ends = [
        Exit(rank=0, exit_code=-15, time=T, ended_by_us=True),
        Exit(rank=1, exit_code=-11, time=T + 1),
    ]
    first, second = collect(tmp_path, ends)
    assert first == {
        "rank": 1,
        "exit_code": -11,
        "exception": "",
        "message": "was ended by SIGSEGV",
        "time": T + 1,
        "echo": False,
        "error": None,
    }
    assert (second["rank"], second["echo"]) == (0, True)


def test_a_huge_message_is_cut_in_the_middle() -> None:
    error = ValueError("a" * 50_000 + "end")
    found = describe(error, World(rank=0, gang_rank=0, size=1, attempt=1, attempt_folder=None))
    assert len(found["text"]) < 5_000
    assert found["text"].endswith("end")
    assert "characters cut" in found["text"]
