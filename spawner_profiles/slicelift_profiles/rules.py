"""The policy: who may launch what, as data.

Rules stand in the order of the file, and the first that a person belongs to is theirs: one rule speaks, and its
name, file and line say which. What a rule does not name, it does not limit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from slicelift_profiles import slices
from slicelift_profiles.documents import Document, check, read
from slicelift_profiles.faults import Fault, ProfileError

SHIPPED = Path(__file__).with_name("policy.yaml")
SCHEMA = "policy.schema.json"
_LISTS = ("users", "groups", "queues", "presets", "slices", "images")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the people of one rule may launch. None: no limit; `lines` says where in `file` each key stands.

    `max_gpus` and `max_jobs` count all jobs of one person that are not over.
    """

    name: str
    description: str = ""
    users: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    presets: tuple[str, ...] | None = None
    slices: tuple[str, ...] | None = None
    images: tuple[str, ...] | None = None
    max_workers: int | None = None
    max_gpus_per_job: int | None = None
    max_gpus: int | None = None
    max_jobs: int | None = None
    wall_seconds: int | None = None
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def for_everyone(self) -> bool:
        """Whether it names nobody, and so means all."""
        return self.users is None and self.groups is None

    def holds_for(self, user: str, groups: Iterable[str]) -> bool:
        """Whether a person belongs to it, by name or by group."""
        if self.for_everyone:
            return True
        return fits(user, self.users or ()) or any(fits(group, self.groups or ()) for group in groups)

    def text(self, key: str) -> str:
        """What it says there: `max_jobs: 3`, `queues: default, teach-*`."""
        value = getattr(self, key)
        return f"{key}: {', '.join(value) if isinstance(value, tuple) else value}"

    def place(self, key: str = "name") -> str:
        """`policy.yaml:12`, the line of that key: what an admin has to open."""
        return f"{Path(self.file).name}:{self.lines.get(key, self.lines.get('name', 1))}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules of one file, in its order."""

    rules: tuple[Rule, ...]
    file: str = ""

    def of(self, user: str, groups: Collection[str] = ()) -> Rule:
        """The first rule that holds for a person. Raises ProfileError "no-rule" when there is none."""
        for rule in self.rules:
            if rule.holds_for(user, groups):
                return rule
        said = f", in {', '.join(sorted(groups))}," if groups else ""
        message = f"No rule of {Path(self.file).name} names {user}{said} so nothing may be launched."
        raise ProfileError("no-rule", message, "Ask your admin for a place in one of its rules.")


def fits(word: str, patterns: Iterable[str]) -> bool:
    """Whether a word is one of the patterns, in which `*` stands for any characters."""
    return any(fnmatchcase(word, pattern.replace("[", "[[]").replace("?", "[?]")) for pattern in patterns)


def fits_image(image: str, patterns: Iterable[str]) -> bool:
    """Whether an image is one of the patterns: `*` stops at a slash, `**` does not."""
    return any(_image_pattern(pattern).fullmatch(image) for pattern in patterns)


def load(path: Path = SHIPPED) -> Rules:
    """Read the rules. Raises ProfileError (its `faults` hold all of them) when the file is not valid."""
    document = read(path)
    # the shipped file is checked by the tests, and jsonschema is slow to import (documents.check)
    faults = () if path == SHIPPED else _faults(document)
    errors = [fault for fault in faults if fault.severity == "error"]
    if errors:
        raise ProfileError(
            "policy-invalid",
            f"{errors[0].file}:{errors[0].line}: {errors[0].message}.",
            f"{errors[0].fix} See all: slicelift profiles lint {path}".strip(),
            faults=tuple(errors),
        )
    made = (_make(document, index, entry) for index, entry in enumerate(document.data["rules"]))
    return Rules(rules=tuple(made), file=document.file)


def lint(path: Path = SHIPPED) -> tuple[Fault, ...]:
    """Every fault of the file in the order of its lines; raises ProfileError only when it cannot be read."""
    return _faults(read(path))


def _make(document: Document, index: int, entry: Mapping[str, Any]) -> Rule:
    words: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in entry.items()}
    lines = {key: document.line(("rules", index, key)) for key in entry}
    return Rule(**words, file=document.file, lines=lines)


def _faults(document: Document) -> tuple[Fault, ...]:
    if document.data is None and document.faults:
        return document.faults
    found = [*document.faults, *check(document, schema=SCHEMA)]
    entries = document.data.get("rules") if isinstance(document.data, Mapping) else None
    if isinstance(entries, list):
        rows = [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, Mapping)]
        found += _order(document, rows)
        for index, entry in rows:
            found += _meaning(document, index, entry)
    return tuple(sorted(set(found)))


def _order(document: Document, rows: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Fault]:
    """Names said twice, and rules that nobody ever reaches."""
    seen: set[str] = set()
    everyone = ""
    for index, entry in rows:
        name = entry.get("name")
        if isinstance(name, str) and name in seen:
            message = f"the name {name!r} is taken by an earlier rule"
            yield document.fault(("rules", index, "name"), "duplicate-name", message)
        if everyone:
            message = f"nobody reaches this rule: {everyone!r} above holds for everyone"
            fix = "Put it above that one."
            yield document.fault(("rules", index), "unreachable-rule", message, fix, severity="warning")
        seen.add(str(name))
        if "users" not in entry and "groups" not in entry:
            everyone = everyone or str(name)


def _meaning(document: Document, index: int, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of one rule that the schema cannot say."""
    here = ("rules", index)
    job, once = entry.get("max_gpus_per_job"), entry.get("max_gpus")
    if isinstance(job, int) and isinstance(once, int) and job > once:
        message = f"a job may have {job} GPUs, but a person only {once} at once (max_gpus)"
        yield document.fault((*here, "max_gpus_per_job"), "gpus-at-once", message, severity="warning")
    for place, name in _texts(here, entry, "slices"):
        if "*" not in name:
            yield from _unknown_slice(document, place, name)
    for place, image in _texts(here, entry, "images"):
        if "@sha256:" not in image:
            message = f"{image!r} lets tags in, and what a tag means may change between two attempts"
            fix = "End it with @sha256: and the digest, or @sha256:*."
            yield document.fault(place, "image-by-tag", message, fix, severity="warning")


def _texts(
    here: tuple[str | int, ...], entry: Mapping[str, Any], key: str
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    values = entry.get(key)
    for index, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, str):
            yield (*here, key, index), value


def _unknown_slice(document: Document, place: tuple[str | int, ...], name: str) -> Iterator[Fault]:
    try:
        slices.canonical(name)
    except ProfileError as error:
        yield document.fault(place, error.code, error.message.rstrip("."), error.hint)


def _image_pattern(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", pattern)
    words = {"*": r"[^/]*", "**": r".*"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))
