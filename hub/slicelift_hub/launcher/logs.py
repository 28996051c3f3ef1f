"""The logs of ranks and agents: files that only grow, addressed by byte offset. Their length is the truth.

In an elastic gang a rank may go on in another pod, whose agent counts from 0 again: each such source has a part of its
own, and the log is its parts in the order in which they began.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from slicelift.errors import Conflict, UserError

from slicelift_hub.launcher.ledger_rows import AttemptRow
from slicelift_hub.launcher.store import Store, disk_full_named

MAX_READ_BYTES = 4 * 1024 * 1024
_RANK = re.compile(r"[0-9]{1,6}|agent(-[0-9]{1,6})?")
_SOURCE = re.compile(r"[0-9a-z]{1,32}")
# parts that one log may have: sources are named by jobs
_MOST_PARTS = 200


class Logs:
    """`store/<owner>/logs/<run_id>/<attempt>/rank-<r>.log`; of a source that names itself `rank-<r>.<n>.<source>.log`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, attempt: AttemptRow, rank: str, *, offset: int, data: bytes, source: str = "") -> int:
        """Write what is new of `data`, which begins at `offset` of what `source` wrote; where its next bytes go.

        Raises `log-gap` with `{next}` when `offset` lies behind the end. Two calls for one rank at a
        time are the caller's to prevent.
        """
        folder = self._folder(attempt.owner, attempt.run_id) / str(attempt.attempt)
        path = _part_of(folder, check_rank(rank), source)
        with disk_full_named():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        folder = self._folder(owner, run_id) / str(attempt)
        parts = [(path, path.stat().st_size) for path in _parts(folder, check_rank(rank))]
        size = sum(length for _, length in parts)
        if not parts:
            return b"", max(offset, 0)
        start = max(size + offset, 0) if offset < 0 else offset
        data = _read(parts, start, min(limit, MAX_READ_BYTES))
        return data, start + len(data)

    def ranks(self, owner: str, run_id: str, *, attempt: int) -> list[str]:
        """Who has a log."""
        folder = self._folder(owner, run_id) / str(attempt)
        return sorted({_rank_of(path) for path in folder.glob("rank-*.log")})

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


def check_rank(rank: str) -> str:
    """The same, if a log can be its. Raises `bad-rank`."""
    if not _RANK.fullmatch(rank):
        hint = "Use a number from 0, `agent`, or `agent-1` for that of the second worker."
        raise UserError("bad-rank", f"{rank[:40]!r} is no rank.", hint)
    return rank


def _rank_of(path: Path) -> str:
    return path.name.removeprefix("rank-").partition(".")[0]


def _parts(folder: Path, rank: str) -> list[Path]:
    """In the order in which they began: the one without a number first."""
    found = [path for path in folder.glob(f"rank-{rank}*.log") if _rank_of(path) == rank]
    return sorted(found, key=lambda path: (path.name.count("."), path.name))


def _part_of(folder: Path, rank: str, source: str) -> Path:
    """The file of this source, which has it or gets it now."""
    if not source:
        return folder / f"rank-{rank}.log"
    if not _SOURCE.fullmatch(source):
        raise UserError("bad-source", f"{source[:40]!r} names no agent.", "Use up to 32 letters and digits.")
    parts = _parts(folder, rank)
    mine = next((path for path in parts if path.name.endswith(f".{source}.log")), None)
    if mine is None and len(parts) >= _MOST_PARTS:
        raise UserError("log-parts", f"The log of rank {rank} has {len(parts)} parts.", "More are not kept.")
    return mine or folder / f"rank-{rank}.{len(parts):04d}.{source}.log"


def _read(parts: list[tuple[Path, int]], start: int, limit: int) -> bytes:
    """`limit` bytes from `start` on, of all parts as one. What grows meanwhile is left for the next time."""
    found = b""
    for path, length in parts:
        here, start = start, max(0, start - length)
        if here >= length or len(found) >= limit:
            continue
        with path.open("rb") as file:
            file.seek(here)
            found += file.read(min(limit - len(found), length - here))
    return found
