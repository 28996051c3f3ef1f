"""From a path of the page to a file on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_server.services.contents.fileio import FileManagerMixin
from tornado.web import HTTPError

from slicelift.errors import NotFound, UserError


def notebook_path(contents: Any, path: object) -> str:
    """The notebook, relative to the server's root. `path` is as the page has it, `/` between its parts.

    Raises `bad-argument`, `contents-not-files`, `path-outside`, `notebook-not-found` or `notebook-unreadable`.
    """
    if not isinstance(path, str) or not path.strip("/"):
        raise UserError("bad-argument", "No notebook is named.", 'Send {"path": "folder/notebook.ipynb"}.')
    if not isinstance(contents, FileManagerMixin):
        kind = type(contents).__name__
        message = f"The documents of this server are no files ({kind}), and only files can be promoted."
        hint = "Start Jupyter with its file manager, or promote a copy on disk with `slicelift promote`."
        raise UserError("contents-not-files", message, hint)
    place = _on_disk(contents, path)
    # these never raise, whatever the name is
    if os.path.isdir(place):  # noqa: PTH112
        raise UserError("notebook-unreadable", f"{path} is a folder.", "Name a notebook (.ipynb).")
    if not os.path.exists(place):  # noqa: PTH110
        hint = "Save the notebook (Ctrl+S); if it was moved or deleted outside, open it again."
        raise NotFound("notebook-not-found", f"There is no file {path} on disk.", hint)
    return os.path.relpath(place, _root(contents))


def _on_disk(contents: Any, path: str) -> Path:
    try:
        place = Path(contents._get_os_path(path.strip("/")))
    except HTTPError:
        place = None
    # checked once more: who may name a path decides what is read and sent
    if place is None or not Path(os.path.normpath(place)).is_relative_to(_root(contents)):
        hint = "Name a notebook below the folder that this Jupyter server shows."
        raise NotFound("path-outside", f"{path[:200]!r} is not below this server's folder.", hint)
    return place


def _root(contents: Any) -> str:
    return os.path.abspath(str(contents.root_dir))  # noqa: PTH100 - links stay as they are, as in `_get_os_path`
