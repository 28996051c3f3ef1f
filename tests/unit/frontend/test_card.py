"""What lies below the run card, in Node: curves, odd ranks, the sentences of the server, the one event stream of a page.

Needs about 5 s: the stream's own pauses are waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[3] / "extension/frontend/test"


def test_curves_ranks_and_stream(bundle: Callable[..., list[Path]], node: Callable[..., str]) -> None:
    programs = bundle(*sorted(TESTS.glob("*.test.ts")))
    told = node("--test", "--test-reporter=tap", *map(str, programs))
    assert "# fail 0" in told
    assert "# pass 0" not in told
