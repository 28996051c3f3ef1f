"""From a notebook to an accepted job: the other rooms called in order, and side by side where they may be.

Nothing is decided here that a room decides: the preflight refuses notebooks, the snapshot refuses data,
the launcher refuses gangs. What is here is the order, the promotion id, and what to do when the launcher
goes away between two steps.
"""

from __future__ import annotations

import re
import secrets as random_source
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slicelift.errors import NotFound, Refused, SliceliftError, Unavailable, UserError
from slicelift.models import JobSpec, RunView, Severity, Snapshot, to_dict

if TYPE_CHECKING:
    from slicelift.launcher_client import Client
    from slicelift.preflight import Report
    from slicelift.snapshot import Project

T = TypeVar("T")

RETRY_SECONDS = 60.0
_ID_LENGTH, _TIME_LENGTH = 20, 9
# Base32's characters in ASCII order, so that a later id sorts later.
_ALPHABET = "234567abcdefghijklmnopqrstuvwxyz"
_ID = re.compile(rf"p-[{_ALPHABET}]{{{_ID_LENGTH}}}")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that is done, told while the rest goes on. `seconds` is the time that it took by itself."""

    name: str
    text: str
    seconds: float = 0.0


Progress = Callable[[Step], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for. `parameters` are overrides, as text or as values of the default's type."""

    notebook: Path
    workers: int = 1
    slice: str | None = None
    gpus_per_worker: int = 0
    queue: str = "default"
    preset: str = "torchrun"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    model_name: str = ""
    python: str | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything about a promotion that is known before the launcher has heard of it."""

    report: Report
    project: Project
    snapshot: Snapshot
    spec: JobSpec


def silent(_: Step) -> None:
    """Progress that nobody listens to."""
