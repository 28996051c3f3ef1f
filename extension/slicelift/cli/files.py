"""Files that a command writes for its user: whole or not at all, and a full disk in plain words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slicelift.errors import UserError


def write_file(target: Path, chunks: Iterable[bytes]) -> None:
    """Through a partial file beside it, so that what bears the name is whole. Raises `cannot-write`."""
    partial = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.writelines(chunks)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            "cannot-write", f"{target} cannot be written: {reason}.", "Choose another place."
        ) from error
