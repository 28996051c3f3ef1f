"""JupyterLab or a hub with Chromium in front of it, as a person has it: for what can only be measured in a page."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.places import PlainLab
from tests.browser.windows import launch, window


@contextlib.contextmanager
def page() -> Iterator[Page]:
    """An empty window. Raises RuntimeError without Chromium."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        with window(browser) as context:
            yield context.new_page()
        browser.close()


@contextlib.contextmanager
def jupyterlab(root: Path) -> Iterator[Page]:
    """A window on JupyterLab over the folder `root`, its jobs panel open."""
    place = PlainLab(home=Path(os.environ["SLICELIFT_HOME"]), project=root, person=root.parent / "person")
    place.start()
    try:
        with page() as opened:
            opened.goto(f"{place.url}/lab?token={place.token}")
            opened.locator("[role=tab][data-id='slicelift-jobs']").click()
            opened.locator("#slicelift-jobs .sl-jobs").wait_for()
            yield opened
    finally:
        place.stop()
