"""The nouns of the way from notebook to model: frozen, plain, JSON both ways.

Standard library only, since this module travels into every job. Each class crosses a seam
(process, HTTP, disk) as `to_dict(x)` and comes back as `from_dict(Class, data)`; unknown keys are
ignored, so an older reader survives a newer writer.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")
_HINTS: dict[type[Any], Mapping[str, Any]] = {}
# how the reason of a run begins that was suspended; the name of who did it follows
SUSPENDED = "suspended by "
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Severity(StrEnum):
    """An error refuses the promotion; a warning and a note never do."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Status(StrEnum):
    """Ours; the words of MLflow where it has one. `phase` beside it keeps the backend's raw word."""

    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    UNKNOWN = "UNKNOWN"

    @property
    def terminal(self) -> bool:
        """True when nothing of the attempt runs any more and no later status can follow it."""
        return self in (Status.FINISHED, Status.FAILED, Status.KILLED)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing the preflight saw. `cell` counts all cells of the file from 0, `line` from 1."""

    code: str
    severity: Severity
    message: str
    cell: int | None = None
    line: int | None = None
    fix: str | None = None
    file: str | None = None
    defining_cell: int | None = None


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Where one line of promoted.py comes from. `file` is None for the promoted notebook itself."""

    cell: int
    line: int
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Script:
    """The generated promoted.py and its line map: `places[i]` belongs to line `i + 1`, None = ours."""

    source: str
    places: tuple[LinePlace | None, ...]
    parameters: Mapping[str, Any] | None = None
    requirements: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataRef:
    """One DVC-tracked output that travels by reference. `md5` of a folder ends in `.dir`.

    `path` and `dvc_file` are relative to the project root, POSIX style; `remote_config` is DVC's own
    option dict of that remote without secrets (`url` made absolute for a directory remote).
    """

    path: str
    dvc_file: str
    md5: str
    size_bytes: int
    nfiles: int
    remote: str
    remote_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the kernelspec's own interpreter said of itself. `packages`: normalised name -> version."""

    python: str
    python_version: str
    platform: str
    packages: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()

    @property
    def lock(self) -> str:
        """Pinned requirements, one a line, sorted: part of the snapshot's identity."""
        pins = sorted(f"{name}=={version}" for name, version in self.packages.items())
        return "\n".join([f"# python {self.python_version} on {self.platform}", *pins, ""])


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """One file of a snapshot. `mode` is git's: 100644, 100755 or 120000 (a link; the blob = target)."""

    path: str
    sha256: str
    size_bytes: int
    mode: str = "100644"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that travels, by content. The same content has the same `id` on every machine.

    `tree` is the git tree of the project root, `commit` the commit on the side ref that holds it,
    `base_commit` the user's HEAD; `cwd` is the notebook's folder and `script` the path of promoted.py,
    both relative to the project root. The id covers tree, script, data and lock, never a commit.
    """

    id: str
    tree: str
    commit: str
    base_commit: str
    branch: str
    dirty: bool
    notebook: str
    cwd: str
    script: str
    script_sha256: str
    lock_sha256: str
    data: tuple[DataRef, ...] = ()
    files: tuple[SnapshotFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What travels in all, before deduplication."""
        return sum(item.size_bytes for item in self.files)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What is to run. `slice` is None for whole GPUs or CPU; a slice goes with one worker only.

    `python` is the interpreter the ranks use, `parameters` the overrides, `secrets` names only. With fewer
    `min_workers` than workers the gang is elastic; `image` is what its pods are made of ("": the launcher's own
    choice). Both are for clusters.
    """

    name: str
    snapshot_id: str
    notebook: str
    script: str
    cwd: str
    python: str
    workers: int = 1
    gpus_per_worker: int = 0
    slice: str | None = None
    queue: str = "default"
    preset: str = "torchrun"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[DataRef, ...] = ()
    secrets: tuple[str, ...] = ()
    model_name: str = ""
    experiment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    min_workers: int | None = None
    image: str = ""

    @property
    def least_workers(self) -> int:
        """How many workers the gang can go on with: all of them unless it is elastic."""
        return self.workers if self.min_workers is None else self.min_workers


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why one rank failed: the first trigger of an attempt, mapped back to the notebook.

    `exit_code` is negative for a signal (-9 = SIGKILL), as Python's subprocess has it.
    """

    message: str
    rank: int | None = None
    exit_code: int | None = None
    exception: str = ""
    cell: int | None = None
    line: int | None = None
    file: str | None = None
    source: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Where one attempt stands. Times are Unix seconds (UTC); `position` counts jobs ahead + 1.

    `restarts` is how often the backend by itself has restarted the whole gang since its submit; `workers` how many it
    has been given of a gang that can be scaled, None for all others.
    """

    status: Status
    phase: str = ""
    reason: str = ""
    message: str = ""
    position: int | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    restarts: int = 0
    workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class StatusChange:
    """One line of a run's history."""

    time: float
    attempt: int
    status: Status
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """An alias moved to version `after`; `before` is None when it was new. `time`: Unix seconds."""

    alias: str
    who: str
    time: float
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelVersionView:
    """A registered version as the registry and the ledger tell it.

    `alias_changes`: the newest change of each alias that came to this version or left it.
    """

    name: str
    version: str
    run_id: str
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    alias_changes: tuple[AliasChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Output:
    """A file that a job left under ./outputs."""

    attempt: int
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """All a card needs, from the ledger alone. `latest` maps metric key -> [step, value].

    `mlflow_run_id` is None until the tracker has answered once. `ranks` has one row per rank:
    `{rank, state, last_seen, step}`. `tracker` is MLflow's state, `tracker_message` why it does not take this run,
    `tracked` whether it has the end of the last attempt: all points, the status and the models. `dropped_points`
    are in `latest` and the curves no more, `dropped_by` counts them by reason: "spool-full", "too-many-names"
    (MLflow has them), "name-too-long", "not-understood". `checkpoint` is the step of the newest checkpoint that an
    attempt told of, `previous` why the attempt before this one failed. `network` is what a check of the network between
    the workers found, a sentence.
    """

    promotion_id: str
    run_id: str
    name: str
    owner: str
    status: Status
    spec: JobSpec
    attempt: int = 1
    handle: str = ""
    mlflow_run_id: str | None = None
    phase: str = ""
    reason: str = ""
    message: str = ""
    position: int | None = None
    failure: Failure | None = None
    exit_code: int | None = None
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    latest: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    dropped_points: int = 0
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    ranks: tuple[Mapping[str, Any], ...] = ()
    tracker: str = "unknown"
    tracker_message: str = ""
    tracked: bool = False
    history: tuple[StatusChange, ...] = ()
    models: tuple[ModelVersionView, ...] = ()
    checkpoint: int | None = None
    previous: str = ""
    network: str = ""

    @property
    def suspended(self) -> bool:
        """Whether somebody has ended it to resume it later; a retry does that."""
        return self.status is Status.KILLED and self.reason.startswith(SUSPENDED)


def to_dict(value: Any) -> Any:
    """Plain JSON types of a dataclass, recursively; tuples become lists, mappings dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def locate(places: Sequence[LinePlace | None], line: int) -> LinePlace | None:
    """Where line `line` (from 1) of promoted.py comes from; None for a line of ours or past the end."""
    return places[line - 1] if 0 < line <= len(places) else None


def place_text(cell: int, line: int | None = None, *, file: str | None = None) -> str:
    """`cell 5, line 2 of other.ipynb`: a place for a person, who counts cells from 1, as JupyterLab's status bar does.

    `cell` counts from 0, as in every field of ours.
    """
    inside = f", line {line}" if line is not None else ""
    return f"cell {cell + 1}{inside}" + (f" of {file}" if file else "")


def places_from_json(text: str) -> tuple[LinePlace | None, ...]:
    """Read promoted.map.json, that is `to_dict(script.places)`. Raises ValueError or TypeError if it is not one."""
    return tuple(None if row is None else from_dict(LinePlace, row) for row in json.loads(text))


def map_traceback(text: str, script_path: str, *, places: Sequence[LinePlace | None], notebook: str) -> str:
    """Rewrite the frames of promoted.py to `notebook.ipynb, cell C, line L, in f`; the rest stays as it is.

    A frame is ours when its file ends like `script_path`: a rank sees it below another folder. Lines that
    slicelift added itself keep their place in promoted.py. In a process group torch writes `[rank1]: ` before
    every line of a traceback; warnings say `promoted.py:12:` without a frame.
    """
    name = re.escape(script_path)
    ours = re.compile(
        r"^(?P<lead>(?:\[rank\d+\]: ?)?[ |]*)"
        rf'(?:File "[^"\n]*{name}", line (?P<line>\d+)(?P<rest>.*)|/[^"\n:]*{name}:(?P<at>\d+)(?P<warned>:.*))',
        re.MULTILINE,
    )

    def told(match: re.Match[str]) -> str:
        place = locate(places, int(match["line"] or match["at"]))
        if place is None:
            return match[0]
        rest = re.sub(r"^, in _slicelift_\w+", ", in <module>", match["rest"] or match["warned"] or "")
        return f"{match['lead']}{place.file or notebook}, {place_text(place.cell, place.line)}{rest}"

    return ours.sub(told, text)


def from_dict(kind: type[T], data: Any) -> T:
    """The inverse of `to_dict` for one of this module's classes. Raises TypeError on a missing field."""
    hints = type_hints(kind)
    return kind(**{name: _revive(hints[name], item) for name, item in data.items() if name in hints})


def type_hints(kind: type[Any]) -> Mapping[str, Any]:
    """The fields of one of this module's classes and their types; to resolve them anew each time is slow."""
    if kind not in _HINTS:
        hints = typing.get_type_hints(kind)
        _HINTS[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _HINTS[kind]


def _revive(hint: Any, value: Any) -> Any:
    """Turn JSON back into what the annotation says; whatever it does not name passes unchanged."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is None or hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _revive(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        return tuple(_revive(args[0] if args[-1] is Ellipsis else Any, item) for item in value)
    if origin is Mapping:
        return {key: _revive(args[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast("type[Any]", hint), value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value


def size_text(size_bytes: float) -> str:
    """Bytes for a person, in binary units: `12 B`, `1.2 MiB`, `412 MiB`."""
    step = 0
    while size_bytes >= 1024 and step < len(_BYTE_UNITS) - 1:
        size_bytes, step = size_bytes / 1024, step + 1
    digits = 0 if step == 0 or size_bytes >= 100 else 1
    return f"{size_bytes:.{digits}f} {_BYTE_UNITS[step]}"
