"""Words and numbers as the command line prints them: sizes, times, tables, and JSON as the last line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slicelift.figures import exact


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line of stdout. NaN and the infinities become strings, as in the HTTP API."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(json.dumps(exact(value), ensure_ascii=ascii_only, allow_nan=False), flush=True)


def complain(message: str, hint: str = "", *, lines: Sequence[str] = ()) -> None:
    """What was asked and found on the first line of stderr, the way on in the last."""
    text = "\n".join(line for line in (f"{_red('error')}: {message}", *lines, hint) if line)
    print(text, file=sys.stderr, flush=True)


def remark(message: str) -> None:
    """Something worth knowing that changes nothing: to stderr, so that stdout stays clean."""
    print(message, file=sys.stderr, flush=True)


def ago(moment: float, *, now: float | None = None) -> str:
    """How long since a Unix time, coarse: `just now`, `12 s ago`, `2 days ago`."""
    passed = (time.time() if now is None else now) - moment
    if passed < 2:
        return "just now"
    for unit, seconds in (("days", 86400), ("h", 3600), ("min", 60)):
        if passed >= seconds * (2 if unit == "days" else 1):
            return f"{int(passed // seconds)} {unit} ago"
    return f"{round(passed)} s ago"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns by display width (a Chinese character takes two), two spaces apart, nothing cut."""
    lines = [list(headings), *[list(row) for row in rows]]
    widths = [max(width(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(_padded(line, widths) for line in lines)


def width(text: str) -> int:
    """Terminal cells that `text` takes."""
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def dim(text: str) -> str:
    """Grey on a terminal, plain elsewhere."""
    return _coloured(text, "2", sys.stdout)


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (wide - width(cell)) for cell, wide in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _red(text: str) -> str:
    return _coloured(text, "31", sys.stderr)


def _coloured(text: str, code: str, stream: Any) -> str:
    """Colour only where a terminal shows it and nobody asked for none (https://no-color.org)."""
    wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{code}m{text}\x1b[0m" if wanted else text
