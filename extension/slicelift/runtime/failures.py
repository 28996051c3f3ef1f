"""How ranks fail: what one wrote about itself, and which of several failed first."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from slicelift.runtime.folder import read_object, write_json
from slicelift.runtime.world import World

_MESSAGE_LENGTH = 4_000
_TRACEBACK_LENGTH = 64_000
# a rank that lost its peer raises one of these: the peer's end is the cause, not this error
_LOST_PEER = re.compile(
    r"Connection (closed|reset) by|Broken pipe|Socket closed|recvValue failed|NCCL remote error|ncclRemoteError"
    r"|communicator was aborted|Application timeout caused pair closure|Rendezvous(Closed|Connection)Error"
)
# how far a lost peer's error may lie before the kernel lets its parent see the peer's death
_SKEW_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a rank's process. `exit_code` is negative for a signal, `time` is Unix seconds.

    `ended_by_us` is True when it was ended because another rank had failed before.
    """

    rank: int
    exit_code: int
    time: float
    ended_by_us: bool = False


def record(error: BaseException, here: World) -> None:
    """Write what this rank raised to errors/<rank>.json and $TORCHELASTIC_ERROR_FILE, in torch's format.

    Beside torch's `message` the object has `rank`, `pid`, `time`, `exception`, `text` and `frames`
    (`{file, line, function, source}`, outermost first). A full disk is passed over in silence: the log has it.
    """
    found = describe(error, here)
    places = [os.environ.get("TORCHELASTIC_ERROR_FILE", "")]
    if here.attempt_folder:
        places.append(str(here.attempt_folder / "errors" / f"{here.rank}.json"))
    for place in filter(None, places):
        with contextlib.suppress(OSError):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            write_json(Path(place), found)


def describe(error: BaseException, here: World) -> dict[str, Any]:
    """The object that `record` writes."""
    now, name = time.time(), type(error).__name__
    text = _shown(str(error), _MESSAGE_LENGTH)
    stack = _shown("".join(traceback.format_exception(error)), _TRACEBACK_LENGTH)
    return {
        "message": {
            "message": f"{name}: {text}",
            "extraInfo": {"py_callstack": stack, "timestamp": str(int(now))},
        },
        "rank": here.rank,
        "pid": os.getpid(),
        "time": now,
        "exception": name,
        "text": text,
        "frames": _frames(error, error.__traceback__),
    }


def collect(attempt_folder: Path, exits: Iterable[Exit]) -> list[dict[str, Any]]:
    """All failed ranks, the first trigger first: `{rank, exit_code, exception, message, time, echo, error}`.

    `error` is what the rank wrote by `record`, or None; `echo` says that it only lost a peer or was ended: the cause
    lies elsewhere, perhaps on another node.
    """
    rows = [(end, read_object(attempt_folder / "errors" / f"{end.rank}.json")) for end in exits]
    return [_failure(*row) for row in sorted(rows, key=_order) if row[0].exit_code != 0]


def _frames(error: BaseException, trace: TracebackType | None) -> list[dict[str, Any]]:
    rows = [
        {"file": frame.filename, "line": frame.lineno, "function": frame.name, "source": frame.line or ""}
        for frame in traceback.extract_tb(trace)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        place = {
            "file": error.filename,
            "line": error.lineno,
            "function": "",
            "source": (error.text or "").strip(),
        }
        rows.append(place)
    return rows


def _order(row: tuple[Exit, dict[str, Any]]) -> tuple[bool, bool, float]:
    """A SIGTERM is how torchrun ends the others: no trigger while any rank ended in another way."""
    end, error = row
    if not error:
        return end.exit_code == -signal.SIGTERM, end.ended_by_us, end.time
    late = _SKEW_SECONDS if _lost_peer(error) else 0.0
    return False, False, float(error.get("time", end.time)) + late


def _lost_peer(error: dict[str, Any]) -> bool:
    return bool(_LOST_PEER.search(str(error.get("text", ""))))


def _failure(end: Exit, error: dict[str, Any]) -> dict[str, Any]:
    return {
        "rank": end.rank,
        "exit_code": end.exit_code,
        "exception": error.get("exception", ""),
        "message": error.get("text", "") if error else _ending(end.exit_code),
        "time": error.get("time", end.time),
        "echo": _lost_peer(error) if error else end.ended_by_us or end.exit_code == -signal.SIGTERM,
        "error": error or None,
    }


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} and no Python traceback"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"was ended by signal {-exit_code}"


def _shown(text: str, length: int) -> str:
    """Text that any reader can decode, its middle cut out when it is too long."""
    plain = text.encode("utf-8", "backslashreplace").decode()
    if len(plain) <= length:
        return plain
    half = length // 2
    return f"{plain[:half]}\n[... {len(plain) - 2 * half} characters cut ...]\n{plain[-half:]}"
