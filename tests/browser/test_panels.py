"""The Promote panel, the jobs panel and the card as a person uses them; by keyboard, reader, small screen and Chinese."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.places import PlainLab
from tests.browser.projects import TRAINS, WAITS, write_notebook
from tests.browser.windows import Lab
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "extension" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
CHINESE = ROOT / "extension" / "slicelift" / "locale" / "zh_CN" / "LC_MESSAGES" / "slicelift.json"
DEMO = "notebooks/quickstart.ipynb"
OURS = (".sl-promote", ".sl-side", ".sl-card")
BROKEN = "import slicelift\n\nslicelift.log(step=0, loss=losss)"

VIOLATIONS = """selector => axe.run(selector).then(r => r.passes.length < 5 ? ['axe saw nothing'] : r.violations.map(
    v => `${v.id}: ${v.nodes.map(n => n.target.join(' ') + ' ' + n.failureSummary).join(' | ')}`))"""

# what sticks out of a view of that width; a box that scrolls by itself may hold anything
OVERFLOW = """(view, width) => {
    const before = view.style.cssText;
    view.style.cssText = `width: ${width}px; min-width: 0; max-width: none; box-sizing: border-box`;
    const edge = view.getBoundingClientRect().right + 1;
    const scrolls = node => node !== view && ['auto', 'scroll', 'hidden'].includes(getComputedStyle(node).overflowX);
    const inside = node => { for (let at = node; at !== view; at = at.parentElement) if (scrolls(at)) return true; };
    const out = [...view.querySelectorAll('*')].filter(
        node => node.getBoundingClientRect().right > edge && !inside(node.parentElement));
    view.style.cssText = before;
    return out.map(node => `${node.tagName} ${node.className} ${node.textContent.slice(0, 60)}`);
}"""

FOCUS_IN_SIGHT = """() => {
    const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(document.activeElement);
    return (outlineStyle !== 'none' && outlineWidth !== '0px') || boxShadow !== 'none';
}"""

# what stands in the middle of the page, as the server has it for the next time
SAVED_LAYOUT = """() => fetch('/a%40b/lab/api/workspaces/default').then(answer => answer.json())
    .then(({data}) => JSON.stringify(data['layout-restorer:data'].main))"""

# every text a person sees or hears, but for what a notebook, a log or a person's own names say
TEXTS = """view => {
    const found = [], walker = document.createTreeWalker(view, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        if (!node.parentElement.closest('pre, code')) found.push(node.textContent.trim());
    for (const node of view.querySelectorAll('*'))
        for (const name of ['aria-label', 'title', 'placeholder'])
            if (node.hasAttribute(name)) found.push(node.getAttribute(name));
    return found.filter(Boolean);
}"""


def open_panel(lab: Lab, path: str) -> Any:
    """The Promote panel of a notebook that was just opened."""
    lab.open(path)
    lab.promote_button().click()
    lab.save_and_go_on()
    return lab.page.locator(".sl-promote").last


def violations(lab: Lab) -> list[str]:
    """What axe-core finds within our own views, those that are in the page."""
    lab.page.evaluate(AXE.read_text(encoding="utf-8"))
    there = [name for name in OURS if lab.page.locator(name).count()]
    return [text for name in there for text in lab.page.evaluate(VIOLATIONS, name)]


def left_in_english(texts: list[str]) -> list[str]:
    """Texts that are a message of ours as it stands in the sources, where there is a Chinese form of it."""
    known = json.loads(CHINESE.read_text(encoding="utf-8"))
    translated = [name for name, forms in known.items() if name and forms[0] != name]
    wordy = [name for name in translated if "%" not in name or len(re.findall("[A-Za-z]{3,}", name)) > 1]
    patterns = [re.compile(re.sub(r"%\\?\d", r"\\S+", re.escape(name))) for name in wordy]
    return [text for text in texts if any(pattern.fullmatch(text) for pattern in patterns)]


def test_an_error_holds_the_submit_back(lab: Lab, plain: PlainLab) -> None:
    """The finding leads to its cell and line; what is typed there is saved after one question, and Submit is free."""
    write_notebook(plain.project / "findings.ipynb", "x = 1", BROKEN)
    panel = open_panel(lab, "findings.ipynb")
    submit = panel.get_by_role("button", name="Submit")
    expect(submit).to_have_attribute("aria-disabled", "true")
    expect(panel.get_by_role("status")).to_contain_text("error must be mended first")
    lab.picture("panel-error")
    panel.get_by_role("button", name="cell 2, line 3").click()
    expect(lab.page.locator("#jp-main-statusbar")).to_contain_text("Ln 3, Col 1")
    assert lab.position()[0].startswith("Cell 2/")
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.insert_text("import slicelift\n\nslicelift.log(step=0, loss=1.0)")
    expect(panel.get_by_text("The notebook changed since it was checked")).to_be_visible()
    panel.get_by_role("button", name="Check again").click()
    lab.save_and_go_on()
    expect(submit).to_have_attribute("aria-disabled", "false")
    assert "loss=1.0" in (plain.project / "findings.ipynb").read_text(encoding="utf-8")


def test_the_demo_from_the_panel_to_a_version(lab: Lab) -> None:
    """Data, plan, manifest and script are told; a changed parameter travels; the card in the panel ends with a model."""
    panel = open_panel(lab, DEMO)
    expect(panel.get_by_text("8 of 9 code cells")).to_be_visible()
    expect(panel.get_by_text("starts now: 2 of 2 slots are free")).to_be_visible(timeout=60_000)
    expect(panel.get_by_text(re.compile("1797 files, .*all in remote demo ✓"))).to_be_visible()
    epochs = panel.get_by_label("epochs =")
    epochs.fill("4")
    expect(panel.get_by_role("button", name="Reset epochs to 12")).to_be_visible()
    panel.get_by_text("Manifest", exact=True).click()
    expect(panel.get_by_role("region", name="Manifest")).to_contain_text("{'epochs': 4}")
    panel.get_by_text("Script", exact=True).click()
    expect(panel.get_by_role("region", name="Script")).to_contain_text("slicelift.save_model")
    lab.picture("panel-plan")
    submit = panel.get_by_role("button", name="Submit")
    expect(submit).to_have_attribute("aria-disabled", "false")
    submit.click()
    card = panel.locator(".sl-card")
    lab.wait_status(card, "FINISHED", seconds=120)
    # MLflow may still be starting when so short a training is over
    expect(card.locator(".sl-version").get_by_text(re.compile("digits version "))).to_be_visible(
        timeout=90_000
    )
    lab.picture("panel-done")
    panel.get_by_role("button", name="Open in jobs").click()
    lab.page.locator(".sl-tab .sl-card").wait_for()


def test_jobs_that_come_from_elsewhere(lab: Lab, plain: PlainLab) -> None:
    """A job of the command line appears by itself, its tab outlives a reload, and its end is told."""
    lab.page.goto(f"{lab.base}/lab")
    panel = lab.jobs_panel()
    name = "from 终端"
    flag = plain.project.parent / "short-may-end"
    path = write_notebook(
        plain.project / "short.ipynb", TRAINS.format(steps=5, pause=0.2), WAITS.format(flag=str(flag))
    )
    told = plain.slicelift("promote", str(path), "--workers", "1", "--name", name)
    row = panel.locator(f"[data-run='{told['run_id']}']")
    expect(row).to_contain_text(name)
    panel.get_by_role("searchbox", name="Filter the jobs").fill("no such job")
    expect(panel.get_by_role("status")).to_have_text("No job fits the filter.")
    panel.get_by_role("searchbox", name="Filter the jobs").fill("终端")
    expect(panel.locator("[data-run]")).to_have_count(1)
    row.click()
    card = lab.page.locator(f".sl-tab .sl-card[data-run='{told['run_id']}']")
    lab.wait_points(card, 2, seconds=60)
    lab.picture("jobs-tab")
    wait_for("the layout", lambda: "slicelift-runs" in lab.page.evaluate(SAVED_LAYOUT), seconds=30)
    lab.page.goto(f"{lab.base}/lab")
    lab.wait_status(card, "RUNNING")
    flag.touch()
    notice = lab.page.locator(".Toastify__toast").filter(has_text=f"{name} is done after")
    notice.wait_for(timeout=90_000)
    lab.wait_status(card, "FINISHED")
    lab.picture("jobs-notice")
    panel.get_by_label("Status").select_option("failed")
    expect(panel.locator(f"[data-run='{told['run_id']}']")).to_have_count(0)
    panel.get_by_label("Status").select_option("done")
    expect(panel.locator(f"[data-run='{told['run_id']}']")).to_have_count(1)


def test_by_keyboard_alone(lab: Lab, plain: PlainLab) -> None:
    """From the panel's button to a cancelled run without a mouse, and always with the focus in sight."""
    write_notebook(plain.project / "keys.ipynb", TRAINS.format(steps=100_000, pause=0.2))
    lab.open("keys.ipynb")
    lab.promote_button().focus()
    lab.page.keyboard.press("Enter")
    lab.save_and_go_on()
    panel = lab.page.locator(".sl-promote").last
    expect(panel.get_by_role("heading", level=2)).to_be_focused()
    submit = panel.get_by_role("button", name="Submit")
    expect(submit).to_have_attribute("aria-disabled", "false")
    panel.get_by_role("spinbutton", name="workers").focus()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.type("1")
    expect(panel.get_by_role("spinbutton", name="workers")).to_have_value("1")
    press_to(lab, "Shift+Tab", submit)
    lab.page.keyboard.press("Enter")
    card = panel.locator(".sl-card")
    lab.wait_status(card, "RUNNING")
    card.get_by_role("button", name="Logs").focus()
    press_to(lab, "Tab", card.get_by_role("button", name="Cancel", exact=True))
    lab.page.keyboard.press("Enter")
    expect(card.get_by_role("button", name="Cancel the run")).to_be_focused()
    lab.page.keyboard.press("Escape")
    expect(card.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    lab.page.keyboard.press("Enter")
    lab.page.keyboard.press("Enter")
    lab.wait_status(card, "KILLED")
    expect(card.get_by_role("button", name="Logs")).to_be_focused()


def press_to(lab: Lab, key: str, control: Any) -> None:
    for _ in range(40):
        lab.page.keyboard.press(key)
        assert lab.page.evaluate(FOCUS_IN_SIGHT), "the focus cannot be seen"
        if control.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError(f"40 times {key} do not lead to {control}")


@pytest.mark.parametrize(
    ("theme", "locale"), [("JupyterLab Dark", "default"), ("JupyterLab Light", "zh_CN")], ids=str
)
def test_everybody_can_read_it(lab: Lab, plain: PlainLab, theme: str, locale: str) -> None:
    """No violation for axe, nothing out of sight at 320 px; in Chinese nothing is left in English."""
    plain.settings("@jupyterlab/apputils-extension:themes", theme=theme)
    plain.settings("@jupyterlab/translation-extension:plugin", locale=locale)
    chinese = locale == "zh_CN"
    try:
        lab.page.goto(f"{lab.base}/lab/tree/{DEMO}")
        show_everything(lab, chinese=chinese)
        lab.picture(f"everybody-{'zh' if chinese else 'dark'}")
        assert violations(lab) == []
        views = [view for name in OURS for view in lab.page.locator(f"{name}:visible").all()]
        assert len(views) >= 3
        for view in views:
            assert view.evaluate(OVERFLOW, 320) == []
        if chinese:
            texts = [text for view in views for text in view.evaluate(TEXTS)]
            assert "提升 quickstart.ipynb" in texts
            assert left_in_english([*texts, "Logs", "1 of 1 code cell travels"]) == [
                "Logs",
                "1 of 1 code cell travels",
            ]
    finally:
        plain.settings("@jupyterlab/apputils-extension:themes", theme="JupyterLab Light")
        plain.settings("@jupyterlab/translation-extension:plugin", locale="default")


def show_everything(lab: Lab, *, chinese: bool) -> None:
    """Panel, list and a card beside each other, with all that folds opened."""
    lab.page.locator(".jp-NotebookPanel .jp-Notebook-cell").first.wait_for(timeout=60_000)
    lab.page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").first.wait_for(timeout=60_000)
    lab.page.locator("[data-jp-item-name='slicelift-promote'] jp-button").first.click()
    dialog = lab.page.locator(".jp-Dialog .jp-mod-accept")
    panel = lab.page.locator(".sl-promote")
    panel.wait_for()
    lab.page.wait_for_function(
        "() => document.querySelector('.jp-Dialog .jp-mod-accept, .sl-promote .sl-starts')"
    )
    if dialog.count():
        dialog.click()
    panel.locator(".sl-starts").wait_for(timeout=60_000)
    lab.page.locator("[role=tab][data-id='slicelift-jobs']").click()
    row = lab.page.locator("#slicelift-jobs [data-run]").first
    row.click()
    card = lab.page.locator(".sl-tab .sl-card")
    card.wait_for()
    expect(card).to_have_attribute("data-connection", "live")
    lab.page.evaluate(
        "() => document.querySelectorAll('.sl-promote details, .sl-card details').forEach(fold => fold.open = true)"
    )
    card.get_by_role("button", name="日志" if chinese else "Logs", exact=True).click()
    card.get_by_role("log").wait_for()
