"""One line of log in ten seconds for a part that is away, however many speak of it."""

from __future__ import annotations

import logging
from typing import Any

from slicelift.errors import NotFound, Unavailable
from slicelift_hub.launcher.calm import Calm


def _record(message: str, *arguments: Any) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "", 1, message, arguments, None)


def test_repeats_are_counted_instead_of_written() -> None:
    clock = [100.0]
    calm = Calm(clock=lambda: clock[0])
    away, other = Unavailable("ledger-away", "It is away."), Unavailable("hub-away", "That too.")
    written = [calm.filter(_record("%s: %s", f"r-{number}", away)) for number in range(1000)]
    assert written == [True] + [False] * 999
    assert calm.filter(_record("%s: %s", "r-1", other))
    # what is not of a part that is away is never held back
    assert all(calm.filter(_record("%s: %s", "r-1", NotFound("a", "b"))) for _ in range(3))
    assert all(calm.filter(_record("plain %s")) for _ in range(3))
    clock[0] += 10
    record = _record("%s: %s", "r-7", away)
    assert calm.filter(record)
    assert record.getMessage() == "r-7: It is away. (999 like it before)"
