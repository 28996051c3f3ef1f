"""The order of a promotion: cheap refusals first, frozen bytes, one job per id whatever goes away."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slicelift
from slicelift import promotion
from slicelift.errors import NotFound, Refused, SliceliftError, Unavailable, UserError
from slicelift.models import JobSpec, RunView, Snapshot, Status
from slicelift.promotion import Request, Step, delivery, freeze, prepare
from slicelift.promotion.request import checked_id, checked_model_name, mint_id


def test_ids_have_the_form_and_sort_by_time() -> None:
    ids = []
    for _ in range(3):
        ids.append(mint_id())
        time.sleep(0.003)
    assert ids == sorted(ids)
    assert len(set(ids)) == 3
    assert all(re.fullmatch("p-[a-z2-7]{20}", each) and checked_id(each) == each for each in ids)


@pytest.mark.parametrize("text", ["p-1", "r-" + "a" * 20, "p-" + "A" * 20, "p-" + "a" * 21, "p-" + "0" * 20])
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_id(text)
    assert caught.value.code == "promotion-id-invalid"


@pytest.mark.parametrize("name", ["a/b", "a:b", "", "  "])
def test_model_names_that_mlflow_refuses(name: str) -> None:
    with pytest.raises(UserError, match="model's name"):
        checked_model_name(name)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"preset": "odd"}, "unknown-preset"),
        ({"workers": 2, "slice": "1g.10gb"}, "preset-too-large"),
        ({"preset": "torchrun", "slice": "1g.10gb"}, "slice-not-taken"),
        ({"preset": "slice"}, "slice-missing"),
        ({"slice": "1g.10gb", "gpus_per_worker": 1}, "slice-and-gpus"),
        ({"model_name": "a/b"}, "model-name-invalid"),
        ({"promotion_id": "mine"}, "promotion-id-invalid"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    notebook: Path, tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(UserError) as caught:
        promotion.promote(notebook, **options)
    assert caught.value.code == code
    assert caught.value.hint
    assert not (tmp_path / "home").exists()


def test_a_notebook_that_is_not_there(tmp_path: Path, notebook: Path) -> None:
    with pytest.raises(NotFound) as caught:
        promotion.promote(tmp_path / "no where.ipynb")
    assert caught.value.code == "notebook-not-found"
    with pytest.raises(UserError) as unreadable:
        promotion.read_notebook(tmp_path)
    assert unreadable.value.code == "notebook-unreadable"
    assert not (tmp_path / "home").exists()


def test_what_was_checked_is_what_travels(notebook: Path) -> None:
    frozen = freeze(Request(notebook=notebook, workers=1, parameters={"lr": "1e-3", "steps": 5}))
    notebook.write_text("changed meanwhile")
    steps: list[Step] = []
    made = prepare(frozen, on_progress=steps.append)
    assert [step.name for step in steps] == ["preflight", "snapshot"]
    tree = ["git", "show", f"{made.snapshot.commit}:{made.snapshot.notebook}"]
    assert subprocess.run(tree, cwd=notebook.parent, capture_output=True, check=True).stdout == frozen.content
    assert made.spec == JobSpec(
        name="train: me",
        snapshot_id=made.snapshot.id,
        notebook="train: me.ipynb",
        script=".slicelift/promoted.py",
        cwd=".",
        python=sys.executable,
        parameters={"lr": 1e-3, "steps": 5},
        model_name="train- me",
        experiment="train: me",
    )
    assert notebook.read_text() == "changed meanwhile"


def test_the_preset_fills_what_is_not_said(notebook: Path) -> None:
    gang = freeze(Request(notebook=notebook, slice="1g.10gb")).gang
    assert (gang.preset, gang.workers, gang.gpus_per_worker) == ("slice", 1, 0)
    gang = freeze(Request(notebook=notebook, workers=4, gpus_per_worker=2)).gang
    assert (gang.preset, gang.workers, gang.gpus_per_worker) == ("torchrun", 4, 2)


def test_a_preset_of_a_cluster_brings_its_queue_and_how_few_workers_go_on(notebook: Path) -> None:
    gang = freeze(Request(notebook=notebook, preset="enterprise-ddp")).gang
    assert (gang.workers, gang.gpus_per_worker, gang.queue) == (2, 8, "deeplearning-queue")
    assert freeze(Request(notebook=notebook, preset="enterprise-ddp", queue="mine")).gang.queue == "mine"
    gang = freeze(Request(notebook=notebook, preset="elastic")).gang
    assert (gang.workers, gang.min_workers, gang.queue) == (2, 1, "default")
    assert freeze(Request(notebook=notebook, preset="elastic", workers=1)).gang.min_workers is None


def test_a_refusal_names_the_findings_and_their_lines(notebook: Path) -> None:
    content = notebook.read_text().replace("print(lr, steps)", "print(lr, nothing)")
    notebook.write_text(content)
    with pytest.raises(Refused) as caught:
        prepare(freeze(Request(notebook=notebook)))
    assert caught.value.code == "preflight-refused"
    [row] = caught.value.detail["findings"]
    assert (row["code"], row["cell"], row["line"]) == ("undefined-name", 1, 1)
    assert row["source"] == "print(lr, nothing)"


def test_a_plan_needs_no_launcher(notebook: Path, tmp_path: Path) -> None:
    made = promotion.plan(Request(notebook=notebook))
    assert (made.missing, made.manifest, made.position) == (None, None, None)
    assert "not known" in made.notes[0]
    assert not (tmp_path / "home").exists()


class Flaky:
    """Stands in for a launcher that is away at chosen calls: no real one can be killed on a line."""

    def __init__(self, faults: list[SliceliftError | None]) -> None:
        self.faults = faults
        self.submitted: list[str] = []

    def __enter__(self) -> Flaky:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def offer_snapshot(self, _: Snapshot) -> list[str]:
        return []

    def send_blobs(self, _: Iterator[Any]) -> dict[str, int]:
        raise AssertionError("nothing was missing")

    def submit(self, promotion_id: str, spec: JobSpec) -> RunView:
        self.submitted.append(promotion_id)
        fault = self.faults.pop(0)
        if fault is not None:
            raise fault
        return RunView(
            promotion_id=promotion_id,
            run_id="r-abcdefghijkl",
            name=spec.name,
            owner="ann",
            status=Status.WAITING,
            spec=spec,
        )


AWAY = Unavailable("launcher-away", "The launcher does not answer.", "Start it.")
ID = "p-" + "a" * 20


def deliver(notebook: Path, client: Flaky) -> tuple[RunView, list[str]]:
    made = prepare(freeze(Request(notebook=notebook)))
    steps: list[str] = []
    view = delivery.deliver(
        made,
        ID,
        connect=lambda: client,  # type: ignore[arg-type,return-value]
        say=lambda step: steps.append(step.name),
    )
    return view, steps


def test_a_lost_answer_is_asked_for_again_with_the_same_id(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_PAUSE_SECONDS", 0.01)
    client = Flaky([AWAY, AWAY, None])
    view, steps = deliver(notebook, client)
    assert client.submitted == [ID] * 3
    assert view.promotion_id == ID
    assert steps == ["upload", "waiting", "upload", "waiting", "upload", "submit"]


def test_a_launcher_that_stays_away_gives_the_id_to_try_again_with(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_SECONDS", 0.0)
    with pytest.raises(Unavailable) as caught:
        deliver(notebook, Flaky([AWAY]))
    assert caught.value.code == "launcher-away"
    assert f"--promotion-id {ID}" in caught.value.hint
    assert caught.value.detail == {"promotion_id": ID}


def test_a_refusal_of_the_launcher_is_final(notebook: Path) -> None:
    client = Flaky([Refused("gang-too-large", "Too many.", "Fewer.")])
    with pytest.raises(Refused, match="Too many"):
        deliver(notebook, client)
    assert client.submitted == [ID]


def test_a_full_disk_is_told_at_once(notebook: Path) -> None:
    client = Flaky([Unavailable("disk-full", "The disk is full."), None])
    with pytest.raises(Unavailable) as caught:
        deliver(notebook, client)
    assert caught.value.code == "disk-full"
    assert client.submitted == [ID]


def test_the_facade_promotes_in_the_same_words() -> None:
    ours, theirs = (inspect.signature(each).parameters for each in (slicelift.promote, promotion.promote))
    assert list(ours) == list(theirs)
    assert ours["notebook"].default is None


def test_importing_the_room_is_light() -> None:
    code = (
        "import sys, slicelift.promotion; "
        "heavy = {'httpx','click','rich','IPython','nbformat','mlflow','dvc','yaml','pyflakes'}; "
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_job_from_a_session_of_a_cluster_runs_in_the_sessions_image(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(freeze(Request(notebook=notebook))).spec.image == ""
    monkeypatch.setenv("SLICELIFT_IMAGE", "registry.example/lab@sha256:00")
    assert prepare(freeze(Request(notebook=notebook))).spec.image == "registry.example/lab@sha256:00"
