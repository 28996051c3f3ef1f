"""What the worker does: check, plan, promote, each from plain types to plain types."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicelift import promotion
from slicelift.errors import UserError
from slicelift.models import SnapshotFile, to_dict
from slicelift.notebook.kernel import is_stand_in
from slicelift.server.launcher import without_address

if TYPE_CHECKING:
    from slicelift.preflight import Report

Say = Callable[[Mapping[str, Any]], None]

_SMALLEST = b'{"nbformat": 4, "metadata": {}, "cells": [{"cell_type": "code", "source": "n = 1"}]}'
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "workers": int,
    "gpus_per_worker": int,
    "slice": str,
    "queue": str,
    "preset": str,
    "parameters": dict,
    "name": str,
    "model_name": str,
    "secrets": list,
}


def check(arguments: Mapping[str, Any], _say: Say) -> Any:
    """The preflight of the file as it is on disk. A finding is no error here."""
    started = time.perf_counter()
    path = Path(arguments["path"])
    report = promotion.check(path, parameters=arguments.get("parameters") or {})
    return {
        "findings": promotion.finding_rows(report),
        "ok": report.verdict != "refused",
        "cells": {
            "travelling": len(report.selected_cells),
            "code": sum(cell.is_code for cell in report.notebook.cells),
        },
        "seconds": time.perf_counter() - started,
        "parameters": _parameters(report),
        "kernel": _kernel(report),
    }


def plan(arguments: Mapping[str, Any], _say: Say) -> Any:
    """Everything a promotion would do; no job. Raises what a promotion raises."""
    made = promotion.plan(make_request(arguments["path"], arguments.get("request") or {}))
    prepared = made.prepared
    script, kernel = promotion.accepted(prepared.report)
    return {
        "travels": {
            "code": _code(made),
            "data": _data(made),
            "packages": {"pinned": len(kernel.packages), "python": kernel.python_version},
        },
        "spec": to_dict(prepared.spec),
        "findings": promotion.finding_rows(prepared.report),
        "manifest": made.manifest,
        "position": made.position,
        "capacity": made.capacity,
        "notes": [without_address(note) for note in made.notes],
        "script": script.source,
    }


def promote(arguments: Mapping[str, Any], say: Say) -> Any:
    """One promotion until it is accepted: the run's view. The notebook's bytes are read once, first."""
    request = make_request(arguments["path"], arguments.get("request") or {})
    view = promotion.submit(
        request,
        promotion_id=arguments.get("promotion_id"),
        on_progress=lambda step: say(to_dict(step)),
    )
    return to_dict(view)


CALLS: Mapping[str, Callable[[Mapping[str, Any], Say], Any]] = {
    "check": check,
    "plan": plan,
    "promote": promote,
}


def warm_up() -> None:
    """One check of next to nothing: it loads what every check needs."""
    with suppress(Exception):
        promotion.check(Path("warm-up.ipynb"), content=_SMALLEST)


def make_request(path: str, fields: Mapping[str, Any]) -> promotion.Request:
    """The JSON form of a `Request` and the notebook's path. Raises `bad-request`."""
    if not isinstance(fields, Mapping):
        raise _bad("It is no object.")
    for name, value in fields.items():
        wanted = _KINDS.get(name)
        if wanted is None:
            raise _bad(f"There is no field {str(name)[:40]!r}.")
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise _bad(f"{name} is {str(value)[:40]!r}.")
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    secrets = tuple(str(name) for name in given.pop("secrets", ()))
    return promotion.Request(notebook=Path(path), secrets=secrets, **given)


def _bad(what: str) -> UserError:
    return UserError("bad-request", f"The request cannot be read: {what}", f"Fields: {', '.join(_KINDS)}.")


def _parameters(report: Report) -> list[dict[str, str]]:
    """Each default as the literal that would give it, a secret masked."""
    rows = []
    for name, value in (report.parameters or {}).items():
        literal = repr(value)
        for secret in report.hidden:
            literal = literal.replace(secret, "***")
        rows.append({"name": name, "default": literal, "type": type(value).__name__})
    return rows


def _kernel(report: Report) -> dict[str, Any]:
    found = report.environment
    return {
        "name": report.notebook.kernel,
        "python": found.python if found else None,
        "version": found.python_version if found else None,
        "stand_in": is_stand_in(report.notebook),
    }


def _code(made: promotion.Plan) -> dict[str, Any]:
    snapshot = made.prepared.snapshot
    return {
        "snapshot_id": snapshot.id,
        "commit": snapshot.base_commit,
        "branch": snapshot.branch,
        "dirty_files": _dirty_files(made),
        "files": len(snapshot.files),
        "size_bytes": snapshot.size_bytes,
        "to_upload": None if made.missing is None else _counted(made.missing),
    }


def _dirty_files(made: promotion.Plan) -> int:
    """As many as `git status` would list; at least one when the snapshot differs from the commit."""
    from slicelift.snapshot import git

    prepared = made.prepared
    if not prepared.snapshot.dirty:
        return 0
    command = ("status", "--porcelain", "--no-renames", "--untracked-files=all", "-z")
    return max(1, sum(1 for _ in git.records(git.run(prepared.project.root, *command))))


def _counted(files: tuple[SnapshotFile, ...]) -> dict[str, int]:
    """Each content counts once, as it is sent once."""
    sizes = {item.sha256: item.size_bytes for item in files}
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _data(made: promotion.Plan) -> list[dict[str, Any]]:
    """A plan that was made has all its data proved: without the proof it is refused."""
    shown = ("path", "md5", "nfiles", "size_bytes", "remote")
    return [
        {name: getattr(ref, name) for name in shown} | {"proved": True} for ref in made.prepared.snapshot.data
    ]
