"""What an MLmodel directory holds, by content: the facts that the registry keeps about a version."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

DESCRIPTION = "model.json"

# files of MLflow's around the weights
_AROUND = frozenset(
    {
        DESCRIPTION,
        "MLmodel",
        "conda.yaml",
        "constraints.txt",
        "environment_variables.txt",
        "input_example.json",
        "python_env.yaml",
        "registered_model_meta",
        "requirements.txt",
        "serving_input_example.json",
    }
)
_BLOCK_BYTES = 2**20


def describe(folder: Path) -> dict[str, Any]:
    """`{files, size_bytes, weights_file, weights_sha256, model_digest}` of a directory; flushes it to disk.

    `files` are `{path, sha256, size_bytes, mode}` sorted by path, model.json not among them. The weights are the
    largest file that is not MLflow's own text or copied code. `model_digest` is the sha256 over the lines
    `<sha256>  <path>\\n` in order of the paths, as `sha256sum` prints them.
    """
    paths = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != DESCRIPTION
    )
    files = [_file(folder, path) for path in paths]
    listing = "".join(f"{item['sha256']}  {item['path']}\n" for item in files)
    weights = max(files, key=_weight, default=None)
    return {
        "files": files,
        "size_bytes": sum(item["size_bytes"] for item in files),
        "weights_file": weights["path"] if weights else "",
        "weights_sha256": weights["sha256"] if weights else "",
        "model_digest": hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
    }


def _file(folder: Path, path: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with (folder / path).open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
        # the name of the directory will say that it is complete: so must the disk
        os.fsync(stream.fileno())
    return {"path": path, "sha256": digest.hexdigest(), "size_bytes": size, "mode": "100644"}


def _weight(item: dict[str, Any]) -> tuple[bool, int]:
    path: str = item["path"]
    return path not in _AROUND and not path.startswith("code/"), item["size_bytes"]
