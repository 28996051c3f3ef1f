"""Sessions on a cluster: a profile names a slice, and JupyterLab runs in a pod that holds it, placed by Volcano.

KubeSpawner does the work. What is ours: the same form and refusals as on one machine, resources by profile, and the
queue, whose quota sessions and jobs share. The free counts are advice; the scheduler decides.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from kubernetes_asyncio.client import ApiException
from kubespawner import KubeSpawner
from kubespawner.clients import shared_client
from slicelift.errors import SliceliftError, Unavailable
from slicelift_profiles import slices
from slicelift_profiles.catalog import Profile
from slicelift_profiles.slices import without_gpu
from traitlets import Unicode, default

from slicelift_hub.allocatable import make_machine
from slicelift_hub.asking import TOLD, ProfiledSpawner, session_variables, told_of
from slicelift_hub.choices import PROFILE, Machine

QUEUE = "scheduling.volcano.sh/queue-name"
_SCHEDULING = ("scheduling.volcano.sh", "v1beta1", "queues")
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_ASK_SECONDS = 10.0
# how deep queues may be nested: more than Volcano's own examples, and an end for a ring of them
_DEEPEST = 8
# reason of a pod's event -> what it means for whoever waits
_SENTENCES = {
    "FailedScheduling": "There is no place for it yet: {message}",
    "Scheduled": "A node has a place for the session.",
    "Pulling": "The node fetches the image; the first time on a node this takes minutes.",
    "Pulled": "The image is there.",
    "Created": "The session is made ready.",
    "Started": "JupyterLab is starting.",
    "FailedMount": "A volume is not there yet: {message}",
    "FailedAttachVolume": "A volume is not there yet: {message}",
}
# a scheduler that works says something of a pod within a second or two
_SILENT_SECONDS = 20.0
_SILENT = (
    f"Nothing in the cluster has said a word of the session for {_SILENT_SECONDS:.0f} s: Volcano or its webhook does not "
    "react. Whoever runs the cluster must look; the start goes on by itself as soon as it does."
)
# an admin's settings that a profile adds to
_BY_PROFILE = ("image", "extra_annotations", "extra_resource_limits", "extra_resource_guarantees")
# of its state, what is ours: where a session is and by which token the culler asks it, which the hub forgets else
_KEPT = (*TOLD, "address", "token")
_NO_GPU = {slices.GPU: "0"}


class SliceSpawner(ProfiledSpawner, KubeSpawner):  # type: ignore[misc]  # no types
    """Starts JupyterLab in a pod with the slice of the chosen profile."""

    queue = Unicode(
        "default",
        help="Volcano's queue that sessions are counted in. Its quota, and that of every queue above it, is on the form.",
    ).tag(config=True)

    @default("cmd")  # type: ignore[untyped-decorator]
    def _default_cmd(self) -> list[str]:
        # -P: a random.py in the user's home must not stand in for the standard library's
        return ["python", "-P", "-m", "jupyterhub.singleuser"]

    @default("scheduler_name")  # type: ignore[untyped-decorator]
    def _default_scheduler_name(self) -> str:
        # two schedulers would both give away the last slice
        return "volcano"

    @default("uid")  # type: ignore[untyped-decorator]
    def _default_uid(self) -> int:
        return 1000

    @default("fs_gid")  # type: ignore[untyped-decorator]
    def _default_fs_gid(self) -> int:
        return 1000

    @default("gid")  # type: ignore[untyped-decorator]
    def _default_gid(self) -> int:
        return 1000

    @default("automount_service_account_token")  # type: ignore[untyped-decorator]
    def _default_automount_service_account_token(self) -> bool:
        # a cell must not be able to do anything in the cluster
        return False

    @default("container_security_context")  # type: ignore[untyped-decorator]
    def _default_container_security_context(self) -> dict[str, Any]:
        # with KubeSpawner's own defaults this meets the level "restricted"
        drop = {"drop": ["ALL"]}
        return {"capabilities": drop, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # of each user's own, where the launcher's `c.Volcano.namespace` puts the user's jobs
        self.namespace: str = self._expand_user_properties(self.namespace)
        self.dns_name = self.dns_name_template.format(namespace=self.namespace, name=self.pod_name)
        self._configured: dict[str, Any] = {name: getattr(self, name) for name in _BY_PROFILE}
        self._told: dict[str, Any] = {}
        self._profile: Profile | None = None

    async def look(self) -> Machine:
        """The API server's nodes, bound pods and queues. Raises Unavailable where it does not say."""
        try:
            core = shared_client("CoreV1Api")
            found = await asyncio.gather(
                _items(core.list_node(_preload_content=False)),
                _items(core.list_pod_for_all_namespaces(field_selector=_BOUND, _preload_content=False)),
                self._queues(),
            )
        except (ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
            self.log.exception("The cluster could not be asked what is free.")
            message = f"The cluster does not say what is free ({type(error).__name__})."
            raise Unavailable("cluster-away", message, "Try again in a moment.") from error
        return make_machine(self.catalog(), *found)

    async def load_user_options(self) -> None:
        """KubeSpawner's hook at the beginning of a start. Raises `Refusal`, with nothing made in the cluster yet."""
        try:
            choice = self.chosen()
            await self.must_be_free(choice.profile)
            await self._may_be_here()
        except SliceliftError as error:
            raise self.refused(error, instead=None) from None
        self._told = told_of(choice)
        self._take(choice.profile)

    async def start(self) -> str:
        """The address of the session, once its pod runs. Raises `Refusal` with the cluster's words where it says no."""
        try:
            url: str = await super().start()
        except ApiException as error:
            if error.status != 403:
                raise
            # as for a quota of the namespace
            with suppress(ValueError, TypeError, KeyError):
                error.reason = json.loads(error.body)["message"]
            raise self.refused(_not_here(self.namespace, error.reason), instead=None) from error
        await self._until_it_answers(urlsplit(url))
        self._told |= {"since": time.time(), "address": url, "token": self.api_token}
        return url

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What the start is doing, one sentence a step."""
        if self._told.get("note"):
            yield {"progress": 0, "message": self._told["note"]}
        async for step in _with_silence(super().progress()):
            yield {**step, "message": _sentence(step.get("raw_event") or {}) or step["message"]}

    def get_env(self) -> dict[str, str]:
        """What a session knows of the hub, the launcher and its slice."""
        profile = self._profile
        ours = session_variables(self.launcher_url, token=self.api_token, profile=self._told.get(PROFILE, ""))
        ours |= {"SLICELIFT_SLICE": profile.slice or "" if profile else "", "SLICELIFT_IMAGE": self.image}
        if profile:
            ours |= without_gpu(filter(None, [profile.resource_name]))
        return {**super().get_env(), **ours}

    def get_state(self) -> dict[str, Any]:
        """What the culler judges by, beside KubeSpawner's own."""
        return {**super().get_state(), **self._told}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().load_state(state)
        self._told = {name: state[name] for name in _KEPT if name in state}

    def clear_state(self) -> None:
        """The session is over."""
        super().clear_state()
        self._told = {}

    def _take(self, profile: Profile) -> None:
        """Everything that a profile decides is set anew: the object may have started another one before."""
        self._profile = profile
        self.cpu_guarantee = profile.cpu
        self.mem_guarantee = self.mem_limit = profile.memory_bytes
        name = profile.resource_name
        devices = {name: str(profile.gpus or 1)} if name else _NO_GPU
        given = self._configured
        self.extra_resource_guarantees = {**given["extra_resource_guarantees"], **devices}
        self.extra_resource_limits = {**given["extra_resource_limits"], **devices}
        self.extra_annotations = {**given["extra_annotations"], QUEUE: self.queue}
        self.image = profile.image or given["image"]

    async def _may_be_here(self) -> None:
        """Before KubeSpawner follows the namespace, which it would do for ever where it may not."""
        asked = shared_client("CoreV1Api").list_namespaced_event(
            self.namespace, limit=1, _preload_content=False
        )
        answer = await asyncio.wait_for(asked, _ASK_SECONDS)
        if answer.status == 403:
            raise _not_here(self.namespace, (await answer.json())["message"])

    async def _until_it_answers(self, place: SplitResult) -> None:
        """Return when its port is open: only from there on it can be idle. What never answers the hub ends."""
        until = time.monotonic() + self.http_timeout
        while time.monotonic() < until and await self.poll() is None:
            with suppress(OSError):
                async with asyncio.timeout(_ASK_SECONDS):
                    _, writer = await asyncio.open_connection(place.hostname, place.port)
                writer.close()
                return
            await asyncio.sleep(0.2)

    async def _queues(self) -> list[dict[str, Any]]:
        """The queue of sessions and all above it."""
        ask = shared_client("CustomObjectsApi").get_cluster_custom_object
        found: list[dict[str, Any]] = []
        name = self.queue
        while name and len(found) < _DEEPEST:
            queue = await asyncio.wait_for(ask(*_SCHEDULING, name), _ASK_SECONDS)
            found.append(queue)
            name = queue["spec"].get("parent") or ""
        return found


def _not_here(namespace: str, why: str) -> SliceliftError:
    message = f"The cluster takes no session in the namespace {namespace}: {why}."
    hint = "Whoever runs the cluster must look at the namespace, its quota, and the hub's rights there."
    return Unavailable("session-refused", message, hint)


async def _with_silence(steps: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The same steps, and that nobody in the cluster says anything where the first one is long in coming."""
    first = asyncio.ensure_future(_next(steps))
    try:
        await asyncio.wait({first}, timeout=_SILENT_SECONDS)
        if not first.done():
            yield {"progress": 0, "message": _SILENT}
        step = await first
    finally:
        first.cancel()
    while step is not None:
        yield step
        step = await _next(steps)


async def _next(steps: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(steps, None)


def _sentence(event: Mapping[str, Any]) -> str:
    """An event of the pod in words for whoever waits; empty for one that is told as it is."""
    message = str(event.get("message") or "")
    return _SENTENCES.get(str(event.get("reason")), "").format(message=message)


async def _items(asked: Any) -> list[dict[str, Any]]:
    """The objects of a list as JSON: the client's classes would take ten times as long."""
    answer = await asyncio.wait_for(asked, _ASK_SECONDS)
    answer.raise_for_status()
    rows: list[dict[str, Any]] = json.loads(await answer.read())["items"]
    return rows
