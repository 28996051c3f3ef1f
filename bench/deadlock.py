"""The deadlock of gangs: ten jobs of eight GPUs each on forty GPUs, with three ways to start them.

    python bench/deadlock.py [--seeds N] [--json]

Real API server, controllers and schedulers; the nodes are kwok's, which run nothing. Each way gets the same ten jobs at once,
within 50 ms, in an order that the seed decides, through a controller that makes the pods: Kubernetes' own (Jobs, default
scheduler), Volcano's (bare Volcano Jobs), and ours (the launcher's jobs, on Volcano). Training is stood in for: a gang works
from the moment when all its eight pods run, and ends HOLD_SECONDS later; a gang that is not whole holds its GPUs and waits,
as `init_process_group` does. A round ends when all ten gangs are through or nothing has changed for STALL_SECONDS.

With `--json` the last line is {"default": {...}, "volcano": {...}, "slicelift": {...}}, of the worst seed of each:
`whole_gangs` and `gpus_held` by running pods when most GPUs were held, before the first gang was through;
`gpus_held_for_nothing` by gangs that were not whole then; `completed_gangs` at the end; `gpu_hours_for_nothing` over the round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.client import BatchV1Api

if (root := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path[0] = root  # run as a file: its folder is on the path instead, and would shadow modules

from bench import cluster
from bench.cluster import GPU, Field, kit, kwok
from bench.figures import Figure, figure

JOBS, WORKERS, NODES, GPUS_PER_NODE = 10, 8, 5, 8
HOLD_SECONDS, STALL_SECONDS, LIMIT_SECONDS = 20, 40, 300
LOOK_SECONDS = 0.3
WITHIN_SECONDS = 0.05
# which job a pod belongs to, as each controller writes it
LABELS = ("batch.kubernetes.io/job-name", "volcano.sh/job-name")

Submit = Callable[[int], None]


@dataclass(kw_only=True)
class Round:
    """What was seen of one way and seed. `samples`: seconds, whole gangs, GPUs held, of these for nothing."""

    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    completed: int = 0
    # how many samples came before the first gang was through
    first_end: int | None = None

    @property
    def state(self) -> tuple[Any, ...]:
        """What a standstill is told by."""
        return (self.completed, *(self.samples[-1][1:] if self.samples else ()))

    def told(self) -> dict[str, Any]:
        """As in `--json`."""
        _, whole, held, idle = self._full()
        pairs = zip(self.samples, self.samples[1:], strict=False)
        wasted = sum((after[0] - before[0]) * before[3] for before, after in pairs)
        return {
            "whole_gangs": whole,
            "gpus_held": held,
            "gpus_held_for_nothing": idle,
            "completed_gangs": self.completed,
            "gpu_hours_for_nothing": round(wasted / 3600, 4),
            "seconds": round(self.samples[-1][0], 1),
        }

    def _full(self) -> tuple[float, int, int, int]:
        before = self.samples[: self.first_end] or self.samples
        most = max(sample[2] for sample in before)
        return [sample for sample in before if sample[2] == most][-1]


def main(arguments: list[str]) -> int:
    """Exit status 0 once all rounds were run, however they ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="rounds of each way (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="the result as JSON in the last line")
    options = parser.parse_args(arguments)
    found = contest(range(options.seeds))
    worst = {way: _worst(rounds) for way, rounds in found.items()}
    for way, rounds in found.items():
        for seed, told in enumerate(rounds):
            print(f"{way:<10} seed {seed}  " + "  ".join(f"{key} {value}" for key, value in told.items()))
    if options.json:
        print(json.dumps(worst))
    return 0


def run(_: Path) -> list[Figure]:
    """The figures of docs/benchmarks.md."""
    found = contest(range(3))
    told = {
        "whole_gangs": "gangs of ten",
        "completed_gangs": "gangs of ten",
        "gpus_held_for_nothing": "of 40 GPUs",
        "gpu_hours_for_nothing": "GPU h",
    }
    return [
        figure(
            f"deadlock-{way}-{key.replace('_', '-')}", f"{way}: {key.replace('_', ' ')}", values, unit=unit
        )
        for way, rounds in found.items()
        for key, unit in told.items()
        if (values := [float(each[key]) for each in rounds])
    ]


def contest(seeds: range) -> dict[str, list[dict[str, Any]]]:
    """Every way with every seed, one after the other."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with cluster.fake_nodes(NODES, gpus=GPUS_PER_NODE) as (bed, api):
        for seed in seeds:
            for way, submitting in WAYS.items():
                with cluster.field(bed, api) as place, submitting(place) as submit:
                    told = _round(place, submit, random.Random(seed)).told()
                print(f"{way}, seed {seed}: {told}", file=sys.stderr, flush=True)
                found[way].append(told)
    return found


def _round(place: Field, submit: Submit, chance: random.Random) -> Round:
    """Submit the ten, then watch and train until the end or a standstill."""
    delays = {number: chance.uniform(0, WITHIN_SECONDS) for number in range(JOBS)}
    seen, trained, began = Round(), set[str](), time.monotonic()
    with ThreadPoolExecutor(JOBS) as beside:
        submitted = [beside.submit(_submit, submit, *job) for job in delays.items()]
        moved = began
        while seen.completed < JOBS and time.monotonic() - moved < STALL_SECONDS:
            if time.monotonic() - began > LIMIT_SECONDS:
                break
            before = seen.state
            _look(place, seen, trained, time.monotonic() - began)
            if seen.state != before:
                moved = time.monotonic()
            time.sleep(LOOK_SECONDS)
        for one in submitted:
            one.result()
    return seen


def _submit(submit: Submit, number: int, delay: float) -> None:
    time.sleep(delay)
    submit(number)


def _look(place: Field, seen: Round, trained: set[str], now: float) -> None:
    """Count, and let gangs that are whole end after a while."""
    pods = place.api.core.list_namespaced_pod(place.namespace).items
    running, ended = Counter[str](), Counter[str]()
    for pod in pods:
        job = next((pod.metadata.labels[label] for label in LABELS if label in pod.metadata.labels), "")
        running[job] += pod.status.phase == "Running"
        ended[job] += pod.status.phase == "Succeeded"
    # while a whole gang ends, pod by pod, it is whole
    whole = {job for job in running if running[job] + ended[job] == WORKERS and running[job]}
    for pod in pods:
        job = next((pod.metadata.labels[label] for label in LABELS if label in pod.metadata.labels), "")
        if job in whole - trained:
            notes = {"metadata": {"annotations": kwok.pod_ends(after=f"{HOLD_SECONDS}s")}}
            place.api.core.patch_namespaced_pod(pod.metadata.name, place.namespace, notes)
    trained |= whole
    if ended.total() and seen.first_end is None:
        seen.first_end = len(seen.samples)
    seen.completed = sum(count == WORKERS for count in ended.values())
    idle = sum(count for job, count in running.items() if job not in whole)
    seen.samples.append((now, len(whole), sum(running.values()), idle))


@contextlib.contextmanager
def _default(place: Field) -> Iterator[Submit]:
    """Kubernetes' own Jobs and scheduler."""
    batch = BatchV1Api(place.api.raw)
    needs = {GPU: "1", "cpu": "100m", "memory": "128Mi"}
    container = {"name": "worker", "image": cluster.IMAGE, "resources": {"requests": needs, "limits": needs}}
    pod = {**cluster.POD, "restartPolicy": "Never", "containers": [container]}

    def submit(number: int) -> None:
        spec = {
            "parallelism": WORKERS,
            "completions": WORKERS,
            "completionMode": "Indexed",
            "backoffLimit": 0,
        }
        body = {"metadata": {"name": f"job-{number}"}, "spec": {**spec, "template": {"spec": pod}}}
        batch.create_namespaced_job(place.namespace, body)

    yield submit
    batch.delete_collection_namespaced_job(place.namespace, propagation_policy="Background")


@contextlib.contextmanager
def _volcano(place: Field) -> Iterator[Submit]:
    """Volcano Jobs as anybody writes them."""

    def submit(number: int) -> None:
        words = {"queue": place.queue, "image": cluster.IMAGE, "command": ["train"], "replicas": WORKERS}
        job = kit.gang(f"job-{number}", **words, resources={GPU: "1"}, pod=cluster.POD)
        kit.submit(place.api, place.namespace, job)

    yield submit


@contextlib.contextmanager
def _slicelift(place: Field) -> Iterator[Submit]:
    """Promotions, as the launcher takes them."""
    with cluster.launcher(place) as client:

        def submit(_: int) -> None:
            cluster.submit(client, place, workers=WORKERS)

        yield submit


WAYS: dict[str, Callable[[Field], contextlib.AbstractContextManager[Submit]]] = {
    "default": _default,
    "volcano": _volcano,
    "slicelift": _slicelift,
}


def _worst(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The least of what is good and the most of what is bad."""
    good = ("whole_gangs", "completed_gangs")
    return {key: (min if key in good else max)(each[key] for each in rounds) for key in rounds[0]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
