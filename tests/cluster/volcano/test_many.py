"""A thousand jobs of a real launcher on fake nodes, and a hundred pages that watch: memory, and connections upstream.

About five minutes, most of them Volcano's. What a thousand jobs cost that also log is in tests/server/test_scale.py.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import launching
import pytest
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from launching import Launcher
from slicelift.errors import Unavailable
from slicelift.launcher_client import find, read_state
from slicelift.models import Status

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]
JOBS, WATCHERS = 1000, 100
MOST_BYTES = 300 * 2**20
PER_NODE = 100
PRESETS = """
presets:
  - name: torch
    display_name: Fake
    launcher: torchrun
    workers: 1
    cluster: {cpu: 0.1, memory: 64Mi, shm: 16Mi, disk: 64Mi, node_selector: {type: kwok},
      tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]}
"""
_WATCH = re.compile(r'apiserver_longrunning_requests\{(?P<labels>[^}]*verb="WATCH"[^}]*)\} (?P<count>\d+)')


@pytest.fixture
def launcher(
    own_bed: Cluster, nodes: Callable[..., list[str]], namespace: str, image: str, tmp_path: Path
) -> Iterator[Launcher]:
    nodes(JOBS // PER_NODE, gpus=PER_NODE)
    words = {"namespace": namespace, "image": image, "presets": PRESETS, "more": "c.Volcano.qps = 0\n"}
    with launching.serving(tmp_path / "home", own_bed, **words) as made:
        yield made


def test_a_thousand_jobs_fit_into_300_mb_and_a_hundred_watchers_cost_one_watch_upstream(
    launcher: Launcher, own_bed: Cluster, api: Api, namespace: str
) -> None:
    with kit.queue(api) as queue:
        before = _watches(own_bed)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda count: _submit(launcher, queue, count), [JOBS // 4] * 4))
        kit.wait_for("all to be placed", lambda: _placed(launcher) == JOBS, seconds=900, every=3)
        alone = _resident_bytes(launcher)
        with _watching(launcher) as heard:
            kit.wait_for("all to hear of it", lambda: all(heard), seconds=120)
            # of a kind in the namespace, the launcher's watch is the only one there is
            upstream = _watches(own_bed) - before
            used = _resident_bytes(launcher)
        print(
            f"\n{JOBS} jobs: {alone / 2**20:.0f} MiB resident, with {WATCHERS} watchers {used / 2**20:.0f} MiB"
        )
        assert upstream == {"jobs": 1, "podgroups": 1, "pods": 1, "events": 1}
        assert used <= MOST_BYTES
        _end_all(api, namespace)


def _submit(launcher: Launcher, queue: str, count: int) -> None:
    """Again where a busy machine lets a call wait for too long: an id makes one job."""
    with find(launcher.home) as client:
        spec = launching.upload(client, "pass", queue=queue, gpus_per_worker=1)
        left = [launching.make_promotion_id() for _ in range(count)]
        while left:
            with suppress(Unavailable):
                client.submit(left[-1], spec)
                left.pop()


def _placed(launcher: Launcher) -> int:
    """Nobody says of a pod on a fake node that it runs: its agent would."""
    return int(launcher.rows("select count(*) from runs where status = ?", Status.STARTING.value)[0][0])


def _watches(bed: Cluster) -> Counter[str]:
    """What is watched in one namespace only, by kind, as the API server counts; its own programs watch all of them."""
    found: Counter[str] = Counter()
    for match in _WATCH.finditer(bed.kubectl("get", "--raw", "/metrics")):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels["scope"] == "namespace":
            found[labels["resource"]] += int(match["count"])
    return found


@contextmanager
def _watching(launcher: Launcher) -> Iterator[list[int]]:
    """As many pages that follow all runs; what each has read."""
    heard, stop = [0] * WATCHERS, threading.Event()
    state = read_state(launcher.home) or {}

    def follow(number: int) -> None:
        headers = {"Authorization": f"token {state['token']}"}
        words = {"headers": headers, "timeout": 60, "trust_env": False}
        with httpx.Client(**words) as http, http.stream("GET", f"{state['url']}/api/v1/events") as answer:
            for part in answer.iter_bytes():
                heard[number] += len(part)
                if stop.is_set():
                    return

    with ExitStack() as stack:
        threads = [threading.Thread(target=follow, args=(number,)) for number in range(WATCHERS)]
        for thread in threads:
            thread.start()
            # a comment comes every 15 s, by which each sees that it is to end
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield heard


def _resident_bytes(launcher: Launcher) -> int:
    lines = Path(f"/proc/{launcher.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def _end_all(api: Api, namespace: str) -> None:
    """Volcano lets nobody delete a queue that has jobs, and a thousand take their time to go."""
    custom = api.custom
    custom.delete_collection_namespaced_custom_object(*kit.BATCH, namespace, "jobs")
    api.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
    custom.delete_collection_namespaced_custom_object(*kit.SCHEDULING, namespace, "podgroups")

    def left() -> list[Any]:
        kinds = ((kit.BATCH, "jobs"), (kit.SCHEDULING, "podgroups"))
        listed = [
            custom.list_namespaced_custom_object(*group, namespace, kind)["items"] for group, kind in kinds
        ]
        return [item for items in listed for item in items]

    kit.wait_for("jobs and their PodGroups to go", lambda: not left(), seconds=300, every=2)
