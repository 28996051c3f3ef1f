"""The plain parts of the front end, bundled by esbuild and run in Node: ids, requests, lists, one job per intent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slicelift.promotion.request import checked_id

ROOT = Path(__file__).parents[3]
FRONTEND = ROOT / "extension/frontend"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bundle = tmp_path_factory.mktemp("logic") / "logic.mjs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--bundle", "--platform=neutral", "--format=esm", "--log-level=error", f"--outfile={bundle}"]
    for command in (
        [str(FRONTEND / "node_modules/.bin/esbuild"), str(Path(__file__).with_name("logic.ts")), *options],
        ["node", str(bundle)],
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=60
        )
        assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_ids_are_the_launchers_and_sort_by_time(answers: dict[str, Any]) -> None:
    first, second = answers["ids"]
    assert checked_id(first) == first
    assert checked_id(second) == second
    assert first < second


def test_request_holds_only_what_was_chosen(answers: dict[str, Any]) -> None:
    assert answers["empty"] == {}
    assert answers["request"] == {"workers": 2, "parameters": {"lr": "1e-2"}, "name": "x"}


def test_slice_preset_takes_a_free_slice_and_no_workers(answers: dict[str, Any]) -> None:
    assert answers["slice"] == {"preset": "slice", "slice": "2g.20gb"}


def test_typed_sizes_are_whole_numbers(answers: dict[str, Any]) -> None:
    assert answers["typed"] == [None, "workers-typed", "workers-typed", "workers-typed", None]


def test_refusal_is_shown_beside_what_it_concerns(answers: dict[str, Any]) -> None:
    assert answers["places"] == ["size", "size", "data", "checked", "queue", "plan"]


def test_text_defaults_lose_their_quotes(answers: dict[str, Any]) -> None:
    assert answers["defaults"] == ["adamw", "'a\\nb'", "3"]


def test_list_keeps_the_newer_view_and_filters(answers: dict[str, Any]) -> None:
    assert answers["rows"] == {"all": ["r-2", "r-1"], "done": ["r-1"], "text": ["r-2"], "notebook": ["r-1"]}


def test_ending_is_told_once_by_the_tab_in_front(answers: dict[str, Any]) -> None:
    assert answers["endings"] == ["first r-new-1", "second r-1-1"]


def test_two_clicks_and_a_lost_connection_make_one_promotion(answers: dict[str, Any]) -> None:
    told = answers["oneJob"]
    assert len(told["first"]) == 2
    assert len(set(told["first"])) == 1
    assert told["run"] == "r-1"


def test_next_intent_has_another_id(answers: dict[str, Any]) -> None:
    assert answers["oneJob"]["second"] not in answers["oneJob"]["first"]


def test_refused_plan_says_why_and_sends_nothing(answers: dict[str, Any]) -> None:
    assert answers["refusedPlan"] == {
        "why": "The plan was refused: see below.",
        "hint": "dvc add",
        "sent": [],
    }
