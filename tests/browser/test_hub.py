"""A person's way through the hub's public port: sign in, get a slice, promote, watch, and come back after every fault."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import expect

from tests.browser.people import Person, promotion_id
from tests.browser.places import RunningHub
from tests.browser.projects import PROMOTES, TRAINS
from tests.browser.windows import BUSY, SHOWN, Lab, Streams, under_way
from tests.waiting import wait_for

QUICKSTART = "quickstart/quickstart.ipynb"
PROBE = Path(__file__).with_name("probe.py")
HERS = """
import pathlib, slicelift
slicelift.log(step=0, annas_loss=1.0)
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/annas.txt").write_text("annas words")
print("annas words")
"""
SEARCH = "api/2.0/mlflow/runs/search"
EVERY_RUN = {"experiment_ids": [str(number) for number in range(10)], "max_results": 100}


def rising(lab: Lab, card: Any, *, pauses: int = 3) -> list[int]:
    """The number of points at moments at least a second apart, each higher than the one before."""
    seen = [lab.wait_points(card, 1)]
    for _ in range(pauses - 1):
        lab.page.wait_for_timeout(1_000)
        seen.append(lab.wait_points(card, seen[-1] + 1, seconds=10))
    return seen


def submit_from_panel(lab: Lab, workers: int = 1) -> str:
    """Through the Promote button; the run's id."""
    lab.promote_button().click()
    panel = lab.page.get_by_role("region", name=re.compile("^Promote "))
    expect(panel.get_by_text(re.compile(r"\d+ of \d+ code cells"))).to_be_visible()
    panel.get_by_role("spinbutton", name="workers").fill(str(workers))
    button = panel.get_by_role("button", name="Submit")
    expect(button).to_have_attribute("aria-disabled", "false")
    button.click()
    card = panel.locator(".sl-card")
    card.wait_for(timeout=60_000)
    return str(card.get_attribute("data-run"))


def test_from_the_login_to_a_model_with_an_alias(anna: Person) -> None:
    """Spawn on a slice, promote the demo from the panel, watch it to the end, set the alias."""
    lab = anna.lab
    assert "simulated" in anna.offers["1g.10gb slice"]
    lab.open(QUICKSTART)
    lab.picture("hub-notebook")
    run_id = submit_from_panel(lab, workers=2)
    panel = lab.page.get_by_role("region", name=re.compile("^Promote "))
    card = panel.locator(f".sl-card[data-run='{run_id}']")
    lab.wait_status(card, "RUNNING", seconds=90)
    lab.wait_points(card, 1, seconds=120)  # two ranks import torch first
    lab.picture("hub-running")
    see_parts(card)
    lab.wait_status(card, "FINISHED", seconds=120)
    expect(card.get_by_text("digits version 1", exact=True)).to_be_visible(timeout=60_000)
    card.get_by_role("button", name=re.compile("Set an alias")).click()
    lab.allowed.append("400 POST .*/aliases/latest")
    card.get_by_label("Alias", exact=True).fill("latest")
    card.get_by_role("button", name="Set", exact=True).click()
    expect(card.get_by_role("alert").get_by_text(re.compile("cannot be an alias"))).to_be_visible()
    expect(card.get_by_role("alert").get_by_text(re.compile("reserved by MLflow"))).to_be_visible()
    card.get_by_label("Alias", exact=True).fill("champion")
    card.get_by_role("button", name="Set", exact=True).click()
    expect(card.get_by_text("@champion", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name=re.compile("Set an alias"))).to_be_focused()
    expect(card.get_by_text(re.compile("@champion set by anna"))).to_be_visible()
    lab.picture("hub-done")


def see_parts(card: Any) -> None:
    """Charts with their values in words, a square per rank, and a press on one of them leads to its log."""
    for label in (
        r"loss: [\d.]+ at step \d+",
        r"throughput \(samples\): .* samples.s at step",
        r"peak host memory: .* MiB at step",
    ):
        expect(card.get_by_role("img", name=re.compile(label))).to_be_visible()
    ranks = card.get_by_role("list", name="Ranks").get_by_role("listitem")
    expect(ranks).to_have_count(2)
    card.get_by_role("button", name=re.compile(r"^rank 1, .*Show its log")).click()
    expect(card.get_by_role("log")).to_contain_text("1500 images to learn from")
    expect(card.get_by_label("log of")).to_have_value("1")


def test_the_card_is_true_again_after_everything(anna: Person, hub: RunningHub) -> None:
    """Points a second apart, a reload, a restarted and a busy kernel, a killed launcher; then cancel and retry."""
    lab = anna.lab
    name = "quickstart/watched.ipynb"
    anna.write_notebook(name, PROMOTES, TRAINS.format(steps=100_000, pause=0.2))
    lab.open(name)
    card = lab.promoted(0)
    run_id = str(card.get_attribute("data-run"))
    seen = rising(lab, card)
    lab.save()

    lab.reload()
    card = lab.card(run_id)
    card.wait_for()
    seen.append(lab.wait_points(card, seen[-1] + 1))

    lab.restart_kernel()
    seen.append(lab.wait_points(card, seen[-1] + 1))

    lab.allowed.append("(502|503|504) (GET|POST) .*/slicelift/")
    hub.kill_launcher()
    seen.append(lab.wait_points(card, seen[-1] + 5, seconds=60))
    expect(card).to_have_attribute("data-connection", "live")
    assert seen == sorted(seen)

    lab.run_cell(1)  # trains in the kernel for hours: it is busy from here on
    lab.wait_kernel(BUSY)
    before = lab.points(card)
    lab.wait_points(card, before + 1)
    lab.cancel(card)
    lab.picture("hub-cancelled")
    card.get_by_role("button", name="Retry").click()
    lab.wait_status(card, "STARTING", "RUNNING", seconds=30)
    lab.wait_status(card, "RUNNING", seconds=60)
    expect(card.get_by_text("attempt 2").first).to_be_visible()
    lab.cancel(card)


def saved_output(bundle: dict[str, Any]) -> Any:
    return nbformat.v4.new_output("display_data", data=bundle["data"])


def test_fifty_cards_share_one_stream(anna: Person) -> None:
    """A saved notebook with fifty outputs: one stream for all, events within a second, other calls as quick as ever."""
    lab = anna.lab
    # slow enough for a card to hold every single point until the end
    anna.write_notebook("quickstart/steady.ipynb", TRAINS.format(steps=100_000, pause=0.4))
    lab.open("quickstart/steady.ipynb")
    live = anna.promote("quickstart/steady.ipynb")
    wide = live["spec"] | {"workers": 2}  # beside the live one: these wait
    others = [
        anna.fetch("slicelift/api/jobs", {"promotion_id": promotion_id(), "spec": wide}) for _ in range(24)
    ]
    runs = [live["run_id"], *(view["run_id"] for view in others)]
    outputs = [saved_output(anna.fetch(f"slicelift/card/{run}")) for run in runs]
    anna.write_notebook("quickstart/fifty.ipynb", *["# ten runs"] * 5, outputs=outputs * 2)
    streams = Streams(lab.page)
    lab.open("quickstart/fifty.ipynb")

    cards = lab.page.locator(f"{SHOWN} .sl-card")
    expect(cards).to_have_count(50)
    expect(cards.and_(lab.page.locator("[data-connection='live']"))).to_have_count(50)
    assert len(streams.open) == 1, streams.open
    assert "runs=" not in streams.open[0]
    card = lab.card(live["run_id"])
    lab.wait_status(card, "RUNNING")
    lab.wait_points(card, 1, seconds=60)
    for again in (True, True, False):  # the machine may be busy with other tests for a while
        events, calls = delays_beside_calls(anna, card)
        if p95(events) <= 1 and p95(calls) <= 1:
            break
        assert again, (events, calls)
    lab.picture("hub-fifty")
    for run in reversed(runs):  # the live one last: it keeps the others waiting
        anna.fetch(f"slicelift/api/jobs/{run}/cancel", {})
    expect(cards.and_(lab.page.locator("[data-status='KILLED']"))).to_have_count(50)
    assert len(streams.open) == 1, streams.open


def delays_beside_calls(person: Person, card: Any) -> tuple[list[float], list[float]]:
    """Seconds from the log call to the pixel of twenty points, and of the session's answers between them."""
    lab, calls = person.lab, []
    lab.note_frames(card)
    last = lab.points(card) + 20
    while lab.points(card) < last:
        begun = time.monotonic()
        assert person.call("api/status")[0] == 200
        calls.append(time.monotonic() - begun)
    series = f"slicelift/api/jobs/{card.get_attribute('data-run')}/series?keys=loss&points=5000"
    points = person.fetch(series)["series"][0]["points"]
    return under_way(lab.frames(), [logged for _, logged, _ in points]), calls


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def test_another_user_sees_nothing_of_it(anna: Person, ben: Person) -> None:
    """Ben's own list is empty, and Anna's run is unknown to him by its id, through his own session."""
    runs = anna.fetch("slicelift/api/jobs")["jobs"]
    assert runs
    assert ben.fetch("slicelift/api/jobs")["jobs"] == []
    ben.lab.allowed.append("404 (GET|POST) .*/slicelift/api/(jobs|snapshots|events)")
    for run in runs:
        for path in ("", "/logs", "/series", "/outputs", "/attempts"):
            assert ben.call(f"slicelift/api/jobs/{run['run_id']}{path}")[0] == 404
        assert ben.call(f"slicelift/api/jobs/{run['run_id']}/cancel", {})[0] == 404
        assert ben.call(f"slicelift/api/snapshots/{run['spec']['snapshot_id']}")[0] == 404
    # a notebook that she gave him: what was saved with it, and nothing to press
    given = saved_output(anna.fetch(f"slicelift/card/{runs[0]['run_id']}"))
    ben.write_notebook("given.ipynb", "# from Anna", outputs=[given])
    ben.lab.open("given.ipynb")
    card = ben.lab.card(runs[0]["run_id"])
    expect(card.get_by_text(re.compile("^This run is not yours"))).to_be_visible()
    expect(
        card.locator(
            "button:visible:enabled, summary:visible", has_text=re.compile("Logs|Cancel|Retry|alias|Outputs")
        )
    ).to_have_count(0)
    # her server is closed to him altogether
    assert ben.status_of_page("/user/anna/slicelift/api/jobs") in (401, 403, 404)


def test_nothing_in_another_users_kernel_opens_it(anna: Person, ben: Person) -> None:
    """Every credential of Ben's kernel at every listening port; the same cell in Anna's shows what there is to see."""
    assert anna.call("slicelift/api/secrets/ANNAS_KEY", {"value": "annas secret"}, method="PUT")[0] == 200
    anna.write_notebook("quickstart/annas.ipynb", HERS)
    run = anna.promote("quickstart/annas.ipynb")
    wait_for("MLflow", lambda: anna.fetch(f"slicelift/api/jobs/{run['run_id']}")["tracked"], seconds=90)
    own, pages = calls_of(run), [("/hub/api/users/anna", None), ("/user/anna/api/contents/quickstart", None)]
    beside = [
        ("/api/routes", None),
        ("/hub/api/users", None),
        (f"/{SEARCH}", EVERY_RUN),
    ]
    calls = [*own, *pages, *beside]
    marks = [run["run_id"], run["spec"]["snapshot_id"], "annas", "ANNAS_KEY", '"name": "anna"', "/user/anna"]
    assert probed(ben, calls, marks) == []
    ben.lab.page.close()
    assert probed(anna, calls, marks) == sorted(path for path, _ in [*own, *pages])


def calls_of(run: dict[str, Any]) -> list[tuple[str, Any]]:
    """All that the launcher tells of a run and its owner, at its own port and through the hub's."""
    job, snapshot = f"jobs/{run['run_id']}", f"snapshots/{run['spec']['snapshot_id']}"
    read = [
        "jobs",
        job,
        f"{job}/logs?rank=0",
        f"{job}/series?keys=annas_loss",
        f"{job}/outputs",
        f"{job}/outputs/1/annas.txt",
    ]
    read += [f"events?runs={run['run_id']}", snapshot, f"{snapshot}/files/.slicelift/promoted.py", "secrets"]
    calls = [*((path, None) for path in read), (f"mlflow/{SEARCH}", EVERY_RUN)]
    return [(f"{base}/api/v1/{path}", body) for base in ("", "/services/launcher") for path, body in calls]


def probed(person: Person, calls: list[tuple[str, Any]], marks: list[str]) -> list[str]:
    """What the probe's last cell printed, in a kernel of that person's."""
    person.write_notebook(
        "probe.ipynb", PROBE.read_text(), f"print(json.dumps(reached({calls!r}, {marks!r})))"
    )
    person.lab.open("probe.ipynb")
    person.lab.run_cell(0)
    person.lab.run_cell(1)
    # a kernel's own pipe listens as well, and complains aloud of a stranger
    printed = person.lab.cell(1).locator("[data-mime-type='application/vnd.jupyter.stdout'] pre")
    printed.wait_for(timeout=120_000)
    return list(json.loads(printed.inner_text()))


def test_the_hub_is_restarted_and_the_card_goes_on(anna: Person, hub: RunningHub) -> None:
    """Sessions, jobs and open pages outlive the hub's process."""
    lab = anna.lab
    anna.write_notebook("quickstart/outlives.ipynb", PROMOTES, TRAINS.format(steps=2000, pause=0.2))
    lab.open("quickstart/outlives.ipynb")
    card = lab.promoted(0)
    before = lab.wait_points(card, 2)
    # proxy and hub are away for seconds: everything on the page that asks is refused
    lab.allowed.append("(404|50[0234]) |Failed to fetch|NetworkError|ERR_")
    # JupyterLab's own question while its server seems to be gone
    gone = lab.page.locator(".jp-Dialog", has_text="Server unavailable")
    lab.page.add_locator_handler(gone, lambda: gone.locator(".jp-mod-reject").first.click())
    hub.restart()
    lab.wait_points(card, before + 10, seconds=90)
    assert card.get_attribute("data-status") == "RUNNING"
    lab.cancel(card)
