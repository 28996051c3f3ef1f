"""Read a notebook and turn its chosen cells into one plain Python file with a line map."""

from __future__ import annotations

from slicelift.notebook.document import Cell, Notebook, read, select
from slicelift.notebook.program import Transformed, transform
from slicelift.notebook.script import write_script

__all__ = ["Cell", "Notebook", "Transformed", "read", "select", "transform", "write_script"]
