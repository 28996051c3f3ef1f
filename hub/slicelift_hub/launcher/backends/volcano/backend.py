"""The backend "volcano": one Volcano Job per submitted attempt, with as many pods as the gang has workers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slicelift.backends.base import GONE, Attempt, Manifest, Proof
from slicelift.errors import Conflict, NotFound, Refused, SliceliftError, Unavailable
from slicelift.models import JobSpec, JobStatus, Status
from slicelift_profiles import ProfileError, presets
from slicelift_profiles.presets import Preset
from traitlets import Bool, Dict, Float, Int, List, Unicode
from traitlets.config import Configurable

from slicelift_hub.launcher.backends.volcano import ending, kept, parcel, paths, scaling
from slicelift_hub.launcher.backends.volcano.client import DENIED, Client
from slicelift_hub.launcher.backends.volcano.manifest import (
    check_request,
    is_of,
    make_job,
    make_request,
    make_runtime,
    make_secret,
)
from slicelift_hub.launcher.backends.volcano.names import make_handle, namespace_of, parse_handle
from slicelift_hub.launcher.backends.volcano.picture import Object, Picture
from slicelift_hub.launcher.backends.volcano.planning import make_notes
from slicelift_hub.launcher.backends.volcano.preparing import Preparing
from slicelift_hub.launcher.backends.volcano.quotas import is_leaf, make_capacity, unlimited
from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.status import fold
from slicelift_hub.launcher.backends.volcano.waiting import Why, foresee
from slicelift_hub.launcher.backends.volcano.watching import Watching

_log = logging.getLogger(__name__)
# an API server that restarts is back before; what lasts longer is said
_AWAY_SECONDS = 10.0
# a launcher of another version may sweep the runtime away while no job of ours is there
_FURNISHED_SECONDS = 600.0
_AWAY = "The cluster's API server does not answer; the job goes on meanwhile."
# what passes -> the word and the sentence for its end
_RETURNS = {
    "node-lost": Why(reason="node-back", message="All nodes of the job answer again."),
    "cluster-away": Why(reason="cluster-back", message="The cluster's API server answers again."),
    "cluster-token": Why(reason="cluster-back", message="The cluster accepts the launcher's token again."),
    DENIED: Why(reason="cluster-back", message="The cluster gives the launcher its rights again."),
    "worker-gone": Why(reason="worker-back", message="The gang has the workers again that it needs."),
    "workers-fewer": Why(reason="workers-all", message="The gang has all of its workers."),
    "first-worker-gone": Why(reason="workers-all", message="The gang has all of its workers."),
}
# what no waiting mends; nodes that are too small or too few may yet be added
_CANNOT = ("queue-missing", "queue-closed", "queue-not-leaf", "quota-too-small")


class Volcano(Configurable):  # type: ignore[misc]  # traitlets is typed in part only
    """Gangs on a Kubernetes cluster with Volcano."""

    name = "volcano"
    leased = False

    kubeconfig = Unicode(
        help="Path of a kubeconfig. Empty: the service account of the pod that the launcher runs in."
    ).tag(config=True)
    context = Unicode(help="Context of the kubeconfig. Empty: its current one.").tag(config=True)
    namespace = Unicode(
        "slicelift",
        help="Where jobs run. `{owner}` in it stands for the user, as in KubeSpawner: `sl-{owner}`.",
    ).tag(config=True)
    image = Unicode(help="Image of jobs that name none, by digest. Nothing of Slicelift need be in it.").tag(
        config=True
    )
    presets_file = Unicode(help="A presets.yaml of your own. Empty: the one that comes with Slicelift.").tag(
        config=True
    )
    queues = List(Unicode(), help="Queues that are shown. Empty: all that take jobs.").tag(config=True)
    checkpoints_claim = Unicode(help="A PersistentVolumeClaim for checkpoints, writable by all nodes.").tag(
        config=True
    )
    data_claim = Unicode(
        help="A PersistentVolumeClaim for the shared cache of data, writable by all nodes; jobs see it read-only."
    ).tag(config=True)
    data_image = Unicode(
        help="Image in which data is fetched, with Python and DVC. Empty: the job's own."
    ).tag(config=True)
    data_memory = Unicode("2Gi", help="Most memory of the pod that fetches data.").tag(config=True)
    data_hours = Float(
        12.0,
        min=0.01,
        help="How long fetching one data set may take, waiting for a place included. The next try goes on from there.",
    ).tag(config=True)
    uid = Int(1000, allow_none=True, help="User that pods run as. None: the image's.").tag(config=True)
    volumes = List(Dict(), help="Further volumes of every pod, as Kubernetes writes them.").tag(config=True)
    volume_mounts = List(Dict(), help="Where they are mounted.").tag(config=True)
    interface = Unicode("eth0", help="Network interface of a pod on which ranks talk to each other.").tag(
        config=True
    )
    network_policy = Bool(
        False,
        help="Have Volcano make a NetworkPolicy for each job: its pods are then reached by its own pods only.",
    ).tag(config=True)
    keep_seconds = Int(
        604_800, help="After how long an ended job is deleted if nobody has collected it."
    ).tag(config=True)
    patience_seconds = Int(
        1800,
        min=0,
        help="How long pods hold their place for a launcher that is away, before their start and again after their end.",
    ).tag(config=True)
    qps = Float(50.0, help="How many calls a second the API server gets at most. 0: any number.").tag(
        config=True
    )

    def __init__(self, home: Path | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.home = home
        self._client = Client(kubeconfig=self.kubeconfig, context=self.context, qps=self.qps)
        self._changed: Callable[[str], None] = _ignore
        self._watching = Watching(self._client, changed=self._tell)
        self._preparing = Preparing(self._client, furnish=self._furnish)
        self._lock = threading.Lock()
        # when the namespaces got the runtime of this version, or were seen to have it
        self._furnished: dict[str, float] = {}
        # handle -> (what was told of it, at which restart), so that its end is told, too
        self._told: dict[str, tuple[str, int]] = {}

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        """The Volcano Job, as `kubectl apply` takes it. Raises Refused."""
        preset = self._preset(spec)
        check_request(make_request(spec, attempt, preset=preset, site=self._site()))
        return make_job(spec, attempt, preset=preset, site=self._site())

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        """What stands in its way, by a dry run that goes through all webhooks. Raises Refused where one says no."""
        job = self.render(spec, attempt)
        forgotten: list[tuple[str, str]] = []
        try:
            queues, nodes = self._watching.cluster()
            wait, forgotten = self._foresee(job, queues, nodes), unlimited(job, queues)
            if wait is not None and wait.reason in _CANNOT:
                raise Refused(wait.reason, wait.message, self._queues_hint())
            self._client.create(paths.jobs(job["metadata"]["namespace"]), job, dry_run=True)
        except Unavailable as error:
            wait = Why(reason=error.code, message=error.message)
        except NotFound as error:
            raise _no_namespace(job["metadata"]["namespace"], error) from error
        preset, site = self._preset(spec), self._site()
        flat = preset.cluster.topology is not None and self._is_flat()
        return make_notes(spec, preset=preset, site=site, wait=wait, unlimited=forgotten, flat=flat)

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        """Have the data of the job in the shared cache, fetched once for all who need it; see `preparing`."""
        try:
            return self._preparing.prepare(spec, attempt, preset=self._preset(spec), site=self._site())
        except NotFound as error:
            raise _no_namespace(namespace_of(self.namespace, attempt.owner), error) from error

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        """End what `prepare` has begun for this attempt; the handle of its Job, "" where the cluster has none of it."""
        self._preparing.abandon(spec, attempt, site=self._site())
        namespace, name = namespace_of(self.namespace, attempt.owner), attempt.attempt_id
        job = self._client.find(paths.jobs(namespace, name))
        alive = ending.living_pods(self._client, namespace, name) if job is None else []
        return make_handle(namespace, name) if alive or (job is not None and is_of(job, attempt)) else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        """Create the Job and what its pods read. Safe to repeat after a kill between any two of its calls.

        Raises Refused with the cluster's words, maybe after the Job was made: see `abandon`. Unavailable while the cluster
        is away or denies the launcher itself.
        """
        job = self.render(spec, attempt)
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        try:
            self._furnish(namespace)
            made = self._create(job, attempt)
            secret = make_secret(made, spec, attempt, preset=self._preset(spec), site=self._site())
            self._create_once(paths.secrets(namespace), secret)
        except NotFound as error:
            raise _no_namespace(job["metadata"]["namespace"], error) from error
        return make_handle(namespace, name)

    def status(self, handle: str) -> JobStatus:
        """One look at what the watches hold. Raises Unavailable until the cluster has answered once."""
        found = self._picture(handle)
        if found is None:
            message = f"The cluster has no job {handle}: somebody deleted it."
            return JobStatus(status=Status.UNKNOWN, reason=GONE, message=message)
        status = fold(found)
        broken = self._watching.broken(str(found.job["metadata"]["namespace"]))
        if broken is not None and not status.status.terminal and time.time() - broken[0] >= _AWAY_SECONDS:
            status = _unseen(status, broken[1])
        return self._with_return(handle, status)

    def listen(self, changed: Callable[[str], None]) -> None:
        """`changed(handle)` at every change of a job, its PodGroup, its pods or its events, from the watches' threads."""
        self._changed = changed

    def capacity(self) -> Mapping[str, Any]:
        """Queues with quota and use, devices of the nodes, our jobs that wait."""
        queues, nodes = self._watching.cluster()
        names = self.queues or [name for name in queues if is_leaf(name, queues)]
        lines, _ = self._watching.overview()
        waiting = {name: len(line.waiting) for name, line in lines.items()}
        return make_capacity(queues, nodes, names=names, waiting=waiting)

    def cancel(
        self,
        handle: str,
        *,
        reason: str,  # noqa: ARG002 - the ledger's
        grace_seconds: float = 10.0,
        saving: bool = False,
    ) -> Proof:
        """Delete the job and prove that no pod of it lives: `grace_seconds` + 20 s at most.

        With `saving` its pods have all the time that their preset gives them, and this returns after a second of it.
        What is left on a node that does not answer is unproven, and named with the node and what it still counts.
        """
        parsed = parse_handle(handle)
        if parsed is None:
            return Proof(gone=True)
        return ending.end(self._client, *parsed, grace_seconds=None if saving else grace_seconds)

    def scale(self, handle: str, workers: int) -> None:
        """Another number of workers for an elastic gang, up to the preset's `max_workers`; see `scaling`."""
        parsed = parse_handle(handle)
        if parsed is None:
            raise NotFound(GONE, f"The cluster has no job {handle}.")
        scaling.scale(self._client, *parsed, workers)

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:  # noqa: ARG002 - nothing is kept
        """Delete the Job of an attempt that is over; its pods, Secret and PodGroup go with it."""
        parsed = parse_handle(handle)
        return parsed is None or ending.discard(self._client, *parsed)

    def sweep(self) -> list[str]:
        """Delete in every namespace used so far what nobody owns any more; what was deleted."""
        with self._lock:
            namespaces = sorted({*self._furnished, *self._watching.namespaces()})
        name, seconds = parcel.parcel_name(), float(self.keep_seconds)
        found: list[str] = []
        for namespace in namespaces:
            try:
                found += ending.sweep(self._client, namespace, runtime=name, keep_seconds=seconds)
            except SliceliftError as error:
                # one that is gone or closed to the launcher is no reason to leave the others
                _log.warning("The namespace %s is not swept: %s", namespace, error)
        return found

    def close(self) -> None:
        """End the watches."""
        self._watching.stop()
        self._client.close()

    def _create(self, job: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
        """The job as the cluster has it, made now or by an earlier try."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        try:
            return self._client.create(paths.jobs(namespace), job)
        except Conflict:
            found = self._client.get(paths.jobs(namespace, name))
        if not is_of(found, attempt) or found["metadata"].get("deletionTimestamp"):
            message = f"The namespace {namespace} has a job {name} that is not this one."
            raise Conflict("job-name-taken", message, "Retry: the next attempt has another name.")
        return found

    def _create_once(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._client.create(path, body)
        except Conflict:
            _log.debug("%s is there already.", body["metadata"]["name"])

    def _furnish(self, namespace: str) -> None:
        """Have the runtime of this version in the namespace."""
        with self._lock:
            if time.monotonic() - self._furnished.get(namespace, -_FURNISHED_SECONDS) < _FURNISHED_SECONDS:
                return
        content, name = parcel.make_parcel(), parcel.parcel_name()
        self._create_once(paths.config_maps(namespace), make_runtime(content, name=name, namespace=namespace))
        with self._lock:
            self._furnished[namespace] = time.monotonic()

    def _foresee(
        self, job: dict[str, Any], queues: Mapping[str, Object], nodes: Sequence[Object]
    ) -> Why | None:
        lines, held = self._watching.overview()
        claims, made = self._claims(job), _as_if_made(job)
        return foresee(
            Picture(
                now=time.time(), job=made, queues=queues, nodes=nodes, lines=lines, held=held, claims=claims
            )
        )

    def _is_flat(self) -> bool:
        """Whether nobody has told the cluster which nodes lie close; False where that may not be looked at."""
        try:
            return not self._client.list(paths.hypernodes())[0]
        except NotFound:
            return True
        except SliceliftError as error:
            _log.debug("HyperNodes cannot be looked at: %s", error)
            return False

    def _queues_hint(self) -> str:
        found = [row["name"] for row in self.capacity()["quotas"] if row["state"] == "Open"]
        return f"Queues that take jobs: {', '.join(found) or '(none)'}."

    def _picture(self, handle: str) -> Picture | None:
        parsed = parse_handle(handle)
        if parsed is None:
            return None
        namespace, name = parsed
        found = self._watching.picture(namespace, name)
        if found is None:
            # made a moment ago, or gone
            job = self._client.find(paths.jobs(namespace, name))
            if job is not None:
                seen = kept.keep_job(job) | {"seen": time.time()}
                found = self._watching.picture(namespace, name, job=seen)
        return None if found is None else self._with_claims(found)

    def _with_claims(self, picture: Picture) -> Picture:
        """With the claims of a job that waits although its pods are there."""
        if not picture.pods or picture.placed >= picture.least:
            return picture
        return replace(picture, claims=self._claims(picture.job))

    def _claims(self, job: Object) -> dict[str, Object]:
        """The claims that its pods use, empty for one that is not there; none that may not be looked at."""
        namespace = str(job["metadata"]["namespace"])
        claims: dict[str, Object] = {}
        for name in kept.claims_of(job):
            try:
                claims[name] = self._client.find(paths.claims(namespace, name)) or {}
            except SliceliftError as error:
                _log.debug("The claim %s cannot be looked at: %s", name, error)
        return claims

    def _with_return(self, handle: str, status: JobStatus) -> JobStatus:
        """The end of what was told is told, once: an empty message would leave the old one standing."""
        with self._lock:
            if status.reason in _RETURNS:
                self._told[handle] = (status.reason, status.restarts)
                return status
            reason, restarts = self._told.pop(handle, ("", 0))
        # another attempt's card knows nothing of it
        if not reason or status.status.terminal or status.message or status.restarts != restarts:
            return status
        back = _RETURNS[reason]
        return replace(status, reason=back.reason, message=back.message)

    def _preset(self, spec: JobSpec) -> Preset:
        try:
            path = Path(self.presets_file) if self.presets_file else presets.SHIPPED
            return presets.load(path).get(spec.preset)
        except ProfileError as error:
            raise Refused(error.code, error.message, error.hint) from error

    def _site(self) -> Site:
        return Site(
            namespace=self.namespace,
            image=self.image,
            checkpoints_claim=self.checkpoints_claim,
            data_claim=self.data_claim,
            data_image=self.data_image,
            data_memory=self.data_memory,
            data_hours=self.data_hours,
            uid=self.uid,
            volumes=tuple(self.volumes),
            mounts=tuple(self.volume_mounts),
            interface=self.interface,
            network_policy=self.network_policy,
            keep_seconds=self.keep_seconds,
            patience_seconds=self.patience_seconds,
            runtime=parcel.parcel_name(),
        )

    def _tell(self, namespace: str, job: str) -> None:
        self._changed(make_handle(namespace, job))


def _ignore(_: str) -> None:
    return


def _unseen(status: JobStatus, why: SliceliftError | None) -> JobStatus:
    """What was seen last of a job that cannot be followed now."""
    if why is not None and why.code in ("cluster-token", DENIED):
        return replace(status, reason=why.code, message=why.message)
    return replace(status, reason="cluster-away", message=_AWAY)


def _as_if_made(job: dict[str, Any]) -> dict[str, Any]:
    """A manifest with what the API server would add, as far as a forecast needs it: it comes after all others."""
    return job | {"metadata": {**job["metadata"], "creationTimestamp": "9999-01-01T00:00:00Z"}}


def _no_namespace(namespace: str, error: NotFound) -> Refused:
    message = f"The cluster cannot take the job in the namespace {namespace}: {error.message}"
    hint = "Ask whoever runs the cluster to make the namespace (docs/cluster.md)."
    return Refused("namespace-missing", message, hint)
