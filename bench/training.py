"""The training that the logging benchmarks run as a real job, and how they read what it measured.

The trainer has one core to itself and the services (launcher, agent, MLflow) the other, so that the shares
are of a core that nothing else wants.
"""

from __future__ import annotations

import os

METRICS = 20
STEPS_PER_SECOND = 100

PARAMETERS = "core = 0\nmlflow_url = ''"

# A step of about 10 ms of real forward and backward work, on one core and one thread.
TRAINER = """
import json
import os
import time

import slicelift
import torch

os.sched_setaffinity(0, {core})
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels = torch.randn(64, 256), torch.randint(10, (64,))
repeats = 1


def train_step():
    for _ in range(repeats):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return loss.detach().item()


def seconds_of(steps):
    start = time.perf_counter()
    for _ in range(steps):
        train_step()
    return (time.perf_counter() - start) / steps


seconds_of(50)
repeats = max(1, round(0.01 / seconds_of(200)))
"""

# `metrics(value)` differs from step to step, as it does in training.
LOGGING = """
names = [f"metric_{number:02d}" for number in range(20)]
step = 0


def metrics(loss):
    return {name: loss + number * 0.001 for number, name in enumerate(names)}


def log_slicelift(values):
    slicelift.log(step=step, **values)
"""


def cores() -> tuple[int, int]:
    """The trainer's core and the services'. Raises RuntimeError on a machine of one."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise RuntimeError("this benchmark needs two cores: one for the trainer, one for the services")
    return mine[0], mine[1]


def pin_services() -> int:
    """Keep this process and all it starts, the launcher with its agents, on one core; gives the trainer's."""
    trainer, services = cores()
    os.sched_setaffinity(0, {services})
    return trainer
