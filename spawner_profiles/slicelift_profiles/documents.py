"""A YAML file read with the line of every value, and its check against a JSON Schema.

A schema's `description` is the sentence a user reads when a value has the wrong form, so that the file of the
schema holds both the rule and its words.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from slicelift_profiles.faults import Fault, ProfileError, closest, one_of

Place = tuple[str | int, ...]

MAX_BYTES = 256 * 1024
MAX_VALUES = 20_000  # anchors can make a small file mean a huge one
MAX_DEPTH = 20


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a file says. `lines` maps the place of a value (`("profiles", 0, "slug")`) to its line."""

    file: str
    data: Any = None
    lines: Mapping[Place, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def line(self, place: Place) -> int:
        """The line of the value there, else of the nearest value around it; 1 when there is none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def fault(self, place: Place, code: str, message: str, fix: str = "", **more: str) -> Fault:
        """A fault at that place."""
        return Fault(file=self.file, line=self.line(place), code=code, message=message, fix=fix, **more)


def read(path: Path) -> Document:
    """Read one YAML document. What is wrong inside is in `faults`; raises ProfileError if unreadable."""
    text = _text(path)
    lines: dict[Place, int] = {}
    faults: list[Fault] = []
    data = None
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            faults += _walk(node, (), lines, str(path))
            data = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        faults.append(_syntax_fault(str(path), error))
    finally:
        loader.dispose()
    return Document(file=str(path), data=data, lines=lines, faults=tuple(faults))


def check(document: Document, *, schema: str) -> tuple[Fault, ...]:
    """Where the document leaves the named schema of this package, by line."""
    # here, not above: beside JupyterLab, jsonschema builds a grammar at import (rfc3987_syntax), for 2 s
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(_schema(schema)).iter_errors(document.data)
    return tuple(sorted(fault for error in errors for fault in _explain(document, error)))


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise ProfileError(
                "file-too-large",
                f"{path} has {len(raw):,} bytes; a file of choices has at most {MAX_BYTES:,}.",
                "Is it the right file?",
            )
        return raw.decode("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProfileError(
            "file-unreadable", f"{path} cannot be read: {reason}.", "Check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise ProfileError(
            "file-unreadable", f"{path} is not UTF-8 text (byte {error.start}).", "Save it as UTF-8."
        ) from None


def _walk(node: yaml.Node, place: Place, lines: dict[Place, int], file: str) -> Iterator[Fault]:
    """Note the line of every value below `node`; yield a fault for each key said twice."""
    lines.setdefault(place, node.start_mark.line + 1)
    if len(place) > MAX_DEPTH or len(lines) > MAX_VALUES:
        raise ValueError("it is nested or repeated beyond what a file of choices can mean")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*place, index), lines, file)
    elif isinstance(node, yaml.MappingNode):
        yield from _walk_mapping(node, place, lines, file)


def _walk_mapping(
    node: yaml.MappingNode, place: Place, lines: dict[Place, int], file: str
) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            message = f"the key {name!r} is there twice, first on line {seen[name]}"
            yield Fault(file=file, line=line, code="duplicate-key", message=message, fix="Keep one of them.")
        seen[name] = line
        lines[(*place, name)] = line
        yield from _walk(value, (*place, name), lines, file)


def _syntax_fault(file: str, error: Exception) -> Fault:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply"
    line = mark.line + 1 if mark else 1
    return Fault(file=file, line=line, code="yaml-syntax", message=f"this is not YAML as expected: {problem}")


@functools.cache
def _schema(name: str) -> dict[str, Any]:
    text = resources.files("slicelift_profiles").joinpath(name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _explain(document: Document, error: Any) -> Iterator[Fault]:
    """A jsonschema error in our words, with the allowed values."""
    place: Place = tuple(error.absolute_path)
    name = _spell(place)
    if error.validator == "additionalProperties":
        yield from _unknown_keys(document, place, error)
    elif error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        # jsonschema reports one error per missing key, each with the whole list: the message names which
        key = next(key for key in missing if error.message.startswith(f"{key!r} "))
        yield document.fault(place, "missing-key", f"{name} lacks the key {key!r}", "Add it.")
    elif error.validator == "type":
        found = _said(error.instance)
        wanted = error.schema.get("description", f"wanted {error.validator_value}")
        yield document.fault(place, "wrong-type", f"{name} is {found}; {wanted}", _type_fix(error))
    elif error.validator == "enum":
        allowed = one_of(error.validator_value)
        yield document.fault(
            place, "not-allowed", f"{name} is {_said(error.instance)}", f"Allowed: {allowed}."
        )
    else:
        wanted = error.schema.get("description", error.message)
        yield document.fault(place, "bad-value", f"{name} is {_said(error.instance)}; {wanted}")


def _unknown_keys(document: Document, place: Place, error: Any) -> Iterator[Fault]:
    allowed = list(error.schema.get("properties", {}))
    for key in error.instance:
        if key not in allowed:
            fix = f"{closest(str(key), allowed)} Allowed: {one_of(allowed)}.".strip()
            where = _spell(place)
            yield document.fault(
                (*place, str(key)), "unknown-key", f"{where} has the unknown key {key!r}", fix
            )


def _spell(place: Place) -> str:
    """`profiles[0].slug`; the whole file for the empty place."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the file"


def _said(value: object) -> str:
    """A value as the user wrote it, cut short, with its kind where that is the surprise."""
    if isinstance(value, bool):
        return f"the YAML truth value {str(value).lower()}"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return {str: f"the text {text}", type(None): "empty"}.get(type(value), text)


def _type_fix(error: Any) -> str:
    if isinstance(error.instance, str) and error.validator_value in ("number", "integer"):
        return "Write the number without quotes."
    if error.validator_value == "string" and not isinstance(error.instance, dict | list):
        helps = re.search(error.schema.get("pattern", ""), str(error.instance))
        return "Put it in quotes." if helps else ""
    return ""
