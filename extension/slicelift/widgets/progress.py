"""How far a call is: one line that changes in a notebook, lines on stderr elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol


class Line(Protocol):
    """Where progress is told. Calls may come from any thread."""

    def say(self, text: str) -> None:
        """What was just done."""
        ...

    def end(self, text: str) -> None:
        """The last words, which stay."""
        ...


@contextmanager
def progress_line(opening: str) -> Iterator[Line]:
    """A line for the time of the block. When the block raises, the last step stays on it."""
    line = _make()
    line.say(opening)
    yield line


def _make() -> Line:
    # a process without a shell has not imported IPython, and need not
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return CellLine(shell) if shell is not None and hasattr(shell, "kernel") else StreamLine()


class CellLine:
    """One output of the cell that runs, updated in place."""

    def __init__(self, shell: Any) -> None:
        from IPython.display import DisplayHandle

        self._shell, self._handle, self._shown = shell, DisplayHandle(), False

    def say(self, text: str) -> None:
        """What was just done, in grey."""
        self._show(text, f'<span style="color:var(--jp-ui-font-color2,#59636e)">{escape(text)} …</span>')

    def end(self, text: str) -> None:
        """The last words."""
        self._show(text, f"<span>✓ {escape(text)}</span>")

    def _show(self, text: str, html: str) -> None:
        data = {"text/plain": text, "text/html": html}
        show = self._handle.update if self._shown else self._handle.display
        self._shown = True
        show(data, raw=True)


class StreamLine:
    """One line per step, on stderr."""

    def say(self, text: str) -> None:
        """What was just done."""
        print(text, file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        """The last words."""
        self.say(text)
