"""The log of one rank: by offset, and in parts where several agents write it one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from slicelift.errors import Conflict, UserError
from slicelift.models import JobSpec, Status
from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.logs import Logs
from slicelift_hub.launcher.store import Store

SPEC = JobSpec(name="job", snapshot_id="s", notebook="n.ipynb", script="p.py", cwd=".", python="python3")
ATTEMPT = AttemptRow(
    attempt_id="r-abc-1",
    run_id="r-abc",
    promotion_id="p-1",
    attempt=1,
    owner="ann",
    status=Status.RUNNING,
    spec=SPEC,
    submission="r-abc-1",
)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(Store(tmp_path, snapshot_limit_bytes=1))


@pytest.fixture
def read(logs: Logs) -> Callable[..., bytes]:
    def of(rank: str = "0", offset: int = 0, limit: int = 1000) -> bytes:
        data, following = logs.read("ann", "r-abc", attempt=1, rank=rank, offset=offset, limit=limit)
        assert following == (offset + len(data) if offset >= 0 else following)
        return data

    return of


def test_each_agent_counts_for_itself_and_the_log_is_all_of_it(
    logs: Logs, read: Callable[..., bytes]
) -> None:
    assert logs.append(ATTEMPT, "0", offset=0, data=b"one ", source="aa") == 4
    assert logs.append(ATTEMPT, "0", offset=0, data=b"two ", source="bb") == 4
    # sent again, and more
    assert logs.append(ATTEMPT, "0", offset=0, data=b"two three", source="bb") == 9
    assert read() == b"one two three"
    assert (read(offset=2, limit=4), read(offset=-5), read(offset=99)) == (b"e tw", b"three", b"")
    with pytest.raises(Conflict) as gap:
        logs.append(ATTEMPT, "0", offset=5, data=b"x", source="aa")
    assert gap.value.detail == {"next": 4}


def test_a_rank_is_not_another_one_whose_number_begins_alike(logs: Logs, read: Callable[..., bytes]) -> None:
    for rank in ("1", "10", "agent", "agent-1", "agent-10"):
        logs.append(ATTEMPT, rank, offset=0, data=rank.encode())
        logs.append(ATTEMPT, rank, offset=0, data=b"+", source="cc")
        assert read(rank) == f"{rank}+".encode()
    assert logs.ranks("ann", "r-abc", attempt=1) == ["1", "10", "agent", "agent-1", "agent-10"]


@pytest.mark.parametrize("rank", ["", "x", "-1", "agent-", "agent-x", "1/../2", "1.0000.aa", "*", "١"])
def test_what_is_no_rank_names_no_file(logs: Logs, rank: str) -> None:
    with pytest.raises(UserError):
        logs.append(ATTEMPT, rank, offset=0, data=b"x")


@pytest.mark.parametrize("source", ["..", "a/b", "A", "*", "x" * 33])
def test_what_is_no_source_names_no_file(logs: Logs, source: str) -> None:
    with pytest.raises(UserError):
        logs.append(ATTEMPT, "0", offset=0, data=b"x", source=source)


def test_a_job_that_makes_up_sources_gets_no_further(logs: Logs) -> None:
    for number in range(200):
        logs.append(ATTEMPT, "0", offset=0, data=b"x", source=f"s{number}")
    with pytest.raises(UserError):
        logs.append(ATTEMPT, "0", offset=0, data=b"x", source="one-more".replace("-", ""))
    assert logs.append(ATTEMPT, "0", offset=1, data=b"y", source="s7") == 2
