"""The folder of an attempt: names of its files, and how a file in it is written so that a crash leaves no half.

The layout is in docs/architecture.md. Everything that two processes read goes through here. The folder may belong to
another user than the one who reads it as root: no link in it is followed, and nothing but a plain file is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RESERVE_BYTES = 64 * 1024
# the largest file that is read whole; what a job tells of itself is far smaller
_READ_BYTES = 32 * 1024 * 1024
# a link is not followed, and a pipe that somebody put there does not block
CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class AttemptFolder:
    """Paths of one attempt below `root`; nothing is created by naming it."""

    root: Path

    @property
    def request(self) -> Path:
        """What the backend asks of the agent; holds the job token (0600)."""
        return self.root / "agent.json"

    @property
    def agent(self) -> Path:
        """Who the agent is: `{pid, start_time, boot_id}`, its first act."""
        return self.root / "agent.pid"

    @property
    def agent_log(self) -> Path:
        """Output of the agent, of the warm-up and of torchrun."""
        return self.root / "agent.log"

    @property
    def exit(self) -> Path:
        """How the attempt ended; once there it never changes."""
        return self.root / "exit.json"

    @property
    def agent_lock(self) -> Path:
        """Held by the agent while it lives."""
        return self.root / "agent.lock"

    @property
    def lock(self) -> Path:
        """Held while the attempt is started or settled; beside the folder, where the job's user cannot hold it."""
        return self.root.with_name(f".{self.root.name}.lock")

    @property
    def record(self) -> Path:
        """Whose attempt it is, `{owner}`, where it runs as another user; beside the folder, which that user can write to."""
        return self.root.with_name(f".{self.root.name}.json")

    @property
    def state(self) -> Path:
        """Where the attempt stands, by the agent: `{state, message, ranks}`."""
        return self.root / "state.json"

    @property
    def cancel(self) -> Path:
        """A request to end: `{reason, grace_seconds, time}`; with `saving_seconds` ranks may reach a checkpoint first."""
        return self.root / "cancel.json"

    @property
    def delivered(self) -> Path:
        """Present once everything is with the launcher (or the launcher no longer wants it)."""
        return self.root / "delivered.json"

    @property
    def seen(self) -> Path:
        """Processes the agent has seen below itself: `[[pid, start_time]]`."""
        return self.root / "processes.json"

    @property
    def workspace(self) -> Path:
        """The unpacked snapshot."""
        return self.root / "workspace"

    @property
    def runtime(self) -> Path:
        """First on the gang's PYTHONPATH; holds the package `slicelift`."""
        return self.root / "runtime"

    @property
    def gang(self) -> Path:
        """The result of slicelift.runtime.gang."""
        return self.root / "gang.json"

    def rooms(self) -> tuple[Path, ...]:
        """The folders that ranks write into."""
        names = ("ranks", "errors", "logs", "spool", "scratch", "models")
        return tuple(self.root / name for name in names)

    def write_last(self, path: Path, value: Any) -> None:
        """Like `write_json`, for what must be told even on a full disk: it gives up reserved space for it."""
        for reserve in self._reserves():
            try:
                write_json(path, value)
            except OSError:
                reserve.unlink(missing_ok=True)
            else:
                return
        write_json(path, value)

    def reserve(self) -> None:
        """Set aside the space that `write_last` needs on a full disk. Raises OSError when it is full now."""
        for reserve in self._reserves():
            handle = os.open(reserve, os.O_CREAT | os.O_WRONLY | CAREFUL, 0o600)
            try:
                os.posix_fallocate(handle, 0, _RESERVE_BYTES)
            finally:
                os.close(handle)

    def remove_raw(self) -> None:
        """Delete all that may show secrets as ranks printed or raised them. Only once the store has it, masked."""
        for name in ("logs", "errors", "scratch/torchrun"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for path in (self.gang, self.agent_log):
            with suppress(OSError):
                path.unlink()

    def _reserves(self) -> tuple[Path, ...]:
        # whoever fills the disk may take one before it is used: there is one for each of two last words
        return (self.root / "reserve.1", self.root / "reserve.2")


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """Write by rename, flushed to disk first: a reader sees the old file or the whole new one.

    What root writes belongs to whom the folder belongs.
    """
    # two writers of one file (an agent and a backend) must not share a temporary name
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        temporary.unlink()
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | CAREFUL, mode)
    try:
        if os.geteuid() == 0:
            parent = path.parent.stat()
            os.fchown(handle, parent.st_uid, parent.st_gid)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(value, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None when it is absent, unreadable, too large or not JSON."""
    try:
        handle = os.open(path, os.O_RDONLY | CAREFUL)
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _READ_BYTES:
                return None
            return json.loads(stream.read(_READ_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def read_object(path: Path) -> dict[str, Any]:
    """Like `read_json` for a file that holds an object; anything else reads as empty."""
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def try_lock(path: Path) -> int | None:
    """Take an exclusive lock held until the returned descriptor is closed; None when another holds it."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | CAREFUL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, waiting for it; it is freed by the kernel when the process dies."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | CAREFUL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_is_held(path: Path) -> bool:
    """True while some process holds the lock."""
    if not path.exists():
        return False
    try:
        handle = try_lock(path)
    except OSError:
        # what lies there was not put there by us
        return False
    if handle is None:
        return True
    os.close(handle)
    return False
