"""Snapshots and blobs on their way in; series, logs and outputs on their way out."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from slicelift.errors import NotFound, UserError
from slicelift.models import RunView, Snapshot, to_dict
from tornado.iostream import StreamClosedError

from slicelift_hub.launcher.bodies import parse
from slicelift_hub.launcher.handler import Handler
from slicelift_hub.launcher.logs import MAX_READ_BYTES
from slicelift_hub.launcher.names import check_path
from slicelift_hub.launcher.routes_jobs import find_run
from slicelift_hub.launcher.series import MIN_POINTS
from slicelift_hub.launcher.store import read_chunks
from slicelift_hub.launcher.tar import BlobReceiver

MAX_POINTS = 5000


class SnapshotsHandler(Handler):
    """Offer a snapshot; the answer says what must be sent first."""

    async def post(self) -> None:
        snapshot = parse(Snapshot, self.json_body().get("snapshot"))
        missing = await self.services.call(self._offer, snapshot)
        self.answer({"snapshot_id": snapshot.id, "missing": missing})

    def _offer(self, snapshot: Snapshot) -> list[str]:
        owner = self.principal.owner
        missing = self.services.store.offer(owner, snapshot)
        if not missing:
            self.services.ledger.note_snapshot(
                owner, snapshot.id, files=len(snapshot.files), size_bytes=snapshot.size_bytes
            )
        return missing


class SnapshotHandler(Handler):
    """A complete snapshot."""

    async def get(self, snapshot_id: str) -> None:
        store = self.services.store
        snapshot = await self.services.call(store.snapshot, self.principal.owner, snapshot_id)
        self.answer({"snapshot": to_dict(snapshot)})


class SnapshotFileHandler(Handler):
    """The bytes of one file of a snapshot, such as the generated script or its line map."""

    async def get(self, snapshot_id: str, path: str) -> None:
        store, owner = self.services.store, self.principal.owner
        snapshot = await self.services.call(store.snapshot, owner, snapshot_id)
        found = next((item for item in snapshot.files if item.path == path), None)
        if found is None:
            message = f"Snapshot {snapshot_id[:12]} holds no file {path[:200]!r}."
            raise NotFound("file-unknown", message, "`slicelift plan NOTEBOOK` shows what travels.")
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("X-Content-Type-Options", "nosniff")
        await send_chunks(self, read_chunks(store.blob_path(owner, found.sha256)))


class BlobsHandler(Handler):
    """A tar stream of blobs, each in the store as soon as it is whole."""

    body_limit = "upload_bytes"

    async def open_body(self) -> None:
        limit = self.services.limits.blob_bytes
        self.receiver = BlobReceiver(self.services.store, self.principal.owner, blob_limit_bytes=limit)
        self.sink = self.receiver

    async def post(self) -> None:
        self.check_body()
        try:
            self.receiver.finish()
        finally:
            await self.services.call(self.receiver.abort)
        self.answer({"stored": self.receiver.stored, "known": self.receiver.known})


class SeriesHandler(Handler):
    """Curves: of the last attempt, of one (`attempt=2`) or of all (`attempt=all`)."""

    async def get(self, ident: str) -> None:
        view = await find_run(self, ident)
        keys = self.get_query_argument("keys", "")
        wanted: dict[str, Any] = {
            "keys": frozenset(keys.split(",")) if keys else None,
            "rank": self.number("rank", low=0),
            "first": self.number("from", low=-(2**62)),
            "last": self.number("to", low=-(2**62)),
            "points": self.number("points", 300, low=MIN_POINTS, high=MAX_POINTS),
        }
        found: list[dict[str, Any]] = []
        for attempt in attempts_asked(self, view):
            attempt_id = f"{view.run_id}-{attempt}"
            rows = await self.services.call(self.services.ingest.series, attempt_id, **wanted)
            found += [{"attempt": attempt, **row} for row in rows]
        self.answer({"series": found})


class LogsHandler(Handler):
    """A piece of a log; `X-Next-Offset` says where the next one begins."""

    async def get(self, ident: str) -> None:
        view = await find_run(self, ident)
        data, following = await self.services.call(
            self.services.logs.read,
            view.owner,
            view.run_id,
            attempt=one_attempt(self, view),
            rank=self.get_query_argument("rank", "0"),
            offset=self.number("offset", 0, low=-(2**40), high=2**60) or 0,
            limit=self.number("limit", MAX_READ_BYTES, low=1, high=2**60) or 1,
        )
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Next-Offset", str(following))
        await self.finish(data)


class OutputsHandler(Handler):
    """What all attempts left under ./outputs."""

    async def get(self, ident: str) -> None:
        view = await find_run(self, ident)
        found = await self.services.call(self.services.ledger.outputs_of, view.run_id)
        self.answer({"outputs": to_dict(found)})


class OutputHandler(Handler):
    """The bytes of one output file."""

    async def get(self, ident: str, attempt: str, path: str) -> None:
        view = await find_run(self, ident)
        check_path(path)
        found = await self.services.call(self.services.ledger.outputs_of, view.run_id)
        match = next((item for item in found if (item.attempt, item.path) == (int(attempt), path)), None)
        if match is None:
            message = f"Attempt {attempt} of {view.run_id} left no file {path[:200]!r}."
            raise NotFound(
                "output-unknown", message, f"`slicelift outputs {view.run_id}` lists what there is."
            )
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Length", str(match.size_bytes))
        self.set_header("X-Content-Type-Options", "nosniff")
        name = quote(re.sub(r".*/", "", path))
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        blob = self.services.store.blob_path(view.owner, match.sha256)
        await send_chunks(self, read_chunks(blob))


async def send_chunks(handler: Handler, chunks: Any) -> None:
    """Stream an iterator of bytes; whoever went away ends it."""
    try:
        while (chunk := await handler.services.call(next, chunks, None)) is not None:
            handler.write(chunk)
            await handler.flush()
    except StreamClosedError:
        return
    await handler.finish()


def attempts_asked(handler: Handler, view: RunView) -> list[int]:
    """The attempts that `attempt=` names: the last one, one by number, or all."""
    if handler.get_query_argument("attempt", "") == "all":
        return list(range(1, view.attempt + 1))
    return [one_attempt(handler, view)]


def one_attempt(handler: Handler, view: RunView) -> int:
    """The attempt that `attempt=` names, else the last. Raises `attempt-unknown`."""
    attempt = handler.number("attempt", view.attempt, low=-(2**31)) or 0
    if not 1 <= attempt <= view.attempt:
        message = f"{view.run_id} has no attempt {attempt}."
        raise UserError("attempt-unknown", message, f"Attempts: 1 to {view.attempt}.")
    return attempt
