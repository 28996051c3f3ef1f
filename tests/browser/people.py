"""Who sits in front of a browser: the owner of a JupyterLab, or somebody signed in to the hub."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.browser import projects
from tests.browser.places import PlainLab, RunningHub
from tests.browser.windows import Lab, take_picture, window

# the token against forged calls is asked for with every method
CALL = """async ([method, path, body]) => {
    const token = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)[1];
    const sent = body === null ? {} : {body: JSON.stringify(body)};
    const answer = await fetch(path, {method, headers: {"X-XSRFToken": token}, ...sent});
    return [answer.status, await answer.text()];
}"""


@dataclass
class Person:
    """Somebody signed in to a hub, with a session and a window on it."""

    name: str
    place: RunningHub
    lab: Lab
    offers: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.place.home / "homes" / self.name

    def write_notebook(self, name: str, *cells: str, outputs: Sequence[Any] = ()) -> Path:
        path = projects.write_notebook(self.folder / name, *cells, outputs=outputs)
        owner = self.folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    def call(self, path: str, body: object = None, *, method: str = "") -> tuple[int, str]:
        """A call of this person's page to their own session (POST with a body), as JupyterLab sends it."""
        how = method or ("GET" if body is None else "POST")
        return call(self.lab.page, how, f"/user/{self.name}/{path}", body)

    def fetch(self, path: str, body: object = None) -> Any:
        """The answer to `call`; of several lines the last."""
        status, text = self.call(path, body)
        assert status < 400, f"{path}: {status} {text}"
        return json.loads(text.splitlines()[-1])

    def promote(self, notebook: str) -> dict[str, Any]:
        """The view of a new job of one worker."""
        asked = {"path": notebook, "request": {"workers": 1}, "promotion_id": promotion_id()}
        return dict(self.fetch("slicelift/promote", asked)["view"])

    def status_of_page(self, path: str) -> int:
        return self.lab.page.context.request.get(f"{self.place.url}{path}").status


def call(page: Page, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and text of a call that the page makes to where it is from, with its cookies."""
    status, text = page.evaluate(CALL, [method, path, body])
    return int(status), str(text)


def promotion_id() -> str:
    return "p-" + base64.b32encode(os.urandom(13)).decode().lower()[:20]


@contextmanager
def visit(place: PlainLab, browser: Browser) -> Iterator[Lab]:
    """A window of the owner's on a JupyterLab, no tab open in it; faults in the page fail the test."""
    shutil.rmtree(place.person / ".jupyter" / "lab" / "workspaces", ignore_errors=True)
    with window(browser) as context:
        page = context.new_page()
        made = Lab(page, place.url)
        page.goto(f"{place.url}/api/contents?token={place.token}")  # leaves the cookie of a login
        yield made
    assert made.faults == [], made.faults


@contextmanager
def session(place: RunningHub, browser: Browser, name: str, *, offer: str) -> Iterator[Person]:
    """A new account, signed in, with a session by that offer of the spawn form; faults in the page fail the test."""
    with window(browser) as context:
        page = context.new_page()
        sign_in(place, page, name)
        cards = page.locator(".sl-offer")
        cards.first.wait_for()
        offers = {card.locator(".sl-title").inner_text(): card.inner_text() for card in cards.all()}
        choose(page, offer)
        take_picture(page, f"hub-spawn-{name}")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url(f"**/user/{name}/**", timeout=120_000)
        lab = Lab(page, f"{place.url}/user/{name}", alone=True)
        yield Person(name=name, place=place, lab=lab, offers=offers)
        assert lab.faults == [], lab.faults


def sign_in(place: RunningHub, page: Page, name: str) -> None:
    """A new account, up to the spawn form."""
    told = place.slicelift("hub", "add-user", name)
    page.goto(f"{place.url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(told["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/hub/spawn*")


def choose(page: Page, offer: str) -> None:
    page.get_by_role("radio", name=re.compile(f"^{re.escape(offer)}")).check()
