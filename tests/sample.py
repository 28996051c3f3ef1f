"""One run as a launcher tells of it, for tests of how it is told to people."""

from __future__ import annotations

from slicelift.models import JobSpec, RunView, Status

RUN = RunView(
    promotion_id="p-" + "a" * 20,
    run_id="r-abcdefghijkl",
    name="digits",
    owner="ann",
    status=Status.RUNNING,
    spec=JobSpec(
        name="digits", snapshot_id="0" * 64, notebook="n.ipynb", script="p.py", cwd=".", python="python"
    ),
    created=100.0,
    started=110.0,
    ended=122.0,
)
