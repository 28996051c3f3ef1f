"""What the cluster looks like now: one upstream watch per kind and namespace, however many ask.

Nothing is asked of the API server to answer `picture`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from slicelift.errors import SliceliftError

from slicelift_hub.counting import held_by_node
from slicelift_hub.launcher.backends.volcano import kept, paths
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.feeds import Feed, Kept, wait_synced
from slicelift_hub.launcher.backends.volcano.names import MANAGED_BY, OURS
from slicelift_hub.launcher.backends.volcano.picture import Line, Object, Picture
from slicelift_hub.launcher.backends.volcano.turn import make_lines

OURS_ONLY = f"{MANAGED_BY}={OURS}"
_FIRST_LIST_SECONDS = 10.0
# a job that waits for long is told the same again and again
_EVENTS_PER_JOB = 12
# to sort a thousand jobs for each of a thousand would take most of a core
_OVERVIEW_SECONDS = 1.0


class Room:
    """The jobs of one namespace, with their PodGroups, pods and events."""

    def __init__(self, client: Client, namespace: str, *, changed: Callable[[str, str], None]) -> None:
        def told(job: str) -> None:
            if job:
                changed(namespace, job)

        def follow(path: str, keep: Any, owner_of: Callable[[Object], str], **more: Any) -> Feed:
            return Feed(client, path, keep=keep, owner_of=owner_of, told=told, **more)

        ours: Mapping[str, Any] = {"query": {"labelSelector": OURS_ONLY}}
        self.jobs = follow(paths.jobs(namespace), kept.keep_job, _name, **ours)
        self.groups = follow(paths.groups(namespace), kept.keep_group, kept.job_of_group, **ours)
        self.pods = follow(paths.pods(namespace), kept.keep_pod, kept.job_of_pod, **ours)
        self.events = follow(
            paths.events(namespace), kept.keep_event, kept.job_of_event, most=_EVENTS_PER_JOB
        )

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """All four."""
        return (self.jobs, self.groups, self.pods, self.events)


class Watching:
    """All that is followed. `changed(namespace, job)` is called from its threads when something of a job changed."""

    def __init__(self, client: Client, *, changed: Callable[[str, str], None]) -> None:
        self._client = client
        self._changed = changed
        self._lock = threading.Lock()
        self._rooms: dict[str, Room] = {}
        self._wide: tuple[Feed, Feed] | None = None
        self._last: tuple[float, dict[str, Line], dict[str, dict[str, float]]] = (-_OVERVIEW_SECONDS, {}, {})

    def room(self, namespace: str) -> Room:
        """The namespace, followed from now on. Raises Unavailable when the cluster does not answer the first time."""
        wide = self._cluster_feeds()
        with self._lock:
            if namespace not in self._rooms:
                self._rooms[namespace] = Room(self._client, namespace, changed=self._changed)
            room = self._rooms[namespace]
        wait_synced((*room.feeds, *wide), seconds=_FIRST_LIST_SECONDS)
        return room

    def cluster(self) -> tuple[dict[str, Kept], list[Kept]]:
        """(queues by name, nodes). Raises Unavailable as `room` does."""
        queues, nodes = self._cluster_feeds()
        wait_synced((queues, nodes), seconds=_FIRST_LIST_SECONDS)
        return {_name(queue): queue for queue in queues.values()}, nodes.values()

    def picture(self, namespace: str, name: str, *, job: Object | None = None) -> Picture | None:
        """All that is known of a job; None when there is none. `job` stands in for one that no watch has told of yet."""
        room = self.room(namespace)
        found: Object | None = next(iter(room.jobs.of(name)), job)
        if found is None:
            return None
        queues, nodes = self.cluster()
        lines, held = self.overview()
        return Picture(
            now=time.time(),
            job=found,
            # one of an earlier start of the gang may still be there for a moment
            group=max(room.groups.of(name), key=lambda group: group["seen"], default=None),
            pods=sorted(room.pods.of(name), key=_name),
            events=room.events.of(name),
            queues=queues,
            nodes=nodes,
            lines=lines,
            held=held,
        )

    def overview(self) -> tuple[dict[str, Line], dict[str, dict[str, float]]]:
        """(our jobs by queue, what our pods hold of each node), of all that is followed; at most a second old."""
        with self._lock:
            rooms, (made, lines, held) = list(self._rooms.values()), self._last
        if time.monotonic() - made < _OVERVIEW_SECONDS:
            return lines, held
        lines = make_lines(job for room in rooms for job in room.jobs.values())
        held = held_by_node(pod for room in rooms for pod in room.pods.values())
        with self._lock:
            self._last = (time.monotonic(), lines, held)
        return lines, held

    def namespaces(self) -> list[str]:
        """Those that are followed."""
        with self._lock:
            return sorted(self._rooms)

    def broken(self, namespace: str) -> tuple[float, SliceliftError | None] | None:
        """(since when the jobs of a namespace cannot be followed, why); None while they can."""
        room = self._rooms.get(namespace)
        feeds = (room.jobs, room.pods) if room else ()
        found = [(feed.broken_since, feed.broken_by) for feed in feeds if feed.broken_since is not None]
        return min(found, key=lambda pair: pair[0], default=None)

    def stop(self) -> None:
        """End all threads; returns at once."""
        with self._lock:
            feeds = [feed for room in self._rooms.values() for feed in room.feeds] + list(self._wide or ())
        for feed in feeds:
            feed.stop()

    def _cluster_feeds(self) -> tuple[Feed, Feed]:
        with self._lock:
            if self._wide is None:
                queues = Feed(
                    self._client, paths.queues(), keep=kept.keep_queue, owner_of=_name, told=_ignore
                )
                nodes = Feed(
                    self._client, paths.nodes(), keep=kept.keep_node, owner_of=_name, told=self._tell_jobs_on
                )
                self._wide = (queues, nodes)
            return self._wide

    def _tell_jobs_on(self, node: str) -> None:
        """A node is lost or back: the jobs on it want to know."""
        with self._lock:
            rooms = dict(self._rooms)
        for namespace, room in rooms.items():
            there = {
                kept.job_of_pod(pod) for pod in room.pods.values() if pod["spec"].get("nodeName") == node
            }
            for job in filter(None, there):
                self._changed(namespace, job)


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def _ignore(_: str) -> None:
    return
