"""What a session starts with: the devices it may see, a log of its own, and a look whether it answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from slicelift_hub.leases import GPUS
from slicelift_hub.sessions import Session

P = ParamSpec("P")
T = TypeVar("T")
_LOG_TAIL_BYTES = 2000
# TCP_LISTEN, as /proc/net/tcp writes it
_LISTENS = "0A"


async def to_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread, and to its end also when the caller is cancelled: a lease that is just taken can then be given back."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def devices(session: Session | None) -> dict[str, str]:
    """What CUDA may see: the MIG instance, whole GPUs by their place on the bus, or nothing."""
    items = session.items if session else ()
    cut = next((item for item in items if item.pool != GPUS), None)
    found = {"CUDA_VISIBLE_DEVICES": ",".join(item.uuid for item in items if item.uuid)}
    found["SLICELIFT_SLICE"] = cut.pool if cut else ""
    if cut and cut.simulated:
        found["SLICELIFT_SLICE_SIMULATED"] = "1"
    if items and not cut:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found


def held_words(session: Session) -> str:
    """One sentence for the page that waits; empty for a session without a GPU."""
    cut = next((item for item in session.items if item.pool != GPUS), None)
    if cut is None:
        return f"GPU {', '.join(item.uuid for item in session.items)} is yours." if session.items else ""
    return f"A slice {cut.pool} is yours{' (simulated)' if cut.simulated else ''}."


def open_log(path: Path) -> IO[bytes]:
    """The output of one session, anew at each start; for the admin only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def last_words(path: Path) -> str:
    """The last three lines of a log, in one."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())


def is_served(port: int, uid: int | None) -> bool:
    """Whether a process of that user listens there. Another user's program that took the port first is not the session."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENS and int(row[7]) == uid for row in rows)
