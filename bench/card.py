"""What a person waits for at the card, in a real JupyterLab and a real Chromium.

From the log call to the pixel: a job logs, the page notes in which animation frame each point was on screen. First paint:
from the click on a job's row to charts that are drawn, for a run of a million points in 20 metrics.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page
from slicelift.launcher_client import Client
from slicelift.models import Status

from bench import jobs, project, window
from bench.figures import Figure, figure, p95
from tests.browser.windows import NOTE_FRAMES, under_way

STEPS, STEPS_A_SECOND = 200, 5
PIXEL_GOAL_SECONDS = 1.0
POINTS, KEYS, LINES_A_CALL = 1_000_000, 20, 500
PAINTS = 12
PAINT_GOAL_SECONDS = 0.5

LOGS = f"""
import time

import slicelift

for step in range({STEPS}):
    slicelift.log(step=step, loss=1 / (step + 1))
    time.sleep(1 / {STEPS_A_SECOND})
"""
WAITS = "import time\ntime.sleep(3600)"

# seconds from the click to the frame after the charts were drawn
PAINT = """row => new Promise(done => {
    const begun = performance.now();
    const look = () => {
        const card = document.querySelector('.sl-tab .sl-card');
        if (!card || !(+card.dataset.points > 0) || !card.querySelector('.sl-plot canvas')) return void setTimeout(look, 1);
        requestAnimationFrame(() => done((performance.now() - begun) / 1000));
    };
    row.click();
    look();
})"""


def run(place: Path) -> list[Figure]:
    """Both, in one JupyterLab."""
    root = project.make(place / "project")
    logs = project.write_notebook(root / "log.ipynb", [LOGS])
    waits = project.write_notebook(root / "wait.ipynb", [WAITS])
    project.commit(root)
    with jobs.launcher() as client, window.jupyterlab(root) as page:
        delays = _delays(client, page, logs)
        paints = _paints(client, page, waits)
    rate = f"from the log call to the pixel, {STEPS_A_SECOND} steps/s"
    what = f"first paint of a card of {POINTS:,} points in {KEYS} metrics"
    return [
        figure("log-to-pixel-p95", f"{rate}, p95", delays, unit="s", goal=PIXEL_GOAL_SECONDS, statistic=p95),
        figure("log-to-pixel", f"{rate}, median", delays, unit="s", statistic=statistics.median),
        figure("card-first-paint", what, paints, unit="s", goal=PAINT_GOAL_SECONDS, statistic=p95),
    ]


def _delays(client: Client, page: Page, notebook: Path) -> list[float]:
    """Seconds under way of every point that was logged while the card was open."""
    run_id = jobs.start(notebook).run_id
    _row(page, run_id).click()
    card = page.locator(f".sl-card[data-run='{run_id}']")
    card.wait_for()
    card.evaluate(NOTE_FRAMES)
    jobs.wait(client, run_id)
    page.wait_for_function(f"() => window.seen.at(-1)[0] >= {STEPS}")
    seen: list[list[float]] = page.evaluate("() => window.seen")
    _close(page, run_id)
    points = client.series(run_id, keys=["loss"], points=STEPS)[0]["points"]
    found = under_way(seen, [logged for _, logged, _ in points])
    if len(found) < STEPS / 2:
        raise RuntimeError(f"only {len(found)} of {STEPS} points came while the card was open")
    return found


def _paints(client: Client, page: Page, notebook: Path) -> list[float]:
    run_id = jobs.start(notebook).run_id
    jobs.wait(client, run_id, wanted=Status.RUNNING)
    _fill(client, run_id)
    row = _row(page, run_id)
    row.wait_for()
    seconds = []
    for _ in range(PAINTS):
        seconds.append(float(row.evaluate(PAINT)))
        _close(page, run_id)
    return seconds[1:]  # the first one loads what every later one has


def _fill(client: Client, run_id: str) -> None:
    """Send the points as a process of rank 0 would."""
    headers = {"Authorization": f"token {jobs.attempt_token(run_id)}"}
    url = f"{client.url}/api/v1/attempts/{run_id}-1/events"
    with httpx.Client(headers=headers, timeout=60) as http:
        for first in range(0, POINTS // KEYS, LINES_A_CALL):
            lines = [_line(step) for step in range(first, first + LINES_A_CALL)]
            body = {"streams": [{"rank": 0, "process": "1-1", "lines": lines}]}
            http.post(url, json=body).raise_for_status()


def _line(step: int) -> dict[str, Any]:
    values = {f"metric_{key:02d}": math.exp(-step / 2e4) + 0.05 * math.sin(step + key) for key in range(KEYS)}
    return {"q": step + 1, "t": 1.7e9 + step, "k": "m", "s": step, "m": values}


def _row(page: Page, run_id: str) -> Any:
    return page.locator(f"#slicelift-jobs [data-run='{run_id}']")


def _close(page: Page, run_id: str) -> None:
    page.locator(f".lm-TabBar-tab[data-id='slicelift-{run_id}'] .lm-TabBar-tabCloseIcon").click()
    page.locator(".sl-tab").wait_for(state="detached")
