"""Two screens for a followed run: live on a terminal, one line per change in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from slicelift.cli.metrics import metrics_line, rank_table
from slicelift.figures import duration
from slicelift.models import RunView, Status, StatusChange
from slicelift.sentences import elapsed, sentence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from slicelift.cli.follow import Screen

METRICS_SECONDS = 1.0
_LIVELY = (Status.WAITING, Status.STARTING, Status.RUNNING, Status.CANCELLING, Status.UNKNOWN)


@contextmanager
def open_screen(stream: TextIO | None = None) -> Iterator[Screen]:
    """Live where the stream is a terminal that can move its cursor, plain elsewhere."""
    target = stream or sys.stdout
    if not target.isatty():
        yield PlainScreen(target)
        return
    from rich.console import Console  # rich takes 0.2 s, and a pipe does not need it
    from rich.live import Live

    console = Console(file=target, highlight=False)
    if console.is_dumb_terminal:
        yield PlainScreen(target)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveScreen(console, live)


class PlainScreen:
    """One line per change, at most one line of metrics a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changes = 0
        self._sentence = ""
        self._figures = ""
        self._figures_at = 0.0

    def show(self, view: RunView) -> None:
        """Print what is new in the view."""
        for change in view.history[self._changes :]:
            self._say(told(change, view), change.time)
        self._changes = max(self._changes, len(view.history))
        if view.status is not Status.RUNNING and not view.status.terminal:
            self.say(sentence(view))
        self._show_figures(view)

    def say(self, text: str) -> None:
        """Print a sentence unless it was the last one."""
        self._say(text, time.time())

    def _show_figures(self, view: RunView) -> None:
        """The last figures are shown even when the run ends within the second."""
        figures = metrics_line(view)
        due = view.status.terminal or time.monotonic() - self._figures_at >= METRICS_SECONDS
        if figures and figures != self._figures and due:
            self._figures, self._figures_at = figures, time.monotonic()
            self._line(figures, time.time())

    def _say(self, text: str, moment: float) -> None:
        if text != self._sentence:
            self._sentence = text
            self._line(text, moment)

    def _line(self, text: str, moment: float) -> None:
        print(f"{clock(moment)}  {text}", file=self._stream, flush=True)


class LiveScreen:
    """History scrolls away above; the sentence and the ranks' figures stay and change in place."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._changes = 0
        self._note = ""

    def show(self, view: RunView) -> None:
        """Redraw; called a few times a second so that the clock goes on."""
        for change in view.history[self._changes :]:
            self._console.print(f"[dim]{clock(change.time)}[/dim]  {_plain(told(change, view))}")
        self._changes = max(self._changes, len(view.history))
        self._live.update(self._picture(view), refresh=True)

    def say(self, text: str) -> None:
        """A sentence that stays until the next one."""
        if text != self._note:
            self._note = text
            self._console.print(f"[dim]{clock(time.time())}[/dim]  {_plain(text)}")

    def _picture(self, view: RunView) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        mark = "●" if view.status in _LIVELY else ("✓" if view.status is Status.FINISHED else "✗")
        colour = {"●": "cyan", "✓": "green", "✗": "red"}[mark]
        head = Text.assemble((f"{mark} ", colour), (view.name, "bold"), f"  {sentence(view)}")
        head.append(f"  {_gang(view)} · {duration(elapsed(view))}", style="dim")
        headings, rows = rank_table(view)
        if not view.latest:
            return head
        grid = Table(*headings, box=None, padding=(0, 2, 0, 0), header_style="dim")
        for row in rows:
            grid.add_row(*row)
        return Group(head, grid)


def told(change: StatusChange, view: RunView) -> str:
    """One line of history: the full sentence where it is the present, status and message where it is past."""
    if change is view.history[-1] and view.status is change.status:
        return "Running" if change.status is Status.RUNNING else sentence(view)
    message = change.message.strip().splitlines()
    return change.status.capitalize() + (f": {message[0].rstrip('.')}" if message else "")


def clock(moment: float) -> str:
    """Local time of day."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%H:%M:%S")


def _gang(view: RunView) -> str:
    """`2 workers × 1 GPU · attempt 2`."""
    spec = view.spec
    size = f"{spec.workers} worker{'' if spec.workers == 1 else 's'}"
    if spec.slice:
        size += f" on slice {spec.slice}"
    elif spec.gpus_per_worker:
        size += f" × {spec.gpus_per_worker} GPU{'' if spec.gpus_per_worker == 1 else 's'}"
    return size + (f" · attempt {view.attempt}" if view.attempt > 1 else "")


def _plain(text: str) -> str:
    """Square brackets in a message are not rich's markup."""
    from rich.markup import escape

    return escape(text)
