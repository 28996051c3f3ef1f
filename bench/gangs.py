"""Gangs on a real cluster's API server and schedulers, against bare Volcano Jobs: how long until all workers run.

Nodes are kwok's: what is measured is the way there, not training. Both sides are watched through the same API server, and
take turns in one run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes.client import ApiException
from kubernetes.watch import Watch
from slicelift.launcher_client import Client
from urllib3.exceptions import HTTPError

from bench import cluster
from bench.cluster import Field, kit, kwok
from bench.figures import Figure, figure, p95, ratios

NODES = 13
PAIRS, WORKERS = 12, 2
BATCHES = ((100, 2), (20, 50))
AT_ONCE = 8
LIMIT_SECONDS = 240
JOB = "volcano.sh/job-name"

Submit = Callable[[int, int], str]


class Running:
    """When the pods of each Job began to run, by a watch: seconds of `time.monotonic`."""

    def __init__(self, place: Field) -> None:
        self._place = place
        self._watch = Watch()
        self._left = threading.Event()
        self._lock = threading.Condition()
        self._seen: dict[str, set[str]] = {}
        self._last: dict[str, float] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._watch.stop()

    def wait(self, job: str, workers: int) -> float:
        """When the last of them began. Raises TimeoutError."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self._seen.get(job, ())) >= workers, LIMIT_SECONDS):
                raise TimeoutError(f"{job}: {len(self._seen.get(job, ()))} of {workers} run")
            return self._last[job]

    def _follow(self) -> None:
        """Begins anew where the API server ends the watch, as it does with one that is slow in a flood of pods."""
        ask, words = self._place.api.core.list_namespaced_pod, {"field_selector": "status.phase=Running"}
        while not self._left.is_set():
            self._watch = Watch()
            with suppress(ApiException, HTTPError, OSError):
                for event in self._watch.stream(ask, self._place.namespace, deserialize=False, **words):
                    self._take(event["object"]["metadata"])

    def _take(self, pod: Mapping[str, Any]) -> None:
        job = pod["labels"].get(JOB, "")
        if pod["name"] in self._seen.get(job, ()):
            return
        with self._lock:
            self._seen.setdefault(job, set()).add(pod["name"])
            self._last[job] = time.monotonic()
            self._lock.notify_all()


def run(_: Path) -> list[Figure]:
    """The figures of docs/benchmarks.md; about five minutes."""
    with cluster.fake_nodes(NODES, gpus=8) as (bed, api):
        with cluster.field(bed, api) as place, cluster.launcher(place) as client:
            bare, ours = _in_turn(place, client)
            late = _told_late(place, client)
        found = _figures_of_one(bare, ours, late)
        for count, workers in BATCHES:
            words = {"count": count, "workers": workers}
            with cluster.field(bed, api) as place:
                alone = _batch(place, _bare(place), **words)
            with cluster.field(bed, api) as place, cluster.launcher(place) as client:
                through = _batch(place, _ours(place, client), **words)
            what = f"{count} gangs of {workers}: until all run, ours over bare Volcano Jobs"
            found.append(figure(f"gangs-{count}x{workers}-ratio", what, [through / alone], unit="×"))
    return found


def _figures_of_one(bare: Sequence[float], ours: Sequence[float], late: Sequence[float]) -> list[Figure]:
    over = [b - a for a, b in zip(bare, ours, strict=True)]
    return [
        figure("gang-bare", "a bare Volcano Job of two: create to both running", bare, unit="s"),
        figure("gang-submit", "submit() of two workers to both running", ours, unit="s"),
        figure("gang-ratio", "submit() to running, ours over bare", ratios(ours, bare), unit="×"),
        figure("gang-over-bare", "submit() to running, ours minus bare", over, unit="s", goal=0.1),
        figure(
            "gang-told-p95",
            "from the end of a gang's Volcano Job to the run's status, p95",
            late,
            unit="s",
            goal=1.0,
            statistic=p95,
        ),
    ]


def _bare(place: Field) -> Submit:
    def submit(number: int, workers: int) -> str:
        words = {"queue": place.queue, "image": cluster.IMAGE, "command": ["train"], "replicas": workers}
        name = f"bare-{number}"
        kit.submit(place.api, place.namespace, kit.gang(name, **words, pod=cluster.POD))
        return name

    return submit


def _ours(place: Field, client: Client) -> Submit:
    return lambda _, workers: f"{cluster.submit(client, place, workers=workers, gpus=0).run_id}-1"


def _in_turn(place: Field, client: Client) -> tuple[list[float], list[float]]:
    """Seconds from the call to the last pod running, of pairs one right after the other; the first pair warms up."""
    sides = _bare(place), _ours(place, client)
    times: tuple[list[float], list[float]] = ([], [])
    with Running(place) as running:
        for number in range(PAIRS + 1):
            for submit, seconds in zip(sides, times, strict=True):
                began = time.monotonic()
                job = submit(number, WORKERS)
                took = running.wait(job, WORKERS) - began
                if number:
                    seconds.append(took)
    return times


def _batch(place: Field, submit: Submit, *, count: int, workers: int) -> float:
    """Seconds from the first call until every pod of every gang runs."""
    with Running(place) as running, ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        jobs = list(pool.map(lambda number: submit(number, workers), range(count)))
        return max(running.wait(job, workers) for job in jobs) - began


def _told_late(place: Field, client: Client) -> list[float]:
    """Seconds from the moment when Volcano says that a gang is through until its run says so."""
    late = []
    with Running(place) as running:
        for _ in range(PAIRS):
            run_id = cluster.submit(client, place, workers=WORKERS, gpus=0).run_id
            running.wait(f"{run_id}-1", WORKERS)
            with _ended(place, f"{run_id}-1") as when:
                _end_pods(place, f"{run_id}-1")
                while not client.job(run_id).status.terminal:
                    time.sleep(0.02)
                told = time.monotonic()
            late.append(max(0.0, told - when[0]))
    return late


@contextmanager
def _ended(place: Field, job: str) -> Iterator[list[float]]:
    """When a watch of its own sees the Job completed, once the block is through."""
    when: list[float] = []
    watch = Watch()

    def follow() -> None:
        ask = place.api.custom.list_namespaced_custom_object
        words = {"field_selector": f"metadata.name={job}", "timeout_seconds": LIMIT_SECONDS}
        for event in watch.stream(ask, *kit.BATCH, place.namespace, "jobs", **words):
            if event["object"].get("status", {}).get("state", {}).get("phase") == "Completed":
                when.append(time.monotonic())
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    yield when
    thread.join(LIMIT_SECONDS)


def _end_pods(place: Field, job: str) -> None:
    pods = place.api.core.list_namespaced_pod(place.namespace, label_selector=f"{JOB}={job}").items
    for pod in pods:
        notes = {"metadata": {"annotations": kwok.pod_ends(after="0s")}}
        place.api.core.patch_namespaced_pod(pod.metadata.name, place.namespace, notes)
