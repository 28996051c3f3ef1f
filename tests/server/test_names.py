"""Names from outside: any character of any language, nothing that controls a terminal or cannot be written."""

from __future__ import annotations

import pytest
from slicelift.errors import UserError
from slicelift.models import JobSpec
from slicelift_hub.launcher.names import check_path
from slicelift_hub.launcher.policy import Asker, Policy
from slicelift_hub.leases import SLOTS, Pool

ODD = ("数据\u3000一", "a\u00a0b", "12\u202fkg", "👩\u200d🔬", "e\u0301", "\u2028")


@pytest.mark.parametrize("name", ODD)
def test_spaces_and_joiners_of_unicode_are_in_names(name: str) -> None:
    assert check_path(f"data/{name}.csv") == f"data/{name}.csv"
    _check_run_name(f"train {name}")


@pytest.mark.parametrize("name", ["a\nb", "a\x00", "\x1b[31m", "\x7f", "\x9b", "\ud800"])
def test_control_characters_and_halves_of_pairs_are_refused(name: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_path(name)
    assert refusal.value.code == "bad-path"
    with pytest.raises(UserError) as refusal:
        _check_run_name(name)
    assert refusal.value.code == "bad-name"


@pytest.mark.parametrize("path", ["a\\b", "../a", "a//b", "/a", ".", "", "a" * 1025])
def test_what_leads_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(UserError):
        check_path(path)


def _check_run_name(name: str) -> None:
    words = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "python3"}
    spec = JobSpec(name=name, snapshot_id="0" * 64, **words)
    Policy(pools={SLOTS: Pool(name=SLOTS, total=1, free=1)}).check(spec, Asker(owner="ann"))
