"""Another number of workers for an elastic gang that is under way."""

from __future__ import annotations

from typing import Any

from slicelift.errors import Conflict, Refused

from slicelift_hub.launcher.backends.volcano import paths
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.names import MOST_NOTE
from slicelift_hub.launcher.backends.volcano.picture import Object
from slicelift_hub.launcher.backends.volcano.status import OVER, raw_phase


def scale(client: Client, namespace: str, name: str, workers: int) -> None:
    """Have Volcano make or end the last workers of the gang; which ones must stay, stays. Idempotent.

    Raises Conflict "run-over", what `make_patch` raises, and Unavailable.
    """
    job = client.find(paths.jobs(namespace, name))
    if job is None or raw_phase(job) in OVER:
        raise Conflict(
            "run-over", f"The cluster has no job {name} that goes on.", "Retry the run, or promote it again."
        )
    client.patch(paths.jobs(namespace, name), make_patch(job, workers))


def make_patch(job: Object, workers: int) -> list[dict[str, Any]]:
    """The change as a JSON patch. Pure. Raises Refused "not-elastic" and "bad-workers"."""
    most = (job["metadata"].get("annotations") or {}).get(MOST_NOTE)
    if most is None:
        message = "The gang is not elastic: it keeps the workers that it began with."
        hint = "Elastic is one whose preset has min_workers, and which may have more workers than that."
        raise Refused("not-elastic", message, hint)
    least = int(job["spec"]["minAvailable"])
    if not least <= workers <= int(most):
        message = f"The gang can have from {least} to {most} workers; asked were {workers}."
        hint = "The most is the preset's max_workers, or what the job was submitted with if that is more."
        raise Refused("bad-workers", message, hint)
    return [
        # not of another job of that name
        {"op": "test", "path": "/metadata/uid", "value": job["metadata"]["uid"]},
        {"op": "replace", "path": "/spec/tasks/0/replicas", "value": workers},
    ]
