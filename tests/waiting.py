"""For all tiers: a port that nobody has, and waiting for what comes by itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LAST_CHARACTERS = 6000


def free_port(host: str = "127.0.0.1") -> int:
    """Free a moment ago, at that address of this machine."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def wait_for(
    what: str,
    check: Callable[[], T],
    *,
    seconds: float = 60,
    every: float = 0.05,
    why: Callable[[], object] = str,
) -> T:
    """What `check` says once that is true. Fails in time, with `what` and the last words of `why`."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}. {str(why())[-LAST_CHARACTERS:]}"
        time.sleep(every)
    return found
