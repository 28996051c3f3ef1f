"""The way of a snapshot into the launcher's store: ask what is missing, send that, ask again.

The store keeps each file by its sha256 and commits it by itself, so whatever arrived before a connection
broke stays, and the next round sends only the rest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from slicelift.errors import Refused, Unavailable, is_launcher_away
from slicelift.models import Snapshot
from slicelift.snapshot import digests
from slicelift.snapshot.code import list_objects
from slicelift.snapshot.project import Project

ROUNDS = 6
BATCH_BYTES = 64 * 1024**2
BATCH_BLOBS = 1000
_SMALL_BYTES = 1024**2
_WAIT_SECONDS = 3.0

Progress = Callable[[int, int], None]


class Reader(Protocol):
    """What is left of a blob, read like a file."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; b"" at the end."""
        ...


Blob = tuple[str, int, bytes | Reader]


class Client(Protocol):
    """What an upload needs of the launcher's client. Both raise `Unavailable` when the connection breaks."""

    def offer_snapshot(self, snapshot: Snapshot) -> list[str]:
        """The sha256 that the store lacks; the snapshot is complete when there is none."""
        ...

    def send_blobs(self, blobs: Iterator[Blob]) -> object:
        """Send (sha256, size, content). A content that is no bytes is to be read to its end, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """What had to be sent; both are 0 for content that the store had."""

    blobs: int
    bytes: int


def upload(
    snapshot: Snapshot, project: Project, client: Client, *, on_progress: Progress | None = None
) -> Uploaded:
    """Bring the store to hold the whole snapshot. Idempotent; `on_progress` gets (bytes sent, bytes in all).

    Broken connections are tried again, the rest only, up to `ROUNDS` times without any progress. Raises
    `Unavailable` with the client's code, or with `upload-incomplete` when the store keeps asking.
    """
    missing = _offer(client, snapshot)
    wanted = _sizes(snapshot, missing)
    total, tries = sum(wanted.values()), 0
    while missing:
        try:
            _send(snapshot, project, client, missing=missing, report=_reporter(on_progress, total))
        except Unavailable as fault:
            if tries + 1 >= ROUNDS or not is_launcher_away(fault):
                raise
        left = _offer(client, snapshot)
        tries = tries + 1 if len(left) >= len(missing) else 0
        if tries >= ROUNDS:
            raise _incomplete(snapshot, left)
        if left:
            time.sleep(min(_WAIT_SECONDS, 0.1 * 2**tries))
        missing = left
    return Uploaded(blobs=len(wanted), bytes=total)


def _offer(client: Client, snapshot: Snapshot) -> list[str]:
    """Ask, and ask again while the launcher is away."""
    for tries in range(ROUNDS - 1):
        try:
            return client.offer_snapshot(snapshot)
        except Unavailable as fault:
            if not is_launcher_away(fault):
                raise
            time.sleep(min(_WAIT_SECONDS, 0.1 * 2**tries))
    return client.offer_snapshot(snapshot)


def _sizes(snapshot: Snapshot, missing: Iterable[str]) -> dict[str, int]:
    known = {item.sha256: item.size_bytes for item in snapshot.files}
    return {sha256: known[sha256] for sha256 in missing}


def _reporter(on_progress: Progress | None, total: int) -> Callable[[int], None]:
    """Adds up what one round sent."""
    sent = 0

    def report(size: int) -> None:
        nonlocal sent
        sent += size
        if on_progress is not None:
            on_progress(min(sent, total), total)

    return report


def _send(
    snapshot: Snapshot,
    project: Project,
    client: Client,
    *,
    missing: list[str],
    report: Callable[[int], None],
) -> None:
    """Send in batches, so that one call is never larger than a batch and a file."""
    objects = list_objects(project, snapshot.tree)
    lacking = set(missing)
    plan: dict[str, tuple[str, int]] = {}
    for item in snapshot.files:
        if item.sha256 in lacking:
            plan[item.sha256] = (objects[item.path][1], item.size_bytes)
    for batch in _batches(plan):
        client.send_blobs(_read(project, batch, report=report))


def _batches(plan: dict[str, tuple[str, int]]) -> Iterator[dict[str, str]]:
    """Parts of the plan as object id -> sha256."""
    part: dict[str, str] = {}
    held = 0
    for sha256, (oid, size) in plan.items():
        if part and (held + size > BATCH_BYTES or len(part) >= BATCH_BLOBS):
            yield part
            part, held = {}, 0
        part[oid] = sha256
        held += size
    if part:
        yield part


def _read(project: Project, batch: dict[str, str], *, report: Callable[[int], None]) -> Iterator[Blob]:
    """The blobs of a batch out of one git process, each checked against its name on the way."""
    for oid, size, stream in digests.contents(project, list(batch)):
        member = _Member(stream, size)
        yield batch[oid], size, member.read() if size <= _SMALL_BYTES else member
        member.drain()
        if member.digest.hexdigest() != batch[oid]:
            raise _damaged(oid)
        report(size)


class _Member:
    """One object of the stream as a file of its own, hashed as it is read."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        content = b"".join(digests.chunks(self._stream, wanted))
        self._left -= len(content)
        self.digest.update(content)
        return content

    def drain(self) -> None:
        """Read what the receiver did not want, so that the stream stands at the next object."""
        while self.read(digests.CHUNK_BYTES):
            pass


def _damaged(oid: str) -> Refused:
    """The remembered sha256 is wrong: dropped, so that the next promotion hashes afresh."""
    digests.forget([oid])
    return Refused(
        "snapshot-damaged",
        f"Object {oid[:12]} does not have the sha256 that was remembered for it in {digests.cache_file()}.",
        "The wrong entry was dropped: promote again.",
    )


def _incomplete(snapshot: Snapshot, left: list[str]) -> Unavailable:
    return Unavailable(
        "upload-incomplete",
        f"The launcher still lacks {len(left)} of {len(snapshot.files)} files after {ROUNDS} rounds.",
        "Look into the launcher's log (a full disk?), then promote again: what arrived is kept.",
    )
