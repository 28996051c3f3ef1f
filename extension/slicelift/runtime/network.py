"""What a check of the network between a gang's workers measures, and how that reads. Pure; standard library.

Bandwidth is the bus bandwidth of nccl-tests (doc/PERFORMANCE.md): of an all-reduce of S bytes over n ranks in t seconds,
S / t * 2 (n - 1) / n. It does not depend on n, so one expectation holds for gangs of all sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# the wish as JSON, in the environment of the gang's process and of the check's ranks
VARIABLE = "SLICELIFT_CHECK"
# in the attempt's folder of each node: the measure, or why there is none; there once the check is over
FILE = "check.json"
# the run's tag that tells of it; MLflow gets it, too
TAG = "network.all_reduce"
FAIL = "fail"
SLOW, BROKEN = "network-slow", "network-check-failed"
_BYTES = 64 * 2**20
# who takes this many times as long as the next slowest is named
_CLEARLY = 1.5


@dataclass(frozen=True, kw_only=True)
class Wish:
    """`check` of a preset. Without `least_gbit` it is measured and told; `on_slow` is "warn" or "fail"."""

    size_bytes: int = _BYTES
    least_gbit: float | None = None
    on_slow: str = "warn"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """`seconds` is what one all-reduce of `size_bytes` took, `latency_seconds` one of 8 bytes, both on the slowest rank.

    `slowest` is a worker whose links are slower than all others', where one stands out.
    """

    ranks: int
    size_bytes: int
    seconds: float
    latency_seconds: float
    slowest: int | None = None

    @property
    def gbit(self) -> float:
        """Bus bandwidth in Gbit/s."""
        return bus_gbit(self.size_bytes, ranks=self.ranks, seconds=self.seconds)


def wish_of(asked: Mapping[str, Any]) -> Wish | None:
    """From `check` of a preset, as the schema of presets has it; None when it asks for nothing."""
    words = asked.get("all_reduce")
    if not isinstance(words, Mapping):
        return None
    plain = Wish()
    return Wish(
        size_bytes=int(words.get("bytes", plain.size_bytes)),
        least_gbit=words.get("least_gbit"),
        on_slow=str(words.get("on_slow", plain.on_slow)),
    )


def wish_in(environment: Mapping[str, str]) -> Wish | None:
    """From the variable; None without it, and for what is no wish."""
    try:
        found = json.loads(environment.get(VARIABLE, "null"))
    except ValueError:
        return None
    return wish_of(found) if isinstance(found, dict) else None


def bus_gbit(size_bytes: int, *, ranks: int, seconds: float) -> float:
    """Bus bandwidth in Gbit/s (see the module); infinite for a time too short to be measured."""
    if seconds <= 0:
        return math.inf
    return size_bytes / seconds * 2 * (ranks - 1) / ranks * 8 / 1e9


def is_slow(measure: Measure, wish: Wish) -> bool:
    """Whether the network is slower than the preset expects."""
    return wish.least_gbit is not None and measure.gbit < wish.least_gbit


def slowest_worker(links: Sequence[float]) -> int | None:
    """The worker whose two links are both slow, clearly more than anybody else's; None when nobody stands out.

    `links[k]` is what a message from worker k to the next one took, around the ring. Of fewer than three workers all have
    the same links.
    """
    if len(links) < 3:
        return None
    both = [min(links[worker - 1], links[worker]) for worker in range(len(links))]
    *_, second, worst = sorted(both)
    return both.index(worst) if worst > _CLEARLY * second else None


def remark(measure: Measure, wish: Wish) -> str:
    """The sentence of the card, without a full stop."""
    reached, latency, wanted = _figure(measure.gbit), _latency(measure), _figure(wish.least_gbit or 0)
    if wish.least_gbit is None:
        message = f"All-reduce: {reached} Gbit/s, latency {latency}"
    elif not is_slow(measure, wish):
        message = f"All-reduce: {reached} Gbit/s, latency {latency}; the preset expects {wanted} Gbit/s"
    elif measure.slowest is None:
        message = f"Slow network: all-reduce {reached} Gbit/s, latency {latency}; the preset expects {wanted} Gbit/s"
    else:
        message = (
            f"Slow network: all-reduce {reached} Gbit/s, latency {latency}; the preset expects {wanted} Gbit/s; worker "
            f"{measure.slowest} is the slowest"
        )
    return message


def refusal(measure: Measure, wish: Wish) -> str:
    """Why training does not begin on a slow network."""
    reached, wanted = _figure(measure.gbit), _figure(wish.least_gbit or 0)
    message = (
        f"The network between the workers is too slow: all-reduce reaches {reached} Gbit/s, and the preset expects "
        f"{wanted} Gbit/s."
    )
    if measure.slowest is None:
        return message
    hint = f"Worker {measure.slowest} is the slowest."
    return f"{message} {hint}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _latency(measure: Measure) -> str:
    return f"{measure.latency_seconds * 1e6:.0f} µs"
