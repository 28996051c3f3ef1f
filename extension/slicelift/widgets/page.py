"""A run as a piece of HTML that reads well anywhere: nbconvert, GitHub, a mail.

No script and no style sheet; the few inline styles are ornament, since some sites strip them. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from slicelift.models import Failure, ModelVersionView, RunView, Status, place_text

_BOX = (
    "border:1px solid #8c959f;border-radius:6px;padding:8px 14px;max-width:860px;"
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5"
)
# readable on white and on black
_COLOURS = {Status.FINISHED: "#1f883d", Status.FAILED: "#d1242f", Status.RUNNING: "#1f75cb"}
_OTHER_COLOUR = "#9a6700"
_CELL = "text-align:left;padding:1px 18px 1px 0;vertical-align:middle"
_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;max-height:20em;overflow:auto;font-size:12px;margin:4px 0"
_WIDTH, _HEIGHT = 160, 28
_MOST_TRACEBACK = 40


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric: its last value, and its curve as `[step, time, value]`."""

    name: str
    value: str
    step: int
    points: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is to be shown. `seen` is the time of the look while the run goes on, None once it is over."""

    view: RunView
    word: str
    sentence: str
    size: str
    took: str
    seen: float | None
    rows: Sequence[Row] = ()


def html(page: Page) -> str:
    """The whole of it, one `div`."""
    return f'<div class="sl-static" style="{_BOX}">{"".join(_parts(page))}</div>'


def list_html(rows: Sequence[tuple[str, str, str, str]], *, seen: float) -> str:
    """The list of jobs, one `div`: word, name, run id and sentence of each."""
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(text)}</td>' for text in row) + "</tr>" for row in rows
    )
    table = f'<table style="border-collapse:collapse;font-size:13px"><tbody>{body}</tbody></table>'
    told = f"Your jobs as they stood at {_moment(seen)}." if rows else "No job yet."
    return f'<div class="sl-static" style="{_BOX}">{_paragraph(told)}{table if rows else ""}</div>'


def _parts(page: Page) -> Iterator[str]:
    view = page.view
    colour = _COLOURS.get(view.status, _OTHER_COLOUR)
    facts = " · ".join(part for part in (page.size, page.took) if part)
    word = f'<strong style="color:{colour}">{escape(page.word)}</strong>'
    yield _paragraph(f"{word} <strong>{escape(view.name)}</strong> {escape(facts)}")
    yield _paragraph(escape(page.sentence))
    if view.failure:
        yield from _failure(view.failure, view.spec.notebook)
    if page.rows:
        yield _table(page.rows)
    yield from (_model(model) for model in view.models)
    yield _paragraph(_times(page))
    yield _paragraph(_origin(view))


def _paragraph(content: str) -> str:
    return f'<p style="margin:2px 0">{content}</p>'


def _failure(failure: Failure, notebook: str) -> Iterator[str]:
    """Where in the notebook, the line itself, and the end of the traceback."""
    if failure.cell is not None:
        source = f": <code>{escape(failure.source.strip())}</code>" if failure.source.strip() else ""
        place = f"{failure.file or notebook}, {place_text(failure.cell, failure.line)}"
        yield _paragraph(escape(place) + source)
    lines = failure.traceback.rstrip().splitlines()
    if lines:
        shown = (["..."] if len(lines) > _MOST_TRACEBACK else []) + lines[-_MOST_TRACEBACK:]
        yield f'<pre style="{_PRE}">{escape(chr(10).join(shown))}</pre>'


def _table(rows: Sequence[Row]) -> str:
    curves = any(_finite(row) for row in rows)
    heads = ["metric", "last value", "at step", *(["curve"] if curves else [])]
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in heads)
    body = "".join(_line(row, curves=curves) for row in rows)
    return (
        '<table style="border-collapse:collapse;margin:4px 0;font-size:13px">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _line(row: Row, *, curves: bool) -> str:
    cells = [escape(row.name), escape(row.value), str(row.step), *([_curve(row)] if curves else [])]
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _curve(row: Row) -> str:
    """A small line, the last value beside it in the table; nothing where there is no line to draw."""
    points = _finite(row)
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    path = " ".join(
        f"{_scaled(x, xs, _WIDTH):.1f},{_HEIGHT + 2 - _scaled(y, ys, _HEIGHT):.1f}" for x, y in points
    )
    label = escape(f"{row.name}, last value {row.value} at step {row.step}", quote=True)
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH + 4}" height="{_HEIGHT + 4}" '
        f'viewBox="-2 0 {_WIDTH + 4} {_HEIGHT + 4}"><polyline fill="none" stroke="#3b82d6" stroke-width="1.5" '
        f'points="{path}"></polyline></svg>'
    )


def _finite(row: Row) -> list[tuple[float, float]]:
    """(step, value) of what can be drawn; empty for fewer than two."""
    found = [(float(step), float(value)) for step, _, value in row.points if math.isfinite(float(value))]
    return found if len(found) > 1 else []


def _scaled(value: float, values: Sequence[float], length: float) -> float:
    # in units of the largest: a span of two huge values may pass what a float holds
    unit = max(abs(low := min(values)), abs(high := max(values))) or 1.0
    span = high / unit - low / unit
    return length / 2 if span == 0 else (value / unit - low / unit) / span * length


def _model(model: ModelVersionView) -> str:
    aliases = "".join(f" <strong>@{escape(alias)}</strong>" for alias in model.aliases)
    return _paragraph(f"Model <strong>{escape(model.name)}</strong> version {escape(model.version)}{aliases}")


def _times(page: Page) -> str:
    view = page.view
    told = [
        f"{word} {_moment(moment)}"
        for word, moment in (("submitted", view.created), ("started", view.started), ("ended", view.ended))
        if moment
    ]
    if page.seen is not None:
        told.append(f"seen so {_moment(page.seen)}")
    return escape(" · ".join(told))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _origin(view: RunView) -> str:
    spec = view.spec
    parts = [f"run <code>{escape(view.run_id)}</code>", escape(spec.notebook)]
    parts.append(f"snapshot <code>{escape(spec.snapshot_id[:12])}</code>")
    parts += [f"data {escape(ref.path)} at <code>{escape(ref.md5[:8])}</code>" for ref in spec.data[:3]]
    parts += [
        f"{escape(name)} = <code>{escape(repr(value))}</code>" for name, value in spec.parameters.items()
    ]
    return " · ".join(parts)
