"""torch's own DataLoader under the hook. Loads torch, and starts a worker process once."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset
    from slicelift.runtime import feeding

    # in place of half a minute
    feeding.SAMPLE_SECONDS, feeding.WINDOW_SECONDS = 0.1, 0.5
    from slicelift.runtime import pace
    pace.MEMORY_SECONDS = 0.05
    import slicelift

    class Slow(Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            time.sleep(LOAD)
            return torch.ones(4) * index

    if __name__ == "__main__":
        slicelift.log(step=0)
        seen = 0
        for step, batch in enumerate(DataLoader(Slow(), batch_size=2, num_workers=WORKERS), 1):
            time.sleep(TRAIN)
            seen += len(batch)
            slicelift.log(step=step, total=float(batch.sum()))
        print(seen, feeding.FEED.waits)
"""


def shares(attempt: Any) -> list[float]:
    """The values that were logged."""
    rows = [event["m"] for event in attempt.events() if event["k"] == "m"]
    return [row["data_wait_fraction"] for row in rows if "data_wait_fraction" in row]


@pytest.mark.parametrize(
    ("workers", "load", "train", "least", "most"),
    [
        # 40 ms to load a batch, 20 ms to train on it, one after the other
        (0, 0.02, 0.02, 0.55, 0.85),
        # the same in the background, and twice as long to train: nothing to wait for
        (1, 0.005, 0.04, 0.0, 0.3),
    ],
    ids=["in the loop", "in a worker"],
)
def test_the_share_of_waiting(
    attempt: Any, workers: int, load: float, train: float, least: float, most: float
) -> None:
    source = (
        TRAINING.replace("LOAD", str(load)).replace("TRAIN)", f"{train})").replace("WORKERS", str(workers))
    )
    assert attempt.run(source) == 0, attempt.log()
    seen, waits = map(int, attempt.log().split()[-2:])
    # thirty batches, and the end of them
    assert (seen, waits) == (60, 31)
    found = shares(attempt)
    assert found, json.dumps(attempt.events())
    # the first window has the start of the loader in it
    assert least <= found[-1] <= most, found
