"""What may be wrong with a choice (`ProfileError`) or with a file of choices (`Fault`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class ProfileError(Exception):
    """A fault with a stable `code`, a `message` for a person and a `hint` that names a way on.

    The same three words as `slicelift.errors.SliceliftError`, which a leaf may not import.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.faults = faults

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


@dataclass(frozen=True, kw_only=True, order=True)
class Fault:
    """One thing a lint saw in a file. `line` counts from 1; `severity` is "error" or "warning"."""

    file: str
    line: int
    code: str
    message: str
    fix: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity} {self.code}: {self.message}. {self.fix}".rstrip()


def first_of(faults: Sequence[Fault]) -> str:
    """The first of them as a sentence with file and line, and how many more there are."""
    more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{faults[0].file}:{faults[0].line}: {faults[0].message}{more}."


def one_of(names: Iterable[object]) -> str:
    """Allowed values as a sentence's tail, in the order given."""
    return ", ".join(str(name) for name in names) or "(none)"


def closest(name: str, names: Iterable[str]) -> str:
    """ "Did you mean x?" for a slip of the keyboard, else nothing."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {found[0]}?" if found else ""
