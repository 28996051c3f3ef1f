"""A person who looks away: another window in front, a hidden page, an hour with the browser shut."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.browser.people import visit
from tests.browser.places import PlainLab
from tests.browser.projects import PROMOTES, WAITS, write_notebook
from tests.browser.windows import Lab, Streams
from tests.waiting import wait_for

# Chromium's own notifications, and the list of them: what the desktop shows of one is outside the page
KEEP_NOTIFICATIONS = """(() => {
    const told = window.told = [];
    window.Notification = class extends window.Notification {
        constructor(title, options) {
            super(title, options);
            told.push(this);
        }
    };
})()"""
TOLD = "() => told.map(each => [each.title, each.body, each.tag])"
HOUR_SECONDS = 3600
POLL_SECONDS = 60


def promote_waiting(plain: PlainLab, flag: Path) -> str:
    """A job that runs until the file is there; it is called like the file."""
    path = write_notebook(plain.project / "waits.ipynb", WAITS.format(flag=str(flag)))
    told = plain.slicelift("promote", str(path), "--workers", "1", "--name", flag.name)
    return str(told["run_id"])


def wait_until(plain: PlainLab, run_id: str, status: str) -> dict[str, Any]:
    """The launcher's own view; no page is asked."""

    def stands() -> dict[str, Any]:
        view = plain.slicelift("status", run_id)
        return view if view["status"] == status else {}

    return dict(wait_for(f"{run_id}: {status}", stands, seconds=90))


def told(page: Page, count: int) -> list[list[str]]:
    page.wait_for_function(f"() => told.length >= {count}", timeout=60_000)
    return [list(each) for each in page.evaluate(TOLD)]


def test_the_browser_tells_the_end_of_a_job(lab: Lab, plain: PlainLab, tmp_path: Path) -> None:
    """Once, with a way to the run; a hidden page has no stream, asks once a minute and tells it all the same."""
    flags = tmp_path / "先", tmp_path / "second"
    first, second = (promote_waiting(plain, flag) for flag in flags)
    page = lab.page
    page.context.grant_permissions(["notifications"], origin=plain.origin)
    page.add_init_script(KEEP_NOTIFICATIONS)
    page.clock.install()
    streams = Streams(page)
    page.goto(f"{lab.base}/lab")
    panel = lab.jobs_panel()
    expect(panel.get_by_text("The browser tells you when a job ends.")).to_be_visible()
    for run_id in (first, second):
        expect(panel.locator(f"[data-run='{run_id}']")).to_have_attribute("data-status", "RUNNING")

    lab.look_away()
    flags[0].touch()
    assert re.fullmatch(r"先 is done after (\d+ min )?[\d.]+ s", told(page, 1)[0][1])
    page.evaluate("() => told[0].onclick()")
    card = page.locator(f".sl-tab .sl-card[data-run='{first}']")
    lab.wait_status(card, "FINISHED")

    lab.hide()
    wait_for("the end of the stream", lambda: page.wait_for_timeout(50) or not streams.open, seconds=10)
    flags[1].touch()
    wait_until(plain, second, "FINISHED")
    assert len(told(page, 1)) == 1
    page.clock.fast_forward(POLL_SECONDS * 1000)
    both = told(page, 2)
    assert [title for title, _, _ in both] == ["Slicelift", "Slicelift"]
    assert [tag for _, _, tag in both] == [f"{first}-1", f"{second}-1"]
    assert both[1][1].startswith("second is done after ")
    assert streams.open == []


def test_an_hour_with_the_browser_shut(plain: PlainLab, browser: Browser, tmp_path: Path) -> None:
    """The job ends meanwhile: the reopened card has its end, every change, every point and what it left behind."""
    flag = tmp_path / "go"
    notebook = write_notebook(plain.project / "hour.ipynb", PROMOTES, WAITS.format(flag=str(flag)))
    with visit(plain, browser) as lab:
        lab.open(notebook.name)
        card = lab.promoted(0)
        run_id = str(card.get_attribute("data-run"))
        lab.wait_points(card, 1)
        lab.save()
    flag.touch()
    ended = wait_until(plain, run_id, "FINISHED")

    with visit(plain, browser) as lab:
        lab.page.clock.install(time=time.time() + HOUR_SECONDS)
        lab.open(notebook.name)
        card = lab.card(run_id)
        lab.wait_status(card, "FINISHED")
        lab.wait_points(card, 2)
        # by the launcher's times, not by this page's clock
        expect(card.locator(".sl-sentence")).to_have_text(re.compile(r"^Finished in (\d+ min )?[\d.]+ s$"))
        see_history(card, ended["history"])
        see_output(lab, card)
        expect(lab.page.locator(".Toastify__toast", has_text="is done after")).to_have_count(0)
        # the file was saved while the job ran; now the end is put into it by itself
        lab.page.locator(".jp-mod-dirty").first.wait_for(state="attached")
        lab.picture("plain-hour")
        lab.save()
    assert '"status": "FINISHED"' in notebook.read_text(encoding="utf-8")
    plain.end_kernels()


def see_history(card: Any, history: list[dict[str, Any]]) -> None:
    words = {"WAITING": "Waiting", "STARTING": "Starting", "RUNNING": "Running", "FINISHED": "Done"}
    card.get_by_text(f"all {len(history)} changes").click()
    rows = card.locator(".sl-more[open] tbody tr")
    expect(rows).to_have_count(len(history))
    shown = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [cells[2] for cells in shown] == [words[change["status"]] for change in history]
    clock = [time.strftime("%H:%M:%S", time.localtime(change["time"])) for change in history]
    assert [cells[0][-8:] for cells in shown] == clock


def see_output(lab: Lab, card: Any) -> None:
    card.get_by_text("Outputs", exact=True).click()
    with lab.page.expect_download() as download:
        card.get_by_role("link", name="Download left behind.txt").click()
    assert Path(download.value.path()).read_text() == "until you are back"
