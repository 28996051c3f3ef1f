"""The MLflow server's own process: one uvicorn, no workers beside it, on a socket that the launcher opened.

Run as a file by `mlflow_server`. `mlflow server` itself starts three layers (a parent that imports MLflow to
start uvicorn, uvicorn, and a job runner with seven consumers for LLM evaluation); each import of MLflow costs
seconds of CPU, so this is the middle layer alone: the same application under the same settings.

With `SLICELIFT_MLFLOW_SECRET` set, MLflow's auth app stands before it. Its users are made as they come: a password
is derived from the secret, so that only the launcher knows any, and none is looked up or hashed at each call.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import sqlite3
import sys
import traceback
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn
    from werkzeug.datastructures import Authorization

_PR_SET_PDEATHSIG = 1
_SECRET_VARIABLE = "SLICELIFT_MLFLOW_SECRET"  # noqa: S105 - its name
_AUTH_INI = """[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///auth.db
admin_username = {operator}
authorization_function = __main__:authenticate
"""
_users: set[str] = set()


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


def authenticate() -> Authorization | Any:
    """MLflow's `authorization_function`: whose call the one of flask's context is, or the answer 401."""
    import flask  # flask and MLflow are loaded long before the first call; at the top they would delay `_die_with`
    from mlflow.server import auth

    given = flask.request.authorization
    if given is None or not _is_right(given):
        return auth.make_basic_auth_response()
    _ensure_user(auth.store, str(given.username))
    return given


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
    if os.environ.get(_SECRET_VARIABLE):
        app = _guarded()
    config = uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=5, timeout_keep_alive=30)
    return uvicorn.Server(config)


def _guarded() -> Any:
    """The same application behind MLflow's auth app. Costs half a second."""
    from slicelift.tracking_account import OPERATOR, make_password

    secret = os.environ[_SECRET_VARIABLE]
    # no password in it; the operator's is of no use to MLflow once the account is made
    Path("auth.ini").write_text(_AUTH_INI.format(operator=OPERATOR))
    os.environ |= {
        "MLFLOW_AUTH_CONFIG_PATH": "auth.ini",
        "MLFLOW_AUTH_ADMIN_PASSWORD": make_password(secret, OPERATOR),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": make_password(secret, "forms"),
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        "MLFLOW_SERVER_ENABLE_GRAPHQL_AUTH": "true",
    }
    from mlflow.server import auth

    app = auth.create_app()
    _restore_grants(auth.store)
    _keep_traces_apart()
    return app


def _is_right(given: Authorization) -> bool:
    from slicelift.tracking_account import is_password

    named = given.type == "basic" and bool(given.username)
    return named and is_password(os.environ[_SECRET_VARIABLE], str(given.username), str(given.password))


def _ensure_user(store: Any, name: str) -> None:
    """MLflow keeps what a user may do by user; safe with two at once."""
    if name in _users:
        return
    if not store.has_user(name):
        from mlflow.exceptions import MlflowException

        try:
            store.create_user(name, secrets.token_hex(32))
        except MlflowException:
            if not store.has_user(name):
                raise
    _users.add(name)


def _restore_grants(store: Any) -> None:
    """Give owners what a kill between MLflow's create and its grant, or the loss of auth.db, took from them.

    Whose an experiment or model is, its name says: nobody can make one under another's.
    """
    from slicelift.tracking_account import EXPERIMENT_MARK, MODEL_MARK

    with closing(sqlite3.connect("auth.db", timeout=20)) as database:
        granted = set(database.execute("select resource_type, resource_pattern from role_permissions"))
    with closing(sqlite3.connect("mlflow.db", timeout=20)) as database:
        experiments = database.execute("select experiment_id, name from experiments").fetchall()
        models = database.execute("select name from registered_models").fetchall()
    wanted = [("experiment", str(key), name.partition(EXPERIMENT_MARK)) for key, name in experiments]
    wanted += [("registered_model", name, name.partition(MODEL_MARK)) for (name,) in models]
    for kind, key, (account, mark, _) in wanted:
        if mark and not {(kind, key), ("prompt", key)} & granted:
            _ensure_user(store, account)
            store.grant_user_permission(account, kind, key, "MANAGE")


def _keep_traces_apart() -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
    from mlflow.store.tracking.dbmodels.models import SqlAssessments, SqlTraceInfo
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    from slicelift_hub.launcher.mlflow_traces import Rows, keep_apart

    rows = Rows(traces=SqlTraceInfo, assessments=SqlAssessments)
    keep_apart(SqlAlchemyStore, rows, refusal=lambda why: MlflowException(why, PERMISSION_DENIED))


def _die_with(parent: int) -> None:
    """SIGKILL for this process when its parent ends, also by kill -9, and also while stopped by SIGSTOP."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The launcher that started this MLflow server is gone already.")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
