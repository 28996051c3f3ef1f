"""Keeps the log readable while a part is away: each of a thousand jobs would say so every two seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from slicelift.errors import Unavailable

EVERY_SECONDS = 10.0


class Calm(logging.Filter):
    """Lets one line in ten seconds through for each `code` of an `Unavailable` among a record's arguments."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write it; the next line that is written says how many were not."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        codes = [argument.code for argument in arguments if isinstance(argument, Unavailable)]
        if not codes:
            return True
        code, now = codes[0], self._clock()
        with self._lock:
            if now < self._quiet_until.get(code, 0.0):
                self._held_back[code] = self._held_back.get(code, 0) + 1
                return False
            self._quiet_until[code] = now + EVERY_SECONDS
            held_back = self._held_back.pop(code, 0)
        if held_back:
            record.msg, record.args = f"{record.getMessage()} ({held_back} like it before)", ()
        return True
