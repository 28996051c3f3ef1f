"""What the container of a pod runs, with nothing of slicelift in its image: `python -P runtime.pyz`.

It lays out the attempt's folder, becomes the agent of this node, and ends with the exit code that tells the cluster
whether to start the gang again. What is wanted lies in a mounted Secret, in the form of agent.json.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift.runtime.agent import Agent, begin
from slicelift.runtime.echo import Echo
from slicelift.runtime.ending import EXIT_CODE as SAVED
from slicelift.runtime.folder import AttemptFolder, read_object, write_json
from slicelift.runtime.shipping import say
from slicelift.runtime.verdict import CANCELLED, HOPELESS

AGAIN = 1
# how long a pod holds its GPUs for a launcher that is away
_PATIENCE_SECONDS = 1800.0
# the exit code that comes first decides: one that only echoes another node's end lets that one go ahead
_ECHO_SECONDS = 10.0
_TERMINATION_LOG = Path("/dev/termination-log")
_TERMINATION_BYTES = 4000

# reason of an exit status -> why no further attempt can do better
_REASONS: Mapping[str, str] = {
    CANCELLED: "nobody wants it any more",
    "attempt-unknown": "the launcher has closed it",
    "interpreter-missing": "the image has no such Python",
    "secret-missing": "the user has to set it first",
    "snapshot-unsafe": "its files leave the project's folder",
    "snapshot-broken": "it came broken several times",
    "snapshot-unknown": "its list of files is gone or damaged at the launcher",
    "snapshot-incomplete": "it lacks the script, or files of it are gone or damaged at the launcher",
    "data-unsafe": "its path leaves the project's folder",
    "data-not-in-remote": "nobody has pushed it",
    "data-corrupt-in-remote": "the remote's bytes are not what their hash says",
    "data-not-warm": "only another submission fetches it again",
    "data-changed": "the results cannot be trusted, and the program would do it again",
}
# exceptions of a program that has not made one step: it is wrong as it stands
_EXCEPTIONS = frozenset(
    {
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "SyntaxError",
        "TabError",
        "UnboundLocalError",
        "UserError",
    }
)


def main() -> int:
    """Run this node of the gang to its end; the container's exit code."""
    # the first process of a container loses a signal that comes before its handler
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    root = Path(os.environ.get("SLICELIFT_POD_ROOT", "/slicelift"))
    folder = AttemptFolder(root / "attempt")
    request = make_request(_read_request(root / "request" / "agent.json"), os.environ)
    if not request:
        say(f"there is no request in {root / 'request' / 'agent.json'}")
        return AGAIN
    folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder.request, request)
    unpack_runtime(Path(sys.argv[0]), folder.runtime)
    told = _work(folder)
    code = exit_code_of(told)
    _leave_word(told, code, delivered=folder.delivered.exists())
    return code


def make_request(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """agent.json of this node and of this restart of the gang; {} when `given` is none. Pure but for one random word.

    A restart of the whole gang is an attempt of its own. An elastic gang goes on while single pods are made anew, which
    the cluster counts as restarts, too: it stays one attempt, and each pod writes its own part of the logs.
    """
    if not given:
        return {}
    restarts = environment.get("SLICELIFT_RESTARTS", "")
    again = int(restarts) if restarts.isdecimal() else 0
    elastic = int(given.get("min_nodes") or given["nodes"]) < int(given["nodes"])
    attempt = int(given["attempt"]) + (0 if elastic else again)
    return {
        "patience_seconds": _PATIENCE_SECONDS,
        "grace_seconds": 10.0,
        **given,
        "attempt": attempt,
        "attempt_id": f"{given['run_id']}-{attempt}",
        "node": int(environment.get("VC_TASK_INDEX") or 0),
        "rendezvous": str(given["attempt_id"]),
        "address": environment.get("SLICELIFT_POD_IP", ""),
        "source": secrets.token_hex(4) if elastic else "",
    }


def unpack_runtime(archive: Path, target: Path) -> None:
    """Lay the package out of the archive that we run from, for the ranks to import."""
    with zipfile.ZipFile(archive) as source:
        members = [name for name in source.namelist() if name.startswith("slicelift/")]
        source.extractall(target, members=members)


def exit_code_of(told: Mapping[str, Any]) -> int:
    """What the cluster is to be told of an exit status (exit.json)."""
    status, reason = told.get("status"), str(told.get("reason", ""))
    if status == "FINISHED":
        return 0
    if reason in _REASONS:
        return HOPELESS
    if status == "KILLED":
        return SAVED if told.get("saved") else AGAIN
    exception = str((told.get("failure") or {}).get("exception", ""))
    return HOPELESS if exception in _EXCEPTIONS and not told.get("logged") else AGAIN


def _read_request(path: Path) -> dict[str, Any]:
    """A mounted Secret is a link into a folder that the kubelet swaps: it is followed, unlike what a job could have put there."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _work(folder: AttemptFolder) -> dict[str, Any]:
    """Be the agent; its exit status."""
    container = os.dup(1)
    _write_to(folder.agent_log)
    try:
        agent = begin(folder)
    except BaseException:
        # its traceback belongs where somebody sees it
        _redirect(container)
        raise
    echo = Echo(folder.agent_log, container, secrets=lambda: agent.secrets)
    echo.start()
    try:
        say(f"node {os.environ.get('VC_TASK_INDEX', '0')} on {_machine()}")
        agent.run()
        return _ended(folder, agent)
    finally:
        echo.finish()


def _ended(folder: AttemptFolder, agent: Agent) -> dict[str, Any]:
    told = read_object(folder.exit)
    if told.get("echo") and told.get("status") == "FAILED" and not agent.interrupted:
        over = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: over.set())
        over.wait(_ECHO_SECONDS)
    return told


def _write_to(log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _redirect(handle)
    os.close(handle)


def _redirect(handle: int) -> None:
    for descriptor in (1, 2):
        os.dup2(handle, descriptor)


def _machine() -> str:
    return os.environ.get("SLICELIFT_NODE_NAME") or socket.gethostname()


def _leave_word(told: Mapping[str, Any], code: int, *, delivered: bool) -> None:
    """Where kubectl and the backend find it although the launcher may be away."""
    if not _TERMINATION_LOG.exists():
        return
    word = {"reason": told.get("reason", ""), "exit_code": code, "time": time.time(), "delivered": delivered}
    word["message"] = str(told.get("message", ""))[: _TERMINATION_BYTES // 8]
    # the backend keeps so many characters, not bytes
    text = json.dumps(word, ensure_ascii=False)
    with suppress(OSError):
        _TERMINATION_LOG.write_text(text, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
