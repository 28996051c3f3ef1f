"""What DVC tracks in a project, read from its plain YAML files; DVC itself is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tracked:
    """Answers for paths below `root`, reading each folder's `*.dvc` and `dvc.lock` once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, set[Path]] = {}

    def __contains__(self, path: Path) -> bool:
        """True when the path, or a folder it lies in, is an output of DVC."""
        chain = [path, *path.parents]
        inside = [item for item in chain if item.is_relative_to(self.root)]
        outputs = {out for folder in inside for out in self._outputs(folder)}
        return any(item in outputs for item in inside)

    def _outputs(self, folder: Path) -> set[Path]:
        if folder not in self._known:
            self._known[folder] = set(_read(folder)) if folder.is_dir() else set()
        return self._known[folder]


def _read(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.glob("*.dvc")):
        content = _yaml(file)
        base = folder / str(content.get("wdir") or ".")
        yield from (base.resolve() / path for path in _paths(content.get("outs")))
    stages = _yaml(folder / "dvc.lock").get("stages")
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            yield from (folder.resolve() / path for path in _paths(stage.get("outs")))


def _paths(outs: Any) -> list[str]:
    listed = outs if isinstance(outs, list) else []
    return [str(item["path"]) for item in listed if isinstance(item, dict) and "path" in item]


def _yaml(file: Path) -> dict[str, Any]:
    # 0.1 s that a project without DVC does not pay.
    import yaml

    if not file.is_file():
        return {}
    try:
        content = yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError):
        return {}  # whoever takes the snapshot says what is wrong with it
    return content if isinstance(content, dict) else {}
