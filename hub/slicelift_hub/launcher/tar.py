"""Tar both ways, streamed: blobs as they come in, and a snapshot's files as they go out.

Incoming archives are read by us block by block: plain members named by a digest and nothing else, so that neither
paths, links, sparse maps nor header bombs exist here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from slicelift.errors import UserError
from slicelift.models import Snapshot, SnapshotFile

from slicelift_hub.launcher.names import check_sha256
from slicelift_hub.launcher.store import BlobWriter, Store, read_chunks

BLOCK = tarfile.BLOCKSIZE
_HINT = "Send plain ustar members, each named by the sha256 of its content."


class BlobReceiver:
    """Takes a tar stream in pieces of any size; each member is in the store once its last byte came."""

    def __init__(self, store: Store, owner: str, *, blob_limit_bytes: int) -> None:
        self.stored = 0
        self.known = 0
        self._store = store
        self._owner = owner
        self._limit = blob_limit_bytes
        self._buffer = b""
        self._writer: BlobWriter | None = None
        self._left = 0
        self._padding = 0
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Take in what came. Raises `bad-archive` and whatever a writer raises; abort it then."""
        self._buffer += chunk
        while self._step():
            pass

    def finish(self) -> None:
        """The stream is over. Raises `bad-archive` when it stops inside a member."""
        if self._writer is not None or (self._buffer and not self._ended):
            raise UserError("bad-archive", "The archive ends in the middle of a member.", "Send it again.")

    def abort(self) -> None:
        """Forget the member that is half here."""
        if self._writer is not None:
            self._writer.abort()

    def _step(self) -> bool:
        """One move over the buffer; False when more bytes are needed."""
        if self._ended:
            self._buffer = b""
            return False
        if self._writer is not None:
            return self._take_content(self._writer)
        if self._padding:
            return self._skip_padding()
        return self._take_header()

    def _take_content(self, writer: BlobWriter) -> bool:
        piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(piece)
        writer.write(piece)
        if self._left:
            return False
        if writer.commit():
            self.stored += 1
        else:
            self.known += 1
        self._writer = None
        return True

    def _skip_padding(self) -> bool:
        skipped = min(self._padding, len(self._buffer))
        self._buffer, self._padding = self._buffer[skipped:], self._padding - skipped
        return self._padding == 0

    def _take_header(self) -> bool:
        if len(self._buffer) < BLOCK:
            return False
        block, self._buffer = self._buffer[:BLOCK], self._buffer[BLOCK:]
        if block == bytes(BLOCK):
            self._ended = True
            return True
        member = _read_header(block)
        self._left, self._padding = member.size, -member.size % BLOCK
        digest = check_sha256(member.name)
        self._writer = self._store.write_blob(self._owner, digest, limit_bytes=self._limit)
        return True


def make_snapshot_tar(store: Store, owner: str, snapshot: Snapshot) -> Iterator[bytes]:
    """The files of a snapshot as a tar stream with their modes and links; times are zero, so it is the same twice."""
    for item in snapshot.files:
        yield from _make_member(store, owner, item)
    yield bytes(2 * BLOCK)


def _read_header(block: bytes) -> tarfile.TarInfo:
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise UserError("bad-archive", f"The archive is damaged: {error}.", _HINT) from error
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
        raise UserError("bad-archive", f"Member {member.name[:80]!r} is no plain file.", _HINT)
    return member


def _make_member(store: Store, owner: str, item: SnapshotFile) -> Iterator[bytes]:
    path = store.blob_path(owner, item.sha256)
    member = tarfile.TarInfo(item.path)
    if item.mode == "120000":
        member.type, member.linkname = tarfile.SYMTYPE, path.read_bytes().decode("utf-8", "surrogateescape")
        yield member.tobuf(tarfile.PAX_FORMAT)
        return
    member.size = item.size_bytes
    member.mode = 0o755 if item.mode == "100755" else 0o644
    yield member.tobuf(tarfile.PAX_FORMAT)
    yield from read_chunks(path)
    yield bytes(-item.size_bytes % BLOCK)
