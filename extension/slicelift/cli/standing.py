"""One `up` from its first line to its last: the services started, told, waited for, and ended as one."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicelift.cli import hubs
from slicelift.cli.demo import NOTEBOOK, Demo
from slicelift.cli.foreground import Child, Stopped
from slicelift.cli.outcomes import FAILED, FINE
from slicelift.cli.printing import complain, dim, print_json
from slicelift.errors import SliceliftError, Unavailable
from slicelift.figures import duration, plural
from slicelift.models import RunView, Status

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

START_SECONDS = 60.0
# the hub waits for the launcher's first answer, and a machine may be busy
HUB_START_SECONDS = 180.0
TRACKER_SECONDS = 120.0
DOWN_SECONDS = 90.0
POLL_SECONDS = 0.2
_ACTIVE = tuple(status.value for status in Status if not status.terminal)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What `up` was asked for. Without `hub_port` there is no hub."""

    port: int
    hub_port: int | None
    mlflow_port: int | None
    slots: int | None
    keep_jobs: bool
    demo: bool
    as_json: bool

    @property
    def launcher_options(self) -> list[str]:
        """Beside the port."""
        told = {"--mlflow-port": self.mlflow_port, "--slots": self.slots}
        return [f"{option}={number}" for option, number in told.items() if number is not None]


class Service:
    """The launcher alone, for the user who runs it."""

    what = "launcher"
    parts = "jobs, MLflow, launcher"

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.begun = time.monotonic()
        self.client: Client | None = None
        self.child: Child | None = None
        self._demo: Demo | None = None

    def run(self) -> int:
        """Everything up, then wait. Exit status 0 after Ctrl-C, 1 when it ends by itself."""
        try:
            self.child = self.start()
            self._demo = Demo(Path.cwd(), self.say) if self.wanted.demo else None
            self.client = self.await_launcher(self.child)
            ready = self._demo.wait() if self._demo else False
            if self.child.exit_status() is None:
                self._tell_ready(self.client, self.child, ready=ready)
            return self._ended(self.child)
        except Stopped:
            return self._stop()
        except BaseException:
            self._end_quietly()
            raise

    def start(self) -> Child:
        """The process that is the service."""
        from slicelift.launcher_client import default_home

        keep = ["--keep-jobs"] if self.wanted.keep_jobs else []
        options = [f"--port={self.wanted.port}", *self.wanted.launcher_options, *keep]
        command = [sys.executable, "-m", "slicelift_hub.launcher", *options]
        return Child(command, name="launcher", log=default_home() / "launcher.log")

    def await_launcher(self, child: Child) -> Client:
        """Until our own child answers. Raises its fault, or `launcher-slow`."""
        from slicelift.launcher_client import default_home, find, read_state

        while time.monotonic() - self.begun < START_SECONDS:
            if child.exit_status() is not None:
                raise child.fault()
            state = read_state(default_home())
            if state and state["pid"] == child.pid:
                client = find()
                self.say(f"launcher at {client.url} (log: {child.log})")
                return client
            time.sleep(POLL_SECONDS)
        message = f"The launcher does not answer after {duration(START_SECONDS)}."
        raise Unavailable("launcher-slow", message, f"Its log is {child.log}.")

    def end(self) -> bool:
        """Jobs and services; whether it is over."""
        return self.child is None or self.child.stop() is not None

    def addresses(self, client: Client) -> dict[str, Any]:
        """What `--json` tells, but for MLflow's."""
        return {"url": client.url, "mlflow": "", "pid": self.child.pid if self.child else None}

    def shown(self, tracker: dict[str, Any]) -> dict[str, Any]:
        """`tracker` with the address that people open."""
        return tracker

    def lines(self, told: dict[str, Any]) -> list[tuple[str, str]]:
        """What is told of `addresses`, beside files and the next step."""
        return [("launcher", str(told["url"])), ("MLflow", str(told["mlflow"]))]

    def say(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        stream = sys.stderr if self.wanted.as_json else sys.stdout
        print(f"{time.monotonic() - self.begun:5.1f} s  {text}", file=stream, flush=True)

    def _await_tracker(self, client: Client, child: Child) -> dict[str, Any]:
        """Until MLflow answers, or for `TRACKER_SECONDS`: jobs do not need it to start."""
        since, told = time.monotonic(), False
        while (tracker := health(client)).get("status") != "up":
            if child.exit_status() is not None:
                return {}
            if tracker.get("status") == "none" or time.monotonic() - since > TRACKER_SECONDS:
                break
            if not told:
                self.say("MLflow is starting; it takes some 20 s and jobs need not wait for it")
                told = True
            time.sleep(POLL_SECONDS)
        tracker = self.shown(tracker)
        self.say(tracker_words(tracker))
        return tracker

    def _tell_ready(self, client: Client, child: Child, *, ready: bool) -> None:
        """At once, with MLflow's line behind, since nobody needs it to begin; `--json` has all in one, at the end."""
        if not self.wanted.as_json:
            self._tell_people(client, ready=ready)
        tracker = self._await_tracker(client, child)
        if self.wanted.as_json and child.exit_status() is None:
            print_json({**self.addresses(client), "mlflow": tracker.get("url")})

    def _tell_people(self, client: Client, *, ready: bool) -> None:
        from slicelift.launcher_client import default_home

        tracker = self.shown(health(client))
        status = str(tracker.get("status"))
        words = {"up": str(tracker.get("url")), "starting": "starting; a line below says when it answers"}
        told = {**self.addresses(client), "mlflow": words.get(status, status)}
        command = f"{program()} promote {NOTEBOOK if ready else 'NOTEBOOK'} --workers 2 --wait"
        rows = [*self.lines(told), ("files", str(default_home())), ("try", command)]
        text = "\n".join(f"  {name:<9} {value}" for name, value in rows)
        print(f"\n{text}\n", flush=True)
        print(dim("Ctrl-C stops everything."), flush=True)

    def _ended(self, child: Child) -> int:
        """It ended without us: asked to, or by a fault, which is raised."""
        if child.wait() != 0:
            raise child.fault()
        self.say(f"The {self.what} was stopped, as by `slicelift down`")
        return FINE

    def _stop(self) -> int:
        """After the signal: end jobs and services, and say what became of the jobs."""
        print(f"\nStopping: {self.parts}.", file=sys.stderr, flush=True)
        if self._demo:
            self._demo.stop()
        if self.child is None:
            return FINE
        active = active_runs(self.client)
        if not self.end():
            message = f"The {self.what} (process {self.child.pid}) is still ending jobs; it was left to it."
            complain(message, f"Its log is {self.child.log}.")
            return FAILED
        print(f"Stopped. {fate(active, self.wanted.keep_jobs)}", file=sys.stderr, flush=True)
        return FINE

    def _end_quietly(self) -> None:
        """Something went wrong on the way up: nothing of ours stays behind."""
        if self._demo:
            self._demo.stop()
        self.end()


class HubService(Service):
    """The hub, which starts proxy, launcher and the culler of idle sessions."""

    what = "hub"
    parts = "jobs, sessions, MLflow, launcher, hub"

    def start(self) -> Child:
        """See `Service`. Its launcher takes the place of one that runs in the background, jobs and all."""
        from slicelift.launcher_client import default_home

        home, port = default_home(), self.wanted.hub_port or 0
        told = hubs.variables(port=port, launcher_port=self.wanted.port, options=self.wanted.launcher_options)
        log, logs = home / "hub" / "hub.log", [home / "launcher.log"]
        return Child(hubs.command(), name="hub", log=log, logs=logs, variables=told)

    def await_launcher(self, child: Child) -> Client:
        """Until launcher and hub answer. Raises the fault of either, or `hub-slow`."""
        self.say("the hub is starting: proxy, launcher, culler of idle sessions")
        client = None
        while time.monotonic() - self.begun < HUB_START_SECONDS:
            if child.exit_status() is not None:
                raise child.fault()
            client = client or self._new_launcher()
            hub = hubs.running()
            if client and hub and hub.pid == child.pid and hubs.answers(hub):
                self.say(f"hub at {hub.url} (log: {child.log})")
                return client
            time.sleep(POLL_SECONDS)
        message = f"The hub does not answer after {duration(HUB_START_SECONDS)}."
        raise Unavailable("hub-slow", message, f"Its log is {child.log}.")

    def end(self) -> bool:
        """See `Service`: jobs by the launcher, sessions and services by the hub. What is another start's stays."""
        hub = hubs.running()
        others = hub is not None and (self.child is None or hub.pid != self.child.pid)
        if self.client is None or others:
            return super().end()
        end_jobs(keep_jobs=self.wanted.keep_jobs)
        if hub is not None:
            hubs.end(hub)
        return super().end() and hubs.wait_until(_no_launcher, DOWN_SECONDS)

    def addresses(self, client: Client) -> dict[str, Any]:
        """See `Service`; with the account of who started this, its pass phrase once."""
        account = hubs.accounts("first")
        told = {**super().addresses(client), "hub": self._url}
        return told | {"user": account["name"], "password": account["password"]}

    def shown(self, tracker: dict[str, Any]) -> dict[str, Any]:
        """See `Service`: through the launcher, which knows the people whom MLflow does not."""
        url = f"{self._url}/services/launcher/mlflow/" if tracker.get("url") else ""
        return {**tracker, "url": url}

    def lines(self, told: dict[str, Any]) -> list[tuple[str, str]]:
        """See `Service`."""
        word = f"slicelift hub set-password {told['user']}"
        secret = f"pass phrase  {told['password']}  (shown this once; a new one: {word})"
        known = f"with your pass phrase; a new one: {word}"
        sign_in = f"{told['user']}  {secret if told['password'] else known}"
        return [("JupyterLab", str(told["hub"])), ("sign in", sign_in), *super().lines(told)]

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.wanted.hub_port}"

    def _new_launcher(self) -> Client | None:
        """The one that the hub started: of this start, not one whose place it is about to take."""
        from slicelift.launcher_client import default_home, find, read_state

        state = read_state(default_home())
        age = time.time() - float(state.get("started", 0)) if state else 0.0
        if state is None or age > time.monotonic() - self.begun:
            return None
        client = find()
        self.say(f"launcher at {client.url} (log: {default_home() / 'launcher.log'})")
        return client


def end_jobs(*, keep_jobs: bool) -> None:
    """Have the launcher of this home stop, if one answers, and wait until it has; its jobs end unless `keep_jobs`."""
    from slicelift.launcher_client import Client, default_home, read_state

    state = read_state(default_home())
    if state is None:
        return
    with Client(str(state["url"]), str(state["token"])) as client:
        try:
            client.shutdown(keep_jobs=keep_jobs)
        except SliceliftError:
            return
        launcher_gone(client)


def launcher_gone(client: Client) -> bool:
    """Whether the launcher has let go of its home, waited for."""
    from slicelift.launcher_client import default_home, read_state

    def gone() -> bool:
        state = read_state(default_home())
        return state is None or state.get("url") != client.url

    return hubs.wait_until(gone, DOWN_SECONDS)


def health(client: Client) -> dict[str, Any]:
    """The tracker's state; a launcher too busy to answer counts as starting."""
    try:
        tracker = client.health()["tracker"]
    except Unavailable:
        return {"status": "starting", "url": ""}
    return tracker if isinstance(tracker, dict) else {}


def tracker_words(tracker: dict[str, Any]) -> str:
    """Where MLflow is, or why not."""
    status = tracker.get("status")
    if status == "up":
        return f"MLflow at {tracker.get('url')}"
    if status == "none":
        return "no MLflow"
    return f"MLflow is {status}; what it misses it gets when it answers"


def active_runs(client: Client | None) -> list[RunView]:
    """Runs that are not over; none can be known without a launcher, or of one that writes them otherwise."""
    if client is None:
        return []
    try:
        return client.jobs(status=_ACTIVE, limit=100, everyone=True)
    except (SliceliftError, LookupError, TypeError, ValueError):
        return []


def fate(active: list[RunView], keep_jobs: bool) -> str:
    """What became of the jobs, in a sentence."""
    if not active:
        return "No job was running."
    if keep_jobs:
        return f"{plural(len(active), 'job')} left to go on: {_named(active)}; the next `slicelift up` finds them."
    # those in a cluster's queue end, too, and from here they look like those that nobody has taken yet
    waited = [view for view in active if view.status is Status.WAITING]
    ended = [view for view in active if view.status is not Status.WAITING]
    told = []
    if ended:
        told.append(
            f"{plural(len(ended), 'job')} ended: {_named(ended)}. Once it is up again: slicelift retry RUN."
        )
    if waited:
        told.append(
            f"{plural(len(waited), 'job')} still waited: {_named(waited)}. The next `slicelift up` starts them, but for "
            "those that a cluster had in its queue, which have ended."
        )
    return " ".join(told)


def _named(views: list[RunView]) -> str:
    """Some of them by id and name, and how many more."""
    more = f" and {len(views) - 5} more" if len(views) > 5 else ""
    return ", ".join(f"{view.run_id} ({view.name})" for view in views[:5]) + more


def program() -> str:
    """The command as the user can type it here: by name if the PATH has it, else by its path."""
    given = sys.argv[0]
    if shutil.which("slicelift"):
        return "slicelift"
    return os.path.relpath(given) if given.endswith("slicelift") else f"{sys.executable} -m slicelift"


def _no_launcher() -> bool:
    from slicelift.launcher_client import default_home, read_state

    return read_state(default_home()) is None
