"""JupyterLab without a hub: the card under a cell, and what it says when things end, fail or go away."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from playwright.sync_api import expect

from tests.browser.places import PlainLab
from tests.browser.projects import PROMOTES, TRAINS, write_notebook
from tests.browser.windows import Lab

AWAY = r"(0|50\d|404) (GET|POST) .*/(slicelift|api|lsp)/"


def static_page(place: PlainLab, notebook: str) -> str:
    """The saved notebook as nbconvert writes it."""
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", notebook]
    done = subprocess.run(
        command, cwd=place.project, env=place.variables, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_card_under_a_cell(lab: Lab, plain: PlainLab) -> None:
    """Live, after a reload and a kernel restart, beside the widgets of the same run, and on a static page."""
    cells = (PROMOTES, TRAINS.format(steps=100_000, pause=0.2), "slicelift.show(run)", "slicelift.jobs()")
    write_notebook(plain.project / "看 card.ipynb", *cells)
    lab.open("看 card.ipynb")
    card = lab.promoted(0)
    run_id = str(card.get_attribute("data-run"))
    seen = [lab.wait_points(card, 1)]
    seen.append(lab.wait_points(card, seen[-1] + 5))
    lab.run_cell(2)
    widget = lab.cell(2).locator(".sl-card")
    expect(widget).to_have_attribute("data-connection", "live")
    lab.wait_points(widget, lab.points(widget) + 3)
    lab.run_cell(3)
    row = lab.cell(3).locator(f"[data-run='{run_id}']").first
    expect(row).to_have_attribute("data-status", "RUNNING")
    lab.picture("plain-card")
    lab.save()

    lab.reload()
    card = lab.card(run_id)
    seen.append(lab.wait_points(card, seen[-1] + 1))
    lab.restart_kernel()
    seen.append(lab.wait_points(card, seen[-1] + 1))
    # what show() and jobs() left lives on, too, without the kernel that made it
    lab.scroll_to(1.0)
    expect(lab.cell(2).locator(".sl-card")).to_have_attribute("data-connection", "live")
    expect(lab.cell(3).locator(f"[data-run='{run_id}']").first).to_have_attribute("data-status", "RUNNING")
    lab.scroll_to(0.0)
    # after a click in a card Ctrl+S still saves, and a letter typed there is no command (`b` adds a cell)
    card.get_by_role("button", name="Logs").click()
    lab.page.keyboard.press("b")
    is_save = re.compile("/api/contents/.*card")
    with lab.page.expect_request(lambda asked: asked.method == "PUT" and bool(is_save.search(asked.url))):
        lab.page.keyboard.press("Control+s")
    assert len(json.loads((plain.project / "看 card.ipynb").read_text(encoding="utf-8"))["cells"]) == 4
    lab.cancel(card)
    # the end is put into the output by itself
    lab.page.locator(".jp-mod-dirty").first.wait_for(state="attached")
    lab.save()
    page = static_page(plain, "看 card.ipynb")
    assert re.search(r"<strong[^>]*>Cancelled</strong>", page)
    assert run_id in page


def test_a_failed_run_leads_to_the_line(lab: Lab, plain: PlainLab) -> None:
    """The card of a failure names cell and line, and its button puts the cursor there."""
    fails = "import time\n\nraise ValueError('数字 is <b>not</b> there')"
    write_notebook(plain.project / "fails.ipynb", PROMOTES, fails)
    lab.open("fails.ipynb")
    lab.run_cell(0)
    card = lab.card()
    card.wait_for(timeout=90_000)
    lab.wait_status(card, "FAILED")
    expect(card.get_by_text("数字 is <b>not</b> there").first).to_be_visible()
    lab.picture("plain-failed")
    card.get_by_role("button", name=re.compile("cell 2, line 3")).click()
    expect(lab.page.locator("#jp-main-statusbar")).to_contain_text("Ln 3, Col 1")
    assert lab.position()[0].startswith("Cell 2/")
    card.get_by_role("button", name="Logs").click()
    expect(card.get_by_role("log")).to_contain_text("ValueError")


def test_the_card_comes_back_after_launcher_and_server(lab: Lab, plain: PlainLab) -> None:
    """The launcher is stopped, then the Jupyter server: the card says so, and goes on when they are there again."""
    write_notebook(plain.project / "away.ipynb", PROMOTES, TRAINS.format(steps=100_000, pause=0.2))
    lab.open("away.ipynb")
    card = lab.promoted(0)
    seen = lab.wait_points(card, 1)
    lab.save()
    lab.allowed.append(AWAY)

    plain.slicelift("down", "--keep-jobs")
    notice = card.locator(".sl-notice")
    notice.wait_for(timeout=30_000)
    expect(notice).to_contain_text("The run itself goes on")
    # the next question of the page makes the Jupyter server start another one
    expect(card).to_have_attribute("data-connection", "live", timeout=60_000)
    expect(notice).to_be_hidden()
    seen = lab.wait_points(card, seen + 1)

    plain.stop()
    notice.wait_for(timeout=30_000)
    lab.picture("plain-away")
    plain.start()
    expect(card).to_have_attribute("data-connection", "live", timeout=60_000)
    lab.wait_points(card, seen + 1)
    dialog = lab.page.locator(".jp-Dialog .jp-mod-reject, .jp-Dialog .jp-mod-accept")
    if dialog.count():  # JupyterLab's own word on the lost server
        dialog.first.click()
    lab.cancel(card)
