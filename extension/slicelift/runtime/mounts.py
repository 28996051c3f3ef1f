"""Showing data to a job read-only, in a mount namespace of its own (root on Linux only).

What is mounted here is seen by this process and what it starts, by nobody else, and is gone with them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 0x1, 0x20, 0x1000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_MS_REC, _MS_SLAVE = 0x4000, 0x80000


def enter_namespace(sign: Path) -> bool:
    """Move this process into a mount namespace of its own; False when that is not allowed. Call it before threads.

    Mounts made inside stay inside; an unmount outside (a disk taken away) still reaches us. The file `sign` is mounted
    on itself: by its path `processes.inhabitants` knows who lives here.
    """
    if os.geteuid() != 0:
        return False
    # os.unshare exists from Python 3.12 on only
    if _libc().unshare(_CLONE_NEWNS) != 0:
        return False
    return _mount("none", Path("/"), _MS_REC | _MS_SLAVE) and _mount(str(sign), sign, _MS_BIND)


def bind_read_only(source: Path, target: Path) -> bool:
    """Show `source` (a folder or a file) at `target`, made if missing, without a right to write. False if refused."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    if not _mount(str(source), target, _MS_BIND):
        return False
    # a bind takes its read-only flag from a second call only
    if _mount("none", target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV):
        return True
    _libc().umount2(os.fsencode(target), 0)
    return False


def _mount(source: str, target: Path, flags: int) -> bool:
    return bool(
        _libc().mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None) == 0
    )


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
