"""Models in MLflow's registry: versions made once, never unpickled; aliases and tags, never stages.

A version's files are artifacts of its run, its tags say where it comes from. Whatever is hashed here is read as
bytes: no model is ever loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slicelift.errors import Conflict, NotFound, SliceliftError, UserError
from slicelift.models import ModelVersionView
from slicelift.tracking import Mlflow, artifact_uri

RUN_TAG = "slicelift.run_id"
DIGEST_TAG = "slicelift.model_digest"
ADOPTED_TAG = "slicelift.registered_by"
_PAGE = 1000
# beyond these a name could end a URI early
_FOREIGN_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]")
_LINEAGE = (
    "slicelift.promotion_id",
    "slicelift.run_id",
    "slicelift.snapshot_id",
    "slicelift.git_commit",
    "slicelift.git_dirty",
    "slicelift.data_path",
    "slicelift.data_md5",
    "slicelift.notebook",
)
_ALIAS_HINT = "Letters, digits, - and _; not `latest`, not v with a number: MLflow keeps those for itself."
# what an MLmodel directory holds beside the weights
_DESCRIPTIONS = re.compile(
    r"(^|/)(MLmodel|model\.json|conda\.yaml|python_env\.yaml|[\w-]*requirements[\w-]*\.txt"
    r"|[\w-]*input_example[\w-]*\.json|registered_model_meta|pickle_module_info\.txt|code/.*)$"
)


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of an MLmodel directory: `path` in the model, `blob` where its bytes lie."""

    path: str
    blob: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class VersionRequest:
    """A model directory to become a version of `name`. `tags` are those of its run, see `version_tags`."""

    name: str
    run_id: str
    mlflow_run_id: str
    files: tuple[ModelFile, ...]
    digest: str = ""
    weights_file: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def register(mlflow: Mlflow, request: VersionRequest) -> ModelVersionView:
    """Log a model directory to its run and make it a version. Once per (run, digest), however often called.

    The artifacts go to `model/<name>/<digest>`: a later attempt must not overwrite an earlier version's files.
    Raises `Unavailable` when MLflow is away, `RunGone`, and `UserError` when MLflow refuses the name.
    """
    digests = {item.path: item.sha256 for item in request.files}
    sizes = {item.path: item.blob.stat().st_size for item in request.files}
    weights = request.weights_file or _weights_of(sizes)
    content = _content_tags(digests, weights_file=weights, digest=request.digest)
    tags = {**request.tags, RUN_TAG: request.run_id, **content}
    known = find_version(mlflow, request.name, run_id=request.run_id, digest=tags[DIGEST_TAG])
    if known is not None:
        return known
    place = f"{_FOREIGN_CHARACTERS.sub('-', request.name)}/{tags[DIGEST_TAG][:12]}"
    source = f"{artifact_uri(mlflow, request.mlflow_run_id)}/model/{place}"
    _upload(mlflow, _root(source), request.files)
    _make_registered_model(mlflow, request.name)
    body = {
        "name": mlflow.account.model(request.name),
        "source": source,
        "run_id": request.mlflow_run_id,
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    return _view(mlflow, mlflow.create("model-versions/create", body)["model_version"])


def version_tags(run_tags: Mapping[str, str]) -> dict[str, str]:
    """Of a run's tags those that belong to each of its versions."""
    return {name: run_tags[name] for name in _LINEAGE if name in run_tags}


def find_version(mlflow: Mlflow, name: str, *, run_id: str, digest: str) -> ModelVersionView | None:
    """The version of `name` that a run's model with this digest has become, if it has."""
    full = mlflow.account.model(name)
    found = _search(mlflow, f"name = {_quoted(full)} and tags.`{RUN_TAG}` = {_quoted(run_id)}")
    views = (_view(mlflow, item) for item in found)
    return next((view for view in views if view.tags.get(DIGEST_TAG) == digest), None)


def list_versions(mlflow: Mlflow, name: str | None = None) -> tuple[ModelVersionView, ...]:
    """All versions (of one model), newest first, with tags and aliases."""
    condition = f"name = {_quoted(mlflow.account.model(name))}" if name else ""
    aliases = _aliases(mlflow, condition)  # MLflow's search of versions leaves them out
    found = [_view(mlflow, item) for item in _search(mlflow, condition)]
    return tuple(replace(view, aliases=aliases.get((view.name, view.version), ())) for view in found)


def set_alias(mlflow: Mlflow, name: str, alias: str, version: str) -> ModelVersionView:
    """Point an alias at a version and read it back, since MLflow has no compare-and-swap.

    Raises `NotFound` (model-version-unknown) and `UserError` (alias-refused; the hint says what is allowed).
    """
    get_version(mlflow, name, version)
    full = mlflow.account.model(name)
    try:
        body = {"name": full, "alias": alias, "version": version}
        mlflow.post("registered-models/alias", body)
    except UserError as refusal:
        message = f"The alias {alias!r} cannot be set: {refusal.message}"
        raise UserError("alias-refused", message, _ALIAS_HINT) from refusal
    seen = _view(mlflow, mlflow.get("registered-models/alias", name=full, alias=alias)["model_version"])
    if seen.version != version:
        message = f"The alias {alias!r} of {name} was set to version {version}, but is {seen.version} now."
        raise Conflict(
            "alias-changed-meanwhile", message, "Somebody else set it at the same time: look again."
        )
    return get_version(mlflow, name, version)


def get_version(mlflow: Mlflow, name: str, version: str) -> ModelVersionView:
    """One version. Raises `NotFound` (model-version-unknown), naming those there are."""
    full = mlflow.account.model(name)
    try:
        return _view(mlflow, mlflow.get("model-versions/get", name=full, version=version)["model_version"])
    except UserError as refusal:
        versions = ", ".join(view.version for view in list_versions(mlflow, name)) or "none"
        message = f"There is no version {version} of the model {name}; there are: {versions}."
        raise NotFound("model-version-unknown", message, "`slicelift models` lists all.") from refusal


def adopt_versions(
    mlflow: Mlflow, runs: Iterable[str], *, tags: Mapping[str, str]
) -> tuple[ModelVersionView, ...]:
    """Give our tags to the versions that a job registered by its own mlflow code; returns these.

    Idempotent. `runs` are MLflow's ids of the job's run and of its child runs, `tags` see `version_tags`.
    """
    found = [item for run in runs for item in _search(mlflow, f"run_id = {_quoted(run)}")]
    seen = [_view(mlflow, item) for item in found]
    views = [view if RUN_TAG in view.tags else _adopt(mlflow, view, tags) for view in seen]
    return tuple(view for view in views if ADOPTED_TAG in view.tags)


def model_digest(digests: Mapping[str, str]) -> str:
    """One sha256 over a model directory, of {path: sha256}: over the lines `<sha256>  <path>` in sorted order."""
    lines = sorted(f"{sha256}  {path}\n" for path, sha256 in digests.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _content_tags(digests: Mapping[str, str], *, weights_file: str, digest: str = "") -> dict[str, str]:
    return {
        "slicelift.weights_file": weights_file,
        "slicelift.weights_sha256": digests.get(weights_file, ""),
        DIGEST_TAG: digest or model_digest(digests),
    }


def _weights_of(sizes: Mapping[str, int]) -> str:
    """The weights of a model of unknown flavour: the largest file that is no description. "" without any."""
    candidates = [path for path in sizes if not _DESCRIPTIONS.search(path)]
    return max(candidates, key=lambda path: (sizes[path], path), default="")


def _upload(mlflow: Mlflow, root: str, files: Iterable[ModelFile]) -> None:
    """Write all files, MLmodel last: a directory without it is no model yet."""
    for item in sorted(files, key=lambda item: (item.path == "MLmodel", item.path)):
        with item.blob.open("rb") as content:
            mlflow.put_artifact(f"{root}/{item.path}", content, size_bytes=item.blob.stat().st_size)


def _root(uri: str) -> str:
    """The path below the artifact root of a location that the server itself serves."""
    scheme, _, path = uri.partition(":")
    if scheme != "mlflow-artifacts":
        message = (
            f"The artifacts of this MLflow lie at {uri}; only those that it serves itself can be written."
        )
        raise SliceliftError("artifacts-not-served", message, "Start MLflow with --serve-artifacts.")
    return path.lstrip("/")


def _make_registered_model(mlflow: Mlflow, name: str) -> None:
    try:
        mlflow.create("registered-models/create", {"name": mlflow.account.model(name)})
    except UserError as refusal:
        if refusal.detail != "RESOURCE_ALREADY_EXISTS":
            raise


def _aliases(mlflow: Mlflow, condition: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """The aliases of each (name, version) that has any."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for model in _pages(mlflow, "registered-models/search", "registered_models", filter=condition):
        for item in model.get("aliases", []):
            place = (mlflow.account.shown_model(str(model["name"])), str(item["version"]))
            found[place] = tuple(sorted((*found.get(place, ()), str(item["alias"]))))
    return found


def _search(mlflow: Mlflow, condition: str) -> Iterator[dict[str, Any]]:
    newest_first = "creation_timestamp DESC"
    return _pages(mlflow, "model-versions/search", "model_versions", filter=condition, order_by=newest_first)


def _pages(mlflow: Mlflow, call: str, key: str, **query: str) -> Iterator[dict[str, Any]]:
    query["max_results"] = str(_PAGE)
    while True:
        answer = mlflow.get(call, **query)
        yield from answer.get(key, [])
        if not answer.get("next_page_token"):
            return
        query["page_token"] = answer["next_page_token"]


def _quoted(text: str) -> str:
    """A string of MLflow's search language, which knows both quotes and no escape."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _view(mlflow: Mlflow, item: Mapping[str, Any]) -> ModelVersionView:
    """With the account's own word for the model."""
    tags = {tag["key"]: tag.get("value", "") for tag in item.get("tags", [])}
    return ModelVersionView(
        name=mlflow.account.shown_model(item["name"]),
        version=str(item["version"]),
        run_id=tags.get(RUN_TAG, ""),
        aliases=tuple(sorted(item.get("aliases", []))),
        tags=tags,
        created=int(item.get("creation_timestamp", 0)) / 1000,
    )


def _adopt(mlflow: Mlflow, view: ModelVersionView, tags: Mapping[str, str]) -> ModelVersionView:
    """Hash a version's files where MLflow has them and write the tags; the run's tag last, as the mark."""
    full = mlflow.account.model(view.name)
    uri = mlflow.get("model-versions/get-download-uri", name=full, version=view.version)["artifact_uri"]
    root = _root(_location(mlflow, uri))
    sizes = dict(_walk(mlflow, root, ""))
    digests = {path: _sha256(mlflow, f"{root}/{path}") for path in sizes}
    content = _content_tags(digests, weights_file=_weights_of(sizes))
    lineage = {key: value for key, value in tags.items() if key != RUN_TAG} | {ADOPTED_TAG: "job"}
    for key, value in {**content, **lineage, RUN_TAG: tags[RUN_TAG]}.items():
        body = {"name": full, "version": view.version, "key": key, "value": value}
        mlflow.post("model-versions/set-tag", body)
    return get_version(mlflow, view.name, view.version)


def _location(mlflow: Mlflow, source: str) -> str:
    """Where a version's files are: a source `models:/m-...` names a logged model, which knows."""
    if not source.startswith("models:/"):
        return source
    model = mlflow.get(f"logged-models/{source.removeprefix('models:/')}")["model"]
    return str(model["info"]["artifact_uri"])


def _walk(mlflow: Mlflow, root: str, folder: str) -> Iterator[tuple[str, int]]:
    """(path, size) of every file below an artifact folder, relative to `root`."""
    for item in mlflow.list_artifacts(f"{root}/{folder}".rstrip("/")):
        path = f"{folder}/{item['path']}".lstrip("/")
        if item.get("is_dir"):
            yield from _walk(mlflow, root, path)
        else:
            yield path, int(item.get("file_size", 0))


def _sha256(mlflow: Mlflow, path: str) -> str:
    digest = hashlib.sha256()
    for block in mlflow.read_artifact(path):
        digest.update(block)
    return digest.hexdigest()
