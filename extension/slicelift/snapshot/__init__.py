"""Everything that travels with a promotion, by content: code, script, data references, environment.

`take` makes a `Snapshot`; `store.upload` brings it to the launcher. The user's repository gains one commit
on a ref of ours and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slicelift.models import DataRef, Environment, Script, Snapshot
from slicelift.notebook.outputs import without_outputs
from slicelift.snapshot import code, data
from slicelift.snapshot.data import DataProof
from slicelift.snapshot.project import Candidate, Project, find_project, init_project, refuse_credentials

__all__ = [
    "Candidate",
    "DataProof",
    "Project",
    "find_project",
    "init_project",
    "refuse_credentials",
    "snapshot_id",
    "take",
]

FORMAT = 1


def take(
    notebook_path: Path | str,
    *,
    script: Script,
    environment: Environment,
    notebook_bytes: bytes,
    project: Project | None = None,
    limit_bytes: int | None = None,
    on_proof: Callable[[DataProof], None] | None = None,
) -> Snapshot:
    """The snapshot of a notebook's project as it is on disk now. Idempotent; sends nothing.

    `notebook_bytes`, without its outputs, is what lands in the tree for the notebook, whatever the disk says
    meanwhile. The code and the proof of the data go on at the same time, after names and sizes have passed. `on_proof` hears
    of the proof (its share of the time, and secrets that stay behind). Raises the errors of `find_project`,
    `survey.look`, `code.write` and `data.check`; of two, the code's.
    """
    found = project or find_project(notebook_path)
    notebook = found.relative(notebook_path)
    lock = environment.lock.encode()
    extra = {notebook: without_outputs(notebook_bytes), code.LOCK: lock}
    with code.drafting(found, limit_bytes=limit_bytes) as draft, ThreadPoolExecutor(1) as worker:
        # the proof stays in this thread: DVC's SQLite handles belong to the thread that opened them
        writing = worker.submit(code.write, draft, script=script, extra_files=extra)
        try:
            refs, proof = data.check(found, notebook, excluded=draft.survey.excluded)
        finally:
            written = writing.result()
    if on_proof is not None:
        on_proof(proof)
    return _compose(found, notebook, written=written, refs=refs, lock=lock)


def snapshot_id(*, tree: str, script_sha256: str, lock_sha256: str, data: Iterable[DataRef]) -> str:
    """sha256 over canonical JSON of what runs: equal on every machine, at any time, in any folder.

    `tree` is the tree with our files in it. Of a data reference its path, its .dvc file and its content count;
    where a remote lies does not.
    """
    content = {
        "format": FORMAT,
        "tree": tree,
        "script_sha256": script_sha256,
        "lock_sha256": lock_sha256,
        "data": sorted(
            [ref.path, ref.dvc_file, ref.md5, str(ref.size_bytes), str(ref.nfiles)] for ref in data
        ),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _compose(
    project: Project, notebook: str, *, written: code.Code, refs: tuple[DataRef, ...], lock: bytes
) -> Snapshot:
    lock_sha256 = hashlib.sha256(lock).hexdigest()
    identity = snapshot_id(
        tree=written.tree, script_sha256=written.script_sha256, lock_sha256=lock_sha256, data=refs
    )
    return Snapshot(
        id=identity,
        tree=written.tree,
        commit=code.keep(project, written.tree, snapshot_id=identity, notebook=notebook),
        base_commit=project.head,
        branch=project.branch,
        dirty=written.dirty,
        notebook=notebook,
        cwd=posixpath.dirname(notebook) or ".",
        script=written.script,
        script_sha256=written.script_sha256,
        lock_sha256=lock_sha256,
        data=refs,
        files=written.files,
    )
