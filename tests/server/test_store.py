"""Files on their way in and out: by content, per owner, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from slicelift.errors import Conflict, NotFound, SliceliftError, UserError
from slicelift.models import SnapshotFile, Status, to_dict
from slicelift.tracking_account import make_account
from slicelift_hub.launcher.names import make_folder_name
from slicelift_hub.launcher.policy import LIMITS
from slicelift_hub.launcher.store import Store

from tests.promoting import digest, make_snapshot

BAD_PATHS = ["../x", "/etc/passwd", "a/../../x", "a//b", ".", "a/./b", "", "a\\b", "a\nb", "x" * 1100, "a/"]


def test_the_same_content_is_sent_and_stored_once(launcher: Any) -> None:
    data = os.urandom(300_000)
    snapshot = make_snapshot({"a": data, "b/c 数据.bin": data, "empty": b""})
    missing = launcher.client.offer_snapshot(snapshot)
    assert missing == [digest(data), digest(b"")]
    with pytest.raises(NotFound):
        launcher.client.snapshot(snapshot.id)
    blobs = [(digest(data), len(data), io.BytesIO(data)), (digest(b""), 0, b"")]
    assert launcher.client.send_blobs(blobs) == {"stored": 2, "known": 0}
    path = next(launcher.home.glob(f"store/*/blobs/*/{digest(data)}"))
    written = path.stat().st_mtime_ns
    assert launcher.client.send_blobs([(digest(data), len(data), data)]) == {"stored": 0, "known": 1}
    assert path.stat().st_mtime_ns == written
    assert launcher.client.offer_snapshot(snapshot) == []
    assert launcher.client.snapshot(snapshot.id) == snapshot
    assert launcher.client.snapshot_file(snapshot.id, "b/c 数据.bin") == data


def test_an_agent_gets_the_files_with_their_modes_and_links(launcher: Any) -> None:
    content = {
        "promoted.py": b"x",
        "run.sh": b"#!/bin/sh\n",
        "link": "deep/target 中文".encode(),
        "深/a b.txt": b"z" * 1000,
    }
    plain = make_snapshot(content)
    modes = {"run.sh": "100755", "link": "120000"}
    files = tuple(replace(item, mode=modes.get(item.path, item.mode)) for item in plain.files)
    snapshot = replace(plain, files=files)
    launcher.client.offer_snapshot(snapshot)
    launcher.client.send_blobs((digest(data), len(data), data) for data in content.values())
    assert launcher.client.offer_snapshot(snapshot) == []
    view = launcher.running(snapshot_id=snapshot.id)
    agent = launcher.agent(view)
    raw = agent.http.get(f"{agent.base}/snapshot").content
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        members = {member.name: member for member in archive}
        assert set(members) == set(content)
        assert members["link"].linkname == "deep/target 中文"
        assert (members["run.sh"].mode, members["promoted.py"].mode) == (0o755, 0o644)
        for name in ("run.sh", "深/a b.txt"):
            assert archive.extractfile(members[name]).read() == content[name]
    launcher.client.cancel(view.run_id)


@pytest.mark.parametrize("damage", [b"print('ho')\n", b"print(", b""], ids=["other", "short", "empty"])
def test_a_blob_that_the_disk_has_damaged_counts_as_missing_and_comes_again(
    tmp_path: Path, damage: bytes
) -> None:
    store, content = Store(tmp_path), {"promoted.py": b"print('hi')\n", "b.txt": b"fine"}
    snapshot = make_snapshot(content)

    def send(digests: list[str]) -> None:
        for data in content.values():
            if digest(data) in digests:
                writer = store.write_blob("ada", digest(data), limit_bytes=100)
                writer.write(data)
                assert writer.commit()

    digests = [item.sha256 for item in snapshot.files]
    send(store.offer("ada", snapshot))
    assert store.offer("ada", snapshot) == []
    assert store.damaged("ada", digests) == []
    hurt = digest(content["promoted.py"])
    store.blob_path("ada", hurt).write_bytes(damage)
    if len(damage) != len(content["promoted.py"]):
        # a promotion sees as much by itself
        assert store.offer("ada", snapshot) == [hurt]
    else:
        assert store.damaged("ada", digests) == [hurt]
    assert store.missing("ada", digests) == [hurt]
    send(store.offer("ada", snapshot))
    assert store.offer("ada", snapshot) == []
    assert store.damaged("ada", digests) == []


@pytest.mark.parametrize(
    ("number", "is_damaged"), [(errno.EIO, True), (errno.ENOENT, True), (errno.EMFILE, False)]
)
def test_what_the_disk_cannot_read_is_damaged_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_damaged: bool
) -> None:
    """Or removed by another agent's call; what this process cannot open for reasons of its own stays."""
    store, data = Store(tmp_path), b"x"
    writer = store.write_blob("ada", digest(data), limit_bytes=10)
    writer.write(data)
    writer.commit()

    def read(*_: Any) -> Any:
        raise OSError(number, "no")

    monkeypatch.setattr("slicelift_hub.launcher.store.hashlib.file_digest", read)
    with contextlib.nullcontext() if is_damaged else pytest.raises(OSError, match="no"):
        assert store.damaged("ada", [digest(data)]) == [digest(data)]
    assert store.blob_path("ada", digest(data)).exists() is not is_damaged


def test_a_damaged_list_of_files_is_written_again_by_the_next_promotion(tmp_path: Path) -> None:
    store, data = Store(tmp_path), b"x"
    snapshot = make_snapshot({"promoted.py": data})
    writer = store.write_blob("ada", digest(data), limit_bytes=10)
    writer.write(data)
    writer.commit()
    assert store.offer("ada", snapshot) == []
    (path,) = tmp_path.glob("store/*/snapshots/*.json")
    for damage in (b"", bytes(200), b"null", path.read_bytes()[:50]):
        path.write_bytes(damage)
        with pytest.raises(NotFound) as caught:
            store.snapshot("ada", snapshot.id)
        assert caught.value.code == "snapshot-unknown"
        assert store.offer("ada", snapshot) == []
        assert store.snapshot("ada", snapshot.id) == snapshot


def test_an_agent_gets_no_other_code_than_was_promoted(launcher: Any) -> None:
    data = b"print('hi')\n"
    view = launcher.running()
    (path,) = launcher.home.glob(f"store/*/blobs/*/{digest(data)}")
    path.write_bytes(b"print('ho')\n")
    agent = launcher.agent(view)
    refused = agent.http.get(f"{agent.base}/snapshot")
    assert (refused.status_code, refused.json()["code"]) == (404, "snapshot-incomplete")
    assert refused.json()["message"].endswith("or damaged there: promoted.py.")
    # the next promotion of the same mends it
    launcher.snapshot()
    assert agent.http.get(f"{agent.base}/snapshot").status_code == 200
    launcher.client.cancel(view.run_id)


def test_a_digest_that_differs_is_refused_and_nothing_is_kept(launcher: Any) -> None:
    good, bad = b"good bytes", "1" * 64
    with pytest.raises(UserError) as refusal:
        launcher.client.send_blobs([(digest(good), len(good), good), (bad, 3, b"bad")])
    assert refusal.value.code == "blob-differs"
    assert not list(launcher.home.glob(f"store/*/blobs/11/{bad}"))
    assert not list(launcher.home.glob("store/*/blobs/tmp/*"))
    # the first was whole
    assert launcher.client.send_blobs([(digest(good), len(good), good)]) == {"stored": 0, "known": 1}


def _tar(*members: tarfile.TarInfo) -> bytes:
    return b"".join(member.tobuf(tarfile.GNU_FORMAT) for member in members)


def _named(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"this is no tar at all" * 100, "bad-archive"),
        (b"\x00" * 100, "bad-archive"),
        (_tar(_named("../../etc/passwd")), "bad-digest"),
        (_tar(_named("A" * 64)), "bad-digest"),
        (_tar(_named("0" * 64, tarfile.SYMTYPE)), "bad-archive"),
        (_tar(_named("0" * 64, tarfile.LNKTYPE)), "bad-archive"),
        (_tar(_named("0" * 64, tarfile.CHRTYPE)), "bad-archive"),
        (_tar(_named("0" * 64, tarfile.GNUTYPE_SPARSE)), "bad-archive"),
        (_tar(_named("0" * 64, tarfile.XHDTYPE, 2**30)), "bad-archive"),
        (_tar(_named("0" * 64, size=2**50)), "bad-archive"),
        (_tar(_named("0" * 64, size=100)) + b"x" * 20, "bad-archive"),
    ],
)
def test_malformed_archives_are_a_400(launcher: Any, body: bytes, code: str) -> None:
    with launcher.http() as http:
        answer = http.post("/blobs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert not list(launcher.home.glob("store/*/blobs/tmp/*"))


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_leave_the_project_are_refused(launcher: Any, path: str) -> None:
    snapshot = make_snapshot({path: b"x"})
    with pytest.raises(UserError) as refusal:
        launcher.client.offer_snapshot(snapshot)
    assert refusal.value.code == "bad-path"


def test_malformed_snapshots_are_refused(launcher: Any) -> None:
    good = make_snapshot({"promoted.py": b"y"})
    twice = replace(good, files=good.files * 2)
    device = replace(good, files=(replace(good.files[0], mode="060000"),))
    lying = replace(good, files=(replace(good.files[0], size_bytes=7),))
    link = replace(good, files=(replace(good.files[0], mode="120000", size_bytes=2**31 - 1),))
    huge = replace(good, files=(replace(good.files[0], size_bytes=3 * 1024**3),))
    launcher.client.send_blobs([(digest(b"y"), 1, b"y")])
    for snapshot in (twice, device, lying, link):
        with pytest.raises(UserError) as refusal:
            launcher.client.offer_snapshot(snapshot)
        assert refusal.value.code == "bad-snapshot"
    with pytest.raises(UserError) as refusal:
        launcher.client.offer_snapshot(huge)
    assert refusal.value.code == "snapshot-too-large"
    assert "c.Launcher.snapshot_limit_bytes" in refusal.value.hint
    assert str(launcher.home / "launcher_config.py") in refusal.value.hint
    with launcher.http() as http:
        for body in ({"snapshot": []}, {}, {"snapshot": to_dict(good) | {"files": "x"}}):
            assert http.post("/snapshots", json=body).json()["code"] == "bad-body"


def test_the_same_id_with_other_files_is_a_conflict_and_newer_heads_win(launcher: Any) -> None:
    first = launcher.snapshot(unique=b"1")
    other = replace(launcher.snapshot(unique=b"2"), id=first.id)
    with pytest.raises(Conflict) as refusal:
        launcher.client.offer_snapshot(other)
    assert refusal.value.code == "snapshot-differs"
    moved = replace(first, base_commit="newer")
    assert launcher.client.offer_snapshot(moved) == []
    assert launcher.client.snapshot(first.id).base_commit == "newer"


def test_a_body_over_the_limit_is_a_413_that_can_be_read(make_launcher: Any) -> None:
    launcher = make_launcher("--Launcher.upload_limit_bytes=1000000").start()
    data = b"x" * 3_000_000
    archive = _tar(_named(digest(data), size=len(data))) + data
    for body in (archive, _stream(archive)):
        with launcher.http() as http:
            answer = http.post("/blobs", content=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    assert not list(launcher.home.glob("store/*/blobs/tmp/*"))


def test_a_log_that_finds_no_room_is_told_in_the_card(make_launcher: Any) -> None:
    """The limit on the size of a file stands for the full disk; the next attempt to send it finds room."""
    launcher = make_launcher(limit_file_bytes=4_000_000).start()
    view = launcher.running()
    agent = launcher.agent(view)
    path = f"{agent.base}/logs?rank=0&offset=0"
    assert agent.http.post(path, content=b"x" * 6_000_000).status_code == 507
    assert launcher.client.job(view.run_id).reason == "store-full"
    assert agent.http.post(path, content=b"x" * 1000).status_code == 200
    assert launcher.client.job(view.run_id).reason == "store-back"
    # one that is started anew does not know, and says nothing until it does
    assert agent.http.post(path, content=b"x" * 6_000_000).status_code == 507
    launcher.kill()
    launcher.start()
    after = launcher.client.job(view.run_id)
    assert (after.status, after.reason, after.message) == (Status.RUNNING, "", "")
    launcher.client.cancel(view.run_id)


def test_a_full_disk_is_a_507_and_leaves_nothing_half_written(make_launcher: Any) -> None:
    """The limit on the size of a file stands for the full disk."""
    launcher = make_launcher(limit_file_bytes=4_000_000).start()
    small, large = b"s" * 1000, b"l" * 6_000_000
    snapshot = make_snapshot({"small": small, "large": large})
    launcher.client.offer_snapshot(snapshot)
    with pytest.raises(SliceliftError) as refusal:
        launcher.client.send_blobs((digest(data), len(data), data) for data in (small, large))
    assert (refusal.value.code, refusal.value.__class__) == ("store-full", SliceliftError)
    assert "space" in refusal.value.hint
    assert not list(launcher.home.glob("store/*/blobs/tmp/*"))
    assert launcher.client.offer_snapshot(snapshot) == [digest(large)]
    view = launcher.running()
    agent = launcher.agent(view)
    answer = agent.http.put(f"{agent.base}/outputs/big.bin?sha256={digest(large)}", content=large)
    assert (answer.status_code, answer.json()["code"]) == (507, "store-full")
    assert launcher.client.outputs(view.run_id) == []
    # a log that hits the limit says where it stopped, and the rest comes when there is room
    base = f"{agent.base}/logs?rank=0&offset="
    assert agent.http.post(f"{base}0", content=large).status_code == 507
    assert agent.http.post(f"{base}9000000", content=b"x").json()["detail"] == {"next": 4_000_000}


def test_outputs_are_kept_by_attempt_and_can_be_fetched(launcher: Any) -> None:
    view = launcher.running()
    agent = launcher.agent(view)
    old, new = b"first", os.urandom(700_000)
    for data in (old, new, new):
        url = f"{agent.base}/outputs/plots/图 1.png?sha256={digest(data)}"
        assert agent.http.put(url, content=data).json()["size_bytes"] == len(data)
    wrong = agent.http.put(f"{agent.base}/outputs/a?sha256={'0' * 64}", content=b"x")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "blob-differs")
    escape = agent.http.put(f"{agent.base}/outputs/%2e%2e/x?sha256={digest(b'x')}", content=b"x")
    assert escape.status_code in (400, 404)
    (found,) = launcher.client.outputs(view.run_id)
    assert (found.attempt, found.path, found.sha256) == (1, "plots/图 1.png", digest(new))
    assert b"".join(launcher.client.output(view.run_id, 1, found.path)) == new
    with pytest.raises(NotFound):
        b"".join(launcher.client.output(view.run_id, 1, "nothing"))
    launcher.client.cancel(view.run_id)


def test_a_model_is_listed_once_all_its_files_are_there(launcher: Any) -> None:
    view = launcher.running()
    agent = launcher.agent(view)
    content = {"MLmodel": b"flavors:", "data/model.pth": os.urandom(5000)}
    files = [to_dict(SnapshotFile(path=p, sha256=digest(d), size_bytes=len(d))) for p, d in content.items()]
    body = {"name": "digits", "files": files, "meta": {"framework": "torch"}}
    assert agent.post("models", body).json() == {"missing": [item["sha256"] for item in files]}
    for data in content.values():
        answer = agent.http.put(f"{agent.base}/blobs/{digest(data)}", content=data)
        assert answer.json() == {"sha256": digest(data), "new": True}
    assert agent.http.put(f"{agent.base}/blobs/{'0' * 64}", content=b"x").json()["code"] == "blob-differs"
    for _ in range(2):
        assert agent.post("models", body).json() == {"missing": []}
    mine = f"where run_id = '{view.run_id}'"
    assert launcher.rows(f"select name, attempt, version from versions {mine}") == [("digits", 1, None)]
    # no tracker, no version: nothing to show yet
    assert launcher.client.job(view.run_id).models == ()
    for bad in ({"name": "x"}, {"name": "", "files": files}, {"name": "x", "files": [{"path": "a"}]}):
        assert agent.post("models", bad).status_code == 400
    with pytest.raises(NotFound) as refusal:
        launcher.client.set_alias("digits", "champion", "1")
    assert refusal.value.code == "version-unknown"
    launcher.client.cancel(view.run_id)


def test_logs_grow_by_offset_and_are_read_in_pieces(launcher: Any) -> None:
    view = launcher.running(workers=2)
    agent = launcher.agent(view)

    def append(offset: int, data: bytes, rank: str = "1") -> Any:
        return agent.http.post(f"{agent.base}/logs?rank={rank}&offset={offset}", content=data)

    assert append(0, b"one\n").json() == {"next": 4}
    assert append(0, b"one\ntwo\n").json() == {"next": 8}
    assert append(0, b"one\n").json() == {"next": 8}
    gap = append(100, b"x")
    assert (gap.status_code, gap.json()["detail"]) == (409, {"next": 8})
    assert append(0, b"agent says", rank="agent").json() == {"next": 10}
    assert append(0, b"x", rank="../../x").json()["code"] == "bad-rank"
    logs = launcher.client.logs
    assert logs(view.run_id, rank=1) == (b"one\ntwo\n", 8)
    assert logs(view.run_id, rank=1, offset=4, limit=2) == (b"tw", 6)
    assert logs(view.run_id, rank=1, offset=-4) == (b"two\n", 8)
    assert logs(view.run_id, rank=7) == (b"", 0)
    assert logs(view.run_id, rank="agent")[0] == b"agent says"
    with pytest.raises(UserError) as refusal:
        logs(view.run_id, attempt=2)
    assert refusal.value.code == "attempt-unknown"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("1ST", "x", "bad-secret-name"),
        ("A-B", "x", "bad-secret-name"),
        ("PATH", "x", "bad-secret-name"),
        ("pythonpath", "x", "bad-secret-name"),
        ("SLICELIFT_ATTEMPT", "x", "bad-secret-name"),
        ("GOOD", "", "bad-secret"),
        ("GOOD", "a\0b", "bad-secret"),
        ("GOOD", "x" * 70_000, "bad-secret"),
    ],
)
def test_secrets_are_checked(launcher: Any, name: str, value: str, code: str) -> None:
    with pytest.raises(UserError) as refusal:
        launcher.client.set_secret(name, value)
    assert refusal.value.code == code


def test_secrets_lie_in_a_file_that_only_the_user_reads(launcher: Any) -> None:
    launcher.client.set_secret("TOKEN_一"[:5], "wert")
    (path,) = launcher.home.glob("store/*/secrets.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_bytes()) == {"TOKEN": "wert"}
    launcher.client.delete_secret("TOKEN")
    with pytest.raises(NotFound) as refusal:
        launcher.client.delete_secret("TOKEN")
    assert refusal.value.code == "secret-unknown"


def test_a_name_of_any_length_has_a_folder(tmp_path: Path) -> None:
    owners = ["量" * 64, "量" * 63 + "子", "量" * 28, "a" * 300]
    folders = [Store(tmp_path).folder(owner) for owner in owners]
    assert len(set(folders)) == len(owners)
    assert folders[2].name == quote("量" * 28)
    # MLflow takes 500 characters of an experiment behind the account
    assert max(len(make_account("s" * 32, owner).name) for owner in owners) < 500 - LIMITS["experiment"][0]


def test_no_two_owners_share_a_folder() -> None:
    owners = ["ann", "Ann", "a/b", "a%2Fb", "..", ".", "安", "~ann", "a b"]
    folders = [make_folder_name(owner) for owner in owners]
    assert len(set(folders)) == len(owners)
    assert not any("/" in folder or folder.startswith(".") for folder in folders)


def _stream(data: bytes) -> Any:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]
