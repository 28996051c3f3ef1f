"""`up` and `down`: everything on this machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicelift.cli import hubs
from slicelift.cli.access import json_option
from slicelift.cli.foreground import free_port, stopped_by_signals
from slicelift.cli.outcomes import FINE
from slicelift.cli.printing import dim, print_json
from slicelift.cli.standing import (
    DOWN_SECONDS,
    HubService,
    Service,
    Wanted,
    active_runs,
    end_jobs,
    fate,
    health,
    launcher_gone,
    tracker_words,
)
from slicelift.errors import Conflict, SliceliftError, Unavailable
from slicelift.figures import duration
from slicelift.launcher_address import refuse_service

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

DEFAULT_PORT = 8765
DEFAULT_HUB_PORT = 8000
_PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--hub-port",
    metavar="N",
    type=_PORT,
    default=DEFAULT_HUB_PORT,
    show_default=True,
    help="JupyterHub's port.",
)
@click.option(
    "--port", metavar="N", type=_PORT, default=DEFAULT_PORT, show_default=True, help="The launcher's port."
)
@click.option("--mlflow-port", metavar="N", type=_PORT, help="MLflow's port. By default a free one.")
@click.option(
    "--slots", metavar="N", type=click.IntRange(min=1), help="Workers at once. By default the cores."
)
@click.option("--no-hub", is_flag=True, help="The launcher alone, for yourself.")
@click.option("--keep-jobs", is_flag=True, help="Let running jobs go on after Ctrl-C.")
@click.option("--no-demo", is_flag=True, help="Do not prepare the demo project.")
@json_option
def up(
    hub_port: int,
    port: int,
    mlflow_port: int | None,
    slots: int | None,
    no_hub: bool,
    keep_jobs: bool,
    no_demo: bool,
    as_json: bool,
) -> int:
    """Start JupyterHub, which starts launcher and MLflow, and stay until Ctrl-C.

    Everything listens on this machine only. The first start makes an account for you and prints its pass phrase;
    `slicelift hub add-user` lets in others. Where all of it runs already, the command says so and ends with exit
    status 0. Ctrl-C ends sessions, and running jobs as KILLED, which `slicelift retry` starts again; with
    --keep-jobs they go on. With --json the addresses are one object on stdout once everything is there.
    """
    refuse_service("up")
    wanted = Wanted(
        port=port,
        hub_port=None if no_hub else hub_port,
        mlflow_port=mlflow_port,
        slots=slots,
        keep_jobs=keep_jobs,
        demo=not no_demo,
        as_json=as_json,
    )
    if _is_running(wanted):
        return _tell_running(as_json=as_json)
    _check_ports(wanted)
    try:
        with stopped_by_signals():
            return (Service(wanted) if no_hub else HubService(wanted)).run()
    except Conflict as conflict:
        # somebody else started one in the same moment
        if conflict.code not in ("launcher-running", "hub-running") or not _is_running(wanted):
            raise
        return _tell_running(as_json=as_json)


@click.command()
@click.option("--keep-jobs", is_flag=True, help="Let running jobs go on.")
@json_option
def down(keep_jobs: bool, as_json: bool) -> int:
    """Stop the hub with its sessions, the launcher and MLflow, whoever started them. Nothing running is fine."""
    refuse_service("down")
    hub, client = hubs.running(), _running(any_version=True)
    if hub is None and client is None:
        _tell_down("No launcher is running.", as_json=as_json, stopped=False)
        return FINE
    active = active_runs(client)
    if hub is not None:
        _end_hub(hub, keep_jobs=keep_jobs)
    elif client is not None:
        _end_launcher(client, keep_jobs=keep_jobs)
    what = "The launcher has" if hub is None else "Hub and launcher have"
    _tell_down(f"{what} stopped. {fate(active, keep_jobs)}", as_json=as_json, stopped=True)
    return FINE


def _is_running(wanted: Wanted) -> bool:
    """Whether there is nothing to start: with a hub wanted, a launcher alone does not count."""
    if wanted.hub_port is None:
        return _running() is not None
    return hubs.running() is not None


def _check_ports(wanted: Wanted) -> None:
    """Raises `port-taken` with the option. What is ours may be there: a launcher that gives way, a stale proxy."""
    from slicelift.launcher_client import default_home, read_state

    former = read_state(default_home()) or {}
    ports = {"--port": wanted.port, "--mlflow-port": wanted.mlflow_port, "--hub-port": wanted.hub_port}
    if wanted.hub_port is not None:
        hubs.end_stale_proxy()
        if str(former.get("url", "")).endswith(f":{wanted.port}"):
            del ports["--port"]
    for option, number in ports.items():
        if number is not None:
            free_port(number, option)


def _end_hub(hub: hubs.Hub, *, keep_jobs: bool) -> None:
    end_jobs(keep_jobs=keep_jobs)
    if not hubs.end(hub):
        message = f"The hub at {hub.url} (process {hub.pid}) still runs."
        raise SliceliftError(
            "hub-stays", message, "Look at hub/hub.log below SLICELIFT_HOME, then try again."
        )


def _end_launcher(client: Client, *, keep_jobs: bool) -> None:
    client.shutdown(keep_jobs=keep_jobs)
    if not launcher_gone(client):
        message = f"The launcher at {client.url} still runs after {duration(DOWN_SECONDS)}."
        raise SliceliftError("launcher-stays", message, "It is ending jobs; look again in a moment.")


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


def _tell_running(*, as_json: bool) -> int:
    from slicelift.launcher_client import default_home, read_state

    client, hub = _running(), hubs.running()
    tracker = health(client) if client else {"status": "starting"}
    url = client.url if client else (hub.launcher if hub else "")
    if as_json:
        state = read_state(default_home()) or {}
        told = {"url": url, "mlflow": tracker.get("url"), "pid": state.get("pid")}
        print_json(told | ({"hub": hub.url} if hub else {}))
        return FINE
    if hub:
        print(f"The hub is running already: {hub.url}; the launcher at {url}, {tracker_words(tracker)}.")
    else:
        print(f"A launcher is running already: {url}, {tracker_words(tracker)}.")
    print(dim("next: slicelift jobs · slicelift down stops it"))
    return FINE


def _tell_down(text: str, *, as_json: bool, stopped: bool) -> None:
    if as_json:
        print_json({"stopped": stopped, "message": text})
    else:
        print(text)
