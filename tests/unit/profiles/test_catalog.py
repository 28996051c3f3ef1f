"""Spawn profiles: what the lint sees, at which line, and what a program gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from slicelift_profiles import ProfileError, catalog
from slicelift_profiles.catalog import Kind, Profile, Share

HEAD = "profiles:\n"
GOOD = "  - slug: a\n    display_name: A\n    cpu: 1\n    memory: 1Gi\n"

# what is written (the good profile is on lines 2 to 5) -> line, code, words of the message or the fix
FAULTS: dict[str, tuple[str, int, str, str]] = {
    "an unknown key": (HEAD + GOOD + "    memroy: 2Gi\n", 6, "unknown-key", "Did you mean memory?"),
    "its allowed keys": (HEAD + GOOD + "    gpu: 1\n", 6, "unknown-key", "idle_minutes"),
    "a missing key": (HEAD + "  - slug: a\n    display_name: A\n    cpu: 1\n", 2, "missing-key", "'memory'"),
    "a key said twice": (HEAD + GOOD + "    cpu: 2\n", 6, "duplicate-key", "first on line 4"),
    "a slug taken": (HEAD + GOOD + GOOD, 6, "duplicate-slug", "profile on line 2"),
    "a bad slug": (HEAD + GOOD.replace("slug: a", "slug: A_b"), 2, "bad-value", "lower-case letters"),
    "a number as text": (HEAD + GOOD.replace("cpu: 1", 'cpu: "1"'), 4, "wrong-type", "without quotes"),
    "a text as number": (HEAD + GOOD.replace("slug: a", "slug: 12"), 2, "wrong-type", "Put it in quotes"),
    "yes as a name": (
        HEAD + GOOD.replace("name: A", "name: yes"),
        3,
        "wrong-type",
        "the YAML truth value true",
    ),
    "no value": (HEAD + GOOD.replace("cpu: 1", "cpu:"), 4, "wrong-type", "is empty"),
    "no cores": (HEAD + GOOD.replace("cpu: 1", "cpu: 0"), 4, "bad-value", "number of cores"),
    "memory without unit": (HEAD + GOOD.replace("1Gi", "16"), 5, "wrong-type", "such as 16Gi."),
    "memory in GB": (HEAD + GOOD.replace("1Gi", "16GB"), 5, "bad-value", "such as 16Gi"),
    "no memory": (HEAD + GOOD.replace("1Gi", "0.0Gi"), 5, "bad-memory", "16Gi"),
    "HTML in a name": (HEAD + GOOD.replace("name: A", "name: <b>A</b>"), 3, "html", "plain text"),
    "an entity": (HEAD + GOOD + "    description: a &lt; b\n", 6, "html", "description"),
    "a slice of nothing": (HEAD + GOOD + "    slice: 3g.40gb\n", 6, "missing-key", "A100-80GB, H100-80GB"),
    "an unknown product": (
        HEAD + GOOD + "    slice: 1g.10gb\n    idle_minutes: 5\n    product: H100-80\n",
        8,
        "unknown-product",
        "Did you mean H100-80GB?",
    ),
    "a slice the product lacks": (
        HEAD + GOOD + "    product: H100-80GB\n    slice: 1g.5gb\n    idle_minutes: 5\n",
        7,
        "unknown-slice",
        "It has: 1g.10gb,",
    ),
    "no slice name": (
        HEAD + GOOD + "    product: H100-80GB\n    slice: small\n    idle_minutes: 5\n",
        7,
        "bad-slice-name",
        "1g.10gb",
    ),
    "slice and GPU": (
        HEAD + GOOD + "    product: H100-80GB\n    slice: 1g.10gb\n    gpus: 1\n    idle_minutes: 5\n",
        8,
        "one-kind-only",
        "slice, share, gpus",
    ),
    "too many shares": (
        HEAD + GOOD + "    idle_minutes: 5\n    share: {method: mps, replicas: 1}\n",
        7,
        "bad-value",
        "2 to 48",
    ),
    "an unknown method": (
        HEAD + GOOD + "    idle_minutes: 5\n    share:\n      method: mig\n      replicas: 2\n",
        8,
        "not-allowed",
        "Allowed: time-slicing, mps.",
    ),
    "a group twice": (HEAD + GOOD + "    groups: [a, a]\n", 6, "bad-value", "each once"),
    "no idle limit": (HEAD + GOOD + "    gpus: 1\n", 2, "no-idle-limit", "idle_minutes: 45"),
    "an empty file": ("", 1, "wrong-type", "a mapping with the key profiles"),
    "no profile": ("profiles: []\n", 1, "bad-value", "at least one"),
    "a list": ("- a\n", 1, "wrong-type", "a list"),
    "a profile that is a word": ("profiles:\n  - cpu\n", 2, "wrong-type", "a mapping: one profile"),
    "profiles that are a mapping": ("profiles:\n  a: 1\n", 1, "wrong-type", "wanted a list"),
    "no YAML": (HEAD + "  - slug: [a\n", 3, "yaml-syntax", "expected"),
    "a tab": (HEAD + "\t- slug: a\n", 2, "yaml-syntax", "cannot start any token"),
    "two documents": (HEAD + GOOD + "---\na: 1\n", 6, "yaml-syntax", "another document"),
    "a Python object": ("profiles: !!python/object:os.system {}\n", 1, "yaml-syntax", "constructor"),
    "an endless alias": ("profiles: &a [*a]\n", 1, "yaml-syntax", "beyond what a file of choices can mean"),
    "deep nesting": ("profiles: " + "[" * 2000, 1, "yaml-syntax", "nested too deeply"),
    "a date that is none": (HEAD + "  - slug: 2024-99-99\n", 1, "yaml-syntax", "month"),
}


@pytest.fixture
def write(tmp_path: Path) -> object:
    def write(text: str) -> Path:
        path = tmp_path / "个人 profiles.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_with_file_and_line(case: str, write) -> None:  # type: ignore[no-untyped-def]
    text, line, code, words = FAULTS[case]
    path = write(text)
    found = [fault for fault in catalog.lint(path) if fault.code == code]
    assert len(found) == 1, catalog.lint(path)
    assert (found[0].file, found[0].line) == (str(path), line), str(found[0])
    assert words in str(found[0])


@pytest.mark.parametrize("case", [name for name, row in FAULTS.items() if row[2] != "no-idle-limit"])
def test_a_program_is_refused_the_file_and_told_how_to_see_all(case: str, write) -> None:  # type: ignore[no-untyped-def]
    path = write(FAULTS[case][0])
    with pytest.raises(ProfileError) as caught:
        catalog.load(path)
    assert caught.value.code == "profiles-invalid"
    assert f"{path}:" in caught.value.message
    assert "slicelift profiles lint" in caught.value.hint
    assert caught.value.faults == tuple(f for f in catalog.lint(path) if f.severity == "error")


def test_all_faults_of_a_file_come_at_once_in_the_order_of_lines(write) -> None:  # type: ignore[no-untyped-def]
    bad = "  - slug: B\n    display_name: <i>\n    cpu: '2'\n    memory: 1\n    default: true\n"
    found = catalog.lint(write(HEAD + GOOD + "    default: true\n" + bad))
    assert [(fault.line, fault.code) for fault in found] == [
        (7, "bad-value"),
        (8, "html"),
        (9, "wrong-type"),
        (10, "wrong-type"),
        (11, "two-defaults"),
    ]


def test_a_warning_does_not_stop_a_program(write) -> None:  # type: ignore[no-untyped-def]
    assert catalog.load(write(HEAD + GOOD + "    gpus: 1\n")).default.kind == Kind.GPU


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"\xff\xfe", "not UTF-8"), (b"a" * 300_000, "300,000 bytes")],
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_why(
    content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "profiles.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match=words):
        catalog.lint(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="Is a directory"):
        catalog.load(tmp_path)


def test_anchors_and_merges_are_plain_yaml(write) -> None:  # type: ignore[no-untyped-def]
    text = (
        HEAD
        + "  - &a\n    slug: a\n    display_name: A\n    cpu: 1\n    memory: 1Gi\n  - <<: *a\n    slug: b\n"
    )
    path = write(text)
    assert catalog.lint(path) == ()
    assert [profile.slug for profile in catalog.load(path).profiles] == ["a", "b"]


def test_data_from_elsewhere_is_checked_alike() -> None:
    data = yaml.safe_load(HEAD + GOOD + "    slice: 1g.5gb\n    product: H100-80GB\n")
    found = catalog.validate(data, name="values.yaml")
    assert [(fault.file, fault.line, fault.code) for fault in found] == [
        ("values.yaml", 1, "no-idle-limit"),
        ("values.yaml", 1, "unknown-slice"),
    ]
    assert [fault.code for fault in catalog.validate(None)] == ["wrong-type"]


def test_a_profile_as_a_program_reads_it(write) -> None:  # type: ignore[no-untyped-def]
    text = HEAD + GOOD.replace("1Gi", "1.5 GiB") + "    slice: 1g.10gb.me\n    product: A100-80GB\n"
    text += "    idle_minutes: 30\n    groups: [gpu]\n    max_hours: 0.5\n    image: registry.example/a:1\n"
    assert catalog.load(write(text)).profiles == (
        Profile(
            slug="a",
            display_name="A",
            cpu=1,
            memory_bytes=1536 * 2**20,
            product="A100-80GB",
            slice="1g.10gb+me",
            groups=("gpu",),
            idle_minutes=30,
            max_hours=0.5,
            image="registry.example/a:1",
        ),
    )


def test_what_each_kind_asks_a_cluster_for() -> None:
    base = {"slug": "a", "display_name": "A", "cpu": 1, "memory_bytes": 1}
    kinds = [
        Profile(**base),
        Profile(**base, slice="1g.10gb+me"),
        Profile(**base, share=Share(method="mps", replicas=4)),
        Profile(**base, gpus=2),
    ]
    assert [(profile.kind, profile.resource_name) for profile in kinds] == [
        (Kind.NONE, None),
        (Kind.SLICE, "nvidia.com/mig-1g.10gb.me"),
        (Kind.SHARE, "nvidia.com/gpu.shared"),
        (Kind.GPU, "nvidia.com/gpu"),
    ]


def test_the_shipped_profiles() -> None:
    assert catalog.lint() == ()
    shipped = catalog.load()
    assert shipped.default.slug == "cpu"
    assert {profile.kind for profile in shipped.profiles} == set(Kind)
    assert "whole-gpu" not in [profile.slug for profile in shipped.open_to(["students"])]
    assert "whole-gpu" in [profile.slug for profile in shipped.open_to(["students", "research"])]


def test_an_unknown_slug_lists_the_known_ones() -> None:
    with pytest.raises(ProfileError) as caught:
        catalog.load().get("slice-1g-10g")
    assert "Did you mean slice-1g-10gb?" in caught.value.hint
    assert "shared-gpu" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"), [("1Mi", 2**20), ("16Gi", 2**34), ("1.5GiB", 3 * 2**29), ("2 TiB", 2**41)]
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert catalog.memory_bytes(text) == expected


@pytest.mark.parametrize("text", ["16", "16G", "Gi", "1.2.3Gi", "-1Gi", "0Gi", "1e3Gi", "..Gi"])
def test_amounts_of_memory_that_are_none(text: str) -> None:
    with pytest.raises(ProfileError, match="Mi, Gi or Ti"):
        catalog.memory_bytes(text)
