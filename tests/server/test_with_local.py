"""The launcher with the real local backend, agent and ranks. A job takes some seconds: interpreters start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slicelift.models import Status

SCRIPT = b"""
import os, pathlib
import slicelift

if __name__ == "__main__":
    for step in range(5):
        slicelift.log(loss=1.0 / (step + 1), step=step)
    pathlib.Path("outputs").mkdir(exist_ok=True)
    pathlib.Path("outputs/result.txt").write_text(os.environ["GREETING"])
    print("the end is near", flush=True)
"""


@pytest.fixture(scope="module")
def local(make_launcher: Any) -> Any:
    """A launcher over the local backend."""
    launcher = make_launcher("--backend", "slicelift.backends.local.Local").start()
    yield launcher
    launcher.close()


def test_a_job_runs_and_everything_it_left_is_there(local: Any) -> None:
    snapshot = local.snapshot(**{"promoted.py": SCRIPT})
    local.client.set_secret("GREETING", "hello 世界")
    view = local.submit(snapshot_id=snapshot.id, secrets=("GREETING",))
    done = local.until(view.run_id, Status.FINISHED, 60)
    assert (done.exit_code, done.latest["loss"]) == (0, (4, 0.2))
    assert b"the end is near" in local.client.logs(view.run_id)[0]
    (output,) = local.client.outputs(view.run_id)
    assert b"".join(local.client.output(view.run_id, 1, output.path)).decode() == "hello 世界"
    loss = next(item for item in local.client.series(view.run_id) if item["key"] == "loss")
    assert [point[0] for point in loss["points"]] == [0, 1, 2, 3, 4]


def test_a_stop_of_the_launcher_ends_the_ranks_and_a_retry_runs_again(local: Any, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    waits = f"import time, pathlib\nwhile not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.05)\n"
    snapshot = local.snapshot(**{"promoted.py": waits.encode()})
    view = local.submit(snapshot_id=snapshot.id)
    local.until(view.run_id, Status.RUNNING, 60)
    assert local.stop() == 0
    local.start()
    killed = local.client.job(view.run_id)
    assert (killed.status, killed.reason) == (Status.KILLED, "launcher stopped")
    flag.touch()
    local.client.retry(view.run_id)
    assert local.until(view.run_id, Status.FINISHED, 60).attempt == 2
