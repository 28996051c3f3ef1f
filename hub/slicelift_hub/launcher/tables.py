"""The tables of the ledger. JSON lives in text columns, times are Unix seconds, so one text serves every database."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, LargeBinary, MetaData, Table, UniqueConstraint

from slicelift_hub.database import Number, Words

FORMAT = 2

metadata = MetaData()

about = Table(
    "about", metadata, Column("key", Words, primary_key=True), Column("value", Words, nullable=False)
)

# `snapshot` is the snapshot's head without its files, as it was at the submit
runs = Table(
    "runs",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("run_id", Words, nullable=False, unique=True),
    Column("promotion_id", Words, nullable=False, unique=True),
    Column("owner", Words, nullable=False, index=True),
    Column("name", Words, nullable=False),
    Column("spec", Words, nullable=False),
    Column("snapshot", Words, nullable=False),
    Column("attempt", Number, nullable=False, default=1),
    Column("status", Words, nullable=False, index=True),
    Column("mlflow_run_id", Words),
    Column("created", Float, nullable=False),
    sqlite_autoincrement=True,
)

# `submission` is the attempt that was submitted: another one when a cluster started the gang again by itself. `nodes` is
# what its agents said, one by one; `ranks` and the status are folded from that. `cancel` is who asked to end it, or empty;
# `position` the place in a backend's own queue; `tracked` is how far MLflow was told: "" | "open" | "closed"
attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", Words, primary_key=True),
    Column("run_id", Words, nullable=False, index=True),
    Column("attempt", Number, nullable=False),
    Column("owner", Words, nullable=False),
    Column("token_hash", Words, nullable=False, unique=True),
    Column("status", Words, nullable=False, index=True),
    Column("phase", Words, nullable=False, default=""),
    Column("reason", Words, nullable=False, default=""),
    Column("message", Words, nullable=False, default=""),
    Column("handle", Words, nullable=False, default=""),
    Column("exit_code", Number),
    Column("failure", Words),
    Column("ranks", Words, nullable=False, default="[]"),
    Column("live", Words, nullable=False, default="{}"),
    Column("cancel", Words, nullable=False, default=""),
    Column("drained", Boolean, nullable=False, default=False),
    Column("discarded", Boolean, nullable=False, default=False),
    Column("tracked", Words, nullable=False, default=""),
    Column("created", Float, nullable=False),
    Column("started", Float),
    Column("ended", Float),
    Column("submission", Words, nullable=False, server_default=""),
    Column("nodes", Words, nullable=False, server_default="{}"),
    Column("position", Number),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("run_id", Words, nullable=False, index=True),
    Column("attempt", Number, nullable=False),
    Column("time", Float, nullable=False),
    Column("status", Words, nullable=False),
    Column("reason", Words, nullable=False, default=""),
    Column("message", Words, nullable=False, default=""),
)

cursors = Table(
    "cursors",
    metadata,
    Column("attempt_id", Words, primary_key=True),
    Column("rank", Number, primary_key=True),
    Column("process", Words, primary_key=True),
    Column("q", Number, nullable=False),
)

# a batch goes once it is both `folded` (in the series) and `exported` (in MLflow); its id is never used again
batches = Table(
    "batches",
    metadata,
    Column("batch_id", Number, primary_key=True, autoincrement=True),
    Column("run_id", Words, nullable=False, index=True),
    Column("attempt_id", Words, nullable=False),
    Column("attempt", Number, nullable=False),
    Column("rank", Number, nullable=False),
    Column("process", Words, nullable=False),
    Column("lines", Words, nullable=False),
    Column("folded", Boolean, nullable=False, default=False),
    Column("exported", Boolean, nullable=False, default=False),
    Index("batches_to_do", "exported", "folded"),
    sqlite_autoincrement=True,
)

series = Table(
    "series",
    metadata,
    Column("attempt_id", Words, primary_key=True),
    Column("rank", Number, primary_key=True),
    Column("key", Words, primary_key=True),
    Column("fold", LargeBinary, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("owner", Words, primary_key=True),
    Column("snapshot_id", Words, primary_key=True),
    Column("files", Number, nullable=False),
    Column("size_bytes", Number, nullable=False),
    Column("created", Float, nullable=False),
)

# a row per run, attempt and path; no key says so, since PostgreSQL indexes no text as long as a path may be
outputs = Table(
    "outputs",
    metadata,
    Column("run_id", Words, nullable=False, index=True),
    Column("attempt", Number, nullable=False),
    Column("path", Words, nullable=False),
    Column("size_bytes", Number, nullable=False),
    Column("sha256", Words, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("owner", Words, nullable=False, index=True),
    Column("run_id", Words, nullable=False, index=True),
    Column("attempt", Number, nullable=False),
    Column("digest", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("files", Words, nullable=False),
    Column("meta", Words, nullable=False),
    Column("version", Words),
    Column("tags", Words, nullable=False, default="{}"),
    Column("created", Float, nullable=False),
    UniqueConstraint("run_id", "digest"),
)

alias_changes = Table(
    "alias_changes",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("owner", Words, nullable=False, index=True),
    Column("name", Words, nullable=False),
    Column("alias", Words, nullable=False),
    Column("before", Words),
    Column("after", Words),
    Column("by", Words, nullable=False),
    Column("time", Float, nullable=False),
)
