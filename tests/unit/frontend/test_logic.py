"""The plain parts of the front end, bundled by esbuild and run in Node: ids, requests, lists, one job per intent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slicelift.promotion.request import checked_id


@pytest.fixture(scope="module")
def answers(answered: Callable[..., Any]) -> dict[str, Any]:
    return dict(answered("logic.ts", None))


def test_ids_are_the_launchers_and_sort_by_time(answers: dict[str, Any]) -> None:
    first, second = answers["ids"]
    assert checked_id(first) == first
    assert checked_id(second) == second
    assert first < second


def test_request_holds_only_what_was_chosen(answers: dict[str, Any]) -> None:
    assert answers["empty"] == {}
    assert answers["request"] == {"workers": 2, "parameters": {"lr": "1e-2"}, "name": "x"}


def test_the_queue_that_is_shown_is_the_one_that_is_asked_for(answers: dict[str, Any]) -> None:
    assert answers["queues"] == ["default", "alpha", "beta", "alpha"]
    assert answers["ofACluster"] == {"queue": "alpha"}


def test_a_cluster_says_whether_it_has_room(answers: dict[str, Any]) -> None:
    assert answers["starts"] == ["starts now: the cluster has room for it", "would wait, see below"]


def test_slice_preset_takes_a_free_slice_and_no_workers(answers: dict[str, Any]) -> None:
    assert answers["slice"] == {"preset": "slice", "slice": "2g.20gb"}


def test_typed_sizes_are_whole_numbers(answers: dict[str, Any]) -> None:
    assert answers["typed"] == [None, "workers-typed", "workers-typed", "workers-typed", None]


def test_refusal_is_shown_beside_what_it_concerns(answers: dict[str, Any]) -> None:
    assert answers["places"] == ["size", "size", "data", "checked", "queue", "plan"]


def test_text_defaults_lose_their_quotes(answers: dict[str, Any]) -> None:
    assert answers["defaults"] == ["adamw", "'a\\nb'", "3"]


def test_list_keeps_the_newer_view_and_filters(answers: dict[str, Any]) -> None:
    assert answers["rows"] == {
        "all": ["r-2", "r-1", "r-3", "r-4"],
        "done": ["r-1"],
        "suspended": ["r-3"],
        "cancelled": ["r-4"],
        "text": ["r-2"],
        "notebook": ["r-1"],
    }


def test_a_step_that_took_no_time_is_not_shown(answers: dict[str, Any]) -> None:
    assert answers["steps"] == ["STARTING", "RUNNING"]


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
