"""The spool read back: order, acknowledgement, segments, holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slicelift.runtime.streams import Line, Spool, Stream, encode, halve, note_of_loss


def event(q: int, points: int = 1) -> str:
    return (
        json.dumps({"q": q, "t": 1.0, "k": "m", "s": q, "m": {f"m{i}": float("nan") for i in range(points)}})
        + "\n"
    )


def write(folder: Path, segment: int, *lines: str, name: str = "0-12-34") -> Path:
    path = folder / f"{name}-{segment:06d}.jsonl"
    with path.open("a") as stream:
        stream.write("".join(lines))
    return path


def numbers(batch: list[tuple[Stream, list[Line]]]) -> list[int]:
    return [line.q for _, lines in batch for line in lines]


def test_lines_come_in_order_and_segments_go_once_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first = write(tmp_path, 1, event(1), event(2))
    second = write(tmp_path, 2, event(3))
    batch = spool.batch(100)
    assert numbers(batch) == [1, 2, 3]
    batch[0][0].acknowledge(2)
    assert not first.exists()
    assert numbers(spool.batch(100)) == [3]
    spool.stream(0, "12-34").acknowledge(3)  # type: ignore[union-attr]
    # its process may still write to it
    assert second.exists()
    write(tmp_path, 2, event(4))
    assert numbers(spool.batch(100)) == [4]
    spool.remove()
    assert not second.exists()


def test_a_batch_is_about_as_large_as_asked_and_streams_take_turns(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for rank in (0, 1):
        write(tmp_path, 1, *(event(q, points=20) for q in range(1, 100)), name=f"{rank}-1-1")
    batches = [spool.batch(100) for _ in range(2)]
    assert [[len(lines) for _, lines in batch] for batch in batches] == [[5], [5]]
    assert {batch[0][0].rank for batch in batches} == {0, 1}


def test_a_line_that_is_not_finished_waits(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    write(tmp_path, 1, event(1), event(2)[:10])
    assert numbers(spool.batch(100)) == [1]
    write(tmp_path, 1, event(2)[10:])
    assert numbers(spool.batch(100)) == [1, 2]


def test_a_torn_end_of_a_closed_segment_is_skipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    first = write(tmp_path, 1, event(1), event(2)[:10])
    write(tmp_path, 2, event(2))
    batch = spool.batch(100)
    assert numbers(batch) == [1, 2]
    batch[0][0].acknowledge(2)
    assert not first.exists()


@pytest.mark.parametrize("broken", ["not json\n", '{"t": 1}\n', "[1]\n", ""])
def test_a_lost_line_is_filled_by_a_note(tmp_path: Path, broken: str) -> None:
    spool = Spool(tmp_path)
    write(tmp_path, 1, event(1), broken, event(3))
    lines = spool.batch(100)[0][1]
    assert [line.q for line in lines] == [1, 2, 3]
    assert json.loads(lines[1].raw) == {"q": 2, "t": 0.0, "k": "dropped", "n": 1, "why": "not-understood"}


def test_an_agent_that_starts_anew_begins_where_the_disk_begins(tmp_path: Path) -> None:
    write(tmp_path, 2, event(5), event(6))
    spool = Spool(tmp_path)
    assert numbers(spool.batch(100)) == [5, 6]
    stream = spool.stream(0, "12-34")
    assert stream is not None
    # the launcher lost 3 and 4: nobody has them any more
    stream.rewind(2)
    assert numbers(spool.batch(100)) == [3, 4, 5, 6]
    stream.rewind(5)
    assert numbers(spool.batch(100)) == [6]


def test_a_refused_line_is_replaced_by_a_note_of_what_it_held(tmp_path: Path) -> None:
    write(tmp_path, 1, event(1, points=7), event(2))
    spool = Spool(tmp_path)
    stream, lines = spool.batch(1)[0]
    note = note_of_loss(lines[0])
    assert json.loads(note.raw) == {"q": 1, "t": 0.0, "k": "dropped", "n": 7, "why": "not-understood"}
    stream.acknowledge(1)
    assert numbers(spool.batch(100)) == [2]


def test_a_batch_is_halved_down_to_one_line(tmp_path: Path) -> None:
    write(tmp_path, 1, event(1), event(2), event(3))
    write(tmp_path, 1, event(1), name="1-5-6")
    left = [Spool(tmp_path).batch(100)]
    single = []
    while left:
        batch = left.pop()
        left += halve(batch)
        single += [] if halve(batch) else [(batch[0][0].rank, numbers(batch))]
    assert sorted(single) == [(0, [1]), (0, [2]), (0, [3]), (1, [1])]


def test_the_body_keeps_what_is_on_disk(tmp_path: Path) -> None:
    write(tmp_path, 1, event(1), name="1-loopback")
    body = encode(Spool(tmp_path).batch(10))
    assert b'"m0": NaN' in body
    assert json.loads(body)["streams"][0]["process"] == "loopback"
