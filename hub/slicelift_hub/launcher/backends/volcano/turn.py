"""Whose turn it is before a job, and when its own may come at the latest. Pure.

Volcano knows no place in a queue; it takes the oldest first within one priority, and so do these figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from slicelift_hub.counting import quantity
from slicelift_hub.launcher.backends.volcano.amounts import count
from slicelift_hub.launcher.backends.volcano.names import NOTE
from slicelift_hub.launcher.backends.volcano.picture import Line, Object, Picture, moment
from slicelift_hub.launcher.backends.volcano.quotas import Shortage


def make_lines(jobs: Iterable[Object]) -> dict[str, Line]:
    """Our jobs by queue: those that wait, the oldest first, and those that run."""
    waiting: dict[str, list[Object]] = {}
    running: dict[str, list[Object]] = {}
    for job in jobs:
        phase = (job.get("status", {}).get("state") or {}).get("phase", "")
        kind = waiting if phase in ("", "Pending") else running if phase == "Running" else {}
        kind.setdefault(job["spec"]["queue"], []).append(job)
    names = waiting.keys() | running.keys()
    return {
        name: Line(waiting=sorted(waiting.get(name, ()), key=place), running=running.get(name, ()))
        for name in names
    }


def jobs_ahead(picture: Picture) -> Sequence[Object]:
    """Our jobs that wait in the same queue and came before this one, oldest first."""
    line = picture.lines.get(picture.queue)
    return () if line is None else line.waiting[: bisect_left(line.waiting, place(picture.job), key=place)]


def place(job: Object) -> tuple[str, str]:
    """By what jobs of one queue follow each other."""
    # times of Kubernetes sort as text, and are read a thousand times here when a thousand jobs wait
    metadata = job["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])


def turn_words(picture: Picture, ahead: Sequence[Object], short: Shortage | None) -> str:
    """`; 2 jobs are ahead of it; it starts in at most about 40 min`."""
    words = ""
    if ahead:
        words += f"; {count(len(ahead), 'job')} {'is' if len(ahead) == 1 else 'are'} ahead of it"
    seconds = None if short is None else latest_start(picture, ahead, short)
    return words if seconds is None else f"{words}; it starts in at most about {duration(seconds)}"


def latest_start(picture: Picture, ahead: Sequence[Object], short: Shortage) -> float | None:
    """Seconds until enough is free, if all that run use all their time and no other job comes between.

    None when jobs that run have no limit of time, or what they hold is not enough.
    """
    ends = sorted(_ends(picture, short), key=lambda pair: pair[0])
    if not ends:
        return None
    missing = (
        short.needed - short.free + sum(one_resource(job, short.resource, at_least=True) for job in ahead)
    )
    freed = 0.0
    for end, job in ends:
        freed += one_resource(job, short.resource, at_least=False)
        if freed >= missing:
            return max(0.0, end - picture.now)
    return None


def duration(seconds: float) -> str:
    """`40 min`, `2 h 10 min`, `3 days`: rough, and never less than it is."""
    minutes = max(1, -int(-seconds // 60))
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        hours, rest = divmod(minutes, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return count(-(-minutes // (24 * 60)), "day")


def one_resource(job: Object, resource: str, *, at_least: bool) -> float:
    """What a job needs of one resource to start, or what it holds with all its workers."""
    task = job["spec"]["tasks"][0]
    requests = task["template"]["spec"]["containers"][0]["resources"]["requests"]
    workers = job["spec"]["minAvailable"] if at_least else task["replicas"]
    return quantity(requests[resource]) * int(workers) if resource in requests else 0.0


def _ends(picture: Picture, short: Shortage) -> list[tuple[float, Object]]:
    """When the jobs that run must have ended, of the same queue or, where the cluster is short, of all."""
    lines = picture.lines.items()
    running = [
        job for name, line in lines if not short.queue or name == picture.queue for job in line.running
    ]
    found = []
    for job in running:
        limit = (job["metadata"].get("annotations") or {}).get(f"{NOTE}max-seconds", "")
        if str(limit).isdigit():
            found.append((moment(job["status"]["state"].get("lastTransitionTime")) + int(limit), job))
    return found
