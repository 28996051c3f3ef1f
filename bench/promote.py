"""promote() inside a warm process to job accepted: cold, unchanged, and unchanged without DVC data.

Two repositories of 1,000 files, one of them with 200 DVC-tracked files that are in a directory remote. A round is
cold (every source is new), then unchanged with the data proof, then unchanged in the repository without data.
Jobs are cancelled as soon as they are accepted: a gang that starts would take the next round's core.
"""

from __future__ import annotations

import time
from pathlib import Path

from slicelift.launcher_client import Client
from slicelift.promotion import promote

from bench import jobs, project
from bench.figures import Figure, figure, ratios

FILES = 1_000
DATA_FILES = 200
ROUNDS = 10
GOAL_SECONDS = 1.5
GOAL_WITHOUT_PROOF_SECONDS = 0.6

CELLS = ["import time", "print('a job that is cancelled at once')\ntime.sleep(60)"]


def run(place: Path) -> list[Figure]:
    """Four figures: the three times, and the data proof's share as a paired difference."""
    with_data = _repository(place / "with data", DATA_FILES)
    without = _repository(place / "without data", 0)
    with jobs.launcher() as client:
        for notebook in (with_data, without):
            _accepted(client, notebook)  # imports, kernel probe and stat caches are warm from here on
        rounds = [_round(client, with_data, without, number) for number in range(ROUNDS)]
    cold, unchanged, bare = (list(column) for column in zip(*rounds, strict=True))
    shares = [100 * (1 - part) for part in ratios(bare, unchanged)]
    size = f"promote() to job accepted, {FILES:,} files"
    limit = GOAL_WITHOUT_PROOF_SECONDS
    return [
        figure("promote-unchanged", f"{size}, unchanged", unchanged, unit="s", goal=GOAL_SECONDS),
        figure(
            "promote-unchanged-no-data", f"{size}, unchanged, no data to prove", bare, unit="s", goal=limit
        ),
        figure("promote-cold", f"{size}, every one of them new", cold, unit="s"),
        figure("promote-cold-ratio", "cold / unchanged", ratios(cold, unchanged), unit="×"),
        figure("promote-proof-share", "share of the data proof in an unchanged promotion", shares, unit="%"),
    ]


def _repository(root: Path, data_files: int) -> Path:
    project.make(root, files=FILES, data_files=data_files)
    notebook = project.write_notebook(root / "train.ipynb", CELLS)
    project.commit(root)
    return notebook


def _round(client: Client, with_data: Path, without: Path, number: int) -> tuple[float, float, float]:
    project.write_sources(with_data.parent, FILES, salt=f"round {number}")
    cold = _accepted(client, with_data)
    return cold, _accepted(client, with_data), _accepted(client, without)


def _accepted(client: Client, notebook: Path) -> float:
    """Seconds from the call to the accepted job; the job is gone when this returns."""
    start = time.perf_counter()
    view = promote(notebook, workers=1)
    seconds = time.perf_counter() - start
    client.cancel(view.run_id)
    while not client.job(view.run_id).status.terminal:
        time.sleep(0.05)
    return seconds
