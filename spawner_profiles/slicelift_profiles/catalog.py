"""Spawn profiles: what a person can choose when a session starts.

`load` is for programs and raises at the first fault; `lint` is for whoever edits the file and reports every
fault with its line; `validate` checks the same on data that came from elsewhere (Helm values).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from slicelift_profiles import slices
from slicelift_profiles.documents import Document, Place, check, read
from slicelift_profiles.faults import Fault, ProfileError, closest, first_of, one_of

SHIPPED = Path(__file__).with_name("profiles.yaml")
SCHEMA = "profiles.schema.json"

_MEMORY = re.compile(r"([0-9.]+) ?(Mi|Gi|Ti)B?")
_BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_HTML = re.compile(r"[<>]|&#?\w+;")


class Kind(StrEnum):
    """What of a GPU a profile takes."""

    NONE = "none"
    SLICE = "slice"
    SHARE = "share"
    GPU = "gpu"


@dataclass(frozen=True, kw_only=True)
class Share:
    """One of `replicas` parts of a GPU. `mps` splits memory, `time-slicing` isolates nothing."""

    method: str
    replicas: int


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One choice at spawn. `cpu` counts cores, `memory_bytes` is host memory; empty `groups` means everyone.

    `idle_minutes` and `max_hours` are None where the profile sets no limit of its own.
    """

    slug: str
    display_name: str
    cpu: float
    memory_bytes: int
    description: str = ""
    default: bool = False
    product: str | None = None
    slice: str | None = None
    gpus: int = 0
    share: Share | None = None
    image: str | None = None
    groups: tuple[str, ...] = ()
    idle_minutes: int | None = None
    max_hours: float | None = None

    @property
    def kind(self) -> Kind:
        """Which of slice, share, whole GPU or nothing it is; a valid profile is exactly one."""
        if self.slice:
            return Kind.SLICE
        if self.share:
            return Kind.SHARE
        return Kind.GPU if self.gpus else Kind.NONE

    @property
    def resource_name(self) -> str | None:
        """What a pod of this profile asks for beside CPU and memory."""
        if self.slice:
            return slices.resource_name(self.slice)
        return {Kind.SHARE: "nvidia.com/gpu.shared", Kind.GPU: slices.GPU}.get(self.kind)

    def open_to(self, groups: Iterable[str]) -> bool:
        """Whether a member of these groups may choose it."""
        return not self.groups or not set(self.groups).isdisjoint(groups)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All profiles of one file, in its order."""

    profiles: tuple[Profile, ...]

    @property
    def default(self) -> Profile:
        """The one marked as default, else the first."""
        return next((profile for profile in self.profiles if profile.default), self.profiles[0])

    def get(self, slug: str) -> Profile:
        """Raises ProfileError listing the slugs there are."""
        for profile in self.profiles:
            if profile.slug == slug:
                return profile
        slugs = [profile.slug for profile in self.profiles]
        hint = f"{closest(slug, slugs)} Profiles: {one_of(slugs)}.".strip()
        raise ProfileError("unknown-profile", f"There is no profile {slug!r}.", hint)

    def open_to(self, groups: Iterable[str]) -> tuple[Profile, ...]:
        """What a member of these groups may choose."""
        mine = set(groups)
        return tuple(profile for profile in self.profiles if profile.open_to(mine))


def load(path: Path = SHIPPED) -> Catalog:
    """Read a catalog. Raises ProfileError (its `faults` hold all of them) when it is not valid."""
    document = read(path)
    # the shipped file is checked by the tests, and jsonschema is slow to import (documents.check)
    faults = () if path == SHIPPED else _faults(document)
    errors = [fault for fault in faults if fault.severity == "error"]
    if errors:
        raise ProfileError(
            "profiles-invalid",
            first_of(errors),
            f"{errors[0].fix} See all: slicelift profiles lint {path}".strip(),
            faults=tuple(errors),
        )
    return Catalog(profiles=tuple(_to_profile(entry) for entry in document.data["profiles"]))


def lint(path: Path = SHIPPED) -> tuple[Fault, ...]:
    """Every fault of the file in the order of its lines; empty when it is fine.

    Raises ProfileError only when the file cannot be read at all.
    """
    return _faults(read(path))


def validate(data: object, *, name: str = "profiles") -> tuple[Fault, ...]:
    """The same checks on data without lines; faults carry `name` as their file and line 1."""
    return _faults(Document(file=name, data=data))


def memory_bytes(text: str) -> int:
    """`16Gi` -> bytes. Raises ProfileError when the unit is missing or not a power of two."""
    match = _MEMORY.fullmatch(text)
    try:
        value = float(match[1]) if match else 0.0
    except ValueError:
        value = 0.0
    if match is None or value <= 0:
        raise ProfileError(
            "bad-memory",
            f"{text!r} is not an amount of memory.",
            "Write a number with Mi, Gi or Ti, as in 16Gi.",
        )
    return int(value * _BYTES[match[2]])


def _faults(document: Document) -> tuple[Fault, ...]:
    """The file's own faults, then the schema's, then what only a reader of the meaning sees."""
    if document.data is None and document.faults:
        return document.faults
    found = [*document.faults, *check(document, schema=SCHEMA)]
    entries = document.data.get("profiles") if isinstance(document.data, Mapping) else None
    listed = entries if isinstance(entries, list) else []
    rows = [(index, entry) for index, entry in enumerate(listed) if isinstance(entry, Mapping)]
    found += _across(document, rows)
    for index, entry in rows:
        found += _meaning(document, ("profiles", index), entry)
    return tuple(sorted(set(found)))


def _across(document: Document, rows: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Fault]:
    """Faults between profiles."""
    first: dict[str, int] = {}
    for index, entry in rows:
        slug = entry.get("slug")
        if not isinstance(slug, str):
            continue
        place: Place = ("profiles", index, "slug")
        if slug in first:
            line = document.line(("profiles", first[slug]))
            message = f"the slug {slug!r} is taken by the profile on line {line}"
            yield document.fault(place, "duplicate-slug", message, "A slug names one profile.")
        first.setdefault(slug, index)
    marked = [index for index, entry in rows if entry.get("default") is True]
    for index in marked[1:]:
        message = (
            f"a second default; the first is on line {document.line(('profiles', marked[0], 'default'))}"
        )
        yield document.fault(("profiles", index, "default"), "two-defaults", message, "Keep one of them.")


def _meaning(document: Document, place: Place, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults within one profile that its schema cannot say."""
    for key in ("display_name", "description"):
        text = entry.get(key)
        if isinstance(text, str) and _HTML.search(text):
            message = f"{key} holds HTML, which a spawn form would run"
            yield document.fault((*place, key), "html", message, "Write plain text without <, > or entities.")
    takes = [key for key in ("slice", "share", "gpus") if entry.get(key)]
    for key in takes[1:]:
        message = f"asks for {takes[0]} and {key} at once"
        yield document.fault(
            (*place, key), "one-kind-only", message, "A profile takes one of slice, share, gpus."
        )
    if takes and "idle_minutes" not in entry:
        message = f"takes a {takes[0].removesuffix('s')} without an idle limit and may hold it for ever"
        fix = "Add idle_minutes: 45."
        yield document.fault(place, "no-idle-limit", message, fix, severity="warning")
    yield from _memory_meaning(document, place, entry)
    yield from _slice_meaning(document, place, entry)


def _memory_meaning(document: Document, place: Place, entry: Mapping[str, Any]) -> Iterator[Fault]:
    text = entry.get("memory")
    if isinstance(text, str) and _MEMORY.fullmatch(text):
        try:
            memory_bytes(text)
        except ProfileError as error:
            yield document.fault((*place, "memory"), error.code, error.message, error.hint)


def _slice_meaning(document: Document, place: Place, entry: Mapping[str, Any]) -> Iterator[Fault]:
    name, product = entry.get("slice"), entry.get("product")
    if not isinstance(name, str):
        return
    if product is None:
        message, fix = (
            "a slice needs the product it is cut from",
            f"Add product: one of {one_of(_known(name))}.",
        )
        yield document.fault((*place, "slice"), "missing-key", message, fix)
        return
    try:
        slices.get(name, product=str(product))
    except ProfileError as error:
        key = "product" if error.code == "unknown-product" else "slice"
        yield document.fault((*place, key), error.code, error.message, error.hint)


def _known(name: str) -> tuple[str, ...]:
    """Products to propose: those with that slice, else all."""
    try:
        return slices.known(name) or slices.products()
    except ProfileError:
        return slices.products()


def _to_profile(entry: Mapping[str, Any]) -> Profile:
    """From a checked entry."""
    known = {key: entry[key] for key in entry if key not in ("memory", "share", "groups", "slice")}
    return Profile(
        **known,
        memory_bytes=memory_bytes(entry["memory"]),
        share=Share(**entry["share"]) if "share" in entry else None,
        groups=tuple(entry.get("groups", ())),
        slice=slices.canonical(entry["slice"]) if "slice" in entry else None,
    )
