"""The data of a promotion: DVC's outputs by reference, and the proof that a job can fetch every byte.

DVC runs in this process (its command line needs a second more). It is asked for what differs between the
workspace and the .dvc files; whether the blobs are in a directory remote is looked up here, object by object,
because DVC takes a folder's listing in the remote as proof of the folder's files, which it is not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicelift.errors import Refused, SliceliftError, UserError
from slicelift.models import DataRef
from slicelift.snapshot import git, remotes
from slicelift.snapshot.project import Project
from slicelift.snapshot.survey import named, refuse_names

# `data status` also compares with a commit of git's; a name that no commit has makes that part cost nothing
_NO_COMMIT = "0" * 40


@dataclass(frozen=True, kw_only=True)
class DataProof:
    """`checked` blobs were found in their remotes in `seconds`. `secrets` (remote.option) stay behind."""

    checked: int
    seconds: float
    size_bytes: int = 0
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Tracked:
    """A reference together with DVC's own objects for it."""

    ref: DataRef
    out: Any
    remote: remotes.Remote


def check(
    project: Project, notebook: str, *, excluded: frozenset[str] = frozenset()
) -> tuple[tuple[DataRef, ...], DataProof]:
    """All DVC outputs of the DVC projects that enclose the notebook or lie below the nearest of them, proved.

    The proof: the workspace holds what the .dvc files say, and the remotes hold every blob. Data that is absent
    from the workspace is fine. DVC knows an unchanged file by inode, time and size, as git does: a change that
    keeps all three is not seen here, and the job then gets the recorded version. `notebook` is relative to the
    project root. Outputs that DVC does not cache travel with the code; those whose .dvc file (or dvc.lock) is
    among `excluded` stay behind, unproved. No DVC in the project: nothing, proved.

    Raises `Refused` with `dvc-missing`, `dvc-not-initialised`, `dvc-remote-missing`, `dvc-remote-unsupported`,
    `dvc-format-old`, `data-imported`, `data-outside`, `data-modified`, `data-not-pushed` or `data-damaged`,
    naming the files, and `UserError` with `dvc-failed`.
    """
    start = time.perf_counter()
    found: list[DataRef] = []
    proofs: list[DataProof] = []
    for root in _roots(project, notebook):
        with _opened(project, root) as repo:
            tracked = _tracked(project, repo, excluded)
            found += [item.ref for item in tracked]
            proofs.append(_prove(project, repo, tracked))
    return _sorted(found), _sum(proofs, seconds=time.perf_counter() - start)


def _roots(project: Project, notebook: str) -> list[Path]:
    """The DVC projects whose data travels. Raises `dvc-missing` and `dvc-not-initialised`."""
    patterns = (":(glob)**/.dvc/config", ":(glob)**/*.dvc")
    flags = ("-z", "--cached", "--others", "--exclude-standard", "--deduplicate", "--")
    listed = list(git.records(git.run(project.root, "ls-files", *flags, *patterns)))
    marks = [path for path in listed if path.endswith(".dvc/config") and (project.root / path).is_file()]
    folders = [posixpath.dirname(posixpath.dirname(path)) for path in marks]
    if not folders:
        _refuse_uninitialised(project, [path for path in listed if path.endswith(".dvc")])
        return []
    if importlib.util.find_spec("dvc") is None:
        raise _dvc_missing(marks[0])
    here = posixpath.dirname(notebook)
    enclosing = [folder for folder in folders if _within(here, folder)]
    base = max(enclosing, key=len, default="")
    return [
        project.root / folder for folder in sorted(folders) if folder in enclosing or _within(folder, base)
    ]


def _within(path: str, folder: str) -> bool:
    return folder == "" or path == folder or path.startswith(f"{folder}/")


def _refuse_uninitialised(project: Project, files: list[str]) -> None:
    """Data files of DVC in a project that DVC does not know: pulling them would fail in the job."""
    for path in files:
        file = project.root / path
        if not file.is_file() or b"outs:" not in file.read_bytes():
            continue
        if importlib.util.find_spec("dvc") is None:
            raise _dvc_missing(path)
        raise Refused(
            "dvc-not-initialised",
            f"{path} tracks data with DVC, but no folder of {project.root} is a DVC project.",
            "Run `dvc init` in the project (`dvc init --subdir` below its top) and add a remote; or list "
            "the file in .gitignore if it is a leftover.",
        )


def _dvc_missing(path: str) -> Refused:
    return Refused(
        "dvc-missing",
        f"{path} says that DVC tracks data here, but DVC is not installed beside slicelift.",
        "Install it: pip install 'dvc>=3.63,<4' (with the extra of your remote, such as dvc[s3]).",
    )


@contextlib.contextmanager
def _opened(project: Project, root: Path) -> Iterator[Any]:
    """DVC's view of one of its projects. Whatever DVC raises becomes `dvc-failed`."""
    # DVC takes a second to import, which nobody without DVC data should wait for
    from dvc.repo import Repo

    shown = root.relative_to(project.root).as_posix()
    with _quiet():
        try:
            with contextlib.closing(Repo(os.fspath(root))) as repo:
                yield repo
        except SliceliftError:
            raise
        # DVC lets the exceptions of parsers and storage back ends through as they are
        except Exception as error:
            raise UserError(
                "dvc-failed",
                f"DVC could not read its project in {'the top folder' if shown == '.' else shown}: "
                f"{type(error).__name__}: {error}",
                "Run `dvc data status` there: it fails the same way and tells more with -v.",
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no logging of DVC's while it works for us."""
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _tracked(project: Project, repo: Any, excluded: frozenset[str] = frozenset()) -> list[_Tracked]:
    """The outputs of one DVC project that travel by reference."""
    found: list[_Tracked] = []
    known: dict[str | None, remotes.Remote] = {}
    for out in repo.index.outs:
        left = not out.use_cache or _dvc_file(project, out) in excluded
        if left or not _recorded(project, out):
            continue
        if out.remote not in known:
            known[out.remote] = remotes.resolve(repo, out.remote)
        found.append(_Tracked(ref=_ref(project, out, known[out.remote]), out=out, remote=known[out.remote]))
    return found


def _recorded(project: Project, out: Any) -> bool:
    """False for an output that was never made. Raises for what cannot travel by reference."""
    if not out.is_in_repo:
        raise Refused(
            "data-outside",
            f"{_dvc_file(project, out)} tracks {out.fspath}, which lies outside its DVC project.",
            "Move the data into the project and track it there (`dvc add`).",
        )
    path = _relative(project, out.fspath)
    refuse_names([path])
    if out.stage.is_repo_import:
        raise Refused(
            "data-imported",
            f"{path} was brought in by `dvc import`: its bytes are in another project's remote, not in yours.",
            f"Keep a copy of your own: `dvc get` it, then `dvc add {path}` and `dvc push`.",
        )
    if not out.hash_info:
        if os.path.lexists(out.fspath):
            raise _modified([path])
        return False
    if out.hash_name != "md5":
        raise Refused(
            "dvc-format-old",
            f"{_dvc_file(project, out)} was written by DVC 2 ({out.hash_name}); jobs fetch DVC 3's md5 only.",
            "Run `dvc cache migrate --dvc-files`, then `dvc push`.",
        )
    return True


def _ref(project: Project, out: Any, remote: remotes.Remote) -> DataRef:
    return DataRef(
        path=_relative(project, out.fspath),
        dvc_file=_dvc_file(project, out),
        md5=out.hash_info.value,
        size_bytes=out.meta.size or 0,
        nfiles=out.meta.nfiles or 1,
        remote=remote.name,
        remote_config=remote.config,
    )


def _dvc_file(project: Project, out: Any) -> str:
    """The file with the hash: data.dvc, or dvc.lock for an output of a pipeline in dvc.yaml."""
    path = _relative(project, out.stage.path)
    return posixpath.join(posixpath.dirname(path), "dvc.lock") if path.endswith("dvc.yaml") else path


def _relative(project: Project, path: str) -> str:
    return Path(os.path.relpath(path, project.root)).as_posix()


def _prove(project: Project, repo: Any, tracked: list[_Tracked]) -> DataProof:
    """Compare workspace, .dvc files and remotes of one DVC project."""
    start = time.perf_counter()
    afar = any(item.remote.folder is None for item in tracked)
    # without the refresh DVC answers from memory, and without granular it looks at listings only
    status = repo.data_status(granular=True, not_in_remote=afar, remote_refresh=True, head=_NO_COMMIT)
    base = _relative(project, repo.root_dir)
    _refuse_differing(project, base, status["uncommitted"], tracked=tracked)
    checked = size = 0
    lacks: list[remotes.Lack] = []
    for item in tracked:
        if item.remote.folder is None:
            lacks += _lacking(item.ref, _joined(base, status["not_in_remote"]))
            checked, size = checked + item.ref.nfiles, size + item.ref.size_bytes
            continue
        counted, measured, lack = remotes.look(item.ref, item.remote.folder, cache=item.out.cache.oid_to_path)
        checked, size, lacks = checked + counted, size + measured, lacks + lack
    if lacks:
        raise remotes.refusal(lacks, barred=[item.ref.path for item in tracked if not item.out.can_push])
    secrets = {secret for item in tracked for secret in item.remote.secrets}
    seconds = time.perf_counter() - start
    return DataProof(checked=checked, seconds=seconds, size_bytes=size, secrets=tuple(sorted(secrets)))


def _refuse_differing(
    project: Project, base: str, uncommitted: Mapping[str, Sequence[Any]], *, tracked: list[_Tracked]
) -> None:
    """Refuse files that are not what the .dvc file says, unless the whole output is absent."""
    kinds = ("modified", "added", "deleted", "renamed")
    given = [entry for kind in kinds for entry in uncommitted.get(kind, ())]
    paths = [entry["new"] if isinstance(entry, dict) else entry for entry in given]
    present = [item.ref.path for item in tracked if os.path.lexists(project.root / item.ref.path)]
    differing = [
        path for path in _joined(base, paths) if any(_within(path.rstrip("/"), item) for item in present)
    ]
    if differing:
        raise _modified([path for path in differing if not path.endswith("/")] or differing)


def _modified(paths: list[str]) -> Refused:
    return Refused(
        "data-modified",
        f"The workspace does not hold the version of the data that DVC recorded: {named(sorted(paths))}. "
        "A job would train on the recorded one.",
        "Keep the change: `dvc add` (or `dvc commit`) what changed, then `dvc push`. "
        "Drop it: `dvc checkout --force`.",
        detail={"paths": sorted(paths)},
    )


def _lacking(ref: DataRef, paths: Iterable[str]) -> list[remotes.Lack]:
    """What DVC itself misses of this output in a remote that is no folder."""
    own = [path for path in paths if _within(path.rstrip("/"), ref.path)]
    files = [path for path in own if not path.endswith("/")] or own
    return [remotes.Lack(path=path, remote=ref.remote) for path in files]


def _joined(base: str, paths: Iterable[str]) -> list[str]:
    """Paths of a DVC project as paths of the git project."""
    return list(paths) if base == "." else [f"{base}/{path}" for path in paths]


def _sorted(found: list[DataRef]) -> tuple[DataRef, ...]:
    return tuple(sorted(found, key=lambda ref: ref.path))


def _sum(proofs: list[DataProof], *, seconds: float) -> DataProof:
    return DataProof(
        checked=sum(proof.checked for proof in proofs),
        seconds=seconds,
        size_bytes=sum(proof.size_bytes for proof in proofs),
        secrets=tuple(sorted({secret for proof in proofs for secret in proof.secrets})),
    )
