"""Following a run to its end: events from the launcher in, a screen out.

Events arrive on a thread of their own, so that a screen can tick and Ctrl-C is answered at once.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from slicelift.errors import Unavailable
from slicelift.models import RunView

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

TICK_SECONDS = 0.25
SETTLE_SECONDS = 120.0
AWAY_SECONDS = 300.0
AWAY_TEXT = "The launcher does not answer; the job goes on. Trying again"
_POLL_SECONDS = 0.5

Event = tuple[str, Any]


class Screen(Protocol):
    """Where a followed run is shown."""

    def show(self, view: RunView) -> None:
        """The newest view; called on every change and at every tick."""
        ...

    def say(self, text: str) -> None:
        """One sentence about following itself (the launcher went away, MLflow is awaited)."""
        ...


def follow(client: Client, view: RunView, screen: Screen) -> RunView:
    """Show a run until no later status can follow. Returns its last view.

    Outlives restarts of the launcher for `AWAY_SECONDS`, then raises `Unavailable`. Ctrl-C passes
    through as KeyboardInterrupt and leaves the run alone.
    """
    screen.show(view)
    events: queue.Queue[Event] = queue.Queue()
    over = threading.Event()
    threading.Thread(target=_listen, args=(client, view.run_id, events, over), daemon=True).start()
    try:
        while not view.status.terminal:
            with contextlib.suppress(queue.Empty):
                view = _apply(view, *events.get(timeout=TICK_SECONDS), screen)
            screen.show(view)
    finally:
        over.set()
    return view


def settle(
    client: Client, view: RunView, screen: Screen, *, limit_seconds: float = SETTLE_SECONDS
) -> tuple[RunView, bool]:
    """Wait, bounded, until MLflow has the run's end and its models. Returns the view and whether it has."""
    deadline, told = time.monotonic() + limit_seconds, False
    while not view.tracked and view.tracker != "none":
        if time.monotonic() > deadline:
            return view, False
        if not told:
            screen.say("Waiting for MLflow to have the run's last points and its models")
            told = True
        time.sleep(_POLL_SECONDS)
        # the launcher may be away for a moment: the deadline bounds how often
        with contextlib.suppress(Unavailable):
            view = client.job(view.run_id)
    return view, True


def _listen(client: Client, run_id: str, events: queue.Queue[Event], over: threading.Event) -> None:
    """Feed the queue; a broken stream is opened again by the client, a lost launcher is told."""
    lost_since: float | None = None
    while not over.is_set():
        try:
            for kind, data in client.events([run_id]):
                lost_since = None
                events.put((kind, data))
                if over.is_set():
                    return
        except Unavailable as error:
            lost_since = lost_since or time.monotonic()
            events.put(("away" if time.monotonic() - lost_since < AWAY_SECONDS else "lost", error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread that shows must hear of it
            events.put(("lost", error))
            return
        over.wait(_POLL_SECONDS)


def _apply(view: RunView, kind: str, data: Any, screen: Screen) -> RunView:
    if kind == "run" and isinstance(data, RunView):
        return data
    if kind == "points":
        return _with_points(view, data)
    if kind == "away":
        screen.say(AWAY_TEXT)
    if kind == "lost":
        raise data
    return view


def _with_points(view: RunView, data: Mapping[str, Any]) -> RunView:
    """The view as the ledger will tell it, a moment earlier."""
    if data["attempt"] != view.attempt:
        return view
    prefix = f"rank/{data['rank']}/" if data["rank"] else ""
    latest = {prefix + key: (int(step), float(value)) for key, step, _, value in data["points"]}
    return replace(view, latest={**view.latest, **latest})
