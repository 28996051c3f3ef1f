"""What would travel, judged by names and sizes before a single byte is read.

The files are those that `git add -A` would take, less what .sliceliftignore names and less untracked
by-products of Python and Jupyter. Nested repositories,
links that leave the project and sizes above the limit are refused here, so that five gigabytes cost no
more than five bytes.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

from slicelift.errors import Refused
from slicelift.models import size_text
from slicelift.snapshot import git
from slicelift.snapshot.project import Project

OURS = ".slicelift"
IGNORE_FILE = ".sliceliftignore"
DEFAULT_LIMIT_BYTES = 500 * 1024**2
LIMIT_VARIABLE = "SLICELIFT_SNAPSHOT_LIMIT_MIB"
# rewritten by merely looking at a project, so they would change the id of unchanged content
_BY_PRODUCTS = ("--exclude=__pycache__/", "--exclude=.ipynb_checkpoints/")
_NAMED = 5
_LINK_HOPS = 40


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What git has to take from disk (`paths`) and to leave out of its index (`removals`).

    `excluded` are the files that only .sliceliftignore keeps out; `size_bytes` is the sum on disk.
    """

    paths: tuple[str, ...]
    removals: tuple[str, ...]
    excluded: frozenset[str]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One line of `git ls-files`: `tag` as its -v has it, `mode` "" for an untracked file."""

    path: str
    tag: str
    mode: str


def look(project: Project, index: Path, *, limit_bytes: int | None = None) -> Survey:
    """List, sift and measure. `index` is a copy of the user's; it is read only.

    Raises `Refused` with `path-not-utf8`, `path-not-portable`, `submodule-not-supported`, `link-outside`
    or `snapshot-too-large`.
    """
    entries = _entries(project, index)
    on_disk = _on_disk(project.root, entries)
    excluded = _excluded(project, on_disk, scratch=index.with_name("ignored.index"))
    kept = {path: found for path, found in on_disk.items() if path not in excluded}
    refuse_names(kept)
    _refuse_nested(kept)
    _refuse_links(project.root, [path for path, found in kept.items() if stat.S_ISLNK(found.st_mode)])
    sizes = {path: found.st_size for path, found in kept.items()}
    refuse_large(sizes, limit_bytes=limit() if limit_bytes is None else limit_bytes)
    return Survey(
        paths=tuple(sorted(kept)),
        removals=_removals(entries, kept),
        excluded=excluded,
        size_bytes=sum(sizes.values()),
    )


def limit() -> int:
    """The bytes that may travel: SLICELIFT_SNAPSHOT_LIMIT_MIB, or 500 MiB."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    if not given:
        return DEFAULT_LIMIT_BYTES
    if not given.isdecimal():
        raise Refused(
            "snapshot-limit-invalid",
            f"{LIMIT_VARIABLE} is {given!r}; a whole number of MiB is wanted.",
            f"For example {LIMIT_VARIABLE}=1000, or unset it for {DEFAULT_LIMIT_BYTES // 1024**2}.",
        )
    return int(given) * 1024**2


def refuse_large(sizes: Mapping[str, int], *, limit_bytes: int) -> None:
    """Raise `snapshot-too-large` with the top offenders when the sum is above the limit."""
    total = sum(sizes.values())
    if total <= limit_bytes:
        return
    files = Counter(sizes).most_common(_NAMED)
    folders = _folders(sizes).most_common(_NAMED)
    named = "; ".join(f"{path} ({size_text(size)})" for path, size in files)
    heavy = "; ".join(f"{path}/ ({size_text(size)})" for path, size in folders)
    raise Refused(
        "snapshot-too-large",
        f"The project holds {size_text(total)} in {len(sizes)} files that would travel with the code; "
        f"{size_text(limit_bytes)} are allowed. Largest files: {named}."
        + (f" Largest folders: {heavy}." if heavy else ""),
        f"Data: `dvc add {files[0][0]}`, then it travels by reference. What the job does not need: list it "
        f"in .gitignore or {IGNORE_FILE}. If it must travel: set {LIMIT_VARIABLE}.",
        detail={"size_bytes": total, "limit_bytes": limit_bytes, "files": files, "folders": folders},
    )


def refuse_names(paths: Iterable[str]) -> None:
    """Raise `path-not-utf8` or `path-not-portable` for the first path that no launcher takes."""
    hint = f"Rename the file, or list it in .gitignore or {IGNORE_FILE}."
    for path in paths:
        if path.isprintable() and "\\" not in path:
            continue
        kinds = {category(char) for char in path}
        if "Cs" in kinds:
            shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            message = f"The name of {shown} is not UTF-8, so it cannot be written down in the snapshot."
            raise Refused("path-not-utf8", message, hint)
        if "Cc" in kinds or "\\" in path:
            message = f"The name of {path!r} holds a control character or a backslash, which cannot travel."
            raise Refused("path-not-portable", message, hint)


def _entries(project: Project, index: Path) -> list[_Entry]:
    """Tracked and untracked files, ignored ones left out. Conflicted files come once per side."""
    flags = ["-z", "-v", "--stage", "--cached", "--others", "--exclude-standard"]
    listed = git.run(project.root, "ls-files", *flags, *_BY_PRODUCTS, index=index)
    return [_entry(record) for record in git.records(listed)]


def _entry(record: str) -> _Entry:
    tag, rest = record[0], record[2:]
    if tag == "?":
        return _Entry(path=rest, tag=tag, mode="")
    stage, _, path = rest.partition("\t")
    return _Entry(path=path, tag=tag, mode=stage.split(" ", 1)[0])


def _on_disk(root: Path, entries: list[_Entry]) -> dict[str, os.stat_result]:
    """What is really there: path -> lstat. A nested repository is there as a folder."""
    linked: dict[str, bool] = {"": False}
    found: dict[str, os.stat_result] = {}
    for entry in entries:
        path = entry.path.rstrip("/")
        if path.split("/", 1)[0] == OURS or _beyond_link(root, posixpath.dirname(path), linked):
            continue
        seen = _lstat(root / path)
        nested = entry.mode == "160000" or entry.path.endswith("/")
        if seen is not None and (nested or stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode)):
            found[path] = seen
    return found


def _beyond_link(root: Path, folder: str, known: dict[str, bool]) -> bool:
    """True when a folder on the way is a link now: git holds such an entry as deleted."""
    if folder not in known:
        parent = posixpath.dirname(folder)
        known[folder] = _beyond_link(root, parent, known) or (root / folder).is_symlink()
    return known[folder]


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _excluded(project: Project, on_disk: Mapping[str, os.stat_result], *, scratch: Path) -> frozenset[str]:
    """The files that .sliceliftignore (one in any folder, gitignore's syntax) keeps out.

    git itself judges: all files go into a scratch index, tracked or not, and are asked for as "tracked but
    ignored". Passing the file to the listing instead would let a `!` in a .gitignore overrule it.
    """
    if (
        not any(posixpath.basename(path) == IGNORE_FILE for path in on_disk)
        and not (project.root / IGNORE_FILE).is_file()
    ):
        return frozenset()
    oid = "1" * len(project.head)
    modes = {path: "160000" if stat.S_ISDIR(found.st_mode) else "100644" for path, found in on_disk.items()}
    lines = git.encoded([f"{mode} {oid}\t{path}" for path, mode in modes.items()])
    git.run(project.root, "update-index", "-z", "--index-info", stdin=lines, index=scratch)
    rule = f"--exclude-per-directory={IGNORE_FILE}"
    listed = git.run(project.root, "ls-files", "-z", "--cached", "--ignored", rule, index=scratch)
    return frozenset(git.records(listed))


def _refuse_nested(kept: Mapping[str, os.stat_result]) -> None:
    nested = sorted(path for path, found in kept.items() if stat.S_ISDIR(found.st_mode))
    if nested:
        raise Refused(
            "submodule-not-supported",
            f"{named(nested)} {'is a repository' if len(nested) == 1 else 'are repositories'} of "
            "its own inside the project (a submodule or a clone); its files would be missing in the job.",
            f"If the notebook does not need it, list it in {IGNORE_FILE} or .gitignore. If it does, copy the "
            "files in, or install it as a package into the kernel's environment.",
            detail={"paths": nested},
        )


def _refuse_links(root: Path, links: list[str]) -> None:
    targets = {path: os.fspath((root / path).readlink()) for path in links}
    outside = sorted(path for path in targets if _resolve(path, targets) is None)
    if outside:
        shown = [f"{path} -> {targets[path]}" for path in outside]
        raise Refused(
            "link-outside",
            f"{'This link leaves' if len(outside) == 1 else 'These links leave'} the project, and what is "
            f"behind would be missing in the job: {named(shown)}.",
            "Copy the file in, track the data with `dvc add`, make the link relative and inward, or list it "
            f"in {IGNORE_FILE}.",
            detail={"links": {path: targets[path] for path in outside}},
        )


def _resolve(path: str, targets: Mapping[str, str]) -> str | None:
    """Where a link inside the project leads, other links of the project followed; None when out of it.

    The names are resolved one by one and not on disk: a link to data that DVC itself linked into its
    cache stays inside as far as the snapshot goes.
    """
    todo, place, hops = path.split("/")[::-1], "", 0
    while todo:
        name = todo.pop()
        if name == "..":
            if not place:
                return None
            place = posixpath.dirname(place)
        elif name not in ("", "."):
            place = posixpath.join(place, name)
        if name != ".." and place in targets:
            hops += 1
            if hops > _LINK_HOPS or targets[place].startswith("/"):
                return None
            todo += targets[place].split("/")[::-1]
            place = posixpath.dirname(place)
    return place


def _removals(entries: list[_Entry], kept: Mapping[str, os.stat_result]) -> tuple[str, ...]:
    """Index entries to drop: gone, left out, or flagged so that git would not look at the file.

    "S" is skip-worktree, a small letter assume-unchanged: what is on disk travels, so both are dropped
    and, where the file is there, added afresh.
    """
    tracked = [entry for entry in entries if entry.mode]
    return tuple(
        sorted(
            {
                entry.path
                for entry in tracked
                if entry.path not in kept or entry.tag == "S" or entry.tag.islower()
            }
        )
    )


def _folders(sizes: Mapping[str, int]) -> Counter[str]:
    """Bytes per top folder: what many small files have in common."""
    total: Counter[str] = Counter()
    for path, size in sizes.items():
        if "/" in path:
            total[path.split("/", 1)[0]] += size
    return total


def named(items: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    rest = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
