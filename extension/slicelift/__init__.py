"""Slicelift: from a slice of one GPU to a gang of many, without leaving the notebook.

`import slicelift` loads nothing else; each name below is imported when it is first used. The training calls
(`log`, `history`, `save_model`, `checkpoint`, `resume`) are the same in a notebook and in a job.
"""

from __future__ import annotations

from slicelift._version import __version__

# typing's own constant would load typing, and with it twenty modules
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicelift.errors import Conflict as Conflict
    from slicelift.errors import Denied as Denied
    from slicelift.errors import NotFound as NotFound
    from slicelift.errors import Refused as Refused
    from slicelift.errors import SliceliftError as SliceliftError
    from slicelift.errors import Unavailable as Unavailable
    from slicelift.errors import UserError as UserError
    from slicelift.promotion import promote as promote
    from slicelift.runtime.checkpoint import checkpoint as checkpoint
    from slicelift.runtime.checkpoint import resume as resume
    from slicelift.runtime.model import save_model as save_model
    from slicelift.runtime.sink import history as history
    from slicelift.runtime.sink import log as log

__all__ = [
    "Conflict",
    "Denied",
    "NotFound",
    "Refused",
    "SliceliftError",
    "Unavailable",
    "UserError",
    "__version__",
    "checkpoint",
    "history",
    "log",
    "promote",
    "resume",
    "save_model",
]

_HOMES = {
    "checkpoint": "slicelift.runtime.checkpoint",
    "history": "slicelift.runtime.sink",
    "log": "slicelift.runtime.sink",
    "promote": "slicelift.promotion",
    "resume": "slicelift.runtime.checkpoint",
    "save_model": "slicelift.runtime.model",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home once. Raises AttributeError for all others, as a module does."""
    if name not in __all__:
        raise AttributeError(f"module 'slicelift' has no attribute {name!r}")
    import importlib

    home = _HOMES.get(name, "slicelift.errors")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != home:
            raise
        # only the runtime travels into a job
        raise AttributeError(f"slicelift.{name} is not there inside a job") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
