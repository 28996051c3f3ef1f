"""The part of a promotion that needs a launcher: upload and submit, until it is accepted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from slicelift.errors import Unavailable, is_launcher_away
from slicelift.models import RunView, size_text
from slicelift.promotion.preparing import Prepared
from slicelift.promotion.request import Progress, Step

if TYPE_CHECKING:
    from slicelift.launcher_client import Client
    from slicelift.snapshot.store import Uploaded

RETRY_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


def deliver(
    prepared: Prepared, promotion_id: str, *, connect: Callable[[], Client], say: Progress
) -> RunView:
    """Upload and submit until it is accepted. A launcher that goes away in between is found or started again.

    Whatever else is amiss, as a full disk, is told at once. Safe to repeat at any point: the store keeps what
    arrived, and one promotion id is one job.
    """
    until = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            with connect() as client:
                return _send(prepared, promotion_id, client, say=say)
        except Unavailable as fault:
            if time.monotonic() > until or not is_launcher_away(fault):
                raise _undelivered(fault, promotion_id) from fault
            say(Step(name="waiting", text=f"Trying again: {fault.message}"))
            time.sleep(_PAUSE_SECONDS)


def _send(prepared: Prepared, promotion_id: str, client: Client, *, say: Progress) -> RunView:
    from slicelift.snapshot.store import upload

    started = time.perf_counter()
    sent = upload(prepared.snapshot, prepared.project, client)
    say(Step(name="upload", text=_upload_text(sent), seconds=time.perf_counter() - started))
    started = time.perf_counter()
    view = client.submit(promotion_id, prepared.spec)
    say(Step(name="submit", text=f"Accepted as {view.run_id}", seconds=time.perf_counter() - started))
    return view


def _undelivered(fault: Unavailable, promotion_id: str) -> Unavailable:
    """It may or may not have been accepted: the id makes trying again safe."""
    hint = f"Try again with --promotion-id {promotion_id}: at most one job comes of it. {fault.hint}"
    return Unavailable(fault.code, fault.message, hint.strip(), detail={"promotion_id": promotion_id})


def _upload_text(sent: Uploaded) -> str:
    if not sent.blobs:
        return "Uploaded: nothing, all of it is known"
    return f"Uploaded: {sent.blobs} files, {size_text(sent.bytes)}"
