"""Model versions: made once, traceable, loadable; aliases read back."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from slicelift import registry
from slicelift.errors import NotFound, UserError
from slicelift.models import SnapshotFile, Status
from slicelift.registry import ModelFile, VersionRequest
from slicelift.tracking import RunGone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def torch_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLmodel directory as a rank writes it. About 10 s: mlflow and torch are loaded."""
    import mlflow.pytorch
    import torch

    folder = tmp_path_factory.mktemp("models") / "net"
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pytorch.save_model(
            torch.nn.Linear(2, 1), str(folder), pip_requirements=["torch"], serialization_format="pickle"
        )
    return folder


def files_of(folder: Path, blobs: Path) -> list[SnapshotFile]:
    """Put a directory's files into a store of blobs."""
    found = []
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        (blobs / sha256).write_bytes(data)
        found.append(
            SnapshotFile(path=path.relative_to(folder).as_posix(), sha256=sha256, size_bytes=len(data))
        )
    return found


def request_for(house: Any, run: Any, folder: Path, name: str, **fields: Any) -> VersionRequest:
    files = tuple(
        ModelFile(path=item.path, blob=house.blobs / item.sha256, sha256=item.sha256)
        for item in files_of(folder, house.blobs)
    )
    mlflow_run = house.tracked(run.run_id).mlflow_run_id
    return VersionRequest(name=name, run_id=run.run_id, mlflow_run_id=mlflow_run, files=files, **fields)


def opened(house: Any) -> Any:
    run = house.submit()
    house.settle()
    return run


def small_model(tmp_path: Path, weights: bytes = b"weights") -> Path:
    """A directory that nobody could unpickle: the registry must not try."""
    folder = tmp_path / f"model-{hashlib.sha256(weights).hexdigest()[:8]}"
    (folder / "data").mkdir(parents=True)
    (folder / "MLmodel").write_text("flavors: {}\n")
    (folder / "requirements.txt").write_text("torch\n" * 1000)
    (folder / "data" / "model.pth").write_bytes(weights)
    return folder


def test_a_job_s_model_becomes_one_version_that_loads(house: Any, server: Any, torch_model: Path) -> None:
    import mlflow.pytorch
    import torch

    run = house.submit()
    attempt = house.ledger.attempt(f"{run.run_id}-1")
    files = tuple(files_of(torch_model, house.blobs))
    meta = {"weights_file": "data/model.pth", "model_digest": "d" * 64}
    assert house.ledger.add_version(attempt, name="net one", files=files, meta=meta)
    for _ in range(3):
        house.settle()
    ((version, mlflow_run),) = server.rows(
        "select version, run_id from model_versions where name = 'net one'"
    )
    assert mlflow_run == house.tracked(run.run_id).mlflow_run_id
    weights = hashlib.sha256((torch_model / "data" / "model.pth").read_bytes()).hexdigest()
    tags = dict(server.rows("select key, value from model_version_tags where name = 'net one'"))
    assert tags == {
        "slicelift.promotion_id": run.promotion_id,
        "slicelift.run_id": run.run_id,
        "slicelift.snapshot_id": "5" * 64,
        "slicelift.git_commit": "b" * 40,
        "slicelift.git_dirty": "true",
        "slicelift.notebook": "nb/训练.ipynb",
        "slicelift.weights_file": "data/model.pth",
        "slicelift.weights_sha256": weights,
        "slicelift.model_digest": "d" * 64,
    }
    (view,) = house.ledger.models_of("ann")
    assert (view.name, view.version, view.run_id, view.tags) == ("net one", str(version), run.run_id, tags)
    mlflow.set_tracking_uri(server.url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = mlflow.pytorch.load_model(f"models:/net one/{version}")
        original = mlflow.pytorch.load_model(str(torch_model))
    example = torch.ones(3, 2)
    assert torch.equal(loaded(example), original(example))


def test_the_same_run_and_digest_give_the_same_version(house: Any, server: Any, tmp_path: Path) -> None:
    run = opened(house)
    asked = request_for(house, run, small_model(tmp_path), "twice")
    first = registry.register(server.mlflow, asked)
    assert registry.register(server.mlflow, asked) == first
    other = request_for(house, run, small_model(tmp_path, b"other weights"), "twice")
    second = registry.register(server.mlflow, other)
    assert (first.version, second.version) == ("1", "2")
    assert first.tags["slicelift.model_digest"] != second.tags["slicelift.model_digest"]
    # the later one must not have overwritten the earlier one's files
    for view, weights in ((first, b"weights"), (second, b"other weights")):
        query = "select source from model_versions where name = 'twice' and version = ?"
        ((source,),) = server.rows(query, int(view.version))
        place = source.removeprefix("mlflow-artifacts:/")
        assert b"".join(server.mlflow.read_artifact(f"{place}/data/model.pth")) == weights


def test_weights_are_named_without_help(house: Any, server: Any, tmp_path: Path) -> None:
    view = registry.register(server.mlflow, request_for(house, opened(house), small_model(tmp_path), "plain"))
    assert view.tags["slicelift.weights_file"] == "data/model.pth"
    assert view.tags["slicelift.weights_sha256"] == hashlib.sha256(b"weights").hexdigest()


@pytest.mark.parametrize("name", ["数字 model", "it's #1 & 50% + ?"])
def test_names_with_any_characters(house: Any, server: Any, tmp_path: Path, name: str) -> None:
    run = opened(house)
    asked = request_for(house, run, small_model(tmp_path), name)
    view = registry.register(server.mlflow, asked)
    assert registry.register(server.mlflow, asked) == view
    assert [item.version for item in registry.list_versions(server.mlflow, name)] == [view.version]


def test_a_name_that_mlflow_refuses_is_the_user_s_to_mend(house: Any, server: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot contain"):
        registry.register(server.mlflow, request_for(house, opened(house), small_model(tmp_path), "a/b"))


def test_the_run_was_deleted(house: Any, server: Any, tmp_path: Path) -> None:
    run = opened(house)
    asked = request_for(house, run, small_model(tmp_path), "orphan")
    server.mlflow.post("runs/delete", {"run_id": asked.mlflow_run_id})
    with pytest.raises(RunGone):
        registry.register(server.mlflow, asked)


def test_an_alias_is_set_moved_and_read_back(house: Any, server: Any, tmp_path: Path) -> None:
    run = opened(house)
    for weights in (b"one", b"two"):
        asked = request_for(house, run, small_model(tmp_path, weights), "aliased")
        registry.register(server.mlflow, asked)
    assert registry.set_alias(server.mlflow, "aliased", "champion", "1").aliases == ("champion",)
    assert registry.set_alias(server.mlflow, "aliased", "champion", "2").aliases == ("champion",)
    versions = registry.list_versions(server.mlflow, "aliased")
    assert {view.version: view.aliases for view in versions} == {"2": ("champion",), "1": ()}


def test_aliases_that_cannot_be(house: Any, server: Any, tmp_path: Path) -> None:
    registry.register(server.mlflow, request_for(house, opened(house), small_model(tmp_path), "strict"))
    with pytest.raises(NotFound, match="there are: 1") as missing:
        registry.set_alias(server.mlflow, "strict", "champion", "7")
    assert missing.value.code == "model-version-unknown"
    for alias in ("latest", "v1", "no way"):
        with pytest.raises(UserError) as refusal:
            registry.set_alias(server.mlflow, "strict", alias, "1")
        assert refusal.value.code == "alias-refused"


def test_a_model_of_a_killed_job_and_its_run_end_apart(house: Any, server: Any, tmp_path: Path) -> None:
    """A model that MLflow refuses for good leaves the run's end untouched."""
    run = house.submit()
    attempt = house.ledger.attempt(f"{run.run_id}-1")
    files = tuple(files_of(small_model(tmp_path), house.blobs))
    house.ledger.add_version(attempt, name="a:b", files=files, meta=json.loads("{}"))
    house.end(run.run_id, Status.KILLED)
    house.settle()
    (mlflow_run,) = server.runs_of(run.promotion_id)
    assert server.rows("select status from runs where run_uuid = ?", mlflow_run) == [("KILLED",)]
