"""Files of choices that are edited while they are used."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slicelift_profiles import ProfileError, catalog, rules
from slicelift_profiles.latest import Latest

PROFILE = "profiles: [{slug: %s, display_name: A, cpu: 1, memory: 1Gi}]"
RULE = "rules: [{name: %s}]"


@pytest.mark.parametrize(
    ("load", "text", "name"),
    [
        (rules.load, RULE, lambda found: found.rules[0].name),
        (catalog.load, PROFILE, lambda found: found.default.slug),
    ],
)
def test_a_file_is_read_again_when_it_changes_and_a_faulty_edit_changes_nothing(
    tmp_path: Path, caplog: Any, load: Callable[[Path], Any], text: str, name: Callable[[Any], str]
) -> None:
    path = tmp_path / "choices.yaml"
    path.write_text(text % "a")
    file = Latest(path, load)
    assert (name(file.current()), file.fault) == ("a", None)
    assert file.current() is file.current()
    with caplog.at_level(logging.ERROR):
        for number, (written, expected) in enumerate(
            [(text % "b", "b"), (text % "[", "b"), ("", "b"), ("other: 1", "b"), (text % "c", "c")]
        ):
            path.write_text(written)
            os.utime(path, ns=(number, number))
            assert name(file.current()) == expected
            assert (file.fault is None) == (written == text % expected)
    assert all(str(path) in record.message for record in caplog.records)
    path.unlink()
    assert name(file.current()) == "c"
    assert "cannot be read" in str(file.fault)


def test_one_that_was_at_fault_from_the_start_is_refused_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules:\n  - name: a\n    max_worker: 1\n")
    file = Latest(path, rules.load)
    for _ in range(2):
        with pytest.raises(ProfileError, match=f"{path}:3"):
            file.current()
    path.write_text(RULE % "mended")
    assert file.current().rules[0].name == "mended"
