"""MLflow's pages in a real browser, through a real hub: signed in as one, seeing one's own alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift_hub.accounts import Accounts

from tests.waiting import free_port, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
PAGES = "/services/launcher/mlflow/"


@dataclass
class Hub:
    """A hub with proxy, launcher and MLflow over a home of its own."""

    home: Path
    url: str
    launcher: str
    process: subprocess.Popen[bytes]
    tokens: dict[str, str] = field(default_factory=dict)

    def log(self) -> str:
        return (self.home / "hub.log").read_text(errors="replace")[-6000:]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Started once: 30 s, most of it MLflow's imports."""
    home = tmp_path_factory.mktemp("hub 首页")
    for name in ("anna", "ben"):
        Accounts(home).add(name, password=PASSWORD, admin=name == "anna")
    port, launcher = free_port(), free_port()
    told = {
        "SLICELIFT_HOME": str(home),
        "SLICELIFT_HUB_PORT": str(port),
        "SLICELIFT_LAUNCHER_PORT": str(launcher),
    }
    with (home / "hub.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(ROOT / "jupyterhub_config.py")],
            cwd=home,
            env=os.environ | told,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    made = Hub(home, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{launcher}", process)
    try:
        wait_for("MLflow", lambda: tracker_is_up(made), seconds=240, why=made.log)
        yield made
    finally:
        state = (home / "launcher.json").read_text() if (home / "launcher.json").is_file() else ""
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert state


def tracker_is_up(hub: Hub) -> bool:
    assert hub.process.poll() is None, hub.log()
    try:
        answer = httpx.get(f"{hub.url}/services/launcher/api/v1/health", trust_env=False)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["tracker"]["status"] == "up"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


def sign_in(browser: Any, hub: Hub, name: str) -> Any:
    """A page of a browser of `name`'s own, which asked for MLflow first and was sent to sign in."""
    context = browser.new_context(base_url=hub.url)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(PAGES)
    page.fill("#username_input", name)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")
    page.wait_for_url(f"**{PAGES}**")
    return page


def make_run(page: Any, experiment: str) -> str:
    """Made as MLflow's own page would: a call of the page itself."""
    script = """async (name) => {
        const ask = async (call, body) => (await fetch("ajax-api/2.0/mlflow/" + call, {method: "POST",
            headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)})).json();
        const made = await ask("experiments/create", {name});
        const run = await ask("runs/create", {experiment_id: made.experiment_id, run_name: "run of " + name});
        return made.experiment_id + "/" + run.run.info.run_id;
    }"""
    return str(page.evaluate(script, experiment))


def test_pages_show_ones_own_alone(browser: Any, hub: Hub, tmp_path: Path) -> None:
    faults: list[str] = []
    anna, ben = sign_in(browser, hub, "anna"), sign_in(browser, hub, "ben")
    anna.on("pageerror", lambda error: faults.append(str(error)))
    experiment, run = make_run(anna, "annas digits").split("/")
    anna.goto(f"{PAGES}#/experiments")
    anna.reload()
    anna.get_by_text("annas digits").first.wait_for()
    anna.goto(f"{PAGES}#/experiments/{experiment}/runs/{run}")
    anna.get_by_text("run of annas digits").first.wait_for()
    anna.screenshot(path=str(tmp_path / "run.png"))
    make_run(ben, "bens digits")
    ben.goto(f"{PAGES}#/experiments")
    ben.reload()
    ben.get_by_text("bens digits").first.wait_for()
    assert ben.get_by_text("annas digits").count() == 0
    with ben.expect_response(lambda answer: "graphql" in answer.url or "runs/get" in answer.url):
        ben.goto(f"{PAGES}#/experiments/{experiment}/runs/{run}")
    ben.wait_for_timeout(2000)
    assert ben.get_by_text("run of annas digits").count() == 0
    assert not faults


def test_without_a_cookie_one_is_sent_to_sign_in(hub: Hub) -> None:
    visit = httpx.get(hub.url + PAGES, trust_env=False)
    assert (visit.status_code, visit.headers["Location"].split("?")[0]) == (302, "/hub/api/oauth2/authorize")
    door = httpx.get(hub.url + PAGES.rstrip("/"), trust_env=False)
    assert (door.status_code, door.headers["Location"]) == (302, PAGES)
    call = httpx.post(f"{hub.url}{PAGES}ajax-api/2.0/mlflow/experiments/search", json={}, trust_env=False)
    assert (call.status_code, call.json()["code"]) == (401, "not-signed-in")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Referer": "{url}/user/ben/lab"},
        {"Referer": "http://evil.example/services/launcher/mlflow/"},
        {"Referer": "{url}/services/launcher/mlflow/", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_forged_call_is_refused(browser: Any, hub: Hub, headers: dict[str, str]) -> None:
    page = sign_in(browser, hub, "anna")
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies(hub.url + PAGES)}
    page.context.close()
    place = f"{hub.url}{PAGES}ajax-api/2.0/mlflow/experiments/create"
    told = {key: value.format(url=hub.url) for key, value in headers.items()}
    ours = {"Referer": f"{hub.url}{PAGES}"}
    with httpx.Client(cookies=cookies, trust_env=False) as http:
        refused = http.post(place, json={"name": "forged"}, headers=told)
        assert refused.status_code in (401, 403), refused.text
        assert http.post(place, json={"name": f"x {time.time()}"}, headers=ours).status_code == 200
