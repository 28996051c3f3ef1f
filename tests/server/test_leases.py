"""Slots and slices: all or nothing, first in first out, also between processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicelift_hub.database import open_database
from slicelift_hub.leases import Leases, make_inventory

WORKER = """
import sys, time
from pathlib import Path
from slicelift_hub.database import open_database
from slicelift_hub.leases import Leases
leases = Leases(open_database(sys.argv[1] if ":" in sys.argv[1] else Path(sys.argv[1])))
name, log = sys.argv[2], Path(sys.argv[3])
for round in range(15):
    holder = f"{name}-{round}"
    while not (held := leases.request(holder, {"slots": 2})):
        time.sleep(0.005)
    with log.open("a") as file:
        file.write(f"take {' '.join(item.item for item in held)}\\n")
    time.sleep(0.002)
    with log.open("a") as file:
        file.write(f"give {' '.join(item.item for item in held)}\\n")
    leases.release(holder)
"""


@pytest.fixture
def place(tmp_path: Path, database: Callable[[Path], Path | str]) -> Path | str:
    """Where the leases are."""
    return database(tmp_path / "ledger.db")


@pytest.fixture
def leases(place: Path | str) -> Iterator[Leases]:
    engine = open_database(place)
    made = Leases(engine)
    slices = [{"name": "1g.10gb"}, {"name": "1g.10gb", "uuid": "MIG-1"}]
    made.declare(make_inventory(slots=4, gpus=2, slices=slices))
    yield made
    engine.dispose()


def test_all_or_nothing_and_nobody_overtakes(leases: Leases) -> None:
    assert [item.item for item in leases.request("a", {"slots": 3})] == [
        "slot-00000",
        "slot-00001",
        "slot-00002",
    ]
    assert leases.request("b", {"slots": 2}) == []
    assert leases.request("c", {"slots": 1}) == []
    assert (leases.position("b"), leases.position("c"), leases.position("a")) == (1, 2, None)
    leases.release("a")
    assert len(leases.request("b", {"slots": 2})) == 2
    assert len(leases.request("c", {"slots": 1})) == 1


def test_other_pools_do_not_wait_but_shared_ones_do(leases: Leases) -> None:
    leases.request("a", {"slots": 4})
    assert leases.request("gang", {"slots": 2, "gpus": 2}) == []
    assert leases.request("gpu", {"gpus": 1}) == []
    (piece,) = leases.request("notebook", {"1g.10gb": 1})
    assert piece.pool == "1g.10gb"
    assert leases.position("gpu") == 2
    leases.release("gang")
    assert [item.uuid for item in leases.request("gpu", {"gpus": 1})] == ["0"]


def test_asking_again_and_giving_back_again_change_nothing(leases: Leases) -> None:
    first = leases.request("a", {"slots": 2})
    assert leases.request("a", {"slots": 2}) == first
    leases.release("a")
    leases.release("a")
    leases.release("nobody")
    assert leases.capacity()["slots"].free == 4


def test_capacity_tells_what_is_simulated(leases: Leases) -> None:
    pools = leases.capacity()
    assert (pools["1g.10gb"].total, pools["1g.10gb"].simulated) == (2, True)
    assert (pools["gpus"].total, pools["slots"].simulated) == (2, False)


def test_a_machine_that_shrinks_keeps_what_is_held_until_it_is_given_back(leases: Leases) -> None:
    leases.request("a", {"slots": 4})
    leases.declare(make_inventory(slots=2, gpus=0, slices=[]))
    assert (leases.capacity()["slots"].total, leases.capacity()["slots"].free) == (2, 0)
    leases.release("a")
    assert (leases.capacity()["slots"].total, leases.capacity()["slots"].free) == (2, 2)
    assert set(leases.capacity()) == {"slots"}
    leases.declare(make_inventory(slots=5, gpus=0, slices=[]))
    assert leases.capacity()["slots"].free == 5


def test_three_processes_never_hold_one_item_twice(leases: Leases, place: Path | str, tmp_path: Path) -> None:
    """About 2 s: 45 leases of 2 of 4 slots."""
    command = [sys.executable, "-c", WORKER, str(place)]
    workers = [subprocess.Popen([*command, name, str(tmp_path / "log")]) for name in ("x", "y", "z")]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    held: set[str] = set()
    for line in (tmp_path / "log").read_text().splitlines():
        word, *items = line.split()
        assert len(items) == 2
        if word == "take":
            assert not held & set(items)
            held |= set(items)
        else:
            held -= set(items)
    assert leases.capacity()["slots"].free == 4
