"""Slicelift: from a slice of one GPU to a gang of many, without leaving the notebook.

`import slicelift` loads nothing else; each name below is imported when it is first used. The training calls
(`log`, `history`, `data`, `save_model`, `checkpoint`, `resume`) are the same in a notebook and in a job. The session's calls
(`promote`, `show`, `jobs`, `%load_ext slicelift`) do nothing inside a job, and say so.
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
    from slicelift.runtime.checkpoint import checkpoint as checkpoint
    from slicelift.runtime.checkpoint import resume as resume
    from slicelift.runtime.feeding import data as data
    from slicelift.runtime.model import save_model as save_model
    from slicelift.runtime.sink import history as history
    from slicelift.runtime.sink import log as log
    from slicelift.widgets.live import jobs as jobs
    from slicelift.widgets.live import show as show
    from slicelift.widgets.magic import load_ipython_extension as load_ipython_extension
    from slicelift.widgets.magic import unload_ipython_extension as unload_ipython_extension
    from slicelift.widgets.promoting import promote as promote

# not `data`: `from slicelift import *` would put it in the place of the notebook's own
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
    "jobs",
    "log",
    "promote",
    "resume",
    "save_model",
    "show",
]

_HOMES = {
    "checkpoint": "slicelift.runtime.checkpoint",
    "data": "slicelift.runtime.feeding",
    "history": "slicelift.runtime.sink",
    "log": "slicelift.runtime.sink",
    "resume": "slicelift.runtime.checkpoint",
    "save_model": "slicelift.runtime.model",
}
_SESSION_HOMES = {
    "jobs": "slicelift.widgets.live",
    "load_ipython_extension": "slicelift.widgets.magic",
    "promote": "slicelift.widgets.promoting",
    "show": "slicelift.widgets.live",
    "unload_ipython_extension": "slicelift.widgets.magic",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home once. Raises AttributeError for all others, as a module does."""
    if name in _SESSION_HOMES:
        value = _of_session(name)
    elif name in __dir__():
        value = _imported(name, _HOMES.get(name, "slicelift.errors"))
    else:
        raise AttributeError(f"module 'slicelift' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})


def _of_session(name: str) -> Any:
    """The call itself, or inside a job, where only the runtime travels, one that does nothing."""
    import os

    if not os.environ.get("SLICELIFT_ATTEMPT_DIR"):
        try:
            return _imported(name, _SESSION_HOMES[name])
        except ModuleNotFoundError as error:
            # a process of a job that was given an environment of its own
            if error.name != "slicelift.widgets":
                raise
    return _imported(name, "slicelift.runtime.session")


def _imported(name: str, home: str) -> Any:
    import importlib

    return getattr(importlib.import_module(home), name)
