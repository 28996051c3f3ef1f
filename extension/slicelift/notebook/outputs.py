"""The notebook as it travels: what was written, without what running it left behind.

An output is no code. With it, looking at a run under its own cell would make another snapshot, and what a cell has
printed (tables of customers, tokens) would go along unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# what JupyterLab and others note when a cell runs or is folded
_CELL_TRACES = ("execution", "ExecuteTime", "collapsed", "scrolled", "jupyter")
_NOTEBOOK_TRACES = ("widgets", "language_info", "signature")


def without_outputs(content: bytes) -> bytes:
    """The same notebook without outputs, execution counts and the traces of a session, in one canonical form.

    So the bytes differ only where cells, tags or the kernel do. Pure and idempotent. What is no notebook of format 4 is
    given back as it is.
    """
    try:
        whole = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return content
    if not isinstance(whole, dict) or whole.get("nbformat") != 4 or not isinstance(whole.get("cells"), list):
        return content
    kept = {
        **whole,
        "cells": [_bare(cell) for cell in whole["cells"]],
        "metadata": _without(whole.get("metadata"), _NOTEBOOK_TRACES),
    }
    try:
        return _written(kept, ascii_only=False)
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return _written(kept, ascii_only=True)


def _written(whole: Mapping[str, Any], *, ascii_only: bool) -> bytes:
    """As nbformat writes a file."""
    return (json.dumps(whole, ensure_ascii=ascii_only, indent=1, sort_keys=True) + "\n").encode()


def _bare(cell: Any) -> Any:
    if not isinstance(cell, dict):
        return cell
    kept = {**cell, "metadata": _without(cell.get("metadata"), _CELL_TRACES)}
    source = kept.get("source")
    if isinstance(source, str) or (
        isinstance(source, list) and all(isinstance(part, str) for part in source)
    ):
        # text and lines are both allowed, and Jupyter writes lines
        kept["source"] = "".join(source).splitlines(keepends=True)
    if cell.get("cell_type") == "code":
        kept |= {"outputs": [], "execution_count": None}
    return kept


def _without(metadata: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(metadata, Mapping):
        return metadata
    return {name: value for name, value in metadata.items() if name not in names}
