"""Files by content, one folder per owner: knowing a digest gives no right to somebody else's bytes.

A blob is written to a temporary file, checked against its digest, synced and renamed, so it is there whole or not
at all; one that is there is never written again. A snapshot's list is written only once all its blobs are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slicelift.errors import Conflict, NotFound, Refused, SliceliftError, UserError
from slicelift.models import Snapshot, SnapshotFile, from_dict, to_dict

from slicelift_hub.launcher.names import check_path, check_sha256, make_folder_name

CHUNK_BYTES = 256 * 1024
_LINK = "120000"
_MODES = ("100644", "100755", _LINK)
# Linux takes no longer path; a link is read whole
_LONGEST_LINK = 4096
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreFull(SliceliftError):
    """The disk under the store has no room; nothing half-written is left."""

    http_status = 507


class TooLarge(UserError):
    """More bytes than the launcher takes."""

    http_status = 413


class Store:
    """The files of all owners below `<home>/store`. Every method may be called from any thread."""

    def __init__(self, home: Path, *, snapshot_limit_bytes: int = 2 * 1024**3) -> None:
        self.root = home / "store"
        self.snapshot_limit_bytes = snapshot_limit_bytes
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder(self, owner: str) -> Path:
        """The owner's own folder, made if missing."""
        path = self.root / make_folder_name(owner)
        for name in ("blobs/tmp", "snapshots", "logs"):
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def blob_path(self, owner: str, sha256: str) -> Path:
        """Where the blob is, or would be."""
        return self.root / make_folder_name(owner) / "blobs" / sha256[:2] / check_sha256(sha256)

    def missing(self, owner: str, digests: Iterable[str]) -> list[str]:
        """Those of the digests whose blobs the owner has not sent yet, each once, in order."""
        return [digest for digest in dict.fromkeys(digests) if not self.blob_path(owner, digest).exists()]

    def write_blob(self, owner: str, sha256: str, *, limit_bytes: int) -> BlobWriter:
        """A writer for one blob; commit or abort it."""
        return BlobWriter(self.folder(owner), self.blob_path(owner, sha256), limit_bytes=limit_bytes)

    def offer(self, owner: str, snapshot: Snapshot) -> list[str]:
        """The blobs that are missing; when none is, the snapshot is complete from here on. Idempotent.

        Raises `bad-snapshot`, `bad-path`, `bad-digest`, `snapshot-too-large`, `snapshot-differs`.
        """
        self._check(snapshot)
        missing = self._lacking(owner, snapshot.files)
        if not missing:
            self._keep(owner, snapshot)
        return missing

    def snapshot(self, owner: str, snapshot_id: str) -> Snapshot:
        """A complete snapshot. Raises `snapshot-unknown`."""
        found = self._read(owner, snapshot_id)
        if found is None:
            message = f"There is no complete snapshot {snapshot_id} of yours in the store."
            raise NotFound("snapshot-unknown", message, "Offer it again and send the blobs that are missing.")
        return found

    def check_files(self, owner: str, files: tuple[SnapshotFile, ...]) -> list[str]:
        """Like `offer` for a plain list of files, such as a model's: the missing digests."""
        _check_files(files)
        return self._lacking(owner, files)

    def damaged(self, owner: str, digests: Iterable[str]) -> list[str]:
        """Those of the digests whose bytes are others now. They are missing from here on, so that they are sent again."""
        found = []
        for digest in dict.fromkeys(digests):
            path = self.blob_path(owner, digest)
            if path.exists() and not _is_whole(path):
                # another agent of the gang may find it at the same time
                path.unlink(missing_ok=True)
                found.append(digest)
        return found

    def sweep(self) -> int:
        """Remove what interrupted uploads left behind; only while nobody uploads. The number of files."""
        left = list(self.root.glob("*/blobs/tmp/*"))
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _check(self, snapshot: Snapshot) -> None:
        check_sha256(snapshot.id)
        _check_files(snapshot.files)
        for ref in snapshot.data:
            check_path(ref.path)
        if snapshot.size_bytes > self.snapshot_limit_bytes:
            message = (
                f"The snapshot has {snapshot.size_bytes:,} bytes; {self.snapshot_limit_bytes:,} are allowed."
            )
            hint = (
                "Track large files with `dvc add`, list them in .sliceliftignore, or raise "
                f"`c.Launcher.snapshot_limit_bytes` in {self.root.parent / 'launcher_config.py'} and start it again."
            )
            raise Refused("snapshot-too-large", message, hint)

    def _lacking(self, owner: str, files: tuple[SnapshotFile, ...]) -> list[str]:
        """What is missing. When nothing is, sizes are compared; a blob that the disk cut short is missing, too."""
        missing = self.missing(owner, (item.sha256 for item in files))
        return missing or self._check_sizes(owner, files)

    def _check_sizes(self, owner: str, files: tuple[SnapshotFile, ...]) -> list[str]:
        wrong = [item for item in files if self._size(owner, item) != item.size_bytes]
        damaged = self.damaged(owner, (item.sha256 for item in wrong))
        for item in wrong:
            if item.sha256 not in damaged:
                found = self._size(owner, item)
                message = f"{item.path} is said to have {item.size_bytes} bytes, its content has {found}."
                raise UserError("bad-snapshot", message, "Take the snapshot again.")
        return damaged

    def _size(self, owner: str, item: SnapshotFile) -> int:
        return self.blob_path(owner, item.sha256).stat().st_size

    def _keep(self, owner: str, snapshot: Snapshot) -> None:
        known = self._read(owner, snapshot.id)
        if known is not None and set(known.files) != set(snapshot.files):
            message = f"Snapshot {snapshot.id} is known with other files."
            raise Conflict(
                "snapshot-differs", message, "The id must be a digest of the content: take it again."
            )
        # written again even if known: commit and branch are not part of the id, and the newest are wanted
        body = json.dumps(to_dict(snapshot), ensure_ascii=False).encode()
        write_file(self.folder(owner) / "snapshots" / f"{snapshot.id}.json", body)

    def _read(self, owner: str, snapshot_id: str) -> Snapshot | None:
        path = self.root / make_folder_name(owner) / "snapshots" / f"{check_sha256(snapshot_id)}.json"
        try:
            return from_dict(Snapshot, json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            # damaged is as good as gone: the next promotion writes it again
            return None


class BlobWriter:
    """Takes the bytes of one blob. If the store has it already, they are checked but not written."""

    def __init__(self, folder: Path, target: Path, *, limit_bytes: int) -> None:
        self.size_bytes = 0
        self.known = target.exists()
        self._target = target
        self._limit = limit_bytes
        self._digest = hashlib.sha256()
        self._part = folder / "blobs" / "tmp" / uuid.uuid4().hex
        with disk_full_named():
            self._file = None if self.known else self._part.open("xb", buffering=0)

    def write(self, chunk: bytes) -> None:
        """Append. Raises `blob-too-large` and `store-full`; abort it then."""
        self.size_bytes += len(chunk)
        if self.size_bytes > self._limit:
            raise TooLarge("blob-too-large", f"A blob may have {self._limit:,} bytes.", "Split the file.")
        self._digest.update(chunk)
        if self._file is not None:
            with disk_full_named():
                _write_all(self._file.fileno(), chunk)

    def commit(self) -> bool:
        """Check, sync and put in place; whether it is new. Raises `blob-differs`, and keeps nothing then."""
        if self._digest.hexdigest() != self._target.name:
            self.abort()
            message = f"The bytes sent as {self._target.name} have the digest {self._digest.hexdigest()}."
            raise UserError("blob-differs", message, "The file changed on its way: send it again.")
        if self._file is None:
            return False
        with disk_full_named():
            os.fsync(self._file.fileno())
            self._file.close()
            self._target.parent.mkdir(mode=0o700, exist_ok=True)
            self._part.replace(self._target)
            _sync_folder(self._target.parent)
        return True

    def abort(self) -> None:
        """Forget what came. Safe after everything, also after `commit`."""
        if self._file is not None:
            self._file.close()
            self._part.unlink(missing_ok=True)


def write_file(path: Path, body: bytes) -> None:
    """Replace a small file by rename, 0600, synced: readers see the old or the new, never half."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with (
            disk_full_named(),
            os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        ):
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes, piece by piece."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


@contextmanager
def disk_full_named() -> Iterator[None]:
    """Turns the system's several ways of saying that there is no room into `store-full`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise make_store_full() from error
        raise


def make_store_full() -> StoreFull:
    """The one error for a full disk."""
    hint = "Free some space and repeat the command: what arrived whole is kept and not sent again."
    return StoreFull("store-full", "The disk under the launcher's store is full.", hint)


def _is_whole(path: Path) -> bool:
    """Whether a blob has the bytes that its name says. One whose bytes the disk cannot read any more has not."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except OSError as error:
        # of others, as of too many open files, the blob knows nothing
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        return False


def _check_files(files: tuple[SnapshotFile, ...]) -> None:
    if len({item.path for item in files}) != len(files):
        raise UserError("bad-snapshot", "A path is listed twice.", "Each file is listed once.")
    for item in files:
        check_path(item.path)
        check_sha256(item.sha256)
        if item.mode == _LINK and item.size_bytes > _LONGEST_LINK:
            message = f"{item.path} is a link of {item.size_bytes} bytes; no path is that long."
            raise UserError("bad-snapshot", message, "Take the snapshot again.")
        if item.mode not in _MODES or item.size_bytes < 0:
            message = f"{item.path} has mode {item.mode} and {item.size_bytes} bytes."
            raise UserError(
                "bad-snapshot", message, f"Modes are {', '.join(_MODES)}; sizes are not negative."
            )


def _write_all(descriptor: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(path: Path) -> None:
    # some file systems refuse to sync a folder; the rename itself is atomic either way
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
