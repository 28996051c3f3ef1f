"""Notebooks written on the spot. A cell is its source, or a tuple of its source and tags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat

KERNEL = {"kernelspec": {"name": "python3", "language": "python"}, "language_info": {"name": "python"}}


def write_notebook(path: Path, *cells: str | tuple[str, ...], kernel: str = "python3") -> Path:
    """By nbformat, into a folder that is made."""
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    made = nbformat.v4.new_notebook(metadata={"kernelspec": spec})
    for index, cell in enumerate(cells):
        source, *tags = (cell,) if isinstance(cell, str) else cell
        metadata = {"tags": tags} if tags else {}
        made.cells.append(nbformat.v4.new_code_cell(source, id=f"cell{index}", metadata=metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return path


def notebook_bytes(cells: list[Any], *, metadata: dict[str, Any] | None = None) -> bytes:
    """As they are, also what nbformat would not write: a dict is laid over a plain cell."""
    made = []
    for number, cell in enumerate(cells):
        source, *tags = cell if isinstance(cell, tuple) else (cell,)
        plain = {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {"tags": tags} if tags else {},
            "source": source,
            "execution_count": None,
            "outputs": [],
        }
        made.append({**plain, **cell, "id": f"c{number}"} if isinstance(cell, dict) else plain)
    document = {"cells": made, "metadata": KERNEL if metadata is None else metadata}
    return json.dumps({**document, "nbformat": 4, "nbformat_minor": 5}).encode()
