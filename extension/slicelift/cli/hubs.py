"""The hub of this home as the command line sees it: where it is, how it is started and ended, and its people.

Nothing of `slicelift_hub` is imported: hub and accounts are processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slicelift.errors import SliceliftError, Unavailable, from_http

CONFIG = "jupyterhub_config.py"
# sessions get ten seconds each, side by side; services come before
END_SECONDS = 60.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.2
_CALL_SECONDS = 20.0
_PROXY = b"configurable-http-proxy"


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A hub that runs: what browsers open, where its launcher is, and its process."""

    url: str
    launcher: str
    pid: int


def running() -> Hub | None:
    """The hub that serves this home, whoever started it. It may still be on its way up."""
    from slicelift.launcher_client import default_home, is_locked

    folder = default_home() / "hub"
    try:
        if not is_locked(folder / "hub.lock"):
            return None
        body = json.loads((folder / "address.json").read_bytes())
        return Hub(url=body["url"], launcher=body["launcher"], pid=int(body["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def answers(hub: Hub) -> bool:
    """Whether its API does; while it comes up the proxy answers 404 and 503 in its place."""
    import httpx  # a quarter of a second, needed by who waits for a hub only

    try:
        return httpx.get(f"{hub.url}/hub/api/", trust_env=False, timeout=_CALL_SECONDS).status_code == 200
    except httpx.TransportError:
        return False


def command() -> list[str]:
    """How a hub is started. Raises `hub-missing` where that part is not installed."""
    return [sys.executable, "-m", "jupyterhub", "-f", str(_config_file())]


def variables(*, port: int, launcher_port: int, options: Sequence[str]) -> dict[str, str]:
    """What jupyterhub_config.py is told by the environment; `options` are the launcher's."""
    return {
        "SLICELIFT_HUB_PORT": str(port),
        "SLICELIFT_LAUNCHER_PORT": str(launcher_port),
        "SLICELIFT_LAUNCHER_OPTIONS": json.dumps(list(options)),
    }


def end(hub: Hub) -> bool:
    """End sessions, services, proxy and hub; whether nothing of it is left after `END_SECONDS` and a bit.

    Jobs are the launcher's, which is told before.
    """
    asked = _ask_to_end(hub)
    if not asked:
        _send(hub.pid, signal.SIGTERM)
    if _gone(hub, END_SECONDS):
        return True
    for number in (signal.SIGTERM, signal.SIGKILL):
        _send(hub.pid, number)
        if _gone(hub, _KILL_SECONDS):
            return True
    return False


def end_stale_proxy() -> None:
    """End the proxy that a killed hub left on the port, known by its pid file and its command line."""
    from slicelift.launcher_client import default_home, is_alive

    file = default_home() / "hub" / "proxy.pid"
    try:
        pid = int(file.read_text())
        if _PROXY not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
    except (OSError, ValueError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        _send(pid, number)
        until = time.monotonic() + _KILL_SECONDS
        while is_alive(pid) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS / 4)


def accounts(*arguments: str, given: str | None = None) -> dict[str, Any]:
    """Run one command of `slicelift_hub.accounts`. Raises what it says; `given` goes to its stdin."""
    _must_be_installed()
    done = subprocess.run(
        [sys.executable, "-m", "slicelift_hub.accounts", *arguments],
        input=given if given is not None else "",
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        body = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip() or "no answer").splitlines()[-1]
        message = f"The accounts could not be used: {last}."
        raise SliceliftError("accounts-failed", message, "Look at SLICELIFT_HOME/hub.") from None
    if done.returncode != 0:
        raise from_http(400, body)
    answer: dict[str, Any] = body
    return answer


def forget_user(hub: Hub, name: str) -> bool:
    """Have a running hub end this user's sessions, take back their tokens and forget them; whether it did."""
    from urllib.parse import quote

    status = _call(hub, "DELETE", f"users/{quote(name, safe='')}")
    return status in (204, 404)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _ask_to_end(hub: Hub) -> bool:
    return _call(hub, "POST", "shutdown", {"servers": True, "proxy": True}) == 202


def _call(hub: Hub, method: str, path: str, body: Any = None) -> int:
    """The status of one call of the hub's API with the operator's token; 0 when there is no answer."""
    import httpx

    from slicelift.launcher_client import default_home

    try:
        token = (default_home() / "hub" / "operator.token").read_text().strip()
        headers = {"Authorization": f"token {token}"}
        url = f"{hub.url}/hub/api/{path}"
        with httpx.Client(trust_env=False, timeout=_CALL_SECONDS, headers=headers) as http:
            return http.request(method, url, json=body).status_code
    except (OSError, httpx.TransportError):
        return 0


def _gone(hub: Hub, seconds: float) -> bool:
    from slicelift.launcher_client import is_alive

    return wait_until(lambda: not is_alive(hub.pid), seconds)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _config_file() -> Path:
    """Beside the sources in a clone, inside the package in an installation."""
    _must_be_installed()
    found = find_spec("slicelift_hub")
    package = Path(str(found.origin)).parent if found else Path()
    for place in (package.parents[1] / CONFIG, package / CONFIG):
        if place.is_file():
            return place
    message = f"{CONFIG} was not found beside {package}."
    raise Unavailable("hub-missing", message, "Start without a hub: slicelift up --no-hub.")


def _must_be_installed() -> None:
    missing = [name for name in ("slicelift_hub", "jupyterhub") if find_spec(name) is None]
    if missing:
        message = f"The hub is not installed: there is no package {missing[0]} in {sys.prefix}."
        hint = "Start without it: slicelift up --no-hub. Or install it: pip install 'slicelift[hub]'."
        raise Unavailable("hub-missing", message, hint)
