"""The check of the network before a gang trains: a short torchrun of its own, in the same place, at its own port."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from slicelift.models import from_dict
from slicelift.runtime.folder import read_object, write_json
from slicelift.runtime.network import (
    BROKEN,
    FAIL,
    FILE,
    SLOW,
    VARIABLE,
    Measure,
    Wish,
    is_slow,
    refusal,
    wish_in,
)
from slicelift.runtime.nodes import Place

# runs a command with an environment to its end; its exit code
Run = Callable[[list[str], dict[str, str]], int]


def is_asked(request: Mapping[str, Any], place: Place) -> bool:
    """Whether a gang at `place` begins with a check. An elastic one does not: who joins later would check alone."""
    return bool(request.get("check")) and not place.elastic


def begin(folder: Path) -> None:
    """Before the gang is started: a container that is started again in its place finds what it left the last time."""
    with suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)


def is_over(folder: Path) -> bool:
    """Whether the check of the attempt in `folder` has come to its end, whatever that was."""
    return (folder / FILE).exists()


def check(
    folder: Path, place: Place, *, environment: MutableMapping[str, str], run: Run
) -> dict[str, Any] | None:
    """None when training may begin; else a row of gang.json's `failures`, the same on all nodes of a slow gang.

    Takes the wish out of `environment`: ranks need not know of it. Passes on what `run` raises.
    """
    wish, text = wish_in(environment), environment.pop(VARIABLE, "")
    if wish is None or place.elastic or place.nodes * place.nproc == 1:
        return None
    try:
        # the start of the ranks says best what is missing
        if importlib.util.find_spec("torch") is None:
            return None
        code = run(_command(folder, place), {**environment, VARIABLE: text})
        return _row(read_object(folder / FILE), code, wish)
    finally:
        _end(folder)


def _command(folder: Path, place: Place) -> list[str]:
    own = replace(place, master_port=place.master_port + 1, rendezvous=f"{place.rendezvous}-check")
    return [
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *own.torchrun_options(),
        f"--nproc-per-node={place.nproc}",
        "--monitor-interval=0.1",
        f"--log-dir={folder / 'scratch' / 'check'}",
        *("--no-python", sys.executable, "-P", "-u", "-m", "slicelift.runtime.allreduce"),
    ]


def _row(told: Mapping[str, Any], code: int, wish: Wish) -> dict[str, Any] | None:
    found = _measure(told)
    if found is None:
        why = told.get("error", f"torchrun ended with exit code {code}")
        message = f"The network between the workers could not be checked: {why}"
        sys.stderr.write(f"gang: {message}\n")
        return _failure(BROKEN, message) if wish.on_slow == FAIL else None
    if wish.on_slow != FAIL or not is_slow(found, wish):
        return None
    return _failure(SLOW, refusal(found, wish))


def _measure(told: Mapping[str, Any]) -> Measure | None:
    try:
        return from_dict(Measure, told)
    except (TypeError, AttributeError):
        return None


def _failure(reason: str, message: str) -> dict[str, Any]:
    """Of no rank: every node tells the same, and no rank of the user's has begun."""
    row = {"rank": None, "exit_code": None, "exception": "", "message": message, "reason": reason}
    return {**row, "time": time.time(), "echo": False, "error": None}


def _end(folder: Path) -> None:
    """Whoever waits for the check must learn that it is over; on a full disk the ranks tell it, as they begin."""
    if not is_over(folder):
        with suppress(OSError):
            write_json(folder / FILE, {"error": "it was not run"})
