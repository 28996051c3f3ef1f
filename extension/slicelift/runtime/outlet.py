"""Where a rank's output goes: both streams into one log, line order kept, and no error for a full disk."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def redirect(log: Path) -> None:
    """Send descriptors 1 and 2 (C code and child processes too) to the end of `log`; nothing comes from stdin.

    On a disk that is full from the start the output goes where it went before.
    """
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        _no_input()
    sys.stdout = _stream(1, "<stdout>")
    sys.stderr = _stream(2, "<stderr>")


class _Outlet(io.FileIO):
    """A descriptor whose writes are lost while the disk is full: print() must not end a training."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return memoryview(data).nbytes


def _no_input() -> None:
    handle = os.open(os.devnull, os.O_RDONLY)
    os.dup2(handle, 0)
    os.close(handle)


def _stream(descriptor: int, name: str) -> io.TextIOWrapper:
    raw = _Outlet(descriptor, "w", closefd=False)
    raw.name = name
    # whole lines: the rank and its workers write into one log; UTF-8: it is read elsewhere
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
