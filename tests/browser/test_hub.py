"""A person's way through the hub's public port: sign in, get a slice, promote, watch, and come back after every fault."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from typing import Any

import nbformat
from playwright.sync_api import expect

QUICKSTART = "quickstart/quickstart.ipynb"


def rising(lab: Any, card: Any, *, pauses: int = 3) -> list[int]:
    """The number of points at moments at least a second apart, each higher than the one before."""
    seen = [lab.wait_points(card, 1)]
    for _ in range(pauses - 1):
        lab.page.wait_for_timeout(1_000)
        seen.append(lab.wait_points(card, seen[-1] + 1, seconds=10))
    return seen


def submit_from_panel(lab: Any, workers: int = 1) -> str:
    """Through the Promote button; the run's id."""
    lab.promote_button().click()
    panel = lab.page.get_by_role("region", name=re.compile("^Promote "))
    expect(panel.get_by_text(re.compile(r"\d+ of \d+ code cells"))).to_be_visible()
    panel.get_by_role("spinbutton", name="workers").fill(str(workers))
    button = panel.get_by_role("button", name="Submit")
    expect(button).to_have_attribute("aria-disabled", "false")
    button.click()
    card = panel.locator(".sl-card")
    card.wait_for(timeout=60_000)
    return str(card.get_attribute("data-run"))


def kill_launcher(place: Any) -> int:
    pid = json.loads((place.home / "launcher.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def launcher_is_back(place: Any, killed: int) -> bool:
    try:
        return int(json.loads((place.home / "launcher.json").read_text())["pid"]) != killed
    except (OSError, ValueError):
        return False


def test_from_the_login_to_a_model_with_an_alias(anna: Any) -> None:
    """Spawn on a slice, promote the demo from the panel, watch it to the end, set the alias."""
    lab = anna.lab
    assert "simulated" in anna.offers["1g.10gb slice"]
    lab.open(QUICKSTART)
    lab.picture("hub-notebook")
    run_id = submit_from_panel(lab, workers=2)
    panel = lab.page.get_by_role("region", name=re.compile("^Promote "))
    card = panel.locator(f".sl-card[data-run='{run_id}']")
    lab.wait_status(card, "RUNNING", seconds=90)
    lab.wait_points(card, 1, seconds=120)  # two ranks import torch first
    lab.picture("hub-running")
    lab.wait_status(card, "FINISHED", seconds=120)
    expect(card.get_by_text("digits version 1", exact=True)).to_be_visible(timeout=60_000)
    card.get_by_role("button", name=re.compile("Set an alias")).click()
    card.get_by_label("Alias", exact=True).fill("champion")
    card.get_by_role("button", name="Set", exact=True).click()
    expect(card.get_by_text("@champion", exact=True)).to_be_visible()
    expect(card.get_by_text(re.compile("@champion set by anna"))).to_be_visible()
    lab.picture("hub-done")


def test_the_card_is_true_again_after_everything(anna: Any, hub: Any, tools: Any) -> None:
    """Points a second apart, a reload, a restarted and a busy kernel, a killed launcher; then cancel and retry."""
    lab = anna.lab
    name = "quickstart/watched.ipynb"
    anna.write_notebook(
        name,
        "import slicelift",
        "# in the job this does nothing\nslicelift.promote(workers=1)",
        tools.TRAINS.format(steps=100_000, pause=0.2),
    )
    lab.open(name)
    lab.run_cell(0)
    lab.run_cell(1)
    card = lab.card()
    card.wait_for(timeout=90_000)
    run_id = str(card.get_attribute("data-run"))
    lab.wait_status(card, "RUNNING", seconds=90)
    seen = rising(lab, card)
    lab.save()

    lab.reload()
    card = lab.card(run_id)
    card.wait_for()
    seen.append(lab.wait_points(card, seen[-1] + 1))

    lab.restart_kernel()
    seen.append(lab.wait_points(card, seen[-1] + 1))

    lab.allowed.append("(502|503|504) (GET|POST) .*/slicelift/")
    killed = kill_launcher(hub)
    tools.wait_for(lambda: launcher_is_back(hub, killed), 60, "the launcher")
    seen.append(lab.wait_points(card, seen[-1] + 5, seconds=60))
    expect(card).to_have_attribute("data-connection", "live")
    assert seen == sorted(seen)

    lab.run_cell(2)  # trains in the kernel for hours: it is busy from here on
    lab.wait_kernel(tools.BUSY)
    before = lab.points(card)
    lab.wait_points(card, before + 1)
    card.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Cancel the run").click()
    lab.wait_status(card, "KILLED", seconds=60)
    lab.picture("hub-cancelled")
    card.get_by_role("button", name="Retry").click()
    lab.wait_status(card, "STARTING", "RUNNING", seconds=30)
    lab.wait_status(card, "RUNNING", seconds=60)
    expect(card.get_by_text("attempt 2").first).to_be_visible()
    card.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Cancel the run").click()
    lab.wait_status(card, "KILLED", seconds=60)


class Streams:
    """The event streams that a page holds open."""

    def __init__(self, page: Any) -> None:
        self.open: list[str] = []
        page.on("request", lambda request: self.open.append(request.url) if self._is(request) else None)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)

    def _is(self, request: Any) -> bool:
        return "/slicelift/api/events" in request.url

    def _ended(self, request: Any) -> None:
        if self._is(request) and request.url in self.open:
            self.open.remove(request.url)


def promotion_id() -> str:
    return "p-" + base64.b32encode(os.urandom(13)).decode().lower()[:20]


def saved_output(bundle: dict[str, Any]) -> Any:
    return nbformat.v4.new_output("display_data", data=bundle["data"])


def test_fifty_cards_share_one_stream(anna: Any, tools: Any) -> None:
    """A saved notebook with fifty outputs: one stream for all, each card is told, other calls go on between events."""
    lab = anna.lab
    anna.write_notebook("quickstart/steady.ipynb", tools.TRAINS.format(steps=100_000, pause=1))
    lab.open("quickstart/steady.ipynb")
    asked = {"path": "quickstart/steady.ipynb", "request": {"workers": 1}, "promotion_id": promotion_id()}
    live = anna.fetch("slicelift/promote", asked)["view"]
    wide = live["spec"] | {"workers": 2}  # beside the live one: these wait
    others = [
        anna.fetch("slicelift/api/jobs", {"promotion_id": promotion_id(), "spec": wide}) for _ in range(24)
    ]
    runs = [live["run_id"], *(view["run_id"] for view in others)]
    outputs = [saved_output(anna.fetch(f"slicelift/card/{run}")) for run in runs]
    anna.write_notebook("quickstart/fifty.ipynb", *["# ten runs"] * 5, outputs=outputs * 2)
    streams = Streams(lab.page)
    lab.open("quickstart/fifty.ipynb")

    cards = lab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .sl-card")
    expect(cards).to_have_count(50)
    expect(cards.and_(lab.page.locator("[data-connection='live']"))).to_have_count(50)
    assert len(streams.open) == 1, streams.open
    assert "runs=" not in streams.open[0]
    card = lab.card(live["run_id"])
    lab.wait_status(card, "RUNNING")
    lab.wait_points(card, 1, seconds=60)
    # three points come, a second apart; meanwhile the session answers again and again
    last, answers = lab.points(card) + 3, 0
    while lab.points(card) < last:
        assert anna.call("api/status")[0] == 200
        answers += 1
    assert answers >= 6
    lab.picture("hub-fifty")
    for run in reversed(runs):  # the live one last: it keeps the others waiting
        anna.fetch(f"slicelift/api/jobs/{run}/cancel", {})
    expect(cards.and_(lab.page.locator("[data-status='KILLED']"))).to_have_count(50)
    assert len(streams.open) == 1, streams.open


def test_another_user_sees_nothing_of_it(anna: Any, ben: Any) -> None:
    """Ben's own list is empty, and Anna's run is unknown to him by its id, through his own session."""
    runs = anna.fetch("slicelift/api/jobs")["jobs"]
    assert runs
    assert ben.fetch("slicelift/api/jobs")["jobs"] == []
    ben.lab.allowed.append("404 (GET|POST) .*/slicelift/api/(jobs|snapshots)/")
    for run in runs:
        for path in ("", "/logs", "/series", "/outputs", "/attempts"):
            assert ben.call(f"slicelift/api/jobs/{run['run_id']}{path}")[0] == 404
        assert ben.call(f"slicelift/api/jobs/{run['run_id']}/cancel", {})[0] == 404
        assert ben.call(f"slicelift/api/snapshots/{run['spec']['snapshot_id']}")[0] == 404
    # her server is closed to him altogether
    assert ben.status_of_page("/user/anna/slicelift/api/jobs") in (401, 403, 404)
    ben.lab.page.close()


def test_the_hub_is_restarted_and_the_card_goes_on(anna: Any, hub: Any, tools: Any) -> None:
    """Sessions, jobs and open pages outlive the hub's process."""
    lab = anna.lab
    anna.write_notebook(
        "quickstart/outlives.ipynb",
        "import slicelift\nslicelift.promote(workers=1)",
        tools.TRAINS.format(steps=2000, pause=0.2),
    )
    lab.open("quickstart/outlives.ipynb")
    lab.run_cell(0)
    card = lab.card()
    card.wait_for(timeout=90_000)
    lab.wait_status(card, "RUNNING", seconds=90)
    before = lab.wait_points(card, 2)
    # proxy and hub are away for seconds: everything on the page that asks is refused
    lab.allowed.append("(404|50[0234]) |Failed to fetch|NetworkError|ERR_")
    # JupyterLab's own question while its server seems to be gone
    gone = lab.page.locator(".jp-Dialog", has_text="Server unavailable")
    lab.page.add_locator_handler(gone, lambda: gone.locator(".jp-mod-reject").first.click())
    hub.restart()
    lab.wait_points(card, before + 10, seconds=90)
    assert card.get_attribute("data-status") == "RUNNING"
    card.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Cancel the run").click()
    lab.wait_status(card, "KILLED", seconds=60)
