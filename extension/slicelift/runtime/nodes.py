"""Which part of a gang runs here: how many nodes it has, which of them this is, and how torchrun joins them.

A node is one worker with one agent: a pod, or this machine, which is the only one then. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slicelift.models import JobSpec

MASTER_PORT = 29500
# a node may still fetch its image and data when another one is ready
_JOIN_SECONDS = 3600
# how often an elastic node starts its ranks again, each time for a lost peer, before its whole pod is made anew
_ELASTIC_RESTARTS = 3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Node `node` of `nodes`, with `nproc` ranks. With fewer `min_nodes` the gang goes on without some of them.

    `master` is where node 0 is found, `rendezvous` names the gang among others there, `address` is our own.
    """

    node: int = 0
    nodes: int = 1
    min_nodes: int = 1
    nproc: int = 1
    master: str = "127.0.0.1"
    master_port: int = MASTER_PORT
    rendezvous: str = ""
    address: str = ""

    @property
    def alone(self) -> bool:
        """True when all ranks of the gang are here."""
        return self.nodes == 1

    @property
    def elastic(self) -> bool:
        """True when the gang may go on with fewer nodes. Ranks are then not tied to nodes."""
        return self.min_nodes < self.nodes

    @property
    def first_rank(self) -> int:
        """The lowest of this node's ranks, unless the gang is elastic."""
        return self.node * self.nproc

    def options(self) -> list[str]:
        """As options of `slicelift.runtime.gang`; what is as on one machine is left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = Place()
        told = [name for name, value in given.items() if value != getattr(plain, name) or name == "nproc"]
        return [word for name in told for word in (f"--{name.replace('_', '-')}", str(given[name]))]

    def torchrun_options(self) -> list[str]:
        """How torchrun finds the other nodes."""
        if self.alone:
            # its store takes a free port by itself; ranks must not look for the host's name, which need not resolve
            return ["--standalone", "--local-addr=127.0.0.1", "--nnodes=1", "--max-restarts=0"]
        return self._elastic_options() if self.elastic else self._fixed_options()

    def _fixed_options(self) -> list[str]:
        return [
            f"--nnodes={self.nodes}",
            f"--node-rank={self.node}",
            f"--master-addr={self.master}",
            f"--master-port={self.master_port}",
            f"--rdzv-conf=timeout={_JOIN_SECONDS}",
            "--max-restarts=0",
        ]

    def _elastic_options(self) -> list[str]:
        # who holds the store must not depend on whether names resolve already
        conf = f"is_host={int(self.node == 0)},join_timeout={_JOIN_SECONDS}"
        return [
            f"--nnodes={self.min_nodes}:{self.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.master}:{self.master_port}",
            f"--rdzv-id={self.rendezvous}",
            f"--rdzv-conf={conf}",
            f"--max-restarts={_ELASTIC_RESTARTS}",
            # a node is known by address, pid and number: in a new pod only the address is another
            *([f"--local-addr={self.address}"] if self.address else []),
        ]


def place_of_request(request: Mapping[str, Any], spec: JobSpec) -> Place:
    """The place that agent.json tells of; without a word about nodes all workers are ranks of this machine."""
    if "nodes" not in request:
        return Place(nproc=spec.workers)
    words = {
        field.name: request[field.name] for field in fields(Place) if request.get(field.name) is not None
    }
    return Place(**words)
