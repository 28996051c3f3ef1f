"""Launch presets: the named ways a notebook becomes a job.

A preset holds what a launch takes when nothing is said, and its bounds; `Preset.check` is the one place that
says whether workers, GPUs and slice go together.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicelift_profiles import cluster, slices
from slicelift_profiles.cluster import ClusterSettings
from slicelift_profiles.documents import Document, check, read
from slicelift_profiles.faults import Fault, ProfileError, closest, first_of, one_of
from slicelift_profiles.latest import Latest

SHIPPED = Path(__file__).with_name("presets.yaml")
SCHEMA = "presets.schema.json"
# how sessions of a cluster learn of an admin's presets
VARIABLE = "SLICELIFT_PRESETS"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One way to launch. `slice`: "never" (whole GPUs or CPU) or "required"; no `max_workers`: no bound.

    With `min_workers` a gang starts with that many and grows to `workers` (elastic, on a cluster only); `where`:
    "anywhere" or "cluster".
    """

    name: str
    display_name: str
    launcher: str
    workers: int
    description: str = ""
    default: bool = False
    max_workers: int | None = None
    gpus_per_worker: int = 0
    slice: str = "never"
    min_workers: int | None = None
    where: str = "anywhere"
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    @property
    def queue(self) -> str:
        """The queue when none is asked for; "" where the preset has none of its own."""
        return self.cluster.queue

    def check(self, *, workers: int, gpus_per_worker: int = 0, slice: str | None = None) -> None:  # noqa: A002
        """Raises ProfileError when this preset cannot launch that; `slice` is a name of any product's."""
        if workers < 1 or gpus_per_worker < 0:
            asked = f"{workers} workers with {gpus_per_worker} GPUs each"
            hint = "A job has one worker or more, and each worker no GPU or more."
            raise ProfileError("bad-size", f"Asked for {asked}.", hint)
        most = self.max_workers
        if most is not None and workers > most:
            raise self._refusal("preset-too-large", f"at most {most} worker(s); asked for {workers}")
        if slice is None:
            if self.slice == "required":
                raise self._refusal("slice-missing", "a slice, as in --slice 1g.10gb; none was asked for")
            return
        slices.canonical(slice)
        if self.slice == "never":
            raise self._refusal("slice-not-taken", f"whole GPUs or CPU; asked for the slice {slice}")
        if gpus_per_worker:
            asked = f"a slice instead of whole GPUs; asked for {gpus_per_worker} GPUs"
            raise self._refusal("slice-and-gpus", asked)

    def _refusal(self, code: str, tail: str) -> ProfileError:
        hint = "One worker may take a slice (--preset slice); a gang takes whole GPUs or CPU (torchrun)."
        return ProfileError(code, f"The preset {self.name} takes {tail}.", hint)


@dataclass(frozen=True, kw_only=True)
class Presets:
    """All presets of one file, in its order."""

    presets: tuple[Preset, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Allowed values of `--preset`."""
        return tuple(preset.name for preset in self.presets)

    def get(self, name: str) -> Preset:
        """Raises ProfileError listing the names there are."""
        for preset in self.presets:
            if preset.name == name:
                return preset
        hint = f"{closest(name, self.names)} Presets: {one_of(self.names)}.".strip()
        raise ProfileError("unknown-preset", f"There is no preset {name!r}.", hint)

    def pick(self, name: str | None = None, *, slice: str | None = None) -> Preset:  # noqa: A002
        """The named one; else the first made for slices when one is asked for; else the default."""
        if name is not None:
            return self.get(name)
        fitting = [preset for preset in self.presets if (preset.slice == "required") == (slice is not None)]
        marked = [preset for preset in fitting if preset.default]
        return (marked or fitting or list(self.presets))[0]


def load(path: Path | None = None) -> Presets:
    """The presets as they are now (`Latest`): of `path`, else of the file that SLICELIFT_PRESETS names, else ours.

    Raises ProfileError (its `faults` hold all of them) when the file was never valid.
    """
    return _latest(path or Path(os.environ.get(VARIABLE) or SHIPPED)).current()


@functools.cache
def _latest(path: Path) -> Latest[Presets]:
    """One for all who ask."""
    return Latest(path, _load)


def _load(path: Path) -> Presets:
    document = read(path)
    # the shipped file is checked by the tests, and jsonschema is slow to import (documents.check)
    faults = () if path == SHIPPED else _faults(document)
    errors = [fault for fault in faults if fault.severity == "error"]
    if errors:
        raise ProfileError(
            "presets-invalid",
            first_of(errors),
            f"{errors[0].fix} See all: slicelift profiles lint {path}".strip(),
            faults=tuple(errors),
        )
    return Presets(presets=tuple(_to_preset(entry) for entry in document.data["presets"]))


def get(name: str) -> Preset:
    """A shipped preset by name. Raises ProfileError listing the names there are."""
    return load().get(name)


def lint(path: Path = SHIPPED) -> tuple[Fault, ...]:
    """Every fault of the file in the order of its lines; raises ProfileError only when it cannot be read."""
    return _faults(read(path))


def _faults(document: Document) -> tuple[Fault, ...]:
    if document.data is None and document.faults:
        return document.faults
    found = [*document.faults, *check(document, schema=SCHEMA)]
    entries = document.data.get("presets") if isinstance(document.data, Mapping) else None
    if isinstance(entries, list):
        rows = [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, Mapping)]
        found += _meaning(document, rows)
    return tuple(sorted(set(found)))


def _meaning(document: Document, rows: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Fault]:
    """Faults that the schema cannot say."""
    seen: set[str] = set()
    defaults = [index for index, entry in rows if entry.get("default") is True]
    for index, entry in rows:
        name, most = entry.get("name"), entry.get("max_workers")
        if isinstance(name, str) and name in seen:
            message = f"the name {name!r} is taken by an earlier preset"
            yield document.fault(("presets", index, "name"), "duplicate-name", message)
        if isinstance(name, str):
            seen.add(name)
        if index in defaults[1:]:
            yield document.fault(
                ("presets", index, "default"), "two-defaults", "a second default", "Keep one of them."
            )
        if isinstance(most, int) and isinstance(entry.get("workers"), int) and entry["workers"] > most:
            message = f"starts {entry['workers']} workers, more than its own max_workers {most}"
            yield document.fault(("presets", index, "workers"), "preset-too-large", message)
        if entry.get("slice") == "required" and most != 1:
            message = "takes a slice but allows more than one worker; there is no peer-to-peer between slices"
            yield document.fault(("presets", index), "slice-gang", message, "Add max_workers: 1.")
        yield from _cluster_meaning(document, index, entry)


def _cluster_meaning(document: Document, index: int, entry: Mapping[str, Any]) -> Iterator[Fault]:
    least, most, start = entry.get("min_workers"), entry.get("max_workers"), entry.get("workers")
    if isinstance(least, int) and isinstance(start, int) and least > start:
        message = f"goes on with {least} workers or more but starts {start}"
        yield document.fault(("presets", index, "min_workers"), "min-workers-too-large", message)
    if isinstance(least, int) and most == 1:
        message = "has min_workers although it never takes more than one worker"
        yield document.fault(("presets", index, "min_workers"), "min-workers-too-large", message)
    settings = entry.get("cluster")
    if isinstance(settings, Mapping):
        yield from cluster.meaning(document, ("presets", index, "cluster"), settings)
        if "check" in settings and (isinstance(least, int) or most == 1):
            why = (
                "an elastic gang has no fixed set of them"
                if isinstance(least, int)
                else "there is never more than one"
            )
            message = f"checks the network between workers, but {why}"
            yield document.fault(
                ("presets", index, "cluster", "check"), "check-without-gang", message, "Leave it out."
            )


def _to_preset(entry: Mapping[str, Any]) -> Preset:
    known = {key: value for key, value in entry.items() if key != "cluster"}
    return Preset(**known, cluster=cluster.make_settings(entry.get("cluster", {})))
