"""What is done before a gang takes its place: its data comes into the shared cache, once for all who need it."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slicelift.backends.base import Attempt
from slicelift.errors import Conflict, Refused
from slicelift.models import DataRef, JobSpec, JobStatus, Status
from slicelift_profiles.presets import Preset

from slicelift_hub.launcher.backends.volcano import paths
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.data import DATA_LABEL, data_key, data_sets
from slicelift_hub.launcher.backends.volcano.names import MANAGED_BY, OURS, namespace_of
from slicelift_hub.launcher.backends.volcano.picture import Object, created
from slicelift_hub.launcher.backends.volcano.places import is_stuck
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.warmup import (
    WarmUp,
    asker,
    describe,
    is_leaving,
    is_over,
    make_warm_up,
    make_warm_up_secret,
    read_warm_up,
)

REASON = "data"
# data sets of one job that are fetched beside each other: the cluster has other users
_AT_ONCE = 4
# with what is added, a name of 63 characters at most
_LONGEST = 49
_OURS = f"{MANAGED_BY}={OURS},{DATA_LABEL}"
# however many jobs wait for data, the API server is asked this often per namespace
_LOOK_SECONDS = 0.8


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The warm-ups of a namespace, the oldest first, with their pods and the warnings about these; `made`: monotonic."""

    made: float
    jobs: Sequence[Object]
    pods: Sequence[Object]
    events: Sequence[Object]


class Preparing:
    """Starts warm-ups and follows them. What it remembers saves calls: it may be killed at any moment.

    `furnish(namespace)` puts what starts a pod of ours there.
    """

    def __init__(self, client: Client, *, furnish: Callable[[str], None]) -> None:
        self._client = client
        self._furnish = furnish
        # of two jobs that need the same, the second must see what the first has started
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}
        # names of the Jobs whose Secret is known to be there
        self._complete: set[str] = set()
        # (attempt, md5) of what was done: Jobs that have ended are there for two minutes, and another data set may take hours
        self._done: set[tuple[str, str]] = set()

    def prepare(self, spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site) -> JobStatus | None:
        """None once all data of a job is in the shared cache, else where that stands. Ask again and again.

        A warm-up that is under way or has just ended counts for whoever needs the same; a failed one only for the attempt
        that asked for it. Raises its error, Refused, Unavailable, NotFound for the namespace.
        """
        refs = data_sets(spec) if site.data_claim else []
        missing = deque(ref for ref in refs if (attempt.attempt_id, ref.md5) not in self._done)
        messages: list[str] = []
        while missing and len(messages) < _AT_ONCE:
            messages += self._step(missing.popleft(), spec, attempt, preset=preset, site=site)
        if messages:
            first, ready = messages[0], len(refs) - len(messages) - len(missing)
            many = f"{first} ({ready} of {len(refs)} data sets are there)"
            message = many if len(refs) > 1 else first
            return JobStatus(status=Status.WAITING, reason=REASON, message=message)
        self._done -= {(attempt.attempt_id, ref.md5) for ref in refs}
        return None

    def abandon(self, spec: JobSpec, attempt: Attempt, *, site: Site) -> None:
        """End the warm-ups under way that this attempt asked for. Another job that waits for one starts its own."""
        if not site.data_claim or not data_sets(spec):
            return
        namespace = namespace_of(site.namespace, attempt.owner)
        jobs, _ = self._client.list(paths.plain_jobs(namespace), labelSelector=_OURS)
        for job in jobs:
            if asker(job) == attempt.attempt_id and not is_over(job):
                self._end(job)
        self._done -= {(attempt.attempt_id, ref.md5) for ref in spec.data}
        self._forget(namespace)

    def _step(
        self, ref: DataRef, spec: JobSpec, attempt: Attempt, *, preset: Preset, site: Site
    ) -> list[str]:
        """Where one data set stands, in words; nothing when it is there."""
        namespace = namespace_of(site.namespace, attempt.owner)
        with self._turn:
            found = self._find(namespace, ref, attempt)
            if found is None:
                name = f"{attempt.attempt_id[:_LONGEST]}-data-{secrets.token_hex(4)}"
                self._furnish(namespace)
                body = make_warm_up(ref, spec, attempt, name=name, preset=preset, site=site)
                job = self._client.create(paths.plain_jobs(namespace), body)
                self._give(job, ref, spec, attempt)
                self._forget(namespace)
                return [f"Fetching the data {describe(ref)} into the shared cache"]
        if found.done:
            self._done.add((attempt.attempt_id, ref.md5))
            return []
        if asker(found.job) == attempt.attempt_id:
            self._give(found.job, ref, spec, attempt)
        return [found.message]

    def _find(self, namespace: str, ref: DataRef, attempt: Attempt) -> WarmUp | None:
        """The warm-up that counts for this attempt; None when one has to be started. Raises the error of its own."""
        look = self._look(namespace)
        key = data_key(attempt.owner, ref)
        mine = [job for job in look.jobs if (job["metadata"].get("labels") or {}).get(DATA_LABEL) == key]
        read = [
            read_warm_up(job, look.pods, events=look.events, now=time.time())
            for job in mine
            if not is_leaving(job)
        ]
        own = [each for each in read if asker(each.job) == attempt.attempt_id]
        for each in own:
            if each.error is not None:
                raise each.error
        # who tries again may do so because what was there is there no more
        counted = own if attempt.attempt > 1 else read
        done = [each for each in counted if each.done]
        under_way = [each for each in read if not each.done and each.error is None]
        return next(iter([*done, *under_way]), None)

    def _give(self, job: Object, ref: DataRef, spec: JobSpec, attempt: Attempt) -> None:
        """What the pod of a warm-up waits for and reads. A launcher that was killed may have made the Job alone.

        Without it the pod would wait for ever, and all who need the same with it: a Job that cannot have it is ended.
        """
        name = str(job["metadata"]["name"])
        if name in self._complete:
            return
        secret = make_warm_up_secret(job, ref, spec, attempt)
        try:
            self._client.create(paths.secrets(secret["metadata"]["namespace"]), secret)
        except Conflict:
            pass
        except Refused:
            self._end(job)
            raise
        self._complete.add(name)

    def _end(self, job: Object) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        self._client.delete(paths.plain_jobs(namespace, name), uid=job["metadata"]["uid"])
        self._forget(namespace)

    def _look(self, namespace: str) -> _Look:
        """What there is, at most a second old."""
        with self._lock:
            known = self._looks.get(namespace)
            if known is not None and time.monotonic() - known.made < _LOOK_SECONDS:
                return known
            found, _ = self._client.list(paths.plain_jobs(namespace), labelSelector=_OURS)
            pods = self._client.list(paths.pods(namespace), labelSelector=_OURS)[0] if found else []
            about = "involvedObject.kind=Pod,type=Warning"
            stuck = any(map(is_stuck, pods))
            events = self._client.list(paths.events(namespace), fieldSelector=about)[0] if stuck else []
            jobs = sorted(found, key=created)
            made = _Look(made=time.monotonic(), jobs=jobs, pods=pods, events=events)
            self._looks[namespace] = made
            return made

    def _forget(self, namespace: str) -> None:
        with self._lock:
            self._looks.pop(namespace, None)
