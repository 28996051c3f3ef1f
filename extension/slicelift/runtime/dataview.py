"""A view: one version of some data as a read-only tree in the shared cache, and the proof that it is that version.

`<cache>/views/<md5>/content` is a folder or a file made of hard links to DVC's cache;
`<cache>/views/<md5>/view.json` lists every file with its md5 and what `stat` said when the md5 was true.
A file whose stat is unchanged since then has not been written to (its ctime cannot be set back), so that
proving an untouched view costs one stat per file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.runtime.folder import read_object, write_json

_FORMAT = 1


@dataclass(frozen=True)
class View:
    """The view of one md5 in a cache; it may or may not exist."""

    cache: Path
    md5: str

    @property
    def root(self) -> Path:
        """Made by rename: it is whole or absent."""
        return self.cache / "views" / self.md5

    @property
    def content(self) -> Path:
        """What the job sees: a folder when the md5 ends in `.dir`, else a file."""
        return self.root / "content"

    @property
    def lock(self) -> Path:
        """Held by whoever fetches or builds it."""
        return self.cache / "locks" / self.md5

    def exists(self) -> bool:
        """True for a whole view, whether still true or not (see `changed`)."""
        return bool(read_object(self.root / "view.json").get("format") == _FORMAT)

    def changed(self) -> list[str]:
        """The files that are no longer what their md5 says, gone or added; the view's own paths, sorted."""
        listed = read_object(self.root / "view.json").get("files", {})
        there = dict(_files(self.content))
        odd = [path for path in {*listed, *there} if path not in listed or path not in there]
        odd += [path for path, entry in listed.items() if path in there and _differs(there[path], entry)]
        return sorted(odd)

    def drop(self, paths: list[str]) -> None:
        """Remove the view and, of DVC's cache, the objects behind these files: they are fetched anew next time."""
        listed = read_object(self.root / "view.json").get("files", {})
        for md5 in {str(listed[path]["md5"]) for path in paths if path in listed}:
            (self.cache / "files" / "md5" / md5[:2] / md5[2:]).unlink(missing_ok=True)
        remove_tree(self.root)


def write_stamp(root: Path, md5s: dict[str, str]) -> None:
    """Write view.json beside `root/content`, whose files were just proved to have these md5s."""
    files = {path: {"md5": md5s[path], "stat": _stat(place)} for path, place in _files(root / "content")}
    write_json(root / "view.json", {"format": _FORMAT, "files": files}, mode=0o644)


def remove_tree(root: Path) -> None:
    """Remove a view's folder; its own folders are read-only, which stops anyone but root."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    shutil.rmtree(root, ignore_errors=True)


def md5_of(path: Path) -> str:
    """The md5 of a file's bytes, as DVC 3 counts it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _files(content: Path) -> Iterator[tuple[str, Path]]:
    """(path below content, place) of every file; a view of one file has the path `.`"""
    if not content.is_dir():
        if content.exists():
            yield ".", content
        return
    for folder, _, names in os.walk(content):
        for name in names:
            place = Path(folder, name)
            yield place.relative_to(content).as_posix(), place


def _stat(place: Path) -> list[int]:
    found = place.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _differs(place: Path, entry: dict[str, Any]) -> bool:
    # a new link to the same file, from another version's view, changes the ctime: then the bytes decide
    return _stat(place) != entry["stat"] and md5_of(place) != str(entry["md5"])
