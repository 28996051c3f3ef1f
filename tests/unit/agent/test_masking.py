"""Secrets never reach the launcher, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from slicelift.runtime.masking import Masker, mask


def masked(text: bytes, cuts: list[int], secrets: list[str]) -> bytes:
    masker = Masker(secrets)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [masker.feed(text[a:b]) for a, b in pairwise(places)]
    return b"".join(parts) + masker.finish()


def test_a_secret_split_over_chunks_is_masked() -> None:
    masker = Masker(["hunter22"])
    assert masker.feed(b"key hun") == b"key "
    assert masker.feed(b"ter2") == b""
    assert masker.feed(b"2 end hu") == b"*** end "
    assert masker.finish() == b"hu"


def test_the_longer_of_two_secrets_wins_and_short_ones_are_left() -> None:
    assert mask("abcdef abc ab 密码是 x", ["abc", "abcdef", "ab", "密码是", ""]) == "*** *** ab *** x"


# an alphabet of two makes overlaps likely
@settings(deadline=None, max_examples=200)
@given(
    st.text("ab", max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
    st.lists(st.text("ab", min_size=3, max_size=6), max_size=3),
)
def test_the_result_does_not_depend_on_the_cuts(text: str, cuts: list[int], secrets: list[str]) -> None:
    raw = text.encode()
    result = masked(raw, cuts, secrets)
    assert result == masked(raw, [], secrets)
    assert not any(secret.encode() in result for secret in secrets)
