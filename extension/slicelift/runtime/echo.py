"""What an agent writes into its log, once more where its container's output goes, for whoever asks the cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slicelift.runtime.masking import Masker

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 64 * 1024


class Echo(threading.Thread):
    """Copies what is added to `log` to the descriptor `target`, without the values of `secrets()`.

    The secrets are asked for before each piece: an agent learns them on its way.
    """

    def __init__(self, log: Path, target: int, *, secrets: Callable[[], tuple[str, ...]]) -> None:
        super().__init__(name="echo", daemon=True)
        self._log = log
        self._target = target
        self._secrets = secrets
        self._known: tuple[str, ...] = ()
        self._masker = Masker(())
        self._offset = 0
        self._over = threading.Event()

    def run(self) -> None:
        """The thread's loop."""
        over = False
        while not over:
            over = self._over.wait(_POLL_SECONDS)
            # whoever reads the container's output may be gone: that is no reason for anything
            with suppress(OSError):
                self._copy()
        with suppress(OSError):
            os.write(self._target, self._masker.finish())

    def finish(self, *, seconds: float = 2.0) -> None:
        """Copy what is left, then end; no longer than `seconds` are waited for a container runtime that is stuck."""
        self._over.set()
        self.join(seconds)

    def _copy(self) -> None:
        with self._log.open("rb") as stream:
            stream.seek(self._offset)
            while chunk := stream.read(_CHUNK_BYTES):
                self._offset += len(chunk)
                os.write(self._target, self._masked(chunk))

    def _masked(self, chunk: bytes) -> bytes:
        found = self._secrets()
        rest = b""
        if found != self._known:
            rest = self._masker.finish()
            self._known, self._masker = found, Masker(found)
        return rest + self._masker.feed(chunk)
