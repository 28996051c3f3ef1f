"""Makes the backend of one launcher, with its users' jobs kept apart where that is asked for and possible."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slicelift.backends.base import Backend
from slicelift.backends.local import SAVING_SECONDS, Local
from slicelift.errors import Refused, SliceliftError
from traitlets.config import Config, Configurable
from traitlets.utils.importstring import import_item

from slicelift_hub import homes, isolation

_log = logging.getLogger(__name__)


def find_backend(name: str) -> Any:
    """The backend class of that name, such as `slicelift.backends.local.Local`. Raises `backend-unknown`."""
    try:
        return import_item(name)
    except (ImportError, ValueError) as error:
        message = f"There is no backend {name!r}: {error}."
        hint = "Set c.Launcher.backend to a class by its full name; some need packages of their own."
        raise SliceliftError("backend-unknown", message, hint) from error


def make_backend(
    kind: Any,
    home: Path,
    *,
    config: Config,
    apart: str,
    under_hub: bool,
    network: str,
    visible: Sequence[str],
    saving_seconds: float = SAVING_SECONDS,
) -> Backend:
    """A backend of that class over `home`; `apart` is "auto" (under a hub, where possible), "always" or "never".

    One with traits of its own, such as `c.Volcano`, finds them in `config`. Only "local" keeps users apart by users
    of the system. Raises Refused "isolation-impossible" for an "always" that cannot be kept. Blocks: it is tried out.
    """
    made: Backend
    if issubclass(kind, Configurable):
        made = kind(home=home, config=config)
        return made
    if not issubclass(kind, Local):
        made = kind(home=home)
        return made
    if apart == "never" or (apart == "auto" and not under_hub):
        made = kind(home=home, saving_seconds=saving_seconds)
        return made
    missing = isolation.available()
    if missing and apart == "always":
        hint = "Start the hub as root, or set c.Launcher.isolation = 'auto'."
        raise Refused("isolation-impossible", f"Jobs cannot be kept apart: {missing}.", hint)
    if missing:
        _log.warning(
            "All jobs run as one user of this machine: %s. Only the HTTP interfaces keep users apart.",
            missing,
        )
        return Local(home, saving_seconds=saving_seconds)
    _log.info("Jobs run as one user of this machine each; their ranks' network: %s.", network)
    demo = homes.shipped_demo()
    # a clone may lie where no other user comes, and the README's first promotion reads the demo's data from there
    shown = [*map(Path, visible), *([homes.demo_remote(demo)] if demo else [])]
    enclosure = isolation.JobEnclosure(home, network=network, visible=shown)
    return Local(home, saving_seconds=saving_seconds, enclosure=enclosure)
