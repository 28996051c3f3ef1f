"""Ends sessions that nobody uses: jupyterhub-idle-culler with our judge.

A hub's own `last_activity` is no use here: an open JupyterLab tab polls for ever, and every poll counts. So a session
is judged by what its own server says of kernels and terminals: the last time a kernel sent anything or a terminal was
used. A busy kernel is never idle. The limits are those of the session's profile, as it was when it started:
`idle_minutes`, and `max_hours`, at which a session ends in any case.

A session's server is its user's to change, and a token that reaches it is theirs: it is asked with the session's own.

    python -m slicelift_hub.culling --timeout=7200 --cull-every=60
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from jupyterhub_idle_culler import IdleCuller
from slicelift.runtime import processes
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from traitlets import default

NAME = "idle-culler"
REQUEST_SECONDS = 10.0
_TOKEN = b"JUPYTERHUB_API_TOKEN="
_log = logging.getLogger("traitlets")
Row = Mapping[str, Any]


class SessionCuller(IdleCuller):  # type: ignore[misc]  # no types
    """The culler as a service of the hub. `timeout` is the idle limit of profiles that set none, in seconds."""

    @default("cull_arbiter_hook")  # type: ignore[untyped-decorator]
    def _default_cull_arbiter_hook(self) -> Any:
        return arbiter

    @default("config_file")  # type: ignore[untyped-decorator]
    def _default_config_file(self) -> str:
        # the package's own would run an idle_culler_config.py of whatever folder the hub was started in
        return ""


async def arbiter(*, inactive_limit: float, server: Row, **_: object) -> bool:
    """The hook of jupyterhub-idle-culler: whether to stop that server. The hub's own `inactive` is passed over.

    A session that does not answer is left alone: nothing is known of its kernels.
    """
    state: Row = server.get("state") or {}
    # the hub's own `started` is when the start was asked for, before anything ran
    age = time.time() - (state.get("since") or _moment(server.get("started")))
    if state.get("max_hours") and age >= state["max_hours"] * 3600:
        _log.info("%s is as old as its profile allows (%g h).", server["full_name"], state["max_hours"])
        return True
    limit = state["idle_minutes"] * 60 if state.get("idle_minutes") else inactive_limit
    if age < limit:
        return False
    idle = await _idle(server, state, age=age)
    if idle is None or idle < limit:
        return False
    _log.info("%s has been idle for %d s; its limit is %d s.", server["full_name"], idle, limit)
    return True


def idle_seconds(
    kernels: Sequence[Row], terminals: Sequence[Row], *, age: float, now: float | None = None
) -> float | None:
    """How long nothing has happened in a session that is `age` seconds old; None while a kernel is busy."""
    if any(kernel.get("execution_state") == "busy" for kernel in kernels):
        return None
    now = time.time() if now is None else now
    last = max((_moment(row.get("last_activity")) for row in (*kernels, *terminals)), default=0.0)
    return min(age, now - last)


def make_service(*, timeout_seconds: int = 7200, every_seconds: int = 60) -> dict[str, Any]:
    """For `c.JupyterHub.services`."""
    command = [sys.executable, "-m", "slicelift_hub.culling"]
    options = [f"--timeout={timeout_seconds}", f"--cull-every={every_seconds}"]
    return {"name": NAME, "command": command + options}


def make_role() -> dict[str, Any]:
    """For `c.JupyterHub.load_roles`: list and stop sessions, nothing else. What looks into one is its own token."""
    read = ["list:users", "read:users:activity", "read:servers", "admin:server_state"]
    return {"name": NAME, "services": [NAME], "scopes": [*read, "delete:servers"]}


async def _idle(server: Row, state: Row, *, age: float) -> float | None:
    """`idle_seconds` by what the session's own server says, straight from its port; None also where it says nothing."""
    address, token = state.get("address"), _token(state)
    if not address or not token:
        _log.warning("%s is not judged: neither its process nor its pod is known.", server["full_name"])
        return None
    base = f"{address}{urlsplit(server['url']).path}api"
    try:
        found = await asyncio.gather(*(_get(f"{base}/{what}", token) for what in ("kernels", "terminals")))
        return idle_seconds(*found, age=age)
    # what a server of the user's own making answers may be anything
    except (HTTPClientError, OSError, ValueError, TypeError, AttributeError) as error:
        _log.warning("%s is not judged: its server does not answer (%s).", server["full_name"], error)
        return None


def _token(state: Row) -> str:
    """The session's own: of a pod from its state, else from the environment of exactly its process; empty without one."""
    if state.get("pod_name"):
        return str(state.get("token") or "")
    if not processes.alive((state.get("pid", 0), state.get("pid_start", 0))):
        return ""
    found = (
        item.removeprefix(_TOKEN) for item in processes.environment(state["pid"]) if item.startswith(_TOKEN)
    )
    return next(found, b"").decode(errors="replace")


async def _get(url: str, token: str) -> list[Row]:
    """An empty list for what that server does not have, such as terminals."""
    headers = {"Authorization": f"token {token}"}
    request = HTTPRequest(
        f"{url}?no_track_activity=1",
        headers=headers,
        request_timeout=REQUEST_SECONDS,
        follow_redirects=False,  # where it leads is its user's to say
    )
    answer = await AsyncHTTPClient().fetch(request, raise_error=False)
    if answer.code == 404:
        return []
    answer.rethrow()
    rows: list[Row] = json.loads(answer.body)
    return rows


def _moment(text: str | None) -> float:
    """Unix seconds of the hub's and Jupyter's times; 0 where there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


if __name__ == "__main__":
    SessionCuller.launch_instance()
