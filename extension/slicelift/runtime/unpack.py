"""Unpacking a snapshot's tar stream into the workspace, never outside of it."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from slicelift.errors import Refused


def unpack(stream: IO[bytes], workspace: Path) -> int:
    """Write the members below `workspace`, made anew, and return how many there were.

    Plain files, folders and links only; no path may leave the workspace and no link may point out of it.
    Raises Refused "snapshot-unsafe", tarfile.TarError on what is no tar, OSError on a full disk.
    """
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(mode=0o700, parents=True)
    links: list[tuple[Path, str]] = []
    count = 0
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            target = workspace / _safe(member.name)
            if member.issym():
                links.append((target, member.linkname))
            else:
                _write(archive, member, target)
            count += 1
    # links come last, so that no file was written through one
    _link(links, workspace)
    return count


def _safe(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise _unsafe(name, "its path leaves the workspace")
    return path


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise _unsafe(member.name, "it is neither a file, a folder nor a symbolic link")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as copy:
        shutil.copyfileobj(content, copy, 1 << 20)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _link(links: list[tuple[Path, str]], workspace: Path) -> None:
    for target, place in links:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(place)
    root = os.path.realpath(workspace)
    for target, place in links:
        # only after all exist: one link may lead through another
        end = os.path.realpath(target)
        if PurePosixPath(place).is_absolute() or os.path.commonpath([root, end]) != root:
            raise _unsafe(str(target.relative_to(workspace)), f"it points to {place}, outside the project")


def _unsafe(name: str, why: str) -> Refused:
    return Refused(
        "snapshot-unsafe",
        f"The snapshot's member {name!r} was not unpacked: {why}.",
        "Remove that link from the project, or track what it points to with DVC, and promote again.",
    )
