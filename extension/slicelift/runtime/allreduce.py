"""What each rank of a check of the network runs: `python -P -m slicelift.runtime.allreduce`, below torchrun.

5 rounds to warm up and 10 that are timed, on NCCL where every rank has a GPU of its own, else on gloo. The first rank
of each worker leaves the measure in check.json, rank 0 in the run's tags, too.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from slicelift.models import to_dict
from slicelift.runtime import sink
from slicelift.runtime.folder import write_json
from slicelift.runtime.network import FILE, TAG, Measure, Wish, is_slow, remark, slowest_worker, wish_in
from slicelift.runtime.world import world

WARM_UP, TIMED = 5, 10
# for the others to have loaded torch, and for one round on a network that is not broken
_PATIENCE = timedelta(seconds=300)
# of the message that tells slow links from others
_LINK_BYTES = 8 * 2**20


def main() -> int:
    """Measure, and leave the result; the exit code."""
    wish, here = wish_in(os.environ), world()
    if wish is None or here.attempt_folder is None:
        sys.stderr.write("allreduce: started by the gang's process only.\n")
        return 2
    place = here.attempt_folder / FILE
    try:
        found = measure(wish)
    except Exception as error:
        _leave(place, {"error": f"rank {here.rank}: {type(error).__name__}: {error}"[:1000]})
        raise
    if os.environ.get("LOCAL_RANK") == "0":
        _leave(place, to_dict(found))
    if here.rank == 0:
        sink.note("tag", p={TAG: remark(found, wish)})
    return 0


def measure(wish: Wish) -> Measure:
    """The same on all ranks, who call it together. Raises what torch raises."""
    ring = Ring()
    try:
        # a whole number of floats, and at least one
        count = max(1, wish.size_bytes // 4)
        seconds = ring.slowest(ring.reduce_seconds(count))
        latency = ring.slowest(ring.reduce_seconds(2))
        found = Measure(ranks=ring.size, size_bytes=count * 4, seconds=seconds, latency_seconds=latency)
        if not is_slow(found, wish):
            return found
        links = ring.link_seconds(min(_LINK_BYTES, wish.size_bytes) // 4)
        return Measure(**{**vars(found), "slowest": slowest_worker(links)})
    finally:
        ring.close()


class Ring:
    """All ranks of the gang; of each worker the first rank speaks for its links."""

    def __init__(self) -> None:
        # torch is the user's and has no types here
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        local, per_worker = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        gpus = self._torch.cuda.device_count() if self._torch.cuda.is_available() else 0
        self._cuda = gpus >= per_worker
        self._device = "cpu"
        if self._cuda:
            self._device = f"cuda:{local * (gpus // per_worker)}"
            self._torch.cuda.set_device(self._device)
        self._dist.init_process_group("nccl" if self._cuda else "gloo", timeout=_PATIENCE)
        self.rank, self.size = self._dist.get_rank(), self._dist.get_world_size()
        self._heads = list(range(0, self.size, per_worker))

    def reduce_seconds(self, count: int) -> float:
        """Of one all-reduce of so many floats, here."""
        values = self._values(count)
        return self._seconds(lambda: self._dist.all_reduce(values))

    def slowest(self, seconds: float) -> float:
        """The largest of all ranks' values."""
        # float32 would do for times, but not tell two of them apart
        value = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(value, op=self._dist.ReduceOp.MAX)
        return float(value.item())

    def link_seconds(self, count: int) -> list[float]:
        """Of one message of so many floats from each worker to the next, one pair at a time; where there are three or more."""
        if len(self._heads) < 3:
            return []
        values = self._values(max(1, count))
        return [
            self.slowest(self._send(values, source=head, target=self._heads[(place + 1) % len(self._heads)]))
            for place, head in enumerate(self._heads)
        ]

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    def _send(self, values: Any, *, source: int, target: int) -> float:
        """Seconds at the receiver, 0 at all others. The first message opens the connection."""
        if self.rank == source:
            for _ in range(2):
                self._dist.send(values, dst=target)
            self._settle()
        if self.rank != target:
            return 0.0
        self._dist.recv(values, src=source)
        self._settle()
        begun = time.perf_counter()
        self._dist.recv(values, src=source)
        self._settle()
        return time.perf_counter() - begun

    def _seconds(self, act: Callable[[], object]) -> float:
        for _ in range(WARM_UP):
            act()
        self._settle()
        begun = time.perf_counter()
        for _ in range(TIMED):
            act()
        self._settle()
        return (time.perf_counter() - begun) / TIMED

    def _settle(self) -> None:
        """What was asked of a GPU is done only then."""
        if self._cuda:
            self._torch.cuda.synchronize()

    def _values(self, count: int) -> Any:
        # of zeros the sum stays finite, however often
        return self._torch.zeros(count, dtype=self._torch.float32, device=self._device)


def _leave(place: Path, found: dict[str, Any]) -> None:
    """The first word of a node counts: an error is most often followed by those of the ranks that it ended."""
    if not place.exists():
        write_json(place, found)


if __name__ == "__main__":
    sys.exit(main())
