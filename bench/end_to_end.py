"""The same training with and without logging, block by block in one job: what logging costs in all.

Unlike the share of log(), this counts what the logging does to the trainer beside the call: caches,
the disk, the agent that reads the spool on the other core. Pairs alternate which side comes first.
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
    start = time.perf_counter()
    for _ in range({STEPS}):
        values = metrics(train_step())
        if logged:
            log_slicelift(values)
        step += 1
    return time.perf_counter() - start


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
    """One figure: time with logging over time without."""
    core = training.pin_services()
    root = project.make(place / "project")
    cells = [training.TRAINER, training.LOGGING, CELL]
    notebook = project.write_notebook(root / "train.ipynb", cells, parameters=training.PARAMETERS)
    project.commit(root)
    with jobs.launcher() as client:
        pairs = jobs.measured(client, notebook, parameters={"core": str(core)})
    paired = ratios([logged for logged, _ in pairs], [plain for _, plain in pairs])
    what = f"training time with {training.METRICS} metrics a step / without, blocks of {STEPS} steps"
    return [figure("end-to-end-ratio", what, paired, unit="×", statistic=statistics.fmean)]
