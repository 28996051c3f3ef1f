"""Container images written by hand: an OCI archive is a tar of blobs and three small JSON files, no builder needed."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file, folder (`content` None) or symbolic link (`link`) of a layer; `path` is absolute."""

    path: str
    content: bytes | None = None
    link: str = ""
    mode: int = 0o644
    owner: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An image: its layers as uncompressed tars, and how a container of it starts."""

    name: str
    layers: Sequence[bytes]
    environment: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    user: str = ""
    folder: str = "/"


def layer(entries: Iterable[Entry]) -> bytes:
    """A layer, the same bytes for the same entries."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(entries, key=lambda one: one.path):
            tar.addfile(_header(entry), io.BytesIO(entry.content or b""))
    return raw.getvalue()


def digest(blob: bytes) -> str:
    """As images name it: sha256:..."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def write(recipe: Recipe, to: Path) -> str:
    """Writes the archive and returns the digest of the image's manifest."""
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    config = _json(
        {
            "architecture": machine,
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in recipe.environment.items()],
                "Cmd": list(recipe.command),
                "User": recipe.user,
                "WorkingDir": recipe.folder,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in recipe.layers]},
        }
    )
    layers = [_described(f"{_OCI}.layer.v1.tar", one) for one in recipe.layers]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _described(f"{_OCI}.config.v1+json", config),
            "layers": layers,
        }
    )
    named = _described(f"{_OCI}.manifest.v1+json", manifest)
    named["annotations"] = {"io.containerd.image.name": recipe.name}
    index = _json({"schemaVersion": 2, "manifests": [named]})
    _write_layout(to, index=index, blobs=[*recipe.layers, config, manifest])
    return digest(manifest)


def _write_layout(to: Path, *, index: bytes, blobs: Sequence[bytes]) -> None:
    with tarfile.open(to, mode="w") as tar:
        for name, content in (("oci-layout", _json({"imageLayoutVersion": "1.0.0"})), ("index.json", index)):
            tar.addfile(_header(Entry(path=f"/{name}", content=content)), io.BytesIO(content))
        for blob in {digest(one): one for one in blobs}.values():
            path = "/blobs/" + digest(blob).replace(":", "/")
            tar.addfile(_header(Entry(path=path, content=blob)), io.BytesIO(blob))


def _header(entry: Entry) -> tarfile.TarInfo:
    header = tarfile.TarInfo(entry.path.lstrip("/"))
    header.mode, header.uid, header.gid = entry.mode, entry.owner, entry.owner
    if entry.link:
        header.type, header.linkname = tarfile.SYMTYPE, entry.link
    elif entry.content is None:
        header.type = tarfile.DIRTYPE
    else:
        header.size = len(entry.content)
    return header


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(blob), "size": len(blob)}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
