"""What a promotion comes to, by the launcher's own client: a snapshot in the store, and the spec of a job with it."""

from __future__ import annotations

import base64
import hashlib
import secrets
import sys
from typing import Any

from slicelift.launcher_client import Client
from slicelift.models import JobSpec, Snapshot, SnapshotFile


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_promotion_id() -> str:
    return "p-" + base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]


def make_snapshot(content: dict[str, bytes]) -> Snapshot:
    """Of files by path; what runs is promoted.py."""
    files = tuple(
        SnapshotFile(path=path, sha256=digest(data), size_bytes=len(data)) for path, data in content.items()
    )
    words = {"tree": "t", "commit": "c", "base_commit": "b", "branch": "main", "dirty": False, "cwd": "."}
    words |= {"notebook": "demo.ipynb", "script": "promoted.py", "script_sha256": "", "lock_sha256": ""}
    return Snapshot(id=digest(repr(sorted(content.items())).encode()), files=files, **words)


def upload(client: Client, content: dict[str, bytes]) -> Snapshot:
    """The snapshot of these files, complete in the store."""
    snapshot = make_snapshot(content)
    missing = set(client.offer_snapshot(snapshot))
    blobs = [(digest(data), len(data), data) for data in content.values() if digest(data) in missing]
    client.send_blobs(iter(blobs))
    assert client.offer_snapshot(snapshot) == []
    return snapshot


def make_spec(snapshot: Snapshot, **changes: Any) -> JobSpec:
    words = {"name": "demo", "snapshot_id": snapshot.id, "notebook": snapshot.notebook, "cwd": snapshot.cwd}
    words |= {"script": snapshot.script, "python": sys.executable}
    return JobSpec(**(words | changes))
