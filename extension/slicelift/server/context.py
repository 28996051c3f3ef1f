"""What the page needs to know of where it is: hub or not, whose session, which slice, what is free."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from slicelift import launcher_address
from slicelift._version import __version__
from slicelift.errors import SliceliftError
from slicelift.server.launcher import STARTING, Launcher, without_address

_READ_SECONDS = 5.0


async def make_context(launcher: Launcher) -> dict[str, Any]:
    """As `GET context` has it. A launcher that is away is a state here, no error."""
    hub = bool(os.environ.get(launcher_address.URL))
    answer: dict[str, Any] = {
        "hub": hub,
        "launcher": "up",
        "message": "",
        "version": __version__,
        "slice": _slice(),
        "mlflow": "",
        "presets": _presets(cluster=False),
        "queues": [],
        "capacity": None,
    }
    try:
        health, capacity = await _ask(launcher)
    except SliceliftError as error:
        state = "starting" if error.code == STARTING else "away"
        return answer | {"launcher": state, "message": without_address(str(error))}
    message = _version_message(health)
    return answer | {
        "launcher": "away" if message else "up",
        "message": message,
        "mlflow": _mlflow(health, hub=hub),
        "presets": _presets(cluster="quotas" in capacity),
        "queues": capacity["queues"],
        "capacity": capacity,
    }


async def _ask(launcher: Launcher) -> tuple[dict[str, Any], dict[str, Any]]:
    calls = (launcher.get(path, read_seconds=_READ_SECONDS) for path in ("health", "capacity"))
    health, capacity = await asyncio.gather(*calls)
    return health, capacity


def _slice() -> dict[str, Any] | None:
    name = os.environ.get("SLICELIFT_SLICE", "")
    if not name:
        return None
    return {"name": name, "simulated": os.environ.get("SLICELIFT_SLICE_SIMULATED", "") not in ("", "0")}


def _mlflow(health: dict[str, Any], *, hub: bool) -> str:
    """Where a browser finds MLflow; under a hub behind the hub's own address, as the launcher's port is not open."""
    tracker = health["tracker"]
    if tracker["status"] != "up":
        return ""
    base = os.environ.get("JUPYTERHUB_BASE_URL") or "/"
    return f"{base}services/launcher/mlflow/" if hub else str(tracker["url"])


def _version_message(health: dict[str, Any]) -> str:
    """A hub's launcher is found by its address alone: only its answer says what it is."""
    found = health["version"]
    if found == __version__:
        return ""
    return f"The launcher is version {found}, this is slicelift {__version__}: tell whoever runs your hub."


@functools.cache
def _presets(*, cluster: bool) -> list[dict[str, Any]]:
    """Those that the launcher can keep."""
    from slicelift_profiles import presets  # yaml: not at the server's start

    return [
        {
            "name": preset.name,
            "display_name": preset.display_name,
            "description": preset.description,
            "kind": "slice" if preset.slice == "required" else "gang",
            "workers": preset.workers,
            "gpus_per_worker": preset.gpus_per_worker,
            "max_workers": preset.max_workers,
            "default": preset.default,
            "queue": preset.queue,
        }
        for preset in presets.load().presets
        if cluster or preset.where == "anywhere"
    ]
