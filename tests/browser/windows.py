"""A person's browser window on JupyterLab, in a real Chromium."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, Response, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PICTURES = Path(__file__).resolve().parents[2] / ".build" / "pictures"
IDLE = "Python 3 (ipykernel) | Idle"
BUSY = "Python 3 (ipykernel) | Busy"
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
# what is not a fault of the page
KNOWN = (
    # Lab looks for workspaces and settings that a new person does not have yet; a favicon is nobody's
    r"/api/workspaces|favicon|/static/.*\.map|WebSocket|Failed to load resource|debugger state",
    # its own requests to a kernel that is being restarted
    "Canceled future for",
)

# [points on screen, when the frame that shows them came], in the page's own clock, which is this machine's
NOTE_FRAMES = """card => {
    const seen = window.seen = [[+card.dataset.points || 0, Date.now() / 1000]];
    const note = () => requestAnimationFrame(() => {
        const count = +card.dataset.points;
        if (count > seen.at(-1)[0]) seen.push([count, Date.now() / 1000]);
    });
    new MutationObserver(note).observe(card, {attributeFilter: ['data-points']});
}"""

# a window of Chromium without a screen is never in the background by itself
LOOK_AWAY = "() => { document.hasFocus = () => false; }"
HIDE = """() => {
    Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});
    Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => 'hidden'});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def launch(playwright: Playwright) -> Browser:
    """Raises RuntimeError where no Chromium is installed."""
    if not CHROMIUM:
        raise RuntimeError("no chromium is installed: apt-get install chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    return playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@contextmanager
def window(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A person's browser: cookies and storage of their own."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
    try:
        yield context
    finally:
        context.close()


def under_way(seen: Sequence[Sequence[float]], logged: Sequence[float]) -> list[float]:
    """Seconds from the log call to the pixel of each point that came while frames were noted (`Lab.note_frames`)."""
    delays = []
    for (before, _), (count, shown) in itertools.pairwise(seen):
        delays += [shown - at for at in logged[int(before) : int(count)]]
    return delays


class Lab:
    """One person's browser window on JupyterLab; what goes wrong in it is kept in `faults`."""

    def __init__(self, page: Page, base: str, *, alone: bool = False) -> None:
        self.page, self.base, self.alone = page, base, alone
        self.faults: list[str] = []
        self.allowed: list[str] = []
        page.on("pageerror", lambda error: self._note(f"page error: {error}"))
        page.on("console", lambda m: self._note(f"console: {m.text}") if m.type == "error" else None)
        page.on("response", self._look)
        page.on("request", self._ask)

    def _look(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"{response.status} {response.request.method} {response.url}")

    def _ask(self, request: Request) -> None:
        """Nothing comes from elsewhere: no font, no script, no count of visitors."""
        asked, own = urlsplit(request.url), urlsplit(self.base)
        if asked.scheme in ("http", "https") and asked.netloc != own.netloc:
            self._note(f"asked elsewhere: {request.url}")

    def _note(self, text: str) -> None:
        if not any(re.search(pattern, text) for pattern in (*KNOWN, *self.allowed)):
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
        cell = self.cell(index)
        prompt = cell.locator(".jp-InputPrompt").first
        before = prompt.inner_text()
        for _ in range(4):
            cell.locator(".cm-content").first.click()
            self.page.keyboard.press("Control+Enter")
            with suppress(AssertionError):
                expect(prompt).not_to_have_text(before, timeout=5_000)
                break
        expect(prompt).not_to_have_text(before)

    def cell(self, index: int) -> Any:
        return self.page.locator(f"{SHOWN} .jp-Cell[data-windowed-list-index='{index}']")

    def scroll_to(self, part: float) -> None:
        """0.0: the notebook's beginning, 1.0: its end; cells out of sight may have no nodes."""
        whole = self.page.locator(f"{SHOWN} .jp-WindowedPanel-outer")
        whole.evaluate("(node, part) => node.scrollTo(0, part * node.scrollHeight)", part)

    def save(self) -> None:
        self.page.locator(f"{SHOWN} [data-jp-item-name='save'] jp-button").click()
        self.page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")

    def reload(self) -> None:
        self.page.reload()
        self.wait_kernel(IDLE)

    def restart_kernel(self) -> None:
        restart = f"{SHOWN} [data-jp-item-name='restart']"
        self.page.locator(f"{restart} jp-button, {restart} button").first.click()
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
        return self.page.locator(SHOWN).get_by_role("button", name="Promote").first

    def jobs_panel(self) -> Any:
        self.page.get_by_role("tab", name="Jobs", exact=True).click()
        panel = self.page.locator("#slicelift-jobs .sl-jobs")
        panel.wait_for()
        return panel

    def card(self, run_id: str = "") -> Any:
        which = f"[data-run='{run_id}']" if run_id else ""
        return self.page.locator(f"{SHOWN} .sl-card{which}").first

    def promoted(self, index: int) -> Any:
        """Runs a cell that promotes its notebook; the card below it, once the job runs."""
        self.run_cell(index)
        card = self.card()
        card.wait_for(timeout=90_000)
        self.wait_status(card, "RUNNING")
        return card

    def cancel(self, card: Any) -> None:
        card.get_by_role("button", name="Cancel", exact=True).click()
        card.get_by_role("button", name="Cancel the run").click()
        self.wait_status(card, "KILLED")

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

    def note_frames(self, card: Any) -> None:
        """From now on, when each point came to the screen; `frames` gives them."""
        card.evaluate(NOTE_FRAMES)

    def frames(self) -> list[list[float]]:
        return [list(pair) for pair in self.page.evaluate("() => window.seen")]

    def look_away(self) -> None:
        """As when another window is in front of this one."""
        self.page.evaluate(LOOK_AWAY)

    def hide(self) -> None:
        """As when another tab is in front of this one."""
        self.look_away()
        self.page.evaluate(HIDE)

    def picture(self, name: str) -> None:
        take_picture(self.page, name)


class Streams:
    """The event streams that a page holds open."""

    def __init__(self, page: Page) -> None:
        self.open: list[str] = []
        page.on("request", lambda request: self.open.append(request.url) if self._is(request) else None)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)

    def _is(self, request: Request) -> bool:
        return "/slicelift/api/events" in request.url

    def _ended(self, request: Request) -> None:
        if self._is(request) and request.url in self.open:
            self.open.remove(request.url)


def take_picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
