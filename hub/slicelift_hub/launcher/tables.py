"""The tables of the ledger. JSON lives in text columns, times are Unix seconds, so one text serves every database."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

FORMAT = 1

metadata = MetaData()

about = Table(
    "about", metadata, Column("key", String, primary_key=True), Column("value", Text, nullable=False)
)

# `snapshot` is the snapshot's head without its files, as it was at the submit
runs = Table(
    "runs",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False, unique=True),
    Column("promotion_id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("spec", Text, nullable=False),
    Column("snapshot", Text, nullable=False),
    Column("attempt", Integer, nullable=False, default=1),
    Column("status", String, nullable=False, index=True),
    Column("mlflow_run_id", String),
    Column("created", Float, nullable=False),
    sqlite_autoincrement=True,
)

# `cancel` is who asked to end it, or empty; `tracked` is how far MLflow was told: "" | "open" | "closed"
attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("run_id", String, nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("owner", String, nullable=False),
    Column("token_hash", String, nullable=False, unique=True),
    Column("status", String, nullable=False, index=True),
    Column("phase", String, nullable=False, default=""),
    Column("reason", Text, nullable=False, default=""),
    Column("message", Text, nullable=False, default=""),
    Column("handle", String, nullable=False, default=""),
    Column("exit_code", Integer),
    Column("failure", Text),
    Column("ranks", Text, nullable=False, default="[]"),
    Column("live", Text, nullable=False, default="{}"),
    Column("cancel", Text, nullable=False, default=""),
    Column("drained", Boolean, nullable=False, default=False),
    Column("discarded", Boolean, nullable=False, default=False),
    Column("tracked", String, nullable=False, default=""),
    Column("created", Float, nullable=False),
    Column("started", Float),
    Column("ended", Float),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("time", Float, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("message", Text, nullable=False, default=""),
)

cursors = Table(
    "cursors",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("process", String, primary_key=True),
    Column("q", Integer, nullable=False),
)

# a batch goes once it is both `folded` (in the series) and `exported` (in MLflow); its id is never used again
batches = Table(
    "batches",
    metadata,
    Column("batch_id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False, index=True),
    Column("attempt_id", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("process", String, nullable=False),
    Column("lines", Text, nullable=False),
    Column("folded", Boolean, nullable=False, default=False),
    Column("exported", Boolean, nullable=False, default=False),
    Index("batches_to_do", "exported", "folded"),
    sqlite_autoincrement=True,
)

series = Table(
    "series",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("key", String, primary_key=True),
    Column("fold", LargeBinary, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("owner", String, primary_key=True),
    Column("snapshot_id", String, primary_key=True),
    Column("files", Integer, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created", Float, nullable=False),
)

outputs = Table(
    "outputs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("path", String, primary_key=True),
    Column("size_bytes", Integer, nullable=False),
    Column("sha256", String, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String, nullable=False, index=True),
    Column("run_id", String, nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("digest", String, nullable=False),
    Column("name", String, nullable=False),
    Column("files", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Column("version", String),
    Column("tags", Text, nullable=False, default="{}"),
    Column("created", Float, nullable=False),
    UniqueConstraint("run_id", "digest"),
)

alias_changes = Table(
    "alias_changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String, nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("alias", String, nullable=False),
    Column("before", String),
    Column("after", String),
    Column("by", String, nullable=False),
    Column("time", Float, nullable=False),
)
