"""A real JupyterHub, or a real JupyterLab alone, and a real Chromium in front of it.

Playwright's synchronous interface runs an event loop of its own: these tests have a pytest process to themselves.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Response, expect, sync_playwright
from slicelift_hub.system_users import remove_all

ROOT = Path(__file__).resolve().parents[2]
SLICELIFT = [sys.executable, "-m", "slicelift"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
DEMO = (
    "quickstart.ipynb",
    "prepare_demo.py",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvcignore",
    "data/digits.dvc",
)
PICTURES = ROOT / ".build" / "pictures"
IDLE = "Python 3 (ipykernel) | Idle"
BUSY = "Python 3 (ipykernel) | Busy"
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"

# the token against forged calls is asked for with every method
CALL = """async ([path, body]) => {
    const token = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)[1];
    const post = {method: "POST", body: JSON.stringify(body)};
    const answer = await fetch(path, {headers: {"X-XSRFToken": token}, ...(body === null ? {} : post)});
    return [answer.status, await answer.text()];
}"""

# a gang that logs one point every second until it is told otherwise
TRAINS = """
import time, slicelift
for step in range({steps}):
    slicelift.log(step=step, loss=1.0 / (step + 1), accuracy=step / {steps})
    time.sleep({pause})
print("trained to the end")
"""


def pytest_configure(config: pytest.Config) -> None:
    expect.set_options(timeout=30_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[Any]:
    """What every window showed when a test failed, as pictures."""
    report = yield
    for name, value in getattr(item, "funcargs", {}).items() if report.failed else ():
        shown = getattr(value, "lab", value)
        if isinstance(shown, Lab) and not shown.page.is_closed():
            shown.picture(f"failed-{item.name}-{name}")
    return report


@dataclass
class Place:
    """Somewhere a person logs in: the hub's public port, or JupyterLab's own."""

    url: str
    home: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | {"SLICELIFT_HOME": str(self.home)}

    def slicelift(self, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
        """One command with --json, as the operator of this machine."""
        done = subprocess.run(
            [*SLICELIFT, *arguments, "--json"],
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stdout.strip(), done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))


class Lab:
    """One person's browser window on JupyterLab; what goes wrong in it is kept in `faults`."""

    def __init__(self, page: Page, base: str, *, allowed: tuple[str, ...] = (), alone: bool = False) -> None:
        self.page, self.base, self.alone = page, base, alone
        self.faults: list[str] = []
        self.allowed = list(allowed)
        page.on("pageerror", lambda error: self._note(f"page error: {error}"))
        page.on("console", lambda m: self._note(f"console: {m.text}") if m.type == "error" else None)
        page.on("response", self._look)

    def _look(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"{response.status} {response.request.method} {response.url}")

    def _note(self, text: str) -> None:
        # Lab looks for workspaces and settings that a new person does not have yet; a favicon is nobody's
        known = (
            r"/api/workspaces|favicon|/static/.*\.map|WebSocket|Failed to load resource|debugger state",
            # its own requests to a kernel that is being restarted
            "Canceled future for",
            *self.allowed,
        )
        if not any(re.search(pattern, text) for pattern in known):
            self.faults.append(text)

    def open(self, path: str) -> None:
        """A notebook, with its kernel ready; without those that were open before where that is wanted."""
        self.page.goto(f"{self.base}/lab/tree/{path}{'?reset' if self.alone else ''}")
        # keys go to the notebook once it is the shell's current document
        name = path.rpartition("/")[2]
        self.page.locator(".lm-TabBar-tab.jp-mod-current", has_text=name).wait_for(timeout=60_000)
        self.wait_kernel(IDLE)

    def wait_kernel(self, state: str = IDLE) -> None:
        self.page.locator("#jp-main-statusbar").get_by_text(state, exact=True).wait_for(timeout=90_000)

    def run_cell(self, index: int) -> None:
        """Ctrl+Enter in a cell, until its prompt shows that the kernel has it: Lab drops keys while it settles."""
        cell = self.page.locator(f"{SHOWN} .jp-Cell[data-windowed-list-index='{index}']")
        prompt = cell.locator(".jp-InputPrompt").first
        before = prompt.inner_text()
        for _ in range(4):
            cell.locator(".cm-content").first.click()
            self.page.keyboard.press("Control+Enter")
            with suppress(AssertionError):
                expect(prompt).not_to_have_text(before, timeout=5_000)
                break
        expect(prompt).not_to_have_text(before)

    def save(self) -> None:
        self.page.keyboard.press("Control+s")
        self.page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")

    def reload(self) -> None:
        self.page.reload()
        self.wait_kernel(IDLE)

    def restart_kernel(self) -> None:
        button = self.page.locator(
            ".jp-NotebookPanel:not(.lm-mod-hidden) [data-jp-item-name='restart'] jp-button,"
            ".jp-NotebookPanel:not(.lm-mod-hidden) [data-jp-item-name='restart'] button"
        )
        button.first.click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.wait_for_timeout(400)
        self.wait_kernel(IDLE)

    def save_and_go_on(self) -> None:
        """A notebook is unsaved as soon as its kernel told its version: Promote asks once."""
        self.page.locator(".jp-Dialog").get_by_role("button", name="Save and go on").click()

    def position(self) -> tuple[str, str]:
        """Where the cursor is, by the status bar: `Cell 3/5` and `Ln 2, Col 1`."""
        bar = self.page.locator("#jp-main-statusbar")
        cell, line = bar.get_by_text(re.compile(r"^Cell \d")), bar.get_by_text(re.compile(r"^Ln \d"))
        return cell.inner_text(), line.inner_text()

    def promote_button(self) -> Any:
        return (
            self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
            .get_by_role("button", name="Promote")
            .first
        )

    def card(self, run_id: str = "") -> Any:
        which = f"[data-run='{run_id}']" if run_id else ""
        return self.page.locator(f".jp-NotebookPanel:not(.lm-mod-hidden) .sl-card{which}").first

    def points(self, card: Any) -> int:
        return int(card.get_attribute("data-points") or 0)

    def wait_points(self, card: Any, at_least: int, seconds: float = 30) -> int:
        end = time.monotonic() + seconds
        while (now := self.points(card)) < at_least:
            assert time.monotonic() < end, f"{now} points after {seconds} s, wanted {at_least}"
            self.page.wait_for_timeout(50)
        return now

    def wait_status(self, card: Any, *statuses: str, seconds: float = 90) -> str:
        end = time.monotonic() + seconds
        while (now := card.get_attribute("data-status")) not in statuses:
            assert now != "FAILED", card.inner_text()
            assert time.monotonic() < end, f"the card stands at {now} after {seconds} s, wanted {statuses}"
            self.page.wait_for_timeout(100)
        return str(now)

    def picture(self, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path)
        return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(there: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.1)
    return found


def answers(url: str, token: str = "") -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    with suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def make_project(root: Path) -> Path:
    """The demo in a git repository of its own, data written and pushed."""
    for name in DEMO:
        (root / "notebooks" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "notebooks" / name, root / "notebooks" / name)
    (root / ".gitignore").write_text(".build/\noutputs/\n.ipynb_checkpoints/\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "demo"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *command], cwd=root, check=True
        )
    subprocess.run([sys.executable, "notebooks/prepare_demo.py"], cwd=root, check=True, capture_output=True)
    return root


def write_notebook(path: Path, *cells: str, outputs: Sequence[Any] = ()) -> Path:
    """Code cells, and outputs dealt out to them, as if they had been run."""
    made = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        }
    )
    made.cells = [nbformat.v4.new_code_cell(source, id=f"cell{i}") for i, source in enumerate(cells)]
    share = -(-len(outputs) // len(cells))
    for index, cell in enumerate(made.cells):
        cell.outputs = list(outputs[index * share : (index + 1) * share])
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return path


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    started = playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    )
    yield started
    started.close()


@contextmanager
def window(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A person's browser: cookies and storage of their own."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
    try:
        yield context
    finally:
        context.close()


@dataclass
class PlainLab(Place):
    """JupyterLab without a hub, over a project of its own."""

    project: Path = Path()
    token: str = ""
    person: Path = Path()
    server: subprocess.Popen[str] | None = None
    port: int = 0

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.project}",
            "--ServerApp.base_url=/a%40b/",
            f"--IdentityProvider.token={self.token}",
        ]
        personal = {"HOME": str(self.person), "JUPYTER_PREFER_ENV_PATH": "1"}
        with (self.home.parent / "lab.log").open("a") as log:
            self.server = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.variables | personal,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        wait_for(lambda: answers(f"{self.url}/api/status", self.token), 60, "JupyterLab")

    def stop(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(30)

    def end_kernels(self) -> None:
        """Those of notebooks that a test left open: each takes its share of the machine."""
        headers = {"Authorization": f"token {self.token}"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/api/sessions", headers=headers)
        ) as answer:
            open_ones = [session["id"] for session in json.load(answer)]
        for session in open_ones:
            gone = urllib.request.Request(
                f"{self.url}/api/sessions/{session}", headers=headers, method="DELETE"
            )
            urllib.request.urlopen(gone).close()

    def settings(self, plugin: str, **values: Any) -> None:
        """What this person chose in JupyterLab's settings of one plugin (`@jupyterlab/...:name`)."""
        package, _, name = plugin.partition(":")
        folder = self.person / ".jupyter" / "lab" / "user-settings" / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainLab]:
    """`jupyter lab` of one person; the launcher is whatever it starts by itself."""
    base = tmp_path_factory.mktemp("plain")
    port = free_port()
    place = PlainLab(
        url=f"http://127.0.0.1:{port}/a%40b",
        home=base / "slicelift-home",
        project=make_project(base / "pro ject 数字"),
        token=secrets.token_hex(8),
        person=base / "person",
        port=port,
    )
    place.person.mkdir()
    place.settings("@jupyterlab/apputils-extension:notification", fetchNews="false", checkForUpdates=False)
    place.start()
    yield place
    place.stop()
    place.slicelift("down")


@pytest.fixture
def lab(plain: PlainLab, browser: Browser) -> Iterator[Lab]:
    """A fresh window on the plain JupyterLab, no tab open; faults in the page fail the test."""
    shutil.rmtree(plain.person / ".jupyter" / "lab" / "workspaces", ignore_errors=True)
    with window(browser) as context:
        page = context.new_page()
        made = Lab(page, plain.url)
        page.goto(f"{plain.url}/api/contents?token={plain.token}")  # leaves the cookie of a login
        yield made
    plain.end_kernels()
    assert made.faults == []


@dataclass
class RunningHub(Place):
    """`slicelift up`, whole: hub, proxy, launcher, MLflow, culler."""

    up: subprocess.Popen[str] | None = None
    port: int = 0
    launcher_port: int = 0

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        command = [*SLICELIFT, "up", "--hub-port", str(self.port), "--port", str(self.launcher_port)]
        with (self.home.parent / "up.log").open("a") as log:
            self.up = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.variables,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        wait_for(self.is_up, 120, f"the hub ({self.home.parent / 'up.log'})")

    def is_up(self) -> bool:
        assert self.up is not None
        assert self.up.poll() is None, (self.home.parent / "up.log").read_text()
        return answers(f"{self.url}/hub/api/") and answers(f"{self.url}/services/launcher/api/v1/health")

    def restart(self) -> None:
        """The hub's own process is killed and started again: sessions and jobs live on."""
        assert self.up is not None
        pid = int(json.loads((self.home / "hub" / "address.json").read_text())["pid"])
        os.kill(pid, signal.SIGKILL)
        self.up.wait(60)
        self.start()

    def stop(self) -> None:
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        self.up.wait(90)
        if os.geteuid() == 0:
            remove_all(self.home)


@dataclass
class Person:
    """Somebody signed in, with a session and a window on it."""

    name: str
    place: RunningHub
    lab: Lab
    offers: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.place.home / "homes" / self.name

    def write_notebook(self, name: str, *cells: str, outputs: Sequence[Any] = ()) -> Path:
        path = write_notebook(self.folder / name, *cells, outputs=outputs)
        owner = self.folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    def prefer(self, plugin: str, settings: dict[str, Any]) -> None:
        """Settings of JupyterLab, as this person would have made them."""
        package, _, name = plugin.partition(":")
        file = self.folder / ".jupyter/lab/user-settings" / package / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
        owner = self.folder.stat()
        for made in (file, *(each for each in file.parents if each.is_relative_to(self.folder))):
            os.chown(made, owner.st_uid, owner.st_gid)

    def call(self, path: str, body: object = None) -> tuple[int, str]:
        """A call of this person's page to their own session (POST with a body), as JupyterLab sends it."""
        status, text = self.lab.page.evaluate(CALL, [f"/user/{self.name}/{path}", body])
        return int(status), str(text)

    def fetch(self, path: str, body: object = None) -> Any:
        """The answer to `call`; of several lines the last."""
        status, text = self.call(path, body)
        assert status < 400, f"{path}: {status} {text}"
        return json.loads(text.splitlines()[-1])

    def status_of_page(self, path: str) -> int:
        answer = self.lab.page.context.request.get(f"{self.place.url}{path}")
        return answer.status


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    base = tmp_path_factory.mktemp("hub")
    port = free_port()
    place = RunningHub(
        url=f"http://127.0.0.1:{port}", home=base / "slicelift-home", port=port, launcher_port=free_port()
    )
    place.start()
    yield place
    place.stop()


def sign_in(place: RunningHub, browser: Browser, name: str, *, offer: str) -> Iterator[Person]:
    told = place.slicelift("hub", "add-user", name)
    with window(browser) as context:
        page = context.new_page()
        page.goto(f"{place.url}/hub/login")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(told["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/hub/spawn*")
        cards = page.locator(".sl-offer")
        cards.first.wait_for()
        offers = {card.locator(".sl-title").inner_text(): card.inner_text() for card in cards.all()}
        page.get_by_role("radio", name=re.compile(f"^{offer}")).check()
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"hub-spawn-{name}.png")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url(f"**/user/{name}/**", timeout=120_000)
        made = Lab(page, f"{place.url}/user/{name}", alone=True)
        person = Person(name=name, place=place, lab=made, offers=offers)
        # Jupyter's question for news would cover the panel
        person.prefer("@jupyterlab/apputils-extension:notification", {"fetchNews": "false"})
        yield person
        assert made.faults == []


@pytest.fixture(scope="module")
def anna(hub: RunningHub, browser: Browser) -> Iterator[Person]:
    yield from sign_in(hub, browser, "anna", offer="1g.10gb slice")


@pytest.fixture(scope="module")
def ben(hub: RunningHub, browser: Browser) -> Iterator[Person]:
    yield from sign_in(hub, browser, "ben", offer="CPU only")


@pytest.fixture(scope="session")
def tools() -> Any:
    """What test modules must not import."""
    return Tools


class Tools:
    """See `tools`."""

    TRAINS, IDLE, BUSY = TRAINS, IDLE, BUSY
    wait_for = staticmethod(wait_for)
    window = staticmethod(window)
    write_notebook = staticmethod(write_notebook)
    Lab = Lab
