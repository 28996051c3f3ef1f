"""The code of a promotion as a git tree: what is on disk now, not what was committed last.

A temporary index, started as a copy of the user's for its stat cache, takes every file that `git add -A`
would take; the user's index, HEAD, worktree and reflogs stay as they are. Ours lies under `.slicelift/`
in the tree: the generated script, its line map and the environment's lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicelift.errors import SliceliftError, UserError
from slicelift.models import Script, SnapshotFile, to_dict
from slicelift.notebook.outputs import without_outputs
from slicelift.snapshot import git
from slicelift.snapshot.digests import sha256_of
from slicelift.snapshot.project import IDENTITY, Project
from slicelift.snapshot.survey import OURS, Survey, look

SCRIPT = f"{OURS}/promoted.py"
LINE_MAP = f"{OURS}/promoted.map.json"
LOCK = f"{OURS}/environment.lock"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The tree that holds everything but the data. Paths are relative to the project root."""

    tree: str
    files: tuple[SnapshotFile, ...]
    dirty: bool
    script: str
    script_sha256: str


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A survey that passed, with the temporary index it was made on. Good within `drafting` only."""

    project: Project
    index: Path
    survey: Survey


@contextlib.contextmanager
def drafting(project: Project, *, limit_bytes: int | None = None) -> Iterator[Draft]:
    """Look at what would travel, without reading it.

    Raises what `survey.look` raises; a full disk, here or in the body, is `Unavailable` with `disk-full`.
    """
    with git.room_on_disk(), tempfile.TemporaryDirectory(prefix="slicelift-") as folder:
        index = Path(folder) / "index"
        with contextlib.suppress(FileNotFoundError):
            # copy2 keeps the time of the file: by it git knows which entries may have changed within
            # the same clock tick as the index was written, and looks into those files
            shutil.copy2(project.git_dir / "index", index)
        yield Draft(project=project, index=index, survey=look(project, index, limit_bytes=limit_bytes))


def write(draft: Draft, *, script: Script, extra_files: Mapping[str, bytes]) -> Code:
    """Read the surveyed files and write the tree into git's object database. Idempotent.

    `extra_files` (path -> bytes) replace what is on disk, as the frozen notebook does, and are taken as
    they are, past all filters.
    """
    source = script.source.encode("utf-8", "surrogatepass")
    line_map = json.dumps(to_dict(script.places), separators=(",", ":")).encode()
    ours = {SCRIPT: source, LINE_MAP: line_map, **extra_files}
    _fill(draft, ours)
    project, index = draft.project, draft.index
    tree = git.run(project.root, "write-tree", index=index).decode().strip()
    return Code(
        tree=tree,
        files=list_files(project, tree),
        dirty=_dirty(draft, ours=ours),
        script=SCRIPT,
        script_sha256=hashlib.sha256(source).hexdigest(),
    )


def keep(project: Project, tree: str, *, snapshot_id: str, notebook: str) -> str:
    """The commit on `refs/slicelift/<first 12 of the id>` that holds the tree, made if need be.

    A commit that is there already with this tree is taken again, so a repeated promotion adds nothing.
    """
    ref = f"refs/slicelift/{snapshot_id[:12]}"
    known = _held(project, ref, tree)
    if known is not None:
        return known
    text = f"Snapshot of {notebook}\n\nSlicelift-Snapshot: {snapshot_id}\n"
    command = ("commit-tree", tree, "-p", project.head)
    commit = git.run(project.root, *command, stdin=text.encode(), env=IDENTITY).decode().strip()
    try:
        git.run(project.root, "update-ref", "--no-deref", ref, commit)
    except SliceliftError:
        # another promotion of the same content may hold the ref's lock: then its commit is as good
        known = _held(project, ref, tree)
        if known is None:
            raise
        return known
    return commit


def list_files(project: Project, tree: str) -> tuple[SnapshotFile, ...]:
    """The files of a tree with their sha256, in git's order. Raises `Refused` with `lfs-pointer`."""
    rows = list_objects(project, tree)
    digests = sha256_of(project, {oid: (path, size) for path, (_, oid, size) in rows.items()})
    return tuple(
        SnapshotFile(path=path, sha256=digests[oid], size_bytes=size, mode=mode)
        for path, (mode, oid, size) in rows.items()
    )


def list_objects(project: Project, tree: str) -> dict[str, tuple[str, str, int]]:
    """path -> (mode, object id, size in bytes) of every file of a tree."""
    listed = git.run(project.root, "ls-tree", "-r", "-z", "--long", "--full-tree", tree)
    found: dict[str, tuple[str, str, int]] = {}
    for record in git.records(listed):
        meta, _, path = record.partition("\t")
        mode, _, oid, size = meta.split()
        found[path] = (mode, oid, int(size))
    return found


def _fill(draft: Draft, ours: Mapping[str, bytes]) -> None:
    """Make the temporary index say what is on disk, and our files over it."""
    root, index, survey = draft.project.root, draft.index, draft.survey
    null = "0" * len(draft.project.head)
    lines = [f"0 {null}\t{path}" for path in survey.removals]
    lines += [f"100644 {oid}\t{path}" for path, oid in _store(root, ours).items()]
    git.run(root, "update-index", "--replace", "-z", "--index-info", stdin=git.encoded(lines), index=index)
    taken = git.encoded([path for path in survey.paths if path not in ours])
    git.run(root, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=taken, index=index)


def _store(root: Path, ours: Mapping[str, bytes]) -> dict[str, str]:
    """Write these bytes as blobs, unfiltered, in one process: path -> object id."""
    with tempfile.TemporaryDirectory(prefix="slicelift-") as folder:
        sources = [Path(folder) / str(number) for number in range(len(ours))]
        for source, content in zip(sources, ours.values(), strict=True):
            source.write_bytes(content)
        listed = "".join(f"{source}\n" for source in sources).encode()
        oids = git.run(root, "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=listed)
    return dict(zip(ours, oids.decode().split(), strict=True))


def _dirty(draft: Draft, *, ours: Mapping[str, bytes]) -> bool:
    """True when a file that travels differs from HEAD, or one of HEAD's is gone.

    A notebook of which HEAD holds the same cells with other outputs does not differ.
    """
    command = ("diff-index", "--cached", "--name-only", "--no-renames", "-z", draft.project.head)
    changed = set(git.records(git.run(draft.project.root, *command, index=draft.index)))
    kept_out = draft.survey.excluded - ours.keys()
    changed = {path for path in changed - kept_out if not path.startswith(f"{OURS}/")}
    return any(path not in ours or not _as_in_head(draft.project, path, ours[path]) for path in changed)


def _as_in_head(project: Project, path: str, content: bytes) -> bool:
    try:
        committed = git.run(project.root, "cat-file", "blob", f"{project.head}:{path}")
    except UserError:
        return False
    return without_outputs(committed) == content


def _held(project: Project, ref: str, tree: str) -> str | None:
    """The commit that `ref` names, if it holds this tree."""
    answer = git.ask(project.root, "rev-parse", "--quiet", f"{ref}^{{commit}}", f"{ref}^{{tree}}")
    commit, _, held = (answer or "").partition("\n")
    return commit if held == tree else None
