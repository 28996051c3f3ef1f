"""The MLflow server's own process: one uvicorn, no workers beside it, on a socket that the launcher opened.

Run as a file by `mlflow_server`. `mlflow server` itself starts three layers (a parent that imports MLflow to
start uvicorn, uvicorn, and a job runner with seven consumers for LLM evaluation); each import of MLflow costs
seconds of CPU, so this is the middle layer alone: the same application under the same settings.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sqlite3
import sys
import traceback
import warnings
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve MLflow on an inherited listening socket until SIGTERM, or until `parent` is gone.

    Ends with a line that says why when it cannot: the supervisor shows the last line of the log.
    """
    _die_with(parent)
    try:
        _check_database()
        server = _make_server()
    except Exception as error:  # noqa: BLE001 - all of them end here, in words
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
    server.run(sockets=[socket.socket(fileno=descriptor)])


def _check_database() -> None:
    """A broken file is found now, not after ten seconds of imports."""
    with closing(sqlite3.connect("mlflow.db", timeout=20)) as database:
        database.execute("pragma schema_version").fetchone()


def _make_server() -> uvicorn.Server:
    # MLflow's own use of a deprecated starlette module; one line of noise per start
    warnings.filterwarnings("ignore", message=".*starlette.*")
    import uvicorn  # here, not at the top: nothing may take time before the death signal is armed
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    store = os.environ["_MLFLOW_SERVER_FILE_STORE"]
    # creates or checks the schema before the first answer, as `mlflow server` does
    initialize_backend_stores(store, store, os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"])
    config = uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=5, timeout_keep_alive=30)
    return uvicorn.Server(config)


def _die_with(parent: int) -> None:
    """SIGKILL for this process when its parent ends, also by kill -9, and also while stopped by SIGSTOP."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The launcher that started this MLflow server is gone already.")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
