"""Which notebook a kernel belongs to, as far as whoever started it has said so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicelift.errors import NotFound, UserError

_WAY_ON = 'Name it: slicelift.promote("train.ipynb") or %promote train.ipynb'
# what the Jupyter server sets for a kernel, and what VS Code puts into the namespace of one
_SESSION, _VSCODE = "JPY_SESSION_NAME", "__vsc_ipynb_file__"


def own_notebook(names: Mapping[str, Any] | None = None) -> Path:
    """The notebook of this kernel. `names` is the user's namespace, None: that of the running IPython, if any.

    Raises `notebook-unnamed` where nobody told, and `notebook-not-found` when it was renamed or moved since the kernel
    was started.
    """
    known = _namespace() if names is None else names
    told = os.environ.get(_SESSION) or str(known.get(_VSCODE) or "")
    if not told:
        message = "Which notebook is to be promoted is not known here: this kernel was not told its notebook."
        raise UserError("notebook-unnamed", message, _WAY_ON)
    if not told.endswith(".ipynb"):
        message = f"This kernel belongs to {told}, which is no notebook."
        raise UserError("notebook-unnamed", message, _WAY_ON)
    # a kernel's working directory is its notebook's folder; the path may count from the server's root
    for place in (Path(told), Path.cwd() / Path(told).name):
        if place.is_file():
            return place.absolute()
    message = f"This kernel was started for {told}, and there is no such file now."
    raise NotFound("notebook-not-found", message, f"It was renamed or moved? {_WAY_ON}")


def _namespace() -> Mapping[str, Any]:
    try:
        from IPython import get_ipython  # a third of a second in a process that has no shell
    except ImportError:
        return {}
    shell = get_ipython()
    return dict(shell.user_ns) if shell is not None else {}
