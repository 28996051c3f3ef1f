"""Calls on their way to MLflow: what a person's and a job's have in common, and `ANY /attempts/<id>/mlflow/<path>`.

A call is checked and translated, and made under its owner's account. Files stream through; everything else is JSON and
small.

Of a job ids are translated, and the attempt is kept to its own experiment: it may read the runs there, and change only
its own run and that run's children.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, cast

import httpx
from slicelift.errors import Denied, Unavailable, UserError
from slicelift.runtime.mlflow_ids import local_experiment_id, local_run_id
from slicelift.tracking_account import Account
from tornado.iostream import StreamClosedError

from slicelift_hub.launcher.handler import AGENT, Handler
from slicelift_hub.launcher.mlflow_exposed import find_ambiguity, find_foreign_place
from slicelift_hub.launcher.mlflow_link import Link
from slicelift_hub.launcher.mlflow_names import (
    has_names,
    named_inward,
    named_outward,
    names_nobodys_experiment,
)
from slicelift_hub.launcher.mlflow_translation import Call, Ids, inward, named_runs, outward
from slicelift_hub.launcher.store import TooLarge, disk_full_named

if TYPE_CHECKING:
    from tornado.http1connection import HTTP1Connection

_IN_MEMORY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1 << 20
_PASSED = ("Content-Type", "Accept", "Content-Encoding", "X-Mlflow-Experiment-Id", "X-Mlflow-Workspace")
_RETURNED = ("Content-Type", "Content-Disposition", "X-Content-Type-Options", "Cache-Control")

Translate = Callable[[Any], Any]


class MlflowHandler(Handler):
    """Takes a body, and passes a call on under the account of the caller's owner."""

    body_limit = "blob_bytes"

    async def open_body(self) -> None:
        """Collect the body: MLflow is asked only once all of it is here."""
        self.file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - `abort` closes it
        self.sink = _FileSink(self.file)

    @property
    def account(self) -> Account:
        """Under which the call is made."""
        return self.services.tracker.account_of(self.principal.owner)

    def link(self) -> Link:
        """The way to MLflow. Raises `Unavailable` while it is not up: better now than in the middle."""
        state = self.services.tracker.state()
        if state["status"] == "none":
            message = "This launcher runs without MLflow, and it was called."
            raise UserError(
                "tracker-none", message, "Log with slicelift.log, or start it with --tracker mlflow."
            )
        if state["status"] != "up":
            raise Unavailable("tracker-away", f"MLflow is {state['status']}.", "The call is tried again.")
        links: dict[str, Link] = self.application.settings.setdefault("mlflow_links", {})
        if state["url"] not in links:
            links[state["url"]] = Link(state["url"])
        return links[state["url"]]

    def small_body(self) -> bytes:
        """The whole body, when it is no file's content. Raises `body-too-large`."""
        size, limit = self.file.seek(0, 2), self.services.limits.json_bytes
        if size > limit:
            message = (
                f"The body has {size:,} bytes; {limit:,} are allowed in a call that is no upload of a file."
            )
            raise TooLarge("body-too-large", message, "Send less at once.")
        self.file.seek(0)
        return self.file.read()

    def passed_headers(self) -> dict[str, str]:
        """Those of the caller's that MLflow is to see: never who they say they are."""
        return {key: self.request.headers[key] for key in _PASSED if key in self.request.headers}

    async def named(self, link: Link, call: Call) -> Call:
        """The call in MLflow's names. Raises `Denied` (mlflow-place-closed), `UserError` (mlflow-call-ambiguous)."""
        unclear = find_ambiguity(call.method, call.path, query=call.query, body=call.json)
        if unclear is not None:
            message = f"{call.method} /{call.path} {unclear}."
            raise UserError(
                "mlflow-call-ambiguous", message, "Name each thing once, as MLflow's own client does."
            )
        place = find_foreign_place(call.path, call.json)
        if place is not None:
            message = f"{call.method} /{call.path} names a place of its own for files: {place[:200]}."
            raise Denied("mlflow-place-closed", message, "Leave it out: MLflow chooses where files lie.")
        account = self.account
        if not account.name:
            return call
        default = await link.default_experiment(account) if names_nobodys_experiment(call) else ""
        return named_inward(call, account, default_experiment=default)

    def words_outward(self, call: Call) -> Translate | None:
        """What gives an answer's names back in the owner's words; None where there are none."""
        account = self.account
        if not account.name or not has_names(call.path):
            return None
        return lambda value: named_outward(value, account)

    async def content_of(self, call: Call) -> tuple[Any, int]:
        """What to send as the body, and its size in bytes."""
        if call.json is not None:
            content = json.dumps(call.json).encode()
            return content, len(content)
        size = self.file.seek(0, 2)
        self.file.seek(0)
        return (_blocks(self, self.file) if size else None), size

    def answer_head(self, response: httpx.Response) -> None:
        """Status and headers of MLflow's answer."""
        self.set_status(response.status_code)
        for key in _RETURNED:
            if key in response.headers:
                self.set_header(key, response.headers[key])

    async def answer_stream(self, response: httpx.Response) -> None:
        """MLflow's answer as it comes."""
        if "Content-Length" in response.headers:  # only here: a translated answer has a length of its own
            self.set_header("Content-Length", response.headers["Content-Length"])
        with suppress(StreamClosedError):  # the caller went away
            try:
                async for chunk in response.aiter_raw(_CHUNK_BYTES):
                    self.write(chunk)
                    await self.flush()
            except httpx.TransportError:
                if self._headers_written:
                    # half a file must not pass for a whole one, as the end of a chunked answer would
                    cast("HTTP1Connection", self.request.connection).stream.close()
                raise
            await self.finish()

    async def answer_json(self, response: httpx.Response, translate: Translate) -> None:
        """MLflow's answer, translated."""
        await self.finish(json.dumps(translate(json.loads(await response.aread()))))


class PassthroughHandler(MlflowHandler):
    """A job's own mlflow code. See the module."""

    who = AGENT

    async def pass_on(self, _attempt_id: str, _path: str) -> None:
        """One call of any method."""
        try:
            self.check_body()
            link = self.link()
            ids = await self._ids(link)
            call = self._translated(ids)
            await self._check_runs(link, call, ids)
            await self._exchange(link, await self.named(link, call), ids)
        finally:
            self.file.close()

    get = post = put = patch = delete = pass_on

    async def _ids(self, link: Link) -> Ids:
        run_id = self.attempt.run_id
        run = await self.services.call(self.services.ledger.tracked_run, run_id)
        if run is None or run.mlflow_run_id is None:
            raise Unavailable("tracker-run-unknown", f"MLflow does not know {run_id} yet.", "Soon it will.")
        experiment, _ = await link.place_of(run.mlflow_run_id, self.account)
        if not experiment:
            raise Unavailable("tracker-run-unknown", f"MLflow has lost {run_id}.", "It is made again.")
        return Ids(
            local_run=local_run_id(run_id),
            run=run.mlflow_run_id,
            local_experiment=local_experiment_id(run_id),
            experiment=experiment,
        )

    def _translated(self, ids: Ids) -> Call:
        raw_path = self.request.path.split("/mlflow/", 1)[1]
        is_file = "/mlflow-artifacts/" in raw_path
        return inward(
            self.request.method or "GET",
            raw_path,
            self.request.query,
            headers=self.passed_headers(),
            body=None if is_file else self.small_body(),
            ids=ids,
        )

    async def _check_runs(self, link: Link, call: Call, ids: Ids) -> None:
        """Raises `Denied` (mlflow-run-closed) when a call reaches beyond its job's experiment or run."""
        for run in named_runs(call) - {ids.run}:
            experiment, parent = await link.place_of(run, self.account)
            if experiment and (experiment != ids.experiment or (call.changes and parent != ids.run)):
                message = f"{call.method} /{call.path} names the run {run}, which is not of this job."
                hint = "A job may read the runs of its experiment and change its own run and that run's children."
                raise Denied("mlflow-run-closed", message, hint)

    async def _exchange(self, link: Link, call: Call, ids: Ids) -> None:
        content, size = await self.content_of(call)
        if call.names_runs:
            content = self.file.read().replace(ids.local_run.encode(), ids.run.encode())
            size = len(content)
        async with link.stream(call, content, size=size, account=self.account) as response:
            self.answer_head(response)
            await self._answer_with(response, call, ids)

    async def _answer_with(self, response: httpx.Response, call: Call, ids: Ids) -> None:
        if call.names_runs:
            await self.finish((await response.aread()).replace(ids.run.encode(), ids.local_run.encode()))
        elif "json" in response.headers.get("Content-Type", "") and not call.is_file:
            words = self.words_outward(call) or (lambda value: value)
            await self.answer_json(response, lambda value: outward(words(value), ids))
        else:
            await self.answer_stream(response)


class _FileSink:
    """Takes a body into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.abort = file.close

    def feed(self, chunk: bytes) -> None:
        """The next piece. Raises `store-full`."""
        with disk_full_named():
            self._file.write(chunk)


async def _blocks(handler: Handler, file: IO[bytes]) -> AsyncIterator[bytes]:
    while block := await handler.services.call(file.read, _CHUNK_BYTES):
        yield block
