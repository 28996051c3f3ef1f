"""From a line of promoted.py back to the cell it came from.

The pure functions live in `slicelift.models`, since the launcher and the runtime use them as well.
"""

from __future__ import annotations

import json

from slicelift import models
from slicelift.models import LinePlace, Script, places_from_json

__all__ = ["locate", "map_traceback", "places_from_json", "places_to_json"]


def locate(script: Script, line: int) -> LinePlace | None:
    """Where line `line` (from 1) of the script comes from; None for a line that slicelift added."""
    return models.locate(script.places, line)


def places_to_json(script: Script) -> str:
    """The content of promoted.map.json."""
    return json.dumps(models.to_dict(script.places), separators=(",", ":"))


def map_traceback(text: str, script_path: str, script: Script, *, notebook: str = "notebook.ipynb") -> str:
    """Rewrite frames of the script into places of the notebook; see `slicelift.models.map_traceback`."""
    return models.map_traceback(text, script_path, places=script.places, notebook=notebook)
