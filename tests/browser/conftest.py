"""The places, windows and people of these tests, each started once.

Playwright's synchronous interface runs an event loop of its own: these tests have a pytest process to themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.people import Person, session, visit
from tests.browser.places import PlainLab, RunningHub
from tests.browser.windows import Lab, launch
from tests.demo import make_project
from tests.waiting import wait_for


def pytest_configure() -> None:
    expect.set_options(timeout=30_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """What every window showed when a test failed, as pictures."""
    report = yield
    for name, value in getattr(item, "funcargs", {}).items() if report.failed else ():
        shown = getattr(value, "lab", value)
        if isinstance(shown, Lab) and not shown.page.is_closed():
            shown.picture(f"failed-{item.name}-{name}")
    return report


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainLab]:
    """`jupyter lab` of one person, over the demo's project."""
    base = tmp_path_factory.mktemp("plain")
    project = make_project(base / "pro ject 数字")
    place = PlainLab(home=base / "slicelift-home", project=project, person=base / "person")
    place.settings("@jupyterlab/apputils-extension:notification", fetchNews="false", checkForUpdates=False)
    place.start()
    wait_for("its launcher", place.has_launcher)
    yield place
    place.stop()
    place.slicelift("down")


@pytest.fixture
def lab(plain: PlainLab, browser: Browser) -> Iterator[Lab]:
    """A fresh window on the plain JupyterLab."""
    try:
        with visit(plain, browser) as made:
            yield made
    finally:
        plain.end_kernels()


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place = RunningHub(home=tmp_path_factory.mktemp("hub") / "slicelift-home")
    place.start()
    yield place
    place.stop()


@pytest.fixture(scope="module")
def anna(hub: RunningHub, browser: Browser) -> Iterator[Person]:
    with session(hub, browser, "anna", offer="1g.10gb slice") as person:
        yield person


@pytest.fixture(scope="module")
def ben(hub: RunningHub, browser: Browser) -> Iterator[Person]:
    with session(hub, browser, "ben", offer="CPU only") as person:
        yield person
