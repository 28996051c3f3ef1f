"""sha256 of git's objects, remembered: an unchanged tree is listed without reading a byte of it.

The memory is one SQLite file in the user's cache folder, object id -> sha256. Both are digests of
content, so an entry is true for ever and in every repository. Losing it costs one reading; a damaged file
is thrown away, and nothing fails for want of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from slicelift.errors import Refused, UserError
from slicelift.snapshot import git
from slicelift.snapshot.project import Project
from slicelift.snapshot.survey import IGNORE_FILE, named

CHUNK_BYTES = 1024**2
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_MAX_BYTES = 1024
_KEEP_ROWS = 500_000
_ASK_AT_ONCE = 500


def sha256_of(project: Project, blobs: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """sha256 by object id for `blobs`: object id -> (a path that has it, size in bytes).

    Raises `Refused` with `lfs-pointer` when an object is no content but git-lfs's note about it.
    """
    known = _recall(list(blobs))
    unknown = {oid: blobs[oid] for oid in blobs if oid not in known}
    if unknown:
        fresh = _read(project, unknown)
        _remember(fresh)
        known |= fresh
    return known


def forget(oids: list[str]) -> None:
    """Drop entries that turned out wrong."""
    with contextlib.suppress(sqlite3.Error, OSError), _open() as memory:
        memory.executemany("DELETE FROM blobs WHERE oid = ?", [(bytes.fromhex(oid),) for oid in oids])


def contents(project: Project, oids: list[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """(object id, size, stream) for each object, in order. A stream must be read to its end, and no further.

    Raises `UserError` with `object-missing` when the repository has lost one.
    """
    if not oids:
        return
    batch = git.start_batch(project.root, oids)
    stream = batch.stdout
    if stream is None:
        return
    try:
        for oid in oids:
            header = stream.readline().split()
            if len(header) != 3:
                raise _lost(project, oid)
            yield oid, int(header[2]), stream
            stream.read(1)
    finally:
        # closing our end first: git stops writing, also when only half was wanted
        stream.close()
        batch.kill()
        batch.wait()


def cache_file() -> Path:
    """Where the memory lies: under XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "slicelift" / "blobs.sqlite"


def _read(project: Project, blobs: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Hash objects out of git's database; git-lfs pointers are never remembered, so always found again."""
    found: dict[str, str] = {}
    pointers: list[str] = []
    for oid, size, stream in contents(project, list(blobs)):
        digest = hashlib.sha256()
        for chunk in chunks(stream, size):
            digest.update(chunk)
            if size <= _LFS_MAX_BYTES and chunk.startswith(_LFS):
                pointers.append(blobs[oid][0])
        found[oid] = digest.hexdigest()
    if pointers:
        raise _pointers(sorted(pointers))
    return found


def chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Exactly `size` bytes of a stream, at most 1 MiB at a time."""
    while size > 0:
        chunk = stream.read(min(size, CHUNK_BYTES))
        if not chunk:
            raise UserError(
                "git-failed",
                "git stopped in the middle of a file while the snapshot was read.",
                "Promote again; if it comes back, `git fsck` tells what is damaged.",
            )
        size -= len(chunk)
        yield chunk


def _pointers(paths: list[str]) -> Refused:
    return Refused(
        "lfs-pointer",
        f"Kept by git-lfs, so git holds a pointer and not the content: {named(paths)}. "
        "The job would read the pointer.",
        f"Track the data with DVC (`dvc add`), or, if the job does not need it, list it in {IGNORE_FILE}.",
        detail={"paths": paths},
    )


def _lost(project: Project, oid: str) -> UserError:
    return UserError(
        "object-missing",
        f"The repository {project.root} has lost object {oid[:12]}.",
        "`git fsck` tells what is damaged; promote again once it is mended.",
    )


def _recall(oids: list[str]) -> dict[str, str]:
    known: dict[str, str] = {}
    with contextlib.suppress(sqlite3.Error, OSError), _open() as memory:
        for start in range(0, len(oids), _ASK_AT_ONCE):
            part = [bytes.fromhex(oid) for oid in oids[start : start + _ASK_AT_ONCE]]
            marks = ",".join("?" * len(part))
            rows = memory.execute(f"SELECT oid, sha256 FROM blobs WHERE oid IN ({marks})", part)  # noqa: S608
            known |= {oid.hex(): sha256.hex() for oid, sha256 in rows if len(sha256) == 32}
    return known


def _remember(found: Mapping[str, str]) -> None:
    rows = [(bytes.fromhex(oid), bytes.fromhex(sha256)) for oid, sha256 in found.items()]
    with contextlib.suppress(sqlite3.Error, OSError), _open() as memory:
        memory.executemany("INSERT OR IGNORE INTO blobs (oid, sha256) VALUES (?, ?)", rows)
        memory.execute("DELETE FROM blobs WHERE rowid <= (SELECT MAX(rowid) - ? FROM blobs)", (_KEEP_ROWS,))


@contextlib.contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    """The memory, for one transaction. A file that is no database is removed for the next time."""
    path = cache_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    memory = sqlite3.connect(path, timeout=5)
    try:
        with memory:
            memory.execute("CREATE TABLE IF NOT EXISTS blobs (oid BLOB UNIQUE, sha256 BLOB NOT NULL)")
            yield memory
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        path.unlink(missing_ok=True)
        raise
    finally:
        memory.close()
