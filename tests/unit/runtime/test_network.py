"""What a check of the network says: figures, sentences, and whether training begins. No torch: the ranks are played."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import JobSpec, Status, to_dict
from slicelift.runtime import checking, network
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.launch import gang_variables
from slicelift.runtime.network import Measure, Wish
from slicelift.runtime.nodes import Place
from slicelift.runtime.pod import AGAIN, exit_code_of
from slicelift.runtime.verdict import judge

ASKED = {"all_reduce": {"bytes": 1000, "least_gbit": 20, "on_slow": "fail"}}
# 2 (n - 1) / n of 64 MiB in 10 ms between four: 1.5 times 53.7 Gbit/s
FOUR = Measure(ranks=4, size_bytes=64 * 2**20, seconds=0.01, latency_seconds=35e-6)
SLOW = Measure(ranks=2, size_bytes=10**9, seconds=2.0, latency_seconds=0.00123)
SPEC = JobSpec(
    name="job", snapshot_id="s", notebook="n.ipynb", script="p.py", cwd=".", python="python", workers=2
)
PLACE = Place(node=1, nodes=2, min_nodes=2, master="first", rendezvous="r-a-1")


def test_bandwidth_is_that_of_nccl_tests() -> None:
    assert network.bus_gbit(10**9, ranks=2, seconds=1.0) == pytest.approx(8.0)
    assert network.bus_gbit(10**9, ranks=4, seconds=1.0) == pytest.approx(12.0)
    assert network.bus_gbit(10**9, ranks=4, seconds=0.0) == math.inf
    assert pytest.approx(80.53, abs=0.01) == FOUR.gbit


@pytest.mark.parametrize(
    ("measure", "wish", "said"),
    [
        (FOUR, Wish(), "All-reduce: 81 Gbit/s, latency 35 µs"),
        (FOUR, Wish(least_gbit=20), "All-reduce: 81 Gbit/s, latency 35 µs; the preset expects 20 Gbit/s"),
        (
            SLOW,
            Wish(least_gbit=5.5),
            "Slow network: all-reduce 4 Gbit/s, latency 1230 µs; the preset expects 5.5 Gbit/s",
        ),
        (
            Measure(**{**vars(SLOW), "slowest": 3}),
            Wish(least_gbit=100),
            "Slow network: all-reduce 4 Gbit/s, latency 1230 µs; the preset expects 100 Gbit/s; worker 3 is the slowest",
        ),
    ],
)
def test_the_sentence_of_the_card(measure: Measure, wish: Wish, said: str) -> None:
    assert network.remark(measure, wish) == said


@pytest.mark.parametrize(
    ("links", "worker"),
    [
        # to and from worker 2
        ([1.0, 5.0, 4.0, 1.1], 2),
        ([4.0, 1.0, 1.0, 5.0], 0),
        ([5.0, 4.0, 1.0], 1),
        # one bad cable is no bad worker, and so is a network that is slow everywhere
        ([1.0, 5.0, 1.0, 1.0], None),
        ([3.0, 3.1, 3.2, 3.0], None),
        # of two all have the same links
        ([9.0, 1.0], None),
        ([], None),
    ],
)
def test_the_slowest_worker_is_named_when_its_two_links_stand_out(
    links: list[float], worker: int | None
) -> None:
    assert network.slowest_worker(links) == worker


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        (json.dumps(ASKED), Wish(size_bytes=1000, least_gbit=20, on_slow="fail")),
        ('{"all_reduce": {}}', Wish()),
        ("{}", None),
        ("null", None),
        ("[1]", None),
        ("half a wi", None),
    ],
)
def test_a_wish_is_read_from_the_environment(text: str, wish: Wish | None) -> None:
    assert network.wish_in({network.VARIABLE: text}) == wish
    assert network.wish_in({}) is None


def test_the_wish_reaches_the_gang_and_only_where_there_is_one(tmp_path: Path) -> None:
    ids = {"attempt_id": "r-a-1", "run_id": "r-a", "promotion_id": "p-a", "checkpoints": "/c"}

    def variables(**more: Any) -> dict[str, str]:
        return gang_variables(SPEC, ids | more, folder=AttemptFolder(tmp_path), tracking_uri="")

    assert json.loads(variables(check=ASKED)[network.VARIABLE]) == ASKED
    assert network.VARIABLE not in variables()


class Played:
    """In place of torchrun: what it is started with, and what the ranks leave."""

    def __init__(self, folder: Path, left: dict[str, Any] | None, code: int = 0) -> None:
        self.folder, self.left, self.code = folder, left, code
        self.started: list[tuple[list[str], dict[str, str]]] = []

    def __call__(self, command: list[str], environment: dict[str, str]) -> int:
        self.started.append((command, environment))
        assert not checking.is_over(self.folder)
        if self.left is not None:
            (self.folder / network.FILE).write_text(json.dumps(self.left))
        return self.code


Check = Callable[..., tuple[dict[str, Any] | None, Played]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks with ranks that leave `left`; the row of gang.json and what was started."""

    def checked(
        left: dict[str, Any] | None, *, on_slow: str = "fail", place: Place = PLACE, code: int = 0
    ) -> tuple[dict[str, Any] | None, Played]:
        asked = {"all_reduce": {"least_gbit": 20, "on_slow": on_slow}}
        environment = {network.VARIABLE: json.dumps(asked), "HOME": "/h"}
        run = Played(tmp_path, left, code)
        row = checking.check(tmp_path, place, environment=environment, run=run)
        assert environment == {"HOME": "/h"}
        return row, run

    return checked


def test_a_check_has_a_torchrun_of_its_own_at_its_own_port(check: Check, tmp_path: Path) -> None:
    row, run = check(to_dict(FOUR))
    assert row is None
    ((command, environment),) = run.started
    assert "--master-port=29501" in command
    assert "--node-rank=1" in command
    assert "--nproc-per-node=1" in command
    assert command[1:4] == ["-P", "-m", "torch.distributed.run"]
    assert command[-2:] == ["-m", "slicelift.runtime.allreduce"]
    assert network.wish_in(environment) == Wish(least_gbit=20, on_slow="fail")
    assert checking.is_over(tmp_path)


def test_a_slow_network_fails_the_attempt_so_that_the_gang_is_started_again(
    check: Check, tmp_path: Path
) -> None:
    row, _ = check(to_dict(SLOW))
    assert row is not None
    folder = AttemptFolder(tmp_path)
    folder.gang.write_text(json.dumps({"exit_code": 1, "failures": [row]}))
    verdict = judge(folder, SPEC, 1)
    assert (verdict.status, verdict.exit_code, verdict.reason) == (Status.FAILED, 1, "network-slow")
    assert verdict.message == (
        "The network between the workers is too slow: all-reduce reaches 4 Gbit/s, and the preset expects 20 Gbit/s."
    )
    assert not verdict.echo
    assert exit_code_of(to_dict(verdict) | {"logged": False}) == AGAIN


def test_a_preset_may_only_warn(check: Check) -> None:
    assert check(to_dict(SLOW), on_slow="warn")[0] is None


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"error": "rank 1: RuntimeError: connection reset"}, "rank 1: RuntimeError: connection reset"),
        (None, "torchrun ended with exit code 1"),
        ({"ranks": 2}, "torchrun ended with exit code 1"),
    ],
)
def test_a_check_that_did_not_work(
    check: Check, capsys: pytest.CaptureFixture[str], tmp_path: Path, left: dict[str, Any] | None, words: str
) -> None:
    row, _ = check(left, code=1)
    assert row is not None
    assert row["reason"] == "network-check-failed"
    assert row["message"].endswith(f"could not be checked: {words}")
    checking.begin(tmp_path)
    # training may still work, and says what does not
    assert check(left, code=1, on_slow="warn")[0] is None
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "place", [Place(nodes=2, min_nodes=1, nproc=1), Place(nproc=1)], ids=["elastic", "one rank"]
)
def test_who_has_nobody_to_check_with_does_not(check: Check, tmp_path: Path, place: Place) -> None:
    row, run = check(None, place=place)
    assert (row, run.started) == (None, [])
    assert not checking.is_asked({"check": ASKED}, Place(nodes=2, min_nodes=1))
    assert checking.is_asked({"check": ASKED}, PLACE)
    assert not checking.is_asked({}, PLACE)


def test_a_container_that_starts_again_in_its_place_checks_anew(tmp_path: Path) -> None:
    (tmp_path / network.FILE).write_text("{}")
    checking.begin(tmp_path)
    assert not checking.is_over(tmp_path)
    checking.begin(tmp_path)
