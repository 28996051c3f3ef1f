"""The metrics that log() adds by itself: time per step, throughput, peak memory, waiting for data."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

from slicelift.runtime.feeding import Share

# peak memory moves slowly and costs a look at /proc or at CUDA's allocator
MEMORY_SECONDS = 1.0


class Pace:
    """Measures one rank. Not safe for threads: the sink calls it under its lock."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._time = 0.0
        self._samples = 0.0
        self._memory_due = 0.0
        self._share = Share()

    def measure(self, step: int, samples: float | None) -> dict[str, float]:
        """Values for one log() call: seconds per step, steps or samples per second since the last new step.

        Nothing about time for the first step, for more calls at the same step, and when steps go back.
        """
        now, last = time.perf_counter(), self._step
        if step == last:
            self._samples += samples or 0.0
            found: dict[str, float] = {}
        else:
            seconds, steps = now - self._time, step - last if last is not None else 0
            self._step, self._time = step, now
            if steps <= 0 or seconds <= 0:
                found = {}
            elif samples is None:
                found = {"step_time_seconds": seconds / steps, "throughput_steps_per_second": steps / seconds}
            else:
                total = self._samples + samples
                found = {
                    "step_time_seconds": seconds / steps,
                    "throughput_samples_per_second": total / seconds,
                }
            self._samples = 0.0
        if now >= self._memory_due:
            self._memory_due = now + MEMORY_SECONDS
            found.update(peak_memory())
            # looked at as seldom, so that it costs the other calls nothing
            found.update(self._share.measure(now))
        return found


def peak_memory() -> dict[str, float]:
    """The rank's peak so far in bytes: of its GPU when it uses one through torch, else of the host.

    Never one under the other's name.
    """
    gpu = _peak_gpu_bytes()
    if gpu is not None:
        return {"peak_gpu_memory_bytes": float(gpu)}
    return {"peak_host_memory_bytes": float(_peak_host_bytes())}


def _peak_gpu_bytes() -> int | None:
    # never import torch or start CUDA for a figure
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return int(cuda.max_memory_allocated()) if cuda is not None and cuda.is_initialized() else None
    except (AttributeError, RuntimeError):  # torch half imported, or CUDA in trouble
        return None


def _peak_host_bytes() -> int:
    """VmHWM. ru_maxrss is the fallback only: it starts at the peak of the process that started this one."""
    try:
        status = Path("/proc/self/status").read_bytes()
        return int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
