"""The calls of an agent, each for its own attempt only. All of them may be repeated."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from slicelift.errors import NotFound, SliceliftError, UserError
from slicelift.models import JobStatus, SnapshotFile, to_dict
from sqlalchemy.exc import SQLAlchemyError

from slicelift_hub.launcher.bodies import parse, text_field
from slicelift_hub.launcher.handler import AGENT, Handler
from slicelift_hub.launcher.lines import check_ranks, parse_streams
from slicelift_hub.launcher.logs import check_rank
from slicelift_hub.launcher.names import check_path, check_sha256
from slicelift_hub.launcher.nodes import ENDED, STATES
from slicelift_hub.launcher.routes_files import send_chunks
from slicelift_hub.launcher.services import most_workers
from slicelift_hub.launcher.store import BlobWriter, StoreFull
from slicelift_hub.launcher.tar import make_snapshot_tar

# of each of a thousand nodes, which are all read again with each report
_LONGEST_MESSAGE = 1000
_MOST_MINUTES = 10_000_000
# files of a snapshot that are gone
_MOST_NAMED = 5
# MLflow's own bound of a name, and room for the signature of a model with thousands of columns
_LONGEST_MODEL, _LARGEST_META = 256, 1024**2

# one writer per log; an entry lives as long as somebody holds or awaits its lock
_log_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


class AgentHandler(Handler):
    """For agents only."""

    who = AGENT


class AgentSnapshotHandler(AgentHandler):
    """The files of the attempt's snapshot, as tar."""

    async def get(self, _attempt_id: str) -> None:
        store, attempt = self.services.store, self.attempt
        snapshot = await self.services.call(store.snapshot, attempt.owner, attempt.spec.snapshot_id)
        digests = [item.sha256 for item in snapshot.files]
        # no job may run other code than was promoted, whatever the disk has made of it
        await self.services.call(store.damaged, attempt.owner, digests)
        missing = store.missing(attempt.owner, digests)
        if missing:
            lost = [item.path for item in snapshot.files if item.sha256 in missing][:_MOST_NAMED]
            message = (
                f"Of the snapshot {snapshot.id} are gone from the store, or damaged there: {', '.join(lost)}."
            )
            raise NotFound("snapshot-incomplete", message, "Promote the notebook again.")
        self.set_header("Content-Type", "application/x-tar")
        await send_chunks(self, make_snapshot_tar(store, attempt.owner, snapshot))


class AgentSecretsHandler(AgentHandler):
    """The values of the secrets that the spec names."""

    async def get(self, _attempt_id: str) -> None:
        vault, attempt = self.services.vault, self.attempt
        self.answer(await self.services.call(vault.values, attempt.owner, attempt.spec.secrets))


class AgentEventsHandler(AgentHandler):
    """Spool lines, taken in once and in order."""

    body_limit = "events_bytes"

    async def post(self, _attempt_id: str) -> None:
        acks = await self.services.call(self._accept, self.json_body())
        self.answer({"acked": acks})

    def _accept(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        streams = parse_streams(body, ranks=self.services.ranks_of(self.attempt.spec))
        return self.services.ingest.accept(self.attempt, streams)


class AgentLogsHandler(AgentHandler):
    """Bytes of one log, by offset."""

    body_limit = "log_bytes"

    async def post(self, attempt_id: str) -> None:
        rank = self._rank()
        offset = self.number("offset", 0, low=0, high=2**60) or 0
        source = self.get_query_argument("source", "")
        lock = _log_locks.setdefault((attempt_id, rank), asyncio.Lock())
        async with lock:
            try:
                following = await self.services.call(
                    self.services.logs.append,
                    self.attempt,
                    rank,
                    offset=offset,
                    data=self.body(),
                    source=source,
                )
            except StoreFull:
                await self._tell_full(rank, source, full=True)
                raise
        await self._tell_full(rank, source, full=False)
        self.answer({"next": following})

    def _rank(self) -> str:
        """Whose log: a rank's, or an agent's. Raises `bad-rank` for one that the gang does not have."""
        rank = check_rank(self.get_query_argument("rank", ""))
        kind, _, number = rank.rpartition("-")
        spec = self.attempt.spec
        most = most_workers(spec) if kind else self.services.ranks_of(spec)
        if number.isdecimal() and int(number) >= most:
            raise UserError("bad-rank", f"There is no {rank} in a gang of {most}.", "Count from 0.")
        return rank

    async def _tell_full(self, rank: str, source: str, *, full: bool) -> None:
        """In the card, with the first log that finds no room and the last that does: the job would else seem not to end."""
        attempt_id, crowded = self.attempt.attempt_id, self.services.crowded
        log = (attempt_id, rank, source)
        if full == (log in crowded):
            return
        crowded ^= {log}
        if any(each != log and each[0] == attempt_id for each in crowded):
            return
        # the ledger may lie on the same disk
        with suppress(SQLAlchemyError, SliceliftError):
            if await self.services.call(self.services.ledger.store_full, attempt_id, full=full):
                self.services.announcer.changed(self.attempt.run_id)


class BlobHandler(AgentHandler):
    """Base of calls whose body is one file with a known digest."""

    body_limit = "blob_bytes"

    def digest(self) -> str:
        """What the bytes must hash to."""
        return check_sha256(self.get_query_argument("sha256", ""))

    async def open_body(self) -> None:
        store, limit = self.services.store, self.services.limits.blob_bytes
        self.writer: BlobWriter = await self.services.call(
            store.write_blob, self.attempt.owner, self.digest(), limit_bytes=limit
        )
        self.sink = WriterSink(self.writer)

    async def commit(self) -> bool:
        """Put the file in place; whether it is new."""
        self.check_body()
        try:
            return await self.services.call(self.writer.commit)
        finally:
            await self.services.call(self.writer.abort)


class WriterSink:
    """A blob writer as a sink."""

    def __init__(self, writer: BlobWriter) -> None:
        self.feed = writer.write
        self.abort = writer.abort


class AgentOutputHandler(BlobHandler):
    """A file of ./outputs."""

    async def open_body(self) -> None:
        check_path(self.path_args[1])
        await super().open_body()

    async def put(self, _attempt_id: str, path: str) -> None:
        await self.commit()
        output = await self.services.call(
            self.services.ledger.add_output,
            self.attempt,
            path=path,
            sha256=self.digest(),
            size_bytes=self.writer.size_bytes,
        )
        self.answer(to_dict(output))


class AgentBlobHandler(BlobHandler):
    """A file of a model, by digest."""

    def digest(self) -> str:
        return check_sha256(self.path_args[1])

    async def put(self, _attempt_id: str, digest: str) -> None:
        new = await self.commit()
        self.answer({"sha256": digest, "new": new})


class AgentModelsHandler(AgentHandler):
    """A model directory; registered once all its files are here."""

    async def post(self, _attempt_id: str) -> None:
        body = self.json_body()
        name, meta, files = text_field(body, "name"), body.get("meta", {}), body.get("files")
        if not isinstance(files, list) or not files or not isinstance(meta, dict) or not name.strip():
            message = "A model has a name, a list of files and an object `meta`."
            raise UserError("bad-body", message, "Save it with slicelift.save_model.")
        if len(name) > _LONGEST_MODEL or len(json.dumps(meta)) > _LARGEST_META:
            message = f"The name of a model has {_LONGEST_MODEL} characters at most, its `meta` {_LARGEST_META:,} bytes."
            raise UserError("bad-body", message, "Put what is larger into a file of the model.")
        listed = tuple(parse(SnapshotFile, item) for item in files)
        missing = await self.services.call(self.services.store.check_files, self.attempt.owner, listed)
        if not missing:
            add = self.services.ledger.add_version
            await self.services.call(add, self.attempt, name=name, files=listed, meta=meta)
            self.services.announcer.changed(self.attempt.run_id)
        self.answer({"missing": missing})


class AgentStateHandler(AgentHandler):
    """Where the agent of one node stands; the answer says whether it should end its job."""

    body_limit = "report_bytes"

    async def post(self, attempt_id: str) -> None:
        body = self.json_body()
        state, message = text_field(body, "state"), str(body.get("message") or "")[:_LONGEST_MESSAGE]
        node = self._node(body.get("node", 0))
        if state == ENDED:
            await self._end(node, body.get("exit"))
        elif state in STATES:
            ranks = check_ranks(body.get("ranks") or [], ranks=self.services.ranks_of(self.attempt.spec))
            status = JobStatus(status=STATES[state], phase=state, message=message)
            idle = body.get("idle_minutes")
            idle = idle if type(idle) is int and 0 <= idle < _MOST_MINUTES else None
            await self._tell(status, list(ranks), node=node, idle=idle)
        else:
            hint = f"States: {', '.join(STATES)}, {ENDED}."
            raise UserError("bad-body", f"There is no state {state[:40]!r}.", hint)
        self.services.dispatch.poke(self.attempt.submission)
        row = await self.services.call(self.services.ledger.attempt, attempt_id)
        # of a run that is suspended the backend gives the ranks time first
        self.answer({"cancel": bool(row and row.cancel and not row.suspending)})

    def _node(self, told: Any) -> int:
        """Which worker's agent this is. Raises `bad-body` for one that the gang does not have."""
        workers = 1 if self.services.backend.leased else most_workers(self.attempt.spec)
        if type(told) is not int or not 0 <= told < workers:
            message = f"There is no node {str(told)[:40]!r} in a gang of {workers}."
            raise UserError("bad-body", message, "Count nodes from 0.")
        return told

    @property
    def _workers(self) -> int:
        """How many agents the gang has: on one machine one for all workers."""
        return 1 if self.services.backend.leased else self.attempt.spec.workers

    async def _tell(self, status: JobStatus, ranks: list[Any], *, node: int, idle: int | None) -> None:
        said, attempt = self.services.ledger.agent_said, self.attempt
        needed = min(self._workers, attempt.spec.least_workers)
        told: dict[str, Any] = {"ranks": ranks, "node": node, "needed": needed, "idle": idle}
        if await self.services.call(said, attempt.attempt_id, status, **told):
            self.services.announcer.changed(attempt.run_id)

    async def _end(self, node: int, told: Any) -> None:
        """The last thing an agent says, after all it had to send."""
        ended, attempt = self.services.ledger.agent_ended, self.attempt
        told = told if isinstance(told, dict) else None
        if await self.services.call(ended, attempt.attempt_id, told, node=node, workers=self._workers):
            self.services.announcer.changed(attempt.run_id)
