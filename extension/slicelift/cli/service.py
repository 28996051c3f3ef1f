"""`up` and `down`: everything on this machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicelift.cli.access import json_option
from slicelift.cli.demo import NOTEBOOK, Demo
from slicelift.cli.foreground import Child, Stopped, free_port, stopped_by_signals
from slicelift.cli.outcomes import FAILED, FINE
from slicelift.cli.printing import complain, dim, duration, plural, print_json
from slicelift.errors import Conflict, SliceliftError, Unavailable
from slicelift.models import RunView, Status

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

DEFAULT_PORT = 8765
_START_SECONDS = 60.0
_TRACKER_SECONDS = 120.0
_DOWN_SECONDS = 90.0
_POLL_SECONDS = 0.2
_ACTIVE = tuple(status.value for status in Status if not status.terminal)
_PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--port", metavar="N", type=_PORT, default=DEFAULT_PORT, show_default=True, help="The launcher's port."
)
@click.option("--mlflow-port", metavar="N", type=_PORT, help="MLflow's port. By default a free one.")
@click.option(
    "--slots", metavar="N", type=click.IntRange(min=1), help="Workers at once. By default the cores."
)
@click.option("--keep-jobs", is_flag=True, help="Let running jobs go on after Ctrl-C.")
@click.option("--no-demo", is_flag=True, help="Do not prepare the demo project.")
@json_option
def up(
    port: int, mlflow_port: int | None, slots: int | None, keep_jobs: bool, no_demo: bool, as_json: bool
) -> int:
    """Start the launcher, which starts MLflow, and stay until Ctrl-C.

    Everything listens on this machine only. Where a launcher runs already, the command says so and ends with exit
    status 0. Ctrl-C ends running jobs as KILLED, and `slicelift retry` starts them again; with --keep-jobs they
    go on. With --json the addresses are one object on stdout once everything is there.
    """
    running = _running()
    if running is not None:
        return _tell_running(running, as_json=as_json)
    ports = {"--port": port, "--mlflow-port": mlflow_port}
    for option, number in ports.items():
        if number is not None:
            free_port(number, option)
    wanted = {**ports, "--slots": slots}
    options = [f"{option}={number}" for option, number in wanted.items() if number is not None]
    service = Service(
        [*options, *(["--keep-jobs"] if keep_jobs else [])], keep_jobs=keep_jobs, as_json=as_json
    )
    try:
        with stopped_by_signals():
            return service.run(demo=not no_demo)
    except Conflict as conflict:
        # a promotion elsewhere started one in the same moment
        running = _running() if conflict.code == "launcher-running" else None
        if running is None:
            raise
        return _tell_running(running, as_json=as_json)


@click.command()
@click.option("--keep-jobs", is_flag=True, help="Let running jobs go on.")
@json_option
def down(keep_jobs: bool, as_json: bool) -> int:
    """Stop the launcher and MLflow, whoever started them. Nothing running is fine."""
    client = _running(any_version=True)
    if client is None:
        _tell_down("No launcher is running.", as_json=as_json, stopped=False)
        return FINE
    active = _active(client)
    client.shutdown(keep_jobs=keep_jobs)
    if not _gone(client):
        message = f"The launcher at {client.url} still runs after {duration(_DOWN_SECONDS)}."
        raise SliceliftError("launcher-stays", message, "It is ending jobs; look again in a moment.")
    _tell_down(f"The launcher has stopped. {_fate(active, keep_jobs)}", as_json=as_json, stopped=True)
    return FINE


class Service:
    """One `up` from its first line to its last."""

    def __init__(self, options: list[str], *, keep_jobs: bool, as_json: bool) -> None:
        self._options, self._keep_jobs, self._as_json = options, keep_jobs, as_json
        self._begun = time.monotonic()
        self._client: Client | None = None
        self._child: Child | None = None
        self._demo: Demo | None = None

    def run(self, *, demo: bool) -> int:
        """Everything up, then wait. Exit status 0 after Ctrl-C, 1 when the launcher ends by itself."""
        from slicelift.launcher_client import default_home

        try:
            self._child = Child(self._options, log=default_home() / "launcher.log")
            self._demo = Demo(Path.cwd(), self._say) if demo else None
            self._client = self._await_launcher(self._child)
            self._say(f"launcher at {self._client.url} (log: {self._child.log})")
            tracker = self._await_tracker(self._client, self._child)
            ready = self._demo.wait() if self._demo else False
            if self._child.exit_status() is None:
                self._tell_ready(self._client, tracker, ready=ready)
            return self._ended(self._child)
        except Stopped:
            return self._stop()
        except BaseException:
            self._end_quietly()
            raise

    def _await_launcher(self, child: Child) -> Client:
        """Until our own child answers."""
        from slicelift.launcher_client import default_home, find, read_state

        while time.monotonic() - self._begun < _START_SECONDS:
            if child.exit_status() is not None:
                raise child.fault()
            state = read_state(default_home())
            if state and state["pid"] == child.pid:
                return find()
            time.sleep(_POLL_SECONDS)
        message = f"The launcher does not answer after {duration(_START_SECONDS)}."
        raise Unavailable("launcher-slow", message, f"Its log is {child.log}.")

    def _await_tracker(self, client: Client, child: Child) -> dict[str, Any]:
        """Until MLflow answers, or for `_TRACKER_SECONDS`: jobs do not need it to start."""
        since, told = time.monotonic(), False
        while (tracker := _health(client)).get("status") != "up":
            if child.exit_status() is not None:
                return {}
            if tracker.get("status") == "none" or time.monotonic() - since > _TRACKER_SECONDS:
                break
            if not told:
                self._say("MLflow is starting; it takes some 20 s and jobs need not wait for it")
                told = True
            time.sleep(_POLL_SECONDS)
        self._say(_tracker_words(tracker))
        return tracker

    def _tell_ready(self, client: Client, tracker: dict[str, Any], *, ready: bool) -> None:
        from slicelift.launcher_client import default_home

        command = f"{_program()} promote {NOTEBOOK if ready else 'NOTEBOOK'} --workers 2 --wait"
        if self._as_json:
            print_json({"url": client.url, "mlflow": tracker.get("url"), "pid": _pid(self._child)})
            return
        mlflow = tracker.get("url") or tracker.get("status")
        lines = [
            "",
            f"  launcher  {client.url}",
            f"  MLflow    {mlflow}",
            f"  files     {default_home()}",
            f"  try       {command}",
            "",
        ]
        print("\n".join(lines), flush=True)
        print(dim("Ctrl-C stops everything."), flush=True)

    def _ended(self, child: Child) -> int:
        """The launcher ended without us: asked to, or by a fault, which is raised."""
        if child.wait() != 0:
            raise child.fault()
        self._say("The launcher was stopped, as by `slicelift down`")
        return FINE

    def _stop(self) -> int:
        """After the signal: end jobs and services, and say what became of the jobs."""
        print("\nStopping: jobs, MLflow, launcher.", file=sys.stderr, flush=True)
        if self._demo:
            self._demo.stop()
        if self._child is None:
            return FINE
        active = _active(self._client)
        if self._child.stop() is None:
            message = f"The launcher (process {self._child.pid}) is still ending jobs; it was left to it."
            complain(message, f"Its log is {self._child.log}.")
            return FAILED
        print(f"Stopped. {_fate(active, self._keep_jobs)}", file=sys.stderr, flush=True)
        return FINE

    def _end_quietly(self) -> None:
        """Something went wrong on the way up: nothing of ours stays behind."""
        if self._demo:
            self._demo.stop()
        if self._child:
            self._child.stop()

    def _say(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        stream = sys.stderr if self._as_json else sys.stdout
        print(f"{time.monotonic() - self._begun:5.1f} s  {text}", file=stream, flush=True)


def _running(*, any_version: bool = False) -> Client | None:
    """A launcher that answers, or None. Raises `launcher-version` for another one's unless `any_version`."""
    from slicelift.launcher_client import find

    try:
        client = find(any_version=any_version)
        click.get_current_context().call_on_close(client.close)
        client.health()
    except Unavailable:
        return None
    return client


def _tell_running(client: Client, *, as_json: bool) -> int:
    from slicelift.launcher_client import default_home, read_state

    tracker = _health(client)
    if as_json:
        state = read_state(default_home()) or {}
        print_json({"url": client.url, "mlflow": tracker.get("url"), "pid": state.get("pid")})
    else:
        print(f"A launcher is running already: {client.url}, {_tracker_words(tracker)}.")
        print(dim("next: slicelift jobs · slicelift down stops it"))
    return FINE


def _tell_down(text: str, *, as_json: bool, stopped: bool) -> None:
    if as_json:
        print_json({"stopped": stopped, "message": text})
    else:
        print(text)


def _health(client: Client) -> dict[str, Any]:
    """The tracker's state; a launcher too busy to answer counts as starting."""
    try:
        tracker = client.health()["tracker"]
    except Unavailable:
        return {"status": "starting", "url": ""}
    return tracker if isinstance(tracker, dict) else {}


def _tracker_words(tracker: dict[str, Any]) -> str:
    status = tracker.get("status")
    if status == "up":
        return f"MLflow at {tracker.get('url')}"
    if status == "none":
        return "no MLflow"
    return f"MLflow is {status}; what it misses it gets when it answers"


def _active(client: Client | None) -> list[RunView]:
    """Runs that are not over; none can be known without a launcher, or of one that writes them otherwise."""
    if client is None:
        return []
    try:
        return client.jobs(status=_ACTIVE, limit=100)
    except (SliceliftError, LookupError, TypeError, ValueError):
        return []


def _fate(active: list[RunView], keep_jobs: bool) -> str:
    if not active:
        return "No job was running."
    names = ", ".join(f"{view.run_id} ({view.name})" for view in active[:5])
    more = f" and {len(active) - 5} more" if len(active) > 5 else ""
    if keep_jobs:
        return (
            f"{plural(len(active), 'job')} left to go on: {names}{more}; the next `slicelift up` finds them."
        )
    return f"{plural(len(active), 'job')} ended: {names}{more}. Once it is up again: slicelift retry RUN."


def _gone(client: Client) -> bool:
    """Whether the launcher has let go of its home, waited for."""
    from slicelift.launcher_client import default_home, read_state

    until = time.monotonic() + _DOWN_SECONDS
    while time.monotonic() < until:
        state = read_state(default_home())
        if state is None or state.get("url") != client.url:
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _pid(child: Child | None) -> int | None:
    return child.pid if child else None


def _program() -> str:
    """The command as the user can type it here: by name if the PATH has it, else by its path."""
    given = sys.argv[0]
    if shutil.which("slicelift"):
        return "slicelift"
    return os.path.relpath(given) if given.endswith("slicelift") else f"{sys.executable} -m slicelift"
