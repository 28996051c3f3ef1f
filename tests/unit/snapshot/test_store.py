"""The way into the store, against one that keeps blobs as the launcher does: each by itself, by its sha256."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Refused, Unavailable
from slicelift.models import Environment, Script, Snapshot
from slicelift.snapshot import store, take


def read_all(content: store.Reader) -> bytes:
    return b"".join(iter(lambda: content.read(65536), b""))


@dataclasses.dataclass
class Store:
    """Keeps what it is sent; `breaks` says after how many blobs of a call the connection goes, call by call."""

    blobs: dict[str, bytes] = dataclasses.field(default_factory=dict)
    breaks: list[int] = dataclasses.field(default_factory=list)
    offers: int = 0
    calls: list[int] = dataclasses.field(default_factory=list)
    deaf: bool = False

    def offer_snapshot(self, snapshot: Snapshot) -> list[str]:
        self.offers += 1
        return sorted({item.sha256 for item in snapshot.files} - self.blobs.keys())

    def send_blobs(self, blobs: Iterator[store.Blob]) -> None:
        limit = self.breaks.pop(0) if self.breaks else 10**9
        count = 0
        for sha256, size, content in blobs:
            whole = content if isinstance(content, bytes) else read_all(content)
            assert len(whole) == size
            assert hashlib.sha256(whole).hexdigest() == sha256
            if count >= limit:
                self.calls.append(count)
                raise Unavailable("launcher-away", "The connection broke.")
            if not self.deaf:
                self.blobs[sha256] = whole
            count += 1
        self.calls.append(count)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_WAIT_SECONDS", 0.0)


@pytest.fixture
def snapshot(repo: Any, script: Script, environment: Environment) -> Snapshot:
    repo.write("large.bin", bytes(range(256)) * 12_000)
    repo.write("two.bin", b"same")
    repo.write("twin.bin", b"same")
    repo.write("empty.txt", b"")
    return take(
        repo.root / "nb.ipynb", script=script, environment=environment, notebook_bytes=b'{"frozen": 1}'
    )


def test_every_content_is_sent_once_and_the_second_time_nothing(repo: Any, snapshot: Snapshot) -> None:
    kept, told = Store(), []
    sent = store.upload(snapshot, repo.project(), kept, on_progress=lambda done, of: told.append((done, of)))
    assert kept.blobs.keys() == {item.sha256 for item in snapshot.files}
    assert sent == store.Uploaded(blobs=len(kept.blobs), bytes=sum(map(len, kept.blobs.values())))
    assert told[-1] == (sent.bytes, sent.bytes)
    assert kept.offers == 2
    assert store.upload(snapshot, repo.project(), kept) == store.Uploaded(blobs=0, bytes=0)
    assert (kept.offers, len(kept.calls)) == (3, 1)


def test_what_was_deleted_meanwhile_is_still_sent(repo: Any, snapshot: Snapshot) -> None:
    for path in repo.root.glob("*.bin"):
        path.unlink()
    kept = Store()
    store.upload(snapshot, repo.project(), kept)
    assert len(kept.blobs) == len({item.sha256 for item in snapshot.files})


def test_one_changed_file_is_all_that_goes(
    repo: Any, snapshot: Snapshot, script: Script, environment: Environment
) -> None:
    kept = Store()
    store.upload(snapshot, repo.project(), kept)
    repo.write("lib/model.py", "x = 3\n")
    path = repo.root / "nb.ipynb"
    changed = take(path, script=script, environment=environment, notebook_bytes=b'{"frozen": 1}')
    assert store.upload(changed, repo.project(), kept) == store.Uploaded(blobs=1, bytes=6)


def test_a_broken_connection_is_resumed_with_the_rest(repo: Any, snapshot: Snapshot) -> None:
    kept = Store(breaks=[2, 0, 3])
    store.upload(snapshot, repo.project(), kept)
    total = len({item.sha256 for item in snapshot.files})
    assert kept.calls == [2, 0, 3, total - 5]
    assert len(kept.blobs) == total


def test_batches_bound_a_call(repo: Any, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH_BLOBS", 3)
    kept = Store()
    store.upload(snapshot, repo.project(), kept)
    assert max(kept.calls) == 3
    monkeypatch.setattr(store, "BATCH_BYTES", 10)
    alone = Store()
    store.upload(snapshot, repo.project(), alone)
    assert max(alone.calls) <= 2
    assert alone.blobs == kept.blobs


def test_a_launcher_that_stays_away_is_given_up(repo: Any, snapshot: Snapshot) -> None:
    kept = Store(breaks=[0] * 50)
    with pytest.raises(Unavailable) as caught:
        store.upload(snapshot, repo.project(), kept)
    assert caught.value.code == "launcher-away"
    assert len(kept.calls) == store.ROUNDS


def test_a_full_disk_is_told_and_not_tried_again(
    repo: Any, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def full(*rest: object) -> None:
        tried.append(rest)
        raise Unavailable("disk-full", "The disk is full.")

    monkeypatch.setattr(store.digests, "contents", full)
    with pytest.raises(Unavailable, match="full"):
        store.upload(snapshot, repo.project(), Store())
    assert len(tried) == 1


def test_a_store_that_keeps_nothing_is_given_up(repo: Any, snapshot: Snapshot) -> None:
    with pytest.raises(Unavailable) as caught:
        store.upload(snapshot, repo.project(), Store(deaf=True))
    assert caught.value.code == "upload-incomplete"


def test_a_wrong_memory_of_a_digest_is_found_and_mended(
    repo: Any, script: Script, environment: Environment, snapshot: Snapshot
) -> None:
    memory = sqlite3.connect(Path.home() / ".cache/slicelift/blobs.sqlite")
    with memory:
        memory.execute("UPDATE blobs SET sha256 = randomblob(32) WHERE oid = (SELECT MIN(oid) FROM blobs)")
    memory.close()
    path = repo.root / "nb.ipynb"

    def again() -> Snapshot:
        return take(path, script=script, environment=environment, notebook_bytes=b'{"frozen": 1}')

    class Trusting(Store):
        def send_blobs(self, blobs: Iterator[store.Blob]) -> None:
            for _ in blobs:
                pass

    with pytest.raises(Refused) as caught:
        store.upload(again(), repo.project(), Trusting())
    assert caught.value.code == "snapshot-damaged"
    assert again() == snapshot
    store.upload(again(), repo.project(), Store())
