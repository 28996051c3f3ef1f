"""Bytes that leave a DVC remote for a gang of four pods, and for the next one with the same data, on a real JuiceFS."""

from __future__ import annotations

import random
from pathlib import Path

from slicelift.models import DataRef, Status

from bench import cluster
from bench.cluster import Field, Remote, launching, remotes, shared_storage
from bench.figures import Figure, figure

WORKERS = 4
FILES, FILE_BYTES = 64, 250_000
# of the listing of a data set's files, which leaves the remote, too
GOAL = 1.02
LIMIT_SECONDS = 300.0
PRESETS = """
presets:
  - name: small
    display_name: Four pods on two cores
    default: true
    launcher: torchrun
    workers: 4
    cluster: {attempts: 1, grace_seconds: 15, cpu: 0.3, memory: 512Mi, shm: 64Mi, disk: 256Mi}
"""
PROGRAM = """
import pathlib
import slicelift

if __name__ == "__main__":
    files = [path.read_bytes() for path in pathlib.Path("data").rglob("*.bin")]
    slicelift.log(step=1, size=sum(map(len, files)))
"""


def run(into: Path) -> list[Figure]:
    """The figures of docs/benchmarks.md; about three minutes."""
    made = random.Random(1)
    sets = {"data": {f"part/{number}.bin": made.randbytes(FILE_BYTES) for number in range(FILES)}}
    pushed = remotes.push(into / "dvc", sets)
    (into / "juicefs").mkdir()
    with (
        cluster.bed() as (bed, api),
        cluster.field(bed, api) as place,
        shared_storage.mounted(bed, into / "juicefs") as storage,
        storage.claims(api, place.namespace) as claims,
        remotes.serving(pushed.folder, bed.host_ip) as remote,
    ):
        shares = _shares(place, claims.data, remote, pushed.reference("data", remote), home=into / "home")
    what = f"bytes that leave the DVC remote for a gang of {WORKERS} pods / size of the data"
    again = "the same for the next gang with this data"
    return [
        figure("data-bytes", what, shares[:1], unit="×", goal=GOAL),
        figure("data-bytes-again", again, shares[1:], unit="×", goal=0.0),
    ]


def _shares(place: Field, claim: str, remote: Remote, data: DataRef, *, home: Path) -> list[float]:
    """Of two gangs, one after the other: bytes sent for each / size of the data. Raises RuntimeError when one has not read it."""
    words = {"namespace": place.namespace, "image": place.bed.environment_image().name, "presets": PRESETS}
    shares = []
    with launching.serving(home, place.bed, **words, more=f'c.Volcano.data_claim = "{claim}"\n') as launcher:
        for _ in range(2):
            remote.sent.clear()
            asked = {"preset": "small", "workers": WORKERS, "queue": place.queue, "data": (data,)}
            run_id = launcher.submit(PROGRAM, **asked)
            done = launcher.until(run_id, lambda view: view.status.terminal, seconds=LIMIT_SECONDS)
            if done.status != Status.FINISHED or done.latest["size"][1] != FILES * FILE_BYTES:
                raise RuntimeError(f"{done.status}: {done.message}")
            shares.append(sum(remote.sent.values()) / data.size_bytes)
    return shares
