"""Events and logs over a connection that misbehaves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import NotFound, Unavailable, UserError
from slicelift.runtime.delivery import LEFT_OUT, Outputs
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.link import Link
from slicelift.runtime.shipping import Report, Shipper
from slicelift.runtime.tails import Tail


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    found = AttemptFolder(tmp_path / "attempt")
    for room in found.rooms():
        room.mkdir(parents=True)
    return found


@pytest.fixture
def request_json(launcher: Any, tmp_path: Path) -> dict[str, str]:
    state_file = str(tmp_path / "launcher.json")
    token = "job-token-of-the-test"
    return {"launcher_url": launcher.url, "state_file": state_file, "token": token, "attempt_id": "r-1"}


@pytest.fixture
def link(request_json: dict[str, str]) -> Iterator[Link]:
    found = Link(request_json)
    yield found
    found.close()


def ship(folder: AttemptFolder, request_json: dict[str, str], until: Callable[[], bool]) -> Shipper:
    shipper = Shipper(folder, Link(request_json), Report(), secrets=["hunter22"], on_cancel=lambda: None)
    shipper.start()
    shipper.finish()
    assert shipper.wait_drained(time.monotonic() + 10)
    assert until()
    assert shipper.close(time.monotonic() + 10)
    return shipper


def spool(folder: AttemptFolder, *lines: dict[str, Any]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder.root / "spool" / "0-1-1-000001.jsonl").write_text(text)


def point(q: int, value: float = 1.0) -> dict[str, Any]:
    return {"q": q, "t": 1.0, "k": "m", "s": q, "m": {"x": value}}


def test_a_launcher_that_lost_events_gets_them_again(
    folder: AttemptFolder, request_json: dict[str, str], launcher: Any
) -> None:
    spool(folder, *(point(q, float(q)) for q in range(3, 3000)))
    launcher.events[0, "1-1"] = [point(1)]
    ship(folder, request_json, lambda: len(launcher.events[0, "1-1"]) == 2999)
    assert [line["q"] for line in launcher.events[0, "1-1"]] == list(range(1, 3000))
    assert launcher.events[0, "1-1"][1]["k"] == "dropped"


def test_an_event_the_launcher_refuses_holds_nothing_up(
    folder: AttemptFolder, request_json: dict[str, str], launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool(folder, *(point(q, -1.0 if q == 500 else 1.0) for q in range(1, 1001)))
    take = launcher.post_events

    def picky(rest: str, query: dict[str, str], body: bytes) -> Any:
        if b'"x": -1.0' in body:
            raise type(launcher).refuse(400, "bad-event")
        return take(rest, query, body)

    monkeypatch.setattr(launcher, "post_events", picky)
    ship(folder, request_json, lambda: len(launcher.events[0, "1-1"]) == 1000)
    assert [line["q"] for line in launcher.events[0, "1-1"] if line["k"] == "dropped"] == [500]


def test_a_stream_that_is_refused_whatever_it_says_is_set_aside(
    folder: AttemptFolder,
    request_json: dict[str, str],
    launcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spool(folder, *(point(q) for q in range(1, 1001)))
    foreign = folder.root / "spool" / "7-2-2-000001.jsonl"
    foreign.write_text("".join(json.dumps(point(q)) + "\n" for q in range(1, 301)))
    (folder.root / "logs" / "rank-0.log").write_bytes(b"a line\n")
    take, calls = launcher.post_events, []

    def picky(rest: str, query: dict[str, str], body: bytes) -> Any:
        calls.append(1)
        if b'"rank": 7' in body:
            raise type(launcher).refuse(400, "bad-events")
        return take(rest, query, body)

    monkeypatch.setattr(launcher, "post_events", picky)
    ship(folder, request_json, lambda: len(launcher.events[0, "1-1"]) == 1000)
    assert list(launcher.events) == [(0, "1-1")]
    assert launcher.logs["0"] == b"a line\n"
    assert [path.name for path in (folder.root / "spool").iterdir()] == [foreign.name]
    assert len(calls) < 40
    assert capsys.readouterr().err.count("process 2-2 of rank 7 are refused and set aside (1 so far)") == 1


def test_logs_go_on_where_the_launcher_is_and_hide_secrets(
    folder: AttemptFolder, request_json: dict[str, str], launcher: Any
) -> None:
    text = b"".join(b"line %d hunter22\n" % number for number in range(20000))
    shown = text.replace(b"hunter22", b"***")
    (folder.root / "logs" / "rank-0.log").write_bytes(text)
    launcher.logs["0"] = shown[:100_003]
    ship(folder, request_json, lambda: launcher.logs["0"] == shown)


def test_a_launcher_that_lost_log_bytes_gets_them_again(
    folder: AttemptFolder, link: Link, launcher: Any
) -> None:
    path = folder.root / "logs" / "rank-0.log"
    path.write_bytes(b"first hunter22\n")
    tail = Tail(path, "0", ["hunter22"])
    tail.ship(link, final=False)
    launcher.logs["0"] = launcher.logs["0"][:3]
    with path.open("ab") as stream:
        stream.write(b"second\n")
    tail.ship(link, final=True)
    assert launcher.logs["0"] == b"first ***\nsecond\n"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"code": "no-such-attempt"}, NotFound),
        (404, "<html>", Unavailable),
        (401, {"code": "denied"}, Unavailable),
        (503, {"code": "x"}, Unavailable),
        (507, {"code": "store-full"}, Unavailable),
        (413, {"code": "too-large"}, UserError),
    ],
)
def test_what_an_answer_means(
    link: Link,
    launcher: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: Any,
    kind: type[Exception],
) -> None:
    def answer(*_: Any) -> Any:
        error = type(launcher).refuse(status, "")
        error.body = body
        raise error

    monkeypatch.setattr(launcher, "answer", answer)
    with pytest.raises(kind):
        link.get_json("secrets")


def test_an_absent_launcher_is_unavailable(request_json: dict[str, str], launcher: Any) -> None:
    launcher.away()
    with pytest.raises(Unavailable):
        Link(request_json).get_json("secrets")


def test_what_is_no_output_is_listed_with_its_reason(tmp_path: Path, link: Link, launcher: Any) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / "came with the snapshot").symlink_to("x")
    outputs = Outputs(folder, tmp_path / "before.json")
    outputs.record()
    (folder / "good").write_text("1")
    (folder / "dataset").symlink_to("/etc")
    (folder / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    (folder / os.fsdecode(b"odd\xff")).symlink_to("x")
    outputs.send(link, final=True)
    note = launcher.outputs.pop(LEFT_OUT).decode()
    assert note.splitlines()[1:] == [
        "'dataset': a link; copy what it leads to",
        "'odd\\udcff': a link; copy what it leads to",
        "'passwd': a link; copy what it leads to",
        "'pipe': a pipe, not a file",
    ]
    assert launcher.outputs == {"good": b"1"}


def test_outputs_are_sent_when_quiet_and_again_when_changed(
    tmp_path: Path, link: Link, launcher: Any
) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / "old").write_text("old")
    (folder / "link").symlink_to("/etc/passwd")
    outputs = Outputs(folder, tmp_path / "before.json")
    outputs.record()
    odd = folder / "a b?#%.txt"
    odd.write_text("1")
    for _ in range(2):
        outputs.send(link, final=False)
    assert launcher.outputs == {}
    outputs.send(link, final=True)
    assert launcher.outputs == {"a b?#%.txt": b"1"}
    launcher.outputs.clear()
    outputs.send(link, final=True)
    assert launcher.outputs == {}
    odd.write_text("22")
    # an agent that delivers in the first one's place knows what came with the snapshot
    Outputs(folder, tmp_path / "before.json").send(link, final=True)
    assert launcher.outputs == {"a b?#%.txt": b"22"}
