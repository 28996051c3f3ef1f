"""`ANY /attempts/<id>/mlflow/<path>`: a job's own mlflow calls, on their way to MLflow.

Ids are translated, and the attempt is kept to its own experiment: it may read the runs there, and change only
its own run and that run's children. Files stream through; everything else is JSON and small.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any

import httpx
from slicelift.errors import Denied, SliceliftError, Unavailable, UserError
from slicelift.runtime.mlflow_ids import local_experiment_id, local_run_id

from slicelift_hub.launcher.handler import AGENT, Handler
from slicelift_hub.launcher.mlflow_translation import Call, Ids, inward, named_runs, outward

_IN_MEMORY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 1 << 20
# MLflow answers when it can; a process that died breaks the connection
_SECONDS = httpx.Timeout(None, connect=2.0)
_PASSED = ("Content-Type", "Accept", "Content-Encoding", "X-Mlflow-Experiment-Id", "X-Mlflow-Workspace")
_RETURNED = ("Content-Type", "Content-Disposition", "X-Content-Type-Options")
_REMEMBERED_RUNS = 10_000


class BrokenOff(SliceliftError):
    """MLflow went away in the middle: nobody knows whether the call was carried out."""

    http_status = 502


class PassthroughHandler(Handler):
    """See the module."""

    who = AGENT
    body_limit = "blob_bytes"

    async def open_body(self) -> None:
        """Collect the body: MLflow is asked only once all of it is here."""
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - `abort` closes it
        self.sink = _FileSink(self._file)

    async def pass_on(self, _attempt_id: str, _path: str) -> None:
        """One call of any method."""
        try:
            self.check_body()
            link = self._link()
            ids = await self._ids(link)
            call = self._translated(ids)
            await link.check_runs(call, ids)
            await self._exchange(link, call, ids)
        finally:
            self._file.close()

    get = post = put = patch = delete = pass_on

    def _link(self) -> _Link:
        """The way to MLflow. Raises `Unavailable` while it is not up: better now than in the middle."""
        state = self.services.tracker.state()
        if state["status"] == "none":
            message = "This launcher runs without MLflow, and the job's own code called it."
            raise UserError(
                "tracker-none", message, "Log with slicelift.log, or start it with --tracker mlflow."
            )
        if state["status"] != "up":
            raise Unavailable("tracker-away", f"MLflow is {state['status']}.", "The call is tried again.")
        links: dict[str, _Link] = self.application.settings.setdefault("mlflow_links", {})
        return links.setdefault(state["url"], _Link(state["url"]))

    async def _ids(self, link: _Link) -> Ids:
        run_id = self.attempt.run_id
        run = await self.services.call(self.services.ledger.tracked_run, run_id)
        if run is None or run.mlflow_run_id is None:
            raise Unavailable("tracker-run-unknown", f"MLflow does not know {run_id} yet.", "Soon it will.")
        experiment, _ = await link.place_of(run.mlflow_run_id)
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
        self._file.seek(0)
        is_file = "/mlflow-artifacts/" in raw_path
        headers = {key: self.request.headers[key] for key in _PASSED if key in self.request.headers}
        return inward(
            self.request.method or "GET",
            raw_path,
            self.request.query,
            headers=headers,
            body=None if is_file else self._file.read(),
            ids=ids,
        )

    async def _exchange(self, link: _Link, call: Call, ids: Ids) -> None:
        size = self._file.seek(0, 2)
        self._file.seek(0)
        content: Any = _blocks(self, self._file)
        if call.names_runs or size == 0:
            content = self._file.read().replace(ids.local_run.encode(), ids.run.encode())
        if call.json is not None:
            content = json.dumps(call.json).encode()
            size = len(content)
        async with link.stream(call, content, size=size) as response:
            self.set_status(response.status_code)
            for key in _RETURNED:
                if key in response.headers:
                    self.set_header(key, response.headers[key])
            await self._answer_with(response, call, ids)

    async def _answer_with(self, response: httpx.Response, call: Call, ids: Ids) -> None:
        if call.names_runs:
            await self.finish((await response.aread()).replace(ids.run.encode(), ids.local_run.encode()))
        elif "json" in response.headers.get("Content-Type", "") and not call.is_file:
            await self.finish(json.dumps(outward(json.loads(await response.aread()), ids)))
        else:
            if "Content-Length" in response.headers:  # only here: a translated answer has a length of its own
                self.set_header("Content-Length", response.headers["Content-Length"])
            async for chunk in response.aiter_raw(_CHUNK_BYTES):
                self.write(chunk)
                await self.flush()
            await self.finish()


class _FileSink:
    """Takes a body into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.abort = file.close

    def feed(self, chunk: bytes) -> None:
        """The next piece."""
        self._file.write(chunk)


class _Link:
    """HTTP to one MLflow server, and what is known of its runs."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=_SECONDS, trust_env=False)
        self._places: dict[str, tuple[str, str]] = {}

    @asynccontextmanager
    async def stream(self, call: Call, content: Any, *, size: int) -> AsyncIterator[httpx.Response]:
        """Send a call and yield the answer, not yet read. Raises `Unavailable` or `BrokenOff`."""
        headers = dict(call.headers)
        if size or call.method != "GET":
            headers["Content-Length"] = str(size)
        headers["Accept-Encoding"] = "identity"  # bytes go through as they are
        try:
            async with self._http.stream(call.method, call.url, content=content, headers=headers) as response:
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable("tracker-away", f"MLflow does not answer: {error}.", "Try again.") from error
        except httpx.TransportError as error:
            message = f"MLflow went away in the middle of a call: {error!r}."
            raise BrokenOff("tracker-broken-off", message, "Look whether it was carried out.") from error

    async def close(self) -> None:
        """Drop all connections."""
        await self._http.aclose()

    async def place_of(self, run: str) -> tuple[str, str]:
        """Experiment and parent run of a run; two empty strings when there is no such run."""
        if run not in self._places:
            path, query = "api/2.0/mlflow/runs/get", (("run_id", run),)
            async with self.stream(Call(method="GET", path=path, query=query), None, size=0) as response:
                found = json.loads(await response.aread()).get("run") if response.status_code == 200 else None
            if found is None:
                return "", ""
            parents = [t["value"] for t in found["data"].get("tags", []) if t["key"] == "mlflow.parentRunId"]
            if len(self._places) >= _REMEMBERED_RUNS:
                self._places.clear()
            self._places[run] = (found["info"]["experiment_id"], "".join(parents))
        return self._places[run]

    async def check_runs(self, call: Call, ids: Ids) -> None:
        """Raises `Denied` (mlflow-run-closed) when a call reaches beyond its job's experiment or run."""
        for run in named_runs(call) - {ids.run}:
            experiment, parent = await self.place_of(run)
            if experiment and (experiment != ids.experiment or (call.changes and parent != ids.run)):
                message = f"{call.method} /{call.path} names the run {run}, which is not of this job."
                hint = "A job may read the runs of its experiment and change its own run and that run's children."
                raise Denied("mlflow-run-closed", message, hint)


async def _blocks(handler: Handler, file: IO[bytes]) -> AsyncIterator[bytes]:
    while block := await handler.services.call(file.read, _CHUNK_BYTES):
        yield block
