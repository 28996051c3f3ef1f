"""Users of one machine kept apart, where the hub was started as root: what is claimed is in docs/isolation.md.

Sessions and jobs run as one system user per Hub user, in a view of the machine in which the launcher's home is empty
but for what is theirs; the ranks of a gang have a network of their own. `slicelift_hub.enclosure` does it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slicelift
import slicelift_profiles
from slicelift.launcher_client import default_home

import slicelift_hub
from slicelift_hub.homes import HOMES, slug
from slicelift_hub.launcher.daemon import ADDRESS_FILE
from slicelift_hub.system_users import SystemUser, account_name, give, system_user

SWITCH = "SLICELIFT_ISOLATION"
_ENCLOSURE = Path(__file__).with_name("enclosure.py")
_NOBODY = 65534
_PROBE_SECONDS = 30


@functools.cache
def available() -> str:
    """Empty when users are kept apart here, else why not. Tried out once per process; `SLICELIFT_ISOLATION=off` says no."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return f"{SWITCH} switches it off"
    if os.geteuid() != 0:
        return "the hub was not started as root"
    if not sys.platform.startswith("linux"):
        return "only Linux has what it takes"
    if not shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        return "useradd is not installed"
    return _probe()


def enclosed_command(
    user: str,
    command: Sequence[str],
    *,
    visible: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    network: bool = True,
    home: Path | None = None,
    name: str = "",
) -> list[str]:
    """`command` as it is to be started so that it runs as that Hub user's system user; as it is where not `available`.

    The user's account and the folders in `writable` are made and given to the account, whole: name folders of the
    user's own only. Paths in `visible` are shown read-only; this interpreter and Slicelift always are. The launcher's
    home is otherwise empty, /tmp and /dev/shm are the command's own. With `network` False it has loopback only. By
    `name` those who live in this view are known (`processes.inhabitants`).
    Start it from root with the folder it is to work in as cwd. Blocks: a first call runs useradd (0.1 s and more).
    """
    if available():
        return list(command)
    root = home or default_home()
    account = system_user(root, user)
    for folder in writable:
        give(account, folder)
    plan = _plan(root, account, visible=visible, writable=writable, network=network)
    return _enter(plan | {"name": name or plan["name"]}, command)


def session_arguments() -> list[str]:
    """What Jupyter's server of an enclosed session is to be told: kernels listen at files, not at ports.

    A kernel's port of outputs asks nobody who they are, so any user of the machine could read along.
    """
    return [] if available() else ["--KernelManager.transport=ipc"]


def session_environment() -> dict[str, str]:
    """What goes with it: the files lie in the session's own /tmp, since the path of a socket has 107 bytes at most."""
    return {} if available() else {"JUPYTER_RUNTIME_DIR": "/tmp/jupyter-runtime"}  # noqa: S108 - nobody else's


class JobEnclosure:
    """How the backend "local" has a job's agent run as its owner: `slicelift.backends.base.Enclosure`.

    With `network` "own" ranks reach each other and the agent's MLflow, nothing else; with "host" they have the machine's
    network, on which others can reach the ports that torch opens.
    """

    def __init__(self, home: Path, *, network: str = "own", visible: Sequence[Path] = ()) -> None:
        self._home = home.absolute()
        self._network = network == "host"
        self._visible = tuple(visible)

    @property
    def address_file(self) -> Path:
        """Where jobs find the launcher's address, without a token."""
        return self._home / ADDRESS_FILE

    def cache(self, owner: str) -> Path:
        """The owner's own cache of data. Pure."""
        return self._home / "cache" / account_name(self._home, owner)

    def give(self, owner: str, folder: Path) -> None:
        """Make this folder, with all in it, the owner's. Idempotent."""
        give(system_user(self._home, owner), folder)

    def agent_command(
        self,
        owner: str,
        command: Sequence[str],
        *,
        writable: Sequence[Path],
        read_only: Sequence[Path],
        ranks: bool,
    ) -> list[str]:
        """`command` (an agent's) as the owner; with `ranks` a seat for them, where `read_only` of the `writable` is so."""
        account = system_user(self._home, owner)
        own = self._home / HOMES / slug(owner)
        folders = [*writable, *([own] if own.is_dir() else [])]
        for folder in folders:
            give(account, folder)
        visible = [self.address_file.parent, *self._visible]
        plan = _plan(self._home, account, visible=visible, writable=folders, network=True)
        place = str(own if own.is_dir() else writable[0])
        plan["environment"] = {
            "HOME": place,
            "USER": account.name,
            "LOGNAME": account.name,
            "SHELL": "/bin/sh",
        }
        if ranks:
            plan["ranks"] = {"network": self._network, "read_only": [str(path) for path in read_only]}
        return _enter(plan, command)


def program_paths() -> list[Path]:
    """What a Python of ours needs, wherever it lies: interpreter, environment and our own packages."""
    packages = [
        Path(module.__file__ or "").parents[1] for module in (slicelift, slicelift_hub, slicelift_profiles)
    ]
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable), *packages]
    return [path for path in dict.fromkeys(found) if path.exists()]


def _plan(
    home: Path, account: SystemUser, *, visible: Sequence[Path], writable: Sequence[Path], network: bool
) -> dict[str, Any]:
    return {
        "name": "tmpfs",
        "account": account.name,
        "uid": account.uid,
        "gid": account.gid,
        "hidden": [str(home.absolute())],
        "visible": [str(path.absolute()) for path in (*program_paths(), *visible) if path.exists()],
        "writable": [str(path.absolute()) for path in writable],
        "network": network,
        "environment": {},
        "ranks": None,
    }


def _enter(plan: dict[str, Any], command: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(_ENCLOSURE), json.dumps(plan), *command]


def _probe() -> str:
    """Do it once, as nobody."""
    nobody = SystemUser(name="", uid=_NOBODY, gid=_NOBODY)
    plan = _plan(default_home(), nobody, visible=(), writable=(), network=False)
    command = _enter(plan, [sys.executable, "-P", "-c", "import slicelift.models, slicelift_hub"])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False, cwd="/", env={}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be tried out: {error}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip() or "no word").splitlines()[-1]
    return f"this machine refuses it, or other users cannot read {sys.prefix}: {last[-200:]}"
