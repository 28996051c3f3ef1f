"""`slicelift.checkpoint` and `slicelift.resume`: go on where the last attempt of a run stood.

One folder per checkpoint, `<attempt>-<count>-step<step>`, in a folder kept over the attempts of a run and shared by
all nodes of a gang. A file in it appears by rename; a checkpoint is complete when the files of all ranks that write are
there. A count and not the step orders them, because a script may start again from a lower step.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slicelift.errors import UserError
from slicelift.runtime import ending
from slicelift.runtime.metrics import as_step
from slicelift.runtime.outputs import output_folder
from slicelift.runtime.sink import note
from slicelift.runtime.world import ELASTIC, World, world

# complete checkpoints that stay: the newest, and the one before it should the newest be damaged
KEPT = 2

_FOLDER = re.compile(r"(\d+)-(\d+)-step(-?\d+)")
_FILE = re.compile(r"(?:state|rank-(\d+)-of-(\d+))\.(pt|pkl)")


def checkpoint(state: Any, *, step: int, per_rank: bool = False) -> Path | None:
    """Save `state` so that `resume` finds it in this and in later attempts; returns the file, or None.

    Rank 0 writes, unless `per_rank`: then every rank writes its own state, and all of them must call. Call it on
    all ranks alike. Whatever `torch.save` takes (else pickle, when torch is not in use) may be the state. The file
    is flushed and appears whole; of the complete checkpoints the newest two stay. Raises OSError on a full disk,
    with the older ones untouched.

    On a cluster a rank that is told to end (SIGTERM, SLICELIFT_GRACE_SECONDS before its end) goes on to its next
    checkpoint, and ends there, with exit code 143, once that is complete. So does, anywhere, one whose run is suspended.
    """
    here, number = world(), as_step(step)
    ending.wait_for_the_next_checkpoint()
    count = _turn(here)
    folder = _home(here) / f"{here.attempt:04d}-{count:06d}-step{number}"
    target = None
    if here.rank == 0 or per_rank:
        target = _save(state, folder, step=number, per_rank=per_rank)
    if ending.asked():
        ending.leave(lambda: _is_there(here, number))
    return target


def saved_since(home: Path, moment: float) -> bool:
    """Whether there is a complete checkpoint whose last file came after `moment` (Unix seconds)."""
    return any(item.changed >= moment for item in _complete(home))


def _is_there(here: World, step: int) -> bool:
    """Whether the checkpoint of this step is complete."""
    return any(item.step == step and item.attempt == here.attempt for item in _complete(_home(here)))


def _save(state: Any, folder: Path, *, step: int, per_rank: bool) -> Path:
    here = world()
    folder.mkdir(parents=True, exist_ok=True)
    kind = "pt" if "torch" in sys.modules else "pkl"
    target = folder / (f"rank-{here.rank}-of-{here.size}.{kind}" if per_rank else f"state.{kind}")
    _write(target, state)
    if here.rank == 0:
        note("checkpoint", s=step, path=str(target))
        _prune(_home(here))
    return target


def resume(*, map_location: Any = "cpu") -> tuple[Any, int] | None:
    """The newest complete checkpoint as `(state, step)`, or None when there is none: the run starts anew.

    Until this process has saved one itself, only those of earlier attempts count, so that all ranks of a gang get
    the same although they ask at different times; in an elastic gang, which starts its ranks again within an attempt,
    all count. Tensors come to `map_location`. A file that cannot be read is passed over with a line in the log, but
    raises when each rank has its own. Raises UserError `checkpoint-world` when only checkpoints of another number of
    ranks are there.
    """
    here = world()
    ending.wait_for_the_next_checkpoint()
    found = [item for item in _complete(_home(here)) if _eligible(item, here)]
    fitting = [item for item in found if item.size in (None, here.size)]
    if found and not fitting:
        raise UserError(
            "checkpoint-world",
            f"The checkpoints in {_home(here)} are of {found[-1].size} ranks, and this gang has {here.size}.",
            "Run with as many workers as before, or save without per_rank=True.",
        )
    for item in reversed(fitting):
        try:
            return _read(item.file(here.rank), map_location), item.step
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            if item.size is not None:  # the other ranks have read theirs: to differ from them is worse
                raise
            sys.stderr.write(f"slicelift: {item.folder} is damaged and passed over: {error}\n")
    return None


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """One complete checkpoint. `size` is the number of ranks that wrote, None when rank 0 wrote for all."""

    folder: Path
    attempt: int
    count: int
    step: int
    size: int | None
    changed: float

    def file(self, rank: int) -> Path:
        stem = "state" if self.size is None else f"rank-{rank}-of-{self.size}"
        found = [path for path in (self.folder / f"{stem}.pt", self.folder / f"{stem}.pkl") if path.exists()]
        return found[0] if found else self.folder / f"{stem}.pt"


@dataclass
class _Turns:
    """How many checkpoints this process has made, and where the count began."""

    pid: int = 0
    first: int = 0
    made: int = 0


_turns = _Turns()


def _turn(here: World) -> int:
    """The count of this call. In a job all ranks count from 0; in a notebook, and in an elastic gang, whose ranks start
    again within an attempt, from what is there."""
    if _turns.pid != os.getpid():
        former = [item.count for item in _complete(_home(here)) if item.attempt == here.attempt]
        _turns.pid, _turns.made = os.getpid(), 0
        _turns.first = 0 if here.in_job and not _elastic() else max(former, default=0)
    _turns.made += 1
    return _turns.first + _turns.made


def _eligible(item: _Saved, here: World) -> bool:
    saved_some = _turns.pid == os.getpid() and _turns.made > 0
    return saved_some or not here.in_job or item.attempt < here.attempt or _elastic()


def _elastic() -> bool:
    return bool(os.environ.get(ELASTIC))


def _home(here: World) -> Path:
    given = os.environ.get("SLICELIFT_CHECKPOINT_DIR")
    if given:
        return Path(given)
    return here.attempt_folder / "checkpoints" if here.attempt_folder else output_folder("checkpoints")


def _complete(home: Path) -> list[_Saved]:
    """Oldest first."""
    found = [item for path in _folders(home) if (item := _look(path))]
    return sorted(found, key=lambda item: (item.attempt, item.count))


def _folders(home: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in home.iterdir() if _FOLDER.fullmatch(path.name))


def _look(folder: Path) -> _Saved | None:
    name = _FOLDER.fullmatch(folder.name)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        files = [match for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))]
        whole = [match for match in files if match[1] is None]
        sizes = {int(match[2]) for match in files if match[2]}
        complete = [size for size in sizes if len({m[1] for m in files if m[2] == str(size)}) == size]
        if name and (whole or complete):
            attempt, count, step = (int(part) for part in name.groups())
            size = None if whole else complete[0]
            changed = folder.stat().st_mtime
            return _Saved(folder=folder, attempt=attempt, count=count, step=step, size=size, changed=changed)
    return None


def _write(target: Path, state: Any) -> None:
    # ranks in other pods may have our pid
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("wb") as stream:
            _dump(stream, state)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(target.parent)


def _dump(stream: BinaryIO, state: Any) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.save(state, stream)
    else:
        pickle.dump(state, stream, protocol=pickle.HIGHEST_PROTOCOL)


def _flush_folder(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, map_location: Any) -> Any:
    """The run's own file: it may hold any object, which is why it is unpickled."""
    if path.suffix == ".pkl":
        with path.open("rb") as stream:
            return pickle.load(stream)  # noqa: S301 - written by this run
    import torch  # the checkpoint was made with it; the script may not have imported it yet

    return torch.load(path, map_location=map_location, weights_only=False)


def _prune(home: Path) -> None:
    """Keep the newest complete ones and whatever is newer than they: ranks may still be writing that."""
    kept = _complete(home)[-KEPT:]
    if len(kept) < KEPT:
        return
    oldest = (kept[0].attempt, kept[0].count)
    for path in _folders(home):
        attempt, count, _ = (int(part) for part in _FOLDER.fullmatch(path.name).groups())  # type: ignore[union-attr]
        if (attempt, count) < oldest:
            shutil.rmtree(path, ignore_errors=True)
