"""The policy file: whose rule is whose, patterns, and the lint."""

from __future__ import annotations

from pathlib import Path

import pytest
from slicelift_profiles import ProfileError, rules
from slicelift_profiles.rules import Rule, Rules, fits, fits_image

HEAD = "rules:\n"
GOOD = "  - name: students\n    groups: [course-*]\n"
DIGEST = "@sha256:" + "a" * 64

FAULTS: dict[str, tuple[str, int, str, str]] = {
    "an unknown key": (HEAD + GOOD + "    max_gpu: 2\n", 4, "unknown-key", "Did you mean max_gpus?"),
    "a name taken": (HEAD + GOOD + GOOD, 4, "duplicate-name", "earlier rule"),
    "no name": (HEAD + "  - groups: [a]\n", 2, "missing-key", "'name'"),
    "a number in quotes": (HEAD + GOOD + '    max_workers: "2"\n', 4, "wrong-type", "without quotes"),
    "no time at all": (HEAD + GOOD + "    wall_seconds: 0\n", 4, "bad-value", "1 or more"),
    "nobody": (HEAD + GOOD.replace("[course-*]", "[]"), 3, "bad-value", "at least one name"),
    "no slice": (HEAD + GOOD + "    slices: [1g]\n", 4, "bad-slice-name", "1g.10gb"),
    "nothing": ("", 1, "wrong-type", "key rules"),
}
WARNINGS: dict[str, tuple[str, int, str]] = {
    "below everyone": (HEAD + "  - name: all\n" + GOOD, 3, "unreachable-rule"),
    "an image by tag": (HEAD + GOOD + "    images: ['r/lab:1']\n", 4, "image-by-tag"),
    "a job larger than all": (
        HEAD + GOOD + "    max_gpus_per_job: 8\n    max_gpus: 4\n",
        4,
        "gpus-at-once",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_with_file_and_line_and_refused_to_programs(case: str, tmp_path: Path) -> None:
    text, line, code, words = FAULTS[case]
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    found = [fault for fault in rules.lint(path) if fault.code == code]
    assert [(fault.file, fault.line) for fault in found] == [(str(path), line)], rules.lint(path)
    assert words in str(found[0])
    with pytest.raises(ProfileError, match="slicelift profiles lint"):
        rules.load(path)


@pytest.mark.parametrize("case", WARNINGS)
def test_a_warning_does_not_stop_the_file(case: str, tmp_path: Path) -> None:
    text, line, code = WARNINGS[case]
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    assert [(fault.line, fault.code, fault.severity) for fault in rules.lint(path)] == [
        (line, code, "warning")
    ]
    assert rules.load(path).rules


def test_the_shipped_policy_limits_nobody() -> None:
    assert rules.lint() == ()
    (rule,) = rules.load().rules
    assert rule.for_everyone
    assert {getattr(rule, key) for key in ("queues", "images", "presets", "max_gpus", "wall_seconds")} == {
        None
    }


def test_the_first_rule_that_a_person_belongs_to_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "rules:\n"
        "  - name: admins\n    users: [root-*, ada]\n"
        "  - name: staff\n    users: [bob]\n    groups: [staff]\n    max_gpus: 8\n"
        "  - name: others\n    max_gpus: 1\n"
    )
    found = rules.load(path)
    assert found.of("ada", ["staff"]).name == "admins"
    assert found.of("root-7").name == "admins"
    assert (found.of("eve", ["x", "staff"]).name, found.of("bob").name, found.of("eve").name) == (
        "staff",
        "staff",
        "others",
    )
    assert (found.of("bob").place("max_gpus"), found.of("bob").place()) == ("policy.yaml:7", "policy.yaml:4")
    assert found.of("bob").place("images") == "policy.yaml:4"


def test_whom_no_rule_names_may_launch_nothing() -> None:
    only = Rules(rules=(Rule(name="a", users=("ann",)),), file="/etc/policy.yaml")
    with pytest.raises(ProfileError) as refusal:
        only.of("eve", ["g"])
    assert refusal.value.code == "no-rule"
    assert refusal.value.message == "No rule of policy.yaml names eve, in g, so nothing may be launched."


@pytest.mark.parametrize(
    ("word", "pattern", "fit"),
    [
        ("team-a", "team-*", True),
        ("team-a", "team", False),
        ("a[1]", "a[1]", True),
        ("a1", "a[1]", False),
        ("ab", "a?", False),
        ("A", "a", False),
        ("", "*", True),
    ],
)
def test_only_the_star_stands_for_other_characters(word: str, pattern: str, fit: bool) -> None:
    assert fits(word, [pattern]) is fit


@pytest.mark.parametrize(
    ("image", "pattern", "fit"),
    [
        (f"r.example/lab{DIGEST}", f"r.example/lab{DIGEST}", True),
        (f"r.example/lab{DIGEST}", "r.example/lab@sha256:*", True),
        ("r.example/lab:latest", "r.example/lab@sha256:*", False),
        (f"r.example/team/x{DIGEST}", "r.example/*", False),
        (f"r.example/team/x{DIGEST}", "r.example/**", True),
        (f"r.example/lab-evil/x{DIGEST}", "r.example/lab*@sha256:*", False),
        (f"rxexample/lab{DIGEST}", "r.example/lab@sha256:*", False),
    ],
)
def test_a_star_in_an_image_stops_at_a_slash(image: str, pattern: str, fit: bool) -> None:
    assert fits_image(image, [pattern]) is fit
