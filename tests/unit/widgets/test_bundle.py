"""The saved output of a run: small, complete, harmless, readable without anything of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from slicelift.models import RunView, Status, from_dict, to_dict
from slicelift.widgets.bundle import JOBS_MIME, MIME, MOST_POINTS, make_bundle, make_list_bundle

VOID = {"br", "hr", "img"}


class Page(HTMLParser):
    """The elements and the text of a page; raises where tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str | None]] = {}
        self.parts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def page_of(view: RunView, series: Any = ()) -> Page:
    return Page(make_bundle(view, series, now=1_764_469_005.0)["text/html"])


def row(key: str, count: int, **changes: Any) -> dict[str, Any]:
    points = [[step, 1000.0 + step, 1.0 / (1 + step)] for step in range(count)]
    return {"key": key, "attempt": 1, "rank": 0, "count": count, "points": points, **changes}


def test_a_running_run_says_when_it_was_seen_so(view: Callable[..., RunView]) -> None:
    page = page_of(view(), [row("loss", 40)])
    assert page.text.startswith("Running digits 2 workers · queue default · attempt 1 · 3.0 s")
    for words in (
        "Running: step 40, loss 0.03125",
        "loss 0.03125 40",
        "accuracy 0.981 40",
        "throughput (samples) 11840 samples/s 40",
        "peak host memory 3.0 GiB 39",
        "submitted 2025-11-30 02:16:40 UTC",
        "seen so 2025-11-30 02:16:45 UTC",
        "run r-abcdefghij23",
        "训练/train.ipynb",
        "lr = 0.1",
    ):
        assert words in page.text, page.text
    assert page.attributes["aria-label"] == ["loss, last value 0.03125 at step 40"]
    assert "polyline" in page.tags


def test_a_failure_has_its_place_and_nothing_is_markup(failed: RunView) -> None:
    page = page_of(failed)
    assert not {"script", "b", "link", "style", "img", "iframe"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href", "id")]
    assert "Failed <b>bold</b>" in page.text
    assert "cell 5, line 2: raise ValueError('<b>bad</b>')" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "seen so" not in page.text


def test_models_and_aliases(done: RunView) -> None:
    page = page_of(done)
    assert page.text.startswith("Done digits")
    assert "Model digits version 7 @candidate @champion" in page.text


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_its_word_and_its_own_text(status: Status, view: Callable[..., RunView]) -> None:
    words = ["Waiting", "Starting", "Running", "Cancelling", "Done", "Failed", "Cancelled", "Unknown"]
    bundle = make_bundle(view(status=status, message="the reason is this."))
    word = words[list(Status).index(status)]
    assert Page(bundle["text/html"]).text.startswith(f"{word} digits")
    assert bundle["text/plain"].startswith(f"digits: {word}. ")
    assert "Killed" not in bundle["text/plain"]
    assert 2 <= len(bundle["text/plain"].splitlines()) <= 3


def test_the_list_has_its_page(failed: RunView, done: RunView) -> None:
    bundle = make_list_bundle([failed, done], now=0.0)
    assert bundle[JOBS_MIME] == {"version": 1}
    page = Page(bundle["text/html"])
    for word in (
        "Failed",
        "<b>bold</b>",
        "in cell 5, line 2",
        "Done",
        done.run_id,
        "1970-01-01 00:00:00 UTC",
    ):
        assert word in page.text
    assert bundle["text/plain"].startswith(
        f"Failed <b>bold</b> {failed.run_id}: Rank 1 failed in cell 5, line 2"
    )
    assert make_list_bundle([])["text/plain"] == "No job yet."


def test_the_data_is_strict_json_and_comes_back(view: Callable[..., RunView]) -> None:
    nan, huge = float("nan"), float("inf")
    run = view(latest={"loss": (3, nan), "gap": (3, huge)})
    points = [[1, 1.0, "NaN"], [2, 2.0, 1e308], [3, 3.0, -1e308], [4, 4.0, "Infinity"]]
    bundle = make_bundle(run, [row("loss", 0, points=points)])
    data = json.loads(json.dumps(bundle[MIME], allow_nan=False))
    assert (data["version"], data["run_id"]) == (1, run.run_id)
    assert data["view"]["latest"] == {"loss": [3, "NaN"], "gap": [3, "Infinity"]}
    assert [point[2] for point in data["series"][0]["points"]] == ["NaN", 1e308, -1e308, "Infinity"]
    assert "loss NaN" in Page(bundle["text/html"]).text
    # what the launcher's JSON says makes the same output
    again = make_bundle(data["view"], data["series"], now=5.0)
    assert again == make_bundle(run, data["series"], now=5.0)
    assert from_dict(RunView, to_dict(run)).spec == run.spec


def test_a_long_run_stays_small(view: Callable[..., RunView]) -> None:
    keys = ["loss", "accuracy", *(f"metric {n}" for n in range(30))]
    series = [row(key, 5000, attempt=attempt) for key in keys for attempt in (1, 2)]
    bundle = make_bundle(view(attempt=2), [*series, row("loss", 9, rank=1), row("system/cpu", 9)])
    kept = bundle[MIME]["series"]
    assert sum(len(item["points"]) for item in kept) <= MOST_POINTS
    assert {item["attempt"] for item in kept if item["key"] == "loss"} == {1, 2}
    assert {item["rank"] for item in kept} == {0}
    first = next(item for item in kept if item["key"] == "loss" and item["attempt"] == 2)
    assert (first["points"][0][0], first["points"][-1][0], first["count"]) == (0, 4999, 5000)
    assert len(json.dumps(bundle)) < 60_000


def test_a_finished_run_makes_the_same_output_at_any_time(done: RunView) -> None:
    assert make_bundle(done, now=2e9) == make_bundle(done, now=3e9)


def test_nbconvert_shows_everything(failed: RunView, done: RunView, tmp_path: Path) -> None:
    made = nbformat.v4.new_notebook()
    for run in (failed, done):
        bundle = make_bundle(run, [row("loss", 5)])
        output = nbformat.v4.new_output("execute_result", data=bundle, execution_count=1)
        made.cells.append(nbformat.v4.new_code_cell("slicelift.promote()", outputs=[output]))
    path = tmp_path / "saved.ipynb"
    nbformat.write(made, path)
    html, _ = HTMLExporter().from_filename(str(path))
    for words in (
        "Failed",
        "&lt;b&gt;bold&lt;/b&gt;",
        "cell 5, line 2",
        "Done",
        "@champion",
        "0.03125",
        "polyline",
    ):
        assert words in html
    assert "<b>bold" not in html
    assert "<script>alert" not in html


def test_the_module_needs_the_standard_library_only() -> None:
    heavy = "{'httpx', 'click', 'IPython', 'yaml', 'anywidget', 'traitlets', 'slicelift.promotion'}"
    code = f"import sys, slicelift.widgets.bundle; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
