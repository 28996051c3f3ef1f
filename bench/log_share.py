"""Which share of a step goes into log(), at 20 metrics and 100 steps a second, and what mlflow.log_metric takes.

One job, in pairs: a block of steps that calls `slicelift.log` with 20 metrics, then a shorter block that calls
`mlflow.log_metric` 20 times a step against the same MLflow server, as a notebook without Slicelift does.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench import jobs, project, training
from bench.figures import Figure, figure, ratios

PAIRS = 20
MLFLOW_STEPS = 3  # a step with 20 requests to MLflow takes as long as dozens without
GOAL_PERCENT = 0.5

CELL = f"""
import mlflow

mlflow.set_tracking_uri(mlflow_url)
mlflow.set_experiment("bench")
mlflow.start_run()


def log_mlflow(values):
    for name, value in values.items():
        mlflow.log_metric(name, value, step=step)


def block(steps, log):
    global step
    inside, start = 0.0, time.perf_counter()
    for _ in range(steps):
        values = metrics(train_step())
        before = time.perf_counter()
        log(values)
        inside += time.perf_counter() - before
        step += 1
    return inside, time.perf_counter() - start, steps


block(20, log_slicelift)
block(1, log_mlflow)
pairs = [[block({training.STEPS_PER_SECOND}, log_slicelift), block({MLFLOW_STEPS}, log_mlflow)] for _ in range({PAIRS})]
mlflow.end_run()
print("BENCH " + json.dumps(pairs))
"""


def run(place: Path) -> list[Figure]:
    """The share and the cost of a call, of both, and their ratio."""
    core = training.pin_services()
    root = project.make(place / "project")
    cells = [training.TRAINER, training.LOGGING, CELL]
    notebook = project.write_notebook(root / "train.ipynb", cells, parameters=training.PARAMETERS)
    project.commit(root)
    with jobs.launcher() as client:
        parameters = {"core": str(core), "mlflow_url": jobs.mlflow_url(client)}
        pairs = jobs.measured(client, notebook, parameters=parameters)
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    per_call, mlflow_per_step = _per_step(ours), _per_step(theirs)
    paired = ratios(mlflow_per_step, per_call)
    rate = statistics.median(steps / total for _, total, steps in ours)
    load = f"{training.METRICS} metrics × {rate:.0f} steps/s"
    return [
        _share("log-share", f"step time inside slicelift.log(), {load}", ours, GOAL_PERCENT),
        _share("mlflow-share", f"step time inside {training.METRICS} × mlflow.log_metric", theirs, None),
        figure("log-call", f"one slicelift.log() of {training.METRICS} metrics", _micro(per_call), unit="µs"),
        figure("log-ratio", "mlflow.log_metric / slicelift.log, time per step", paired, unit="×"),
    ]


def _share(identifier: str, what: str, blocks: list[list[float]], goal: float | None) -> Figure:
    shares = [100 * inside / total for inside, total, _ in blocks]
    return figure(identifier, what, shares, unit="%", goal=goal, statistic=statistics.fmean)


def _per_step(blocks: list[list[float]]) -> list[float]:
    return [inside / steps for inside, _, steps in blocks]


def _micro(seconds: list[float]) -> list[float]:
    return [value * 1e6 for value in seconds]
