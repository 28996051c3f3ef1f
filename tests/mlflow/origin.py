"""Where the runs of these tests come from."""

from __future__ import annotations

from slicelift.models import DataRef, JobSpec, Snapshot

MD5 = "0123456789abcdef0123456789abcdef.dir"
DATA = DataRef(
    path="data/数字",
    dvc_file="data/数字.dvc",
    md5=MD5,
    size_bytes=1234,
    nfiles=7,
    remote="store",
    remote_config={"url": "/srv/dvc store"},
)
SNAPSHOT = Snapshot(
    id="5" * 64,
    tree="7" * 40,
    commit="c" * 40,
    base_commit="b" * 40,
    branch="main",
    dirty=True,
    notebook="nb/训练.ipynb",
    cwd="nb",
    script=".slicelift/promoted.py",
    script_sha256="1" * 64,
    lock_sha256="2" * 64,
)
SPEC = JobSpec(
    name="训练 one",
    snapshot_id=SNAPSHOT.id,
    notebook=SNAPSHOT.notebook,
    script=SNAPSHOT.script,
    cwd=SNAPSHOT.cwd,
    python="python3",
)
