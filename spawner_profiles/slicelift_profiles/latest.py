"""A file of choices that is edited while it is used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from slicelift_profiles.faults import ProfileError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Latest(Generic[T]):
    """What a file says, read again when it has changed; after a faulty edit what was read last goes on.

    `fault` says what is wrong with the file as it is now, None when nothing is. Any thread may ask.
    """

    def __init__(self, path: Path, load: Callable[[Path], T]) -> None:
        self.fault: ProfileError | None = None
        self._path = path
        self._load = load
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._read: list[T] = []

    def current(self) -> T:
        """As the file says now. Raises the ProfileError of `load` only when the file was at fault from the start."""
        with self._lock:
            seen = self._stamp()
            if seen != self._seen:
                self._seen = seen
                self._read_again()
            if self.fault is not None and not self._read:
                raise self.fault
            return self._read[0]

    def _read_again(self) -> None:
        try:
            self._read = [self._load(self._path)]
            self.fault = None
        except ProfileError as error:
            self.fault = error
            if self._read:
                _log.error("What was read last of %s goes on: %s", self._path, error)

    def _stamp(self) -> tuple[int, ...]:
        """Another one for another content; of a file that is not there, the reading says so."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)
