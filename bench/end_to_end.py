"""The same training with and without logging, block by block in one job: what logging costs in all.

Unlike the share of log(), this counts what the logging does to the trainer beside the call: caches,
the disk, the agent that reads the spool on the other core. Pairs alternate which side comes first. On a
machine with other work the clock also counts what the services push onto the trainer's core.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench import jobs, project, training
from bench.figures import Figure, figure, ratios

PAIRS = 60
STEPS = 50

CELL = f"""
def block(logged):
    global step
    start, cpu = time.perf_counter(), time.thread_time()
    for _ in range({STEPS}):
        values = metrics(train_step())
        if logged:
            log_slicelift(values)
        step += 1
    return time.perf_counter() - start, time.thread_time() - cpu


block(True), block(False)
pairs = []
for number in range({PAIRS}):
    if number % 2:
        logged = block(True)
        plain = block(False)
    else:
        plain = block(False)
        logged = block(True)
    pairs.append([logged, plain])
print("BENCH " + json.dumps(pairs))
"""


def run(place: Path) -> list[Figure]:
    """Time with logging over time without, by the clock and by the trainer's own CPU time."""
    core = training.pin_services()
    root = project.make(place / "project")
    cells = [training.TRAINER, training.LOGGING, CELL]
    notebook = project.write_notebook(root / "train.ipynb", cells, parameters=training.PARAMETERS)
    project.commit(root)
    with jobs.launcher() as client:
        pairs = jobs.measured(client, notebook, parameters={"core": str(core)})
    what = f"training with {training.METRICS} metrics a step / without, blocks of {STEPS} steps"
    return [
        _ratio("end-to-end-ratio", f"{what}, by the clock", pairs, 0),
        _ratio("end-to-end-cpu-ratio", f"{what}, by the trainer's CPU time", pairs, 1),
    ]


def _ratio(identifier: str, what: str, pairs: list[list[list[float]]], clock: int) -> Figure:
    paired = ratios([logged[clock] for logged, _ in pairs], [plain[clock] for _, plain in pairs])
    return figure(identifier, what, paired, unit="×", statistic=statistics.fmean)
