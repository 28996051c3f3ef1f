"""How torchrun is told of the other nodes."""

from __future__ import annotations

from typing import Any

import pytest
from slicelift.models import JobSpec
from slicelift.runtime.gang import _parser
from slicelift.runtime.nodes import Place, place_of_request

SPEC = JobSpec(
    name="job", snapshot_id="s", notebook="n.ipynb", script="p.py", cwd=".", python="python", workers=3
)
REQUEST: dict[str, Any] = {
    "attempt_id": "r-abc-2",
    "nodes": 3,
    "min_nodes": 3,
    "nproc": 8,
    "master": "r-abc-1-worker-0.r-abc-1",
    "master_port": 29500,
    "node": 2,
    "rendezvous": "r-abc-1",
    "address": "10.0.0.7",
}


def test_one_machine_has_all_workers_as_ranks() -> None:
    place = place_of_request({"attempt_id": "r-abc-1"}, SPEC)
    assert place == Place(nproc=3)
    assert place.options() == ["--nproc", "3"]
    assert "--standalone" in place.torchrun_options()


def test_a_fixed_gang_meets_at_node_0_in_a_fixed_order() -> None:
    place = place_of_request(REQUEST, SPEC)
    assert (place.first_rank, place.elastic) == (16, False)
    assert place.torchrun_options() == [
        "--nnodes=3",
        "--node-rank=2",
        "--master-addr=r-abc-1-worker-0.r-abc-1",
        "--master-port=29500",
        "--rdzv-conf=timeout=3600",
        "--max-restarts=0",
    ]


@pytest.mark.parametrize(("node", "host"), [(0, 1), (2, 0)])
def test_an_elastic_gang_has_its_store_on_node_0(node: int, host: int) -> None:
    place = place_of_request(REQUEST | {"min_nodes": 1, "node": node}, SPEC)
    assert place.torchrun_options() == [
        "--nnodes=1:3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=r-abc-1-worker-0.r-abc-1:29500",
        "--rdzv-id=r-abc-1",
        f"--rdzv-conf=is_host={host},join_timeout=3600",
        "--max-restarts=3",
        "--local-addr=10.0.0.7",
    ]


@pytest.mark.parametrize("changes", [{}, {"min_nodes": 1}, {"nodes": 1, "min_nodes": 1, "node": 0}])
def test_the_gangs_process_gets_the_same_place(changes: dict[str, Any]) -> None:
    place = place_of_request(REQUEST | changes, SPEC)
    told = vars(_parser().parse_args([*place.options(), "script.py", "--lr", "1"]))
    assert Place(**{name: told[name] for name in vars(place)}) == place
    assert (told["script"], told["arguments"]) == ("script.py", ["--lr", "1"])
