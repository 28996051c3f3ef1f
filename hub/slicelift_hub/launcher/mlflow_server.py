"""Keeps one MLflow server alive beside the launcher, and knows whether it answers.

SQLite and artifacts below `<home>/mlflow`, loopback only. The launcher opens the listening socket and keeps
it over restarts of the server: the port is never lost, and a caller who comes too early waits instead of
being refused.
"""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slicelift.errors import Conflict

LOOPBACK = "127.0.0.1"
_ANSWER_SECONDS = 2.0
_POLL_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LOG_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class TrackerState:
    """`status` is "starting", "up" or "down"; `answered` is when it last did (Unix seconds, None = never)."""

    status: str
    url: str
    answered: float | None = None
    message: str = ""


class MlflowServer:
    """One supervised MLflow server. `start` and `stop` once; the rest may be called from any thread.

    With a `secret` it asks everyone who they are: see `slicelift.tracking_account`.
    """

    def __init__(self, home: Path, *, port: int = 0, secret: str = "") -> None:
        self.folder = home / "mlflow"
        self._secret = secret
        self._asked_port = port
        self._listener: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = TrackerState(status="down", url="", message="MLflow has not been started yet.")

    @property
    def state(self) -> TrackerState:
        """What is known now; never blocks."""
        return self._state

    @property
    def url(self) -> str:
        """Where MLflow is, or "" before `start`. The same over restarts of the server."""
        return self._state.url

    @property
    def pid(self) -> int | None:
        """The server's process id, or None while there is none."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def start(self) -> None:
        """Take the port and begin to start the server; returns at once.

        Raises `Conflict` (port-taken) when a port was asked for and another process has it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._listener = _listen(self._asked_port, remembered=self.folder / "port")
        port = self._listener.getsockname()[1]
        self._state = TrackerState(status="starting", url=f"http://{LOOPBACK}:{port}")
        self._thread = threading.Thread(target=self._supervise, name="mlflow-server", daemon=True)
        self._thread.start()

    def stop(self, *, grace_seconds: float = 6.0) -> None:
        """End the server: SIGTERM, then SIGKILL after `grace_seconds`. Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            _end(self._child, grace_seconds)
            self._thread.join(timeout=grace_seconds)
        if self._listener is not None:
            self._listener.close()
        self._say("down", "MLflow was stopped with the launcher.")

    def wait_up(self, timeout_seconds: float) -> bool:
        """True as soon as the server answers; False when that takes too long."""
        until = time.monotonic() + timeout_seconds
        while time.monotonic() < until and not self._stopping.is_set():
            if self._state.status == "up":
                return True
            time.sleep(0.05)
        return False

    def _supervise(self) -> None:
        """Start the server again whenever it ends, with a growing pause. Runs in its own thread.

        The thread must outlive the child: the kernel's death signal is tied to the thread that forked it.
        """
        pause = 0.5
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._child = self._spawn()
            except OSError as error:
                self._say("down", f"The MLflow server could not be started: {error}.")
            else:
                self._watch(self._child)
                if self._stopping.is_set():  # also when stop() came while the child was being made
                    _end(self._child, grace_seconds=5.0)
            pause = 0.5 if time.monotonic() - began > 60 else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            self._stopping.wait(pause)

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._listener is not None
        descriptor = self._listener.fileno()
        script = Path(__file__).with_name("mlflow_process.py")
        # -P: the script's own folder must not be searched for modules, our names there hide other packages'
        command = [sys.executable, "-P", str(script), str(descriptor), str(os.getpid())]
        self._say("starting", "")
        with _open_log(self.folder / "server.log") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(self._secret),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's: MLflow ends last
            )

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Follow one child until it ends. Two unanswered looks in a row make "down" (or leave "starting")."""
        unanswered = 0
        while child.poll() is None and not self._stopping.is_set():
            if _answers(self.url):
                unanswered = 0
                self._say("up", "", answered=time.time())
            else:
                unanswered += 1
                if self._state.status == "up" and unanswered >= 2:
                    self._say("down", "MLflow does not answer, though its process is there.")
            self._stopping.wait(_POLL_SECONDS)
        if not self._stopping.is_set():
            log = self.folder / "server.log"
            message = f"The MLflow server ended with exit code {child.returncode}"
            self._say("down", f"{message} (see {log}). {_last_line(log)}".strip())

    def _say(self, status: str, message: str, *, answered: float | None = None) -> None:
        last = answered or self._state.answered
        self._state = TrackerState(status=status, url=self._state.url, answered=last, message=message)


def _listen(port: int, *, remembered: Path) -> socket.socket:
    """A listening loopback socket: on `port` if asked for, else on the former port, else on a free one."""
    if port:
        return _bind(port)
    former = remembered.read_text().strip() if remembered.is_file() else ""
    try:
        listener = _bind(int(former) if former.isdecimal() else 0)
    except (Conflict, OverflowError):
        listener = _bind(0)
    with suppress(OSError):  # a full disk costs only the memory of the port
        remembered.write_text(str(listener.getsockname()[1]))
    return listener


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise Conflict(
            "port-taken",
            f"Port {port} of {LOOPBACK}, asked for by MLflow, cannot be used: {os.strerror(error.errno)}.",
            "Choose another with --mlflow-port (or leave the option out for a free one).",
        ) from error
    return listener


def _environment(secret: str) -> dict[str, str]:
    """The launcher's environment without the user's own MLflow settings, plus what `mlflow server` would set.

    Paths are relative to the server's working directory, so no character of the home's name can break a URI.
    """
    kept = {key: value for key, value in os.environ.items() if not key.lstrip("_").startswith("MLFLOW_")}
    return kept | {
        "_MLFLOW_SERVER_FILE_STORE": "sqlite:///mlflow.db",
        "_MLFLOW_SERVER_REGISTRY_STORE": "sqlite:///mlflow.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "./artifacts",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"{LOOPBACK},{LOOPBACK}:*,localhost,localhost:*",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONUNBUFFERED": "1",
        "SLICELIFT_MLFLOW_SECRET": secret,
    }


def _answers(url: str) -> bool:
    """One look at /health, which MLflow serves without touching its database."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(child: subprocess.Popen[bytes] | None, grace_seconds: float) -> None:
    if child is None or child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGCONT)  # one that was stopped could not hear SIGTERM
    try:
        child.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _open_log(path: Path) -> BinaryIO:
    """The log, opened for appending; a large one is first moved aside to `server.log.1`."""
    if path.is_file() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_bytes()[-4096:].decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
