"""Launch presets: names, bounds and the lint of their file."""

from __future__ import annotations

from pathlib import Path

import pytest
from slicelift_profiles import ProfileError, presets

HEAD = "presets:\n"
GOOD = "  - name: a\n    display_name: A\n    launcher: torchrun\n    workers: 1\n"

FAULTS: dict[str, tuple[str, int, str, str]] = {
    "an unknown launcher": (HEAD + GOOD.replace("torchrun", "slurm"), 4, "not-allowed", "Allowed: torchrun."),
    "an unknown key": (HEAD + GOOD + "    max_worker: 2\n", 6, "unknown-key", "Did you mean max_workers?"),
    "a name taken": (HEAD + GOOD + GOOD, 6, "duplicate-name", "taken"),
    "more than its own bound": (
        HEAD + GOOD.replace("workers: 1", "workers: 3") + "    max_workers: 2\n",
        5,
        "preset-too-large",
        "more than its own max_workers 2",
    ),
    "a gang of slices": (HEAD + GOOD + "    slice: required\n", 2, "slice-gang", "max_workers: 1"),
    "two defaults": (
        HEAD + GOOD + "    default: true\n" + GOOD.replace("name: a", "name: b") + "    default: true\n",
        11,
        "two-defaults",
        "Keep one",
    ),
    "a missing key": (
        HEAD + "  - name: a\n    display_name: A\n    workers: 1\n",
        2,
        "missing-key",
        "'launcher'",
    ),
    "a command that starts nothing": (
        HEAD + GOOD + "    cluster:\n      command: [sh, -c, train]\n",
        7,
        "command-without-rest",
        "does not end in ...",
    ),
    "a variable of ours": (
        HEAD + GOOD + "    cluster:\n      environment:\n        MASTER_ADDR: here\n",
        8,
        "own-variable",
        "MASTER_ADDR",
    ),
    "more shared memory than memory": (
        HEAD + GOOD + "    cluster:\n      memory: 4Gi\n      shm: 8Gi\n",
        8,
        "shm-too-large",
        "part of the worker's memory of 4Gi",
    ),
    "idle GPUs without minutes": (
        HEAD + GOOD + "    cluster:\n      idle_action: stop\n",
        7,
        "idle-without-minutes",
        "Add idle_minutes",
    ),
    "what nobody does with idle GPUs": (
        HEAD + GOOD + "    cluster:\n      idle_minutes: 30\n      idle_action: sell\n",
        8,
        "not-allowed",
        "tell",
    ),
    "a slow network without a measure": (
        HEAD + GOOD + "    cluster:\n      check:\n        all_reduce: {on_slow: fail}\n",
        8,
        "check-without-measure",
        "Add least_gbit",
    ),
    "a check of an elastic gang": (
        HEAD + GOOD + "    min_workers: 1\n    cluster:\n      check: {all_reduce: {}}\n",
        8,
        "check-without-gang",
        "an elastic gang has no fixed set",
    ),
    "a check of one worker": (
        HEAD + GOOD + "    max_workers: 1\n    cluster:\n      check: {all_reduce: {}}\n",
        8,
        "check-without-gang",
        "there is never more than one",
    ),
    "a check that does neither": (
        HEAD + GOOD + "    cluster:\n      check: {all_reduce: {least_gbit: 20, on_slow: stop}}\n",
        7,
        "not-allowed",
        "warn, fail",
    ),
    "memory in another unit": (
        HEAD + GOOD + "    cluster:\n      memory: 16G\n",
        7,
        "bad-value",
        "Mi, Gi or Ti",
    ),
    "more at least than at most": (
        HEAD + GOOD + "    min_workers: 2\n",
        6,
        "min-workers-too-large",
        "starts 1",
    ),
    "a misspelt setting": (
        HEAD + GOOD + "    cluster:\n      attempt: 2\n",
        7,
        "unknown-key",
        "Did you mean attempts?",
    ),
    "a resource without a domain": (
        HEAD + GOOD + "    cluster:\n      resources: {gpu: 1}\n",
        7,
        "bad-value",
        "rdma/ib",
    ),
    "no YAML": ("presets: [", 1, "yaml-syntax", "expected"),
    "nothing": ("", 1, "wrong-type", "key presets"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_with_file_and_line_and_refused_to_programs(case: str, tmp_path: Path) -> None:
    text, line, code, words = FAULTS[case]
    path = tmp_path / "presets.yaml"
    path.write_text(text, encoding="utf-8")
    found = [fault for fault in presets.lint(path) if fault.code == code]
    assert [(fault.file, fault.line) for fault in found] == [(str(path), line)], presets.lint(path)
    assert words in str(found[0])
    with pytest.raises(ProfileError, match="slicelift profiles lint"):
        presets.load(path)


def test_the_shipped_presets_are_what_can_be_launched() -> None:
    assert presets.lint() == ()
    assert presets.load().names == ("torchrun", "slice", "elastic", "enterprise-ddp")


def test_the_preset_follows_from_what_is_asked() -> None:
    shipped = presets.load()
    assert shipped.pick().name == "torchrun"
    assert shipped.pick(slice="1g.10gb").name == "slice"
    assert shipped.pick("torchrun", slice="1g.10gb").name == "torchrun"
    with pytest.raises(ProfileError) as caught:
        shipped.pick("torchrn")
    assert caught.value.hint == "Did you mean torchrun? Presets: torchrun, slice, elastic, enterprise-ddp."
    assert presets.get("slice").max_workers == 1


def test_a_session_of_a_cluster_knows_the_presets_of_its_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text(HEAD + GOOD, encoding="utf-8")
    monkeypatch.setenv("SLICELIFT_PRESETS", str(path))
    assert presets.load().names == ("a",)
    assert presets.load(presets.SHIPPED).names[0] == "torchrun"


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text(HEAD + GOOD, encoding="utf-8")
    assert presets.load(path) is presets.load(path)
    path.write_text("presets: [", encoding="utf-8")
    assert presets.load(path).get("a").workers == 1
    path.write_text(
        HEAD + GOOD + "    cluster:\n      cpu_per_gpu: 2\n      memory_per_gpu: 512Mi\n", encoding="utf-8"
    )
    settings = presets.load(path).get("a").cluster
    assert (settings.cores(0), settings.cores(8), settings.memory_text(0), settings.memory_text(8)) == (
        4,
        16,
        "16Gi",
        "4Gi",
    )


def test_a_check_of_the_network_is_kept_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    asked = "{all_reduce: {bytes: 67108864, least_gbit: 2.5, on_slow: warn}}"
    path.write_text(HEAD + GOOD + f"    cluster:\n      check: {asked}\n", encoding="utf-8")
    assert presets.lint(path) == ()
    settings = presets.load(path).get("a").cluster
    assert settings.check == {"all_reduce": {"bytes": 67108864, "least_gbit": 2.5, "on_slow": "warn"}}
    assert settings.lost_on_one_machine == ("check",)


def test_what_one_machine_cannot_keep_is_known_by_name() -> None:
    assert presets.get("torchrun").cluster.lost_on_one_machine == ()
    assert presets.get("enterprise-ddp").cluster.lost_on_one_machine == ("image", "command")


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("torchrun", {"workers": 1}),
        ("torchrun", {"workers": 64, "gpus_per_worker": 8}),
        ("slice", {"workers": 1, "slice": "1g.10gb"}),
    ],
)
def test_what_a_preset_launches(name: str, asked: dict[str, object]) -> None:
    presets.get(name).check(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "asked", "code"),
    [
        ("torchrun", {"workers": 0}, "bad-size"),
        ("torchrun", {"workers": 1, "gpus_per_worker": -1}, "bad-size"),
        ("torchrun", {"workers": 1, "slice": "1g.10gb"}, "slice-not-taken"),
        ("slice", {"workers": 1}, "slice-missing"),
        ("slice", {"workers": 2, "slice": "1g.10gb"}, "preset-too-large"),
        ("slice", {"workers": 1, "slice": "1g.10gb", "gpus_per_worker": 1}, "slice-and-gpus"),
        ("slice", {"workers": 1, "slice": "tiny"}, "bad-slice-name"),
    ],
)
def test_what_a_preset_refuses(name: str, asked: dict[str, object], code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        presets.get(name).check(**asked)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert caught.value.hint
