"""The fold of a metric's history: bounded, exact in what it shows, whatever the points are."""

from __future__ import annotations

import math
import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from slicelift_hub.launcher.series import MAX_BUCKETS, Fold, Point, exact

VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
STEPS = st.one_of(st.integers(-50, 3000), st.integers(-(2**61), 2**61))
POINTS = st.lists(st.tuples(STEPS, st.floats(0, 1e9), VALUES), min_size=1, max_size=1500)


def make_fold(points: list[Point]) -> Fold:
    fold = Fold()
    for point in points:
        fold.add(*point)
    return fold


def text(points: list[Point]) -> set[tuple[int, float, str]]:
    """NaN differs from itself; its name does not."""
    return {(step, moment, repr(value)) for step, moment, value in points}


@settings(max_examples=120, deadline=None)
@given(points=POINTS)
def test_every_bucket_is_what_brute_force_says(points: list[Point]) -> None:
    fold = make_fold(points)
    assert len(fold.rows) <= MAX_BUCKETS
    assert fold.count == len(points)
    buckets: dict[int, list[Point]] = {}
    for point in points:
        buckets.setdefault(point[0] >> fold.shift, []).append(point)
    assert set(fold.rows) == set(buckets)
    for bucket, inside in buckets.items():
        row = fold.rows[bucket]
        finite = [value for _, _, value in inside if math.isfinite(value)]
        assert list(fold.ints[row * 6 : row * 6 + 2]) == [len(inside), len(finite)]
        ends = [
            fold.ints[row * 6 + 2],
            fold.floats[row * 8],
            fold.ints[row * 6 + 3],
            fold.floats[row * 8 + 2],
        ]
        assert ends == [*min(point[:2] for point in inside), *max(point[:2] for point in inside)]
        if finite:
            assert [fold.floats[row * 8 + 5], fold.floats[row * 8 + 7]] == [min(finite), max(finite)]
        for name, kind in (
            ("NaN", math.isnan),
            ("Infinity", math.inf.__eq__),
            ("-Infinity", (-math.inf).__eq__),
        ):
            special = [point for point in inside if kind(point[2])]
            seen = fold.specials.get(bucket, {}).get(name)
            assert (seen is None) == (not special)
            if seen is not None:
                assert seen == [len(special), *min(point[:2] for point in special)]


@settings(max_examples=120, deadline=None)
@given(points=POINTS, limit=st.integers(16, 700))
def test_an_answer_is_bounded_real_and_has_the_extremes(points: list[Point], limit: int) -> None:
    shown = make_fold(points).points(limit)
    assert len(shown) <= limit
    assert text(shown) <= text(points)
    assert shown == sorted(shown, key=lambda point: point[:2]) or any(math.isnan(p[2]) for p in shown)
    assert shown[0][:2] == min(point[:2] for point in points)
    assert shown[-1][:2] == max(point[:2] for point in points)
    finite = [value for _, _, value in points if math.isfinite(value)]
    drawn = [value for _, _, value in shown if math.isfinite(value)]
    if finite:
        assert (min(drawn), max(drawn)) == (min(finite), max(finite))
    kinds = {exact(value) for _, _, value in points if not math.isfinite(value)}
    assert {exact(value) for _, _, value in shown if not math.isfinite(value)} == kinds


@settings(max_examples=60, deadline=None)
@given(points=POINTS, cut=st.integers(0, 1500))
def test_saving_and_going_on_changes_nothing(points: list[Point], cut: int) -> None:
    whole = make_fold(points)
    half = Fold.from_bytes(make_fold(points[:cut]).to_bytes())
    for point in points[cut:]:
        half.add(*point)
    assert half.to_bytes() == whole.to_bytes()


def test_few_points_come_back_as_they_are() -> None:
    points = [(step, 1.0 + step, float(step % 7)) for step in range(300)]
    shuffled = points[:]
    random.Random(1).shuffle(shuffled)
    assert make_fold(shuffled).points(300) == points


def test_a_range_shows_more_of_less() -> None:
    points = [(step, float(step), math.sin(step / 50)) for step in range(100_000)]
    fold = make_fold(points)
    part = fold.points(300, first=20_000, last=30_000)
    assert all(20_000 <= step <= 30_000 for step, _, _ in part)
    assert len(part) > len([step for step, _, _ in fold.points(300) if 20_000 <= step <= 30_000])


def test_a_million_points_fit_into_little_and_are_answered_fast() -> None:
    """About 2 s: a million points are added. Times are printed, not asserted; the bench measures them."""
    fold = Fold()
    began = time.process_time()
    for step in range(1_000_000):
        fold.add(step, float(step), math.nan if step == 777_777 else step % 1000 * 0.5)
    folded = time.process_time()
    shown = fold.points(300)
    answered = time.process_time()
    print(
        f"\nfold: {folded - began:.2f} us a point, answer of {len(shown)}: {1e3 * (answered - folded):.1f} ms"
    )
    assert len(shown) <= 300
    assert len(fold.to_bytes()) < 80_000
    assert [step for step, _, value in shown if math.isnan(value)] == [777_777]
    assert max(value for _, _, value in shown if math.isfinite(value)) == 499.5
