"""From the click on Start to a JupyterLab that can be used, through the hub's public port.

`slicelift up` as it is, one person in Chromium who starts a session and stops it again, in turn. Usable means: the shell is
drawn, its file browser lists the home, and our own jobs panel opens and answers.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from bench import window
from bench.figures import Figure, figure
from tests.browser.people import call, choose, sign_in
from tests.browser.places import RunningHub
from tests.waiting import wait_for

NAME, OFFER = "anna", "1g.10gb slice"
ROUNDS = 9
SPAWN_MILLISECONDS = 120_000


def run(_: Path) -> list[Figure]:
    """The first start, which also makes the person's home, and the later ones."""
    place = RunningHub(home=Path(os.environ["SLICELIFT_HOME"]))
    place.start()
    try:
        with window.page() as page:
            sign_in(place, page, NAME)
            first, *later = [_round(place, page) for _ in range(1 + ROUNDS)]
    finally:
        place.stop()
    what = "from the click on Start to a usable JupyterLab, through the hub"
    return [
        figure("spawn-to-lab", f"{what}, median", later, unit="s"),
        figure("spawn-to-lab-first", f"{what}, the first session of a new person", [first], unit="s"),
    ]


def _round(place: RunningHub, page: Page) -> float:
    """Seconds of one start; the session is stopped again when this returns."""
    page.goto(f"{place.url}/hub/spawn/{NAME}")
    choose(page, OFFER)
    begun = time.perf_counter()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"**/user/{NAME}/**", timeout=SPAWN_MILLISECONDS)
    page.locator(".jp-DirListing-item").first.wait_for(timeout=SPAWN_MILLISECONDS)
    page.locator("[role=tab][data-id='slicelift-jobs']").click()
    page.locator("#slicelift-jobs").get_by_text("No job yet").wait_for()
    seconds = time.perf_counter() - begun
    _stop(place, page)
    return seconds


def _stop(place: RunningHub, page: Page) -> None:
    """Also what JupyterLab remembers: the next session begins with no panel of this one open."""
    page.goto(f"{place.url}/hub/home")
    call(page, "DELETE", f"/hub/api/users/{NAME}/server")
    wait_for("the end of the session", lambda: not _servers(page))
    shutil.rmtree(place.home / "homes" / NAME / ".jupyter" / "lab" / "workspaces", ignore_errors=True)


def _servers(page: Page) -> dict[str, Any]:
    _, text = call(page, "GET", f"/hub/api/users/{NAME}")
    return dict(json.loads(text)["servers"])
