"""The logs of ranks and agents: files that only grow, addressed by byte offset. Their length is the truth."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from slicelift.errors import Conflict, UserError

from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.store import Store, disk_full_named

MAX_READ_BYTES = 4 * 1024 * 1024


class Logs:
    """`store/<owner>/logs/<run_id>/<attempt>/rank-<r>.log`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, attempt: AttemptRow, rank: str, *, offset: int, data: bytes) -> int:
        """Write what is new of `data`, which begins at `offset`; where the next bytes go.

        Raises `log-gap` with `{next}` when `offset` lies behind the end. Two calls for one file at a
        time are the caller's to prevent.
        """
        path = self._path(attempt.owner, attempt.run_id, attempt=attempt.attempt, rank=rank)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        end = path.stat().st_size if path.exists() else 0
        if offset > end:
            message = f"The log of rank {rank} ends at byte {end}; these bytes begin at {offset}."
            raise Conflict("log-gap", message, "Send again from there.", detail={"next": end})
        fresh = data[end - offset :]
        with disk_full_named(), path.open("ab", buffering=0) as file:
            while fresh:
                written = os.write(file.fileno(), fresh)
                end, fresh = end + written, fresh[written:]
        return end

    def read(
        self, owner: str, run_id: str, *, attempt: int, rank: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        """(bytes from `offset`, where to go on). A negative offset counts from the end; no log yet is empty."""
        path = self._path(owner, run_id, attempt=attempt, rank=rank)
        if not path.exists():
            return b"", max(offset, 0)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(size + offset, 0) if offset < 0 else offset
            file.seek(start)
            data = file.read(min(limit, MAX_READ_BYTES))
        return data, start + len(data)

    def ranks(self, owner: str, run_id: str, *, attempt: int) -> list[str]:
        """Who has a log."""
        folder = self._folder(owner, run_id) / str(attempt)
        return sorted(path.stem.removeprefix("rank-") for path in folder.glob("rank-*.log"))

    def sweep(self, *, older_than_seconds: float) -> int:
        """Remove attempts whose logs were last written so long ago; how many."""
        limit = time.time() - older_than_seconds
        old = [
            folder
            for folder in self._store.root.glob("*/logs/*/*")
            if max((path.stat().st_mtime for path in folder.glob("*.log")), default=0) < limit
        ]
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)
        return len(old)

    def _folder(self, owner: str, run_id: str) -> Path:
        return self._store.folder(owner) / "logs" / run_id

    def _path(self, owner: str, run_id: str, *, attempt: int, rank: str) -> Path:
        if rank != "agent" and not (rank.isdecimal() and rank.isascii() and len(rank) <= 6):
            raise UserError("bad-rank", f"{rank[:40]!r} is no rank.", "Use a number from 0, or `agent`.")
        return self._folder(owner, run_id) / str(attempt) / f"rank-{rank}.log"
