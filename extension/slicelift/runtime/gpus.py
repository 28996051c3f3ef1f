"""For how long the GPUs of this node have done nothing, by NVML: evidence for whoever shares them with others."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

SAMPLE_SECONDS = 5.0
# a look takes milliseconds
_STALE_SECONDS = 30.0
_LIBRARY = "libnvidia-ml.so.1"

# how busy each GPU is, in per cent; None or nothing where that is not told
Read = Callable[[], "list[int] | None"]


class Idleness:
    """Counts from the first look, and anew from every look at which a GPU did something."""

    def __init__(self, read: Read, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._since: float | None = None

    def minutes(self) -> int | None:
        """Whole minutes in which every look found every GPU at 0 %. None without evidence: no GPU, or one that does not tell."""
        shares, now = self._read(), self._clock()
        if not shares:
            self._since = None
            return None
        if self._since is None or any(shares):
            self._since = now
        return int((now - self._since) // 60)


class GpuWatch(threading.Thread):
    """Looks every few seconds, beside everything else: a driver that hangs, already when it is opened, holds up nobody."""

    def __init__(self, make: Callable[[], Read], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="gpus", daemon=True)
        self._make = make
        self._clock = clock
        # (when, what was found)
        self._last: tuple[float, int | None] = (0.0, None)

    def minutes(self) -> int | None:
        """What the last look found; None where that was long ago, since the next one has not come back."""
        when, found = self._last
        return found if self._clock() - when < _STALE_SECONDS else None

    def run(self) -> None:
        """Until the process ends."""
        idleness = Idleness(self._make(), clock=self._clock)
        while True:
            found = idleness.minutes()
            self._last = (self._clock(), found)
            time.sleep(SAMPLE_SECONDS)


def watch_gpus() -> GpuWatch:
    """One that has begun to look."""
    watch = GpuWatch(make_reader)
    watch.start()
    return watch


def make_reader() -> Read:
    """Of the GPUs that this process sees: in a pod its own. A slice has no such figure, and then nothing is told."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return partial(_read, library) if library.nvmlInit_v2() == 0 else _nothing
    except (OSError, AttributeError):
        return _nothing


class _Use(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _read(library: Any) -> list[int] | None:
    count, found = ctypes.c_uint(), []
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return None
    for index in range(count.value):
        device, use = ctypes.c_void_p(), _Use()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            return None
        if library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) != 0:
            return None
        found.append(int(use.gpu))
    return found


def _nothing() -> list[int] | None:
    return None
