"""What an agent may post of events and ranks: checked once, here, so that all behind it can rely on what is acknowledged.

The agent answers a refusal with a note that a point was lost, so one line that means nothing stops no other.
Kinds that this version does not know pass: they are kept, and nobody looks at them.
"""

from __future__ import annotations

from typing import Any

from slicelift.errors import UserError

from slicelift_hub.launcher.ledger_events import Line, Stream

_LONGEST_PROCESS = 100
_LARGEST_STEP = 2**63 - 1
# far beyond any clock, and its milliseconds still fit into MLflow's column
_LARGEST_TIME = 1e12
_LONGEST_STATE = 20
_LARGEST_PID = 2**31
# what all agents of a gang tell, as JSON: a thousand that say how they ended need a few kilobytes each
_MOST_TOLD = 4 * 1024**2
_POINT_WORDS = ("model_id", "dataset_name", "dataset_digest")


def parse_streams(body: Any, *, ranks: int) -> list[Stream]:
    """The streams of an agent's POST. Raises `bad-events` when it is not what the contract says."""
    try:
        return [_parse_stream(item, ranks) for item in body["streams"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        message = f"These are not events: {type(error).__name__} at {error}."
        raise UserError(
            "bad-events", message, "Send {streams: [{rank, process, lines: [{q, t, k, ...}]}]}."
        ) from error


def check_ranks(rows: Any, *, ranks: int) -> tuple[dict[str, Any], ...]:
    """What an agent tells of its ranks, `{rank, pid, state}` of each. Raises `bad-body` where a gang of `ranks` has no such."""
    if not isinstance(rows, list) or len(rows) > ranks:
        raise _bad_ranks(ranks)
    return tuple(_checked_rank(row, ranks) for row in rows)


def check_told(text: str) -> str:
    """The same: all that the agents of a gang have told, which is read and written at each report. Raises `too-much-told`."""
    if len(text) > _MOST_TOLD:
        message = f"The agents of this gang tell more than {_MOST_TOLD:,} characters of it."
        raise UserError("too-much-told", message, "Say less of ranks and failures; logs take any length.")
    return text


def _parse_stream(item: Any, ranks: int) -> Stream:
    rank, process, lines = item["rank"], item["process"], item["lines"]
    if type(rank) is not int or not 0 <= rank < ranks:
        raise ValueError(f"rank {rank!r} of {ranks}")
    if not isinstance(process, str) or not 0 < len(process) <= _LONGEST_PROCESS:
        raise ValueError("process")
    _must_be(isinstance(lines, list), "lines")
    for line in lines:
        _check_line(line)
    return Stream(rank=rank, process=process, lines=lines)


def _checked_rank(row: Any, ranks: int) -> dict[str, Any]:
    rank, pid, state = (
        (row.get(name) for name in ("rank", "pid", "state")) if isinstance(row, dict) else (None,) * 3
    )
    if type(rank) is not int or not 0 <= rank < ranks:
        raise _bad_ranks(ranks)
    return {
        "rank": rank,
        "pid": pid if type(pid) is int and 0 <= pid < _LARGEST_PID else None,
        "state": state[:_LONGEST_STATE] if isinstance(state, str) else "",
    }


def _bad_ranks(ranks: int) -> UserError:
    message = f"These are no ranks of a gang that has {ranks} at most."
    return UserError("bad-body", message, "Send [{rank, pid, state}], with ranks counted from 0.")


def _check_line(line: Line) -> None:
    _must_be(type(line["q"]) is int, "q")
    # NaN is in no range
    _must_be(_is_number(line["t"]) and -_LARGEST_TIME < line["t"] < _LARGEST_TIME, "t")
    _must_be(isinstance(line["k"], str), "k")
    kind = line["k"]
    if kind == "m":
        _must_be(_is_step(line["s"]), "s")
        _check_metrics(line["m"])
        _check_origin(line.get("mlflow", {}))
    elif kind in ("param", "tag"):
        _check_words(line["p"], "p")
    elif kind == "checkpoint":
        _must_be(line.get("s") is None or _is_step(line["s"]), "s")
        _check_text(line["path"], "path")
    elif kind == "dropped":
        _must_be(_is_step(line["n"]), "n")


def _check_metrics(metrics: Any) -> None:
    _must_be(isinstance(metrics, dict), "m")
    for key, value in metrics.items():
        _check_text(key, "m")
        _must_be(_is_number(value), "m")
        float(value)  # an int of any length is JSON, too


def _check_origin(origin: Any) -> None:
    """What MLflow keeps beside a point of the job's own mlflow code; it goes into the point as it is."""
    _must_be(isinstance(origin, dict) and origin.keys() <= {"timestamp", *_POINT_WORDS}, "mlflow")
    _must_be(_is_step(origin.get("timestamp", 0)), "mlflow")
    for name in origin.keys() & set(_POINT_WORDS):
        _check_text(origin[name], "mlflow")


def _check_words(words: Any, place: str) -> None:
    _must_be(isinstance(words, dict), place)
    for key, value in words.items():
        _check_text(key, place)
        _check_text(value, place)


def _check_text(text: Any, place: str) -> None:
    _must_be(isinstance(text, str), place)
    text.encode()  # half a surrogate pair can be written as JSON, and never be sent on


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_step(value: Any) -> bool:
    return type(value) is int and -_LARGEST_STEP - 1 <= value <= _LARGEST_STEP


def _must_be(true: bool, place: str) -> None:
    if not true:
        raise ValueError(place)
