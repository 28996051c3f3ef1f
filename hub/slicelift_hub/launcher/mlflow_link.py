"""HTTP to one MLflow server: calls streamed both ways, each under the account of whom it is made for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from slicelift.errors import SliceliftError, Unavailable
from slicelift.tracking_account import Account

from slicelift_hub.launcher.mlflow_names import DEFAULT_EXPERIMENT
from slicelift_hub.launcher.mlflow_translation import Call

# MLflow answers when it can; a process that died breaks the connection
_SECONDS = httpx.Timeout(None, connect=2.0)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_REMEMBERED = 10_000


class BrokenOff(SliceliftError):
    """MLflow went away in the middle: nobody knows whether the call was carried out."""

    http_status = 502


class Link:
    """HTTP to one MLflow server, and what is known of its runs and experiments."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=_SECONDS, limits=_LIMITS, trust_env=False)
        self._places: dict[str, tuple[str, str]] = {}
        self._defaults: dict[str, str] = {}

    @asynccontextmanager
    async def stream(
        self, call: Call, content: Any, *, size: int, account: Account
    ) -> AsyncIterator[httpx.Response]:
        """Send a call and yield the answer, not yet read. Raises `Unavailable` or `BrokenOff`."""
        headers = dict(call.headers)
        if call.json is not None:
            headers["Content-Type"] = "application/json"  # MLflow's auth app looks into no other kind of body
        if size or call.method != "GET":
            headers["Content-Length"] = str(size)
        headers["Accept-Encoding"] = "identity"  # bytes go through as they are
        request = self._http.build_request(call.method, call.url, content=content, headers=headers)
        auth = httpx.BasicAuth(*account.login) if account.login else None
        try:
            response = await self._http.send(request, stream=True, auth=auth)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable("tracker-away", f"MLflow does not answer: {error}.", "Try again.") from error
        except httpx.TransportError as error:
            message = f"MLflow went away in the middle of a call: {error!r}."
            raise BrokenOff("tracker-broken-off", message, "Look whether it was carried out.") from error

    async def close(self) -> None:
        """Drop all connections."""
        await self._http.aclose()

    async def place_of(self, run: str, account: Account) -> tuple[str, str]:
        """Experiment and parent run of a run; two empty strings when the account sees no such run."""
        if run not in self._places:
            status, body = await self._get("runs/get", account, run_id=run)
            found = body.get("run") if status == 200 else None
            if found is None:
                return "", ""
            parents = [t["value"] for t in found["data"].get("tags", []) if t["key"] == "mlflow.parentRunId"]
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[run] = (found["info"]["experiment_id"], "".join(parents))
        return self._places[run]

    async def default_experiment(self, account: Account) -> str:
        """The id of an account's own `Default`, made if missing. Safe with two at once."""
        if account.name not in self._defaults:
            found = await self._find_default(account) or await self._make_default(account)
            found = found or await self._find_default(account)
            if not found:
                message = f"MLflow does not make the experiment {DEFAULT_EXPERIMENT!r}."
                raise Unavailable("tracker-fault", message, "Name one with mlflow.set_experiment.")
            self._defaults[account.name] = found
        return self._defaults[account.name]

    def forget_default(self, account: Account) -> None:
        """Look it up anew the next time: it may have been deleted."""
        self._defaults.pop(account.name, None)

    async def _find_default(self, account: Account) -> str:
        name = account.experiment(DEFAULT_EXPERIMENT)
        status, body = await self._get("experiments/get-by-name", account, experiment_name=name)
        return str(body["experiment"]["experiment_id"]) if status == 200 else ""

    async def _make_default(self, account: Account) -> str:
        content = json.dumps({"name": account.experiment(DEFAULT_EXPERIMENT)}).encode()
        headers = {"Content-Type": "application/json"}
        call = Call(method="POST", path="api/2.0/mlflow/experiments/create", headers=headers)
        async with self.stream(call, content, size=len(content), account=account) as response:
            body = json.loads(await response.aread()) if response.status_code == 200 else {}
        return str(body.get("experiment_id", ""))

    async def _get(self, name: str, account: Account, **query: str) -> tuple[int, dict[str, Any]]:
        call = Call(method="GET", path=f"api/2.0/mlflow/{name}", query=tuple(query.items()))
        async with self.stream(call, None, size=0, account=account) as response:
            raw = await response.aread()
        return response.status_code, json.loads(raw) if response.status_code == 200 else {}
