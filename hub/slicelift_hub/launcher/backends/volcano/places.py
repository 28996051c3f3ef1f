"""What keeps single pods back: images, claims, mounts, containers that cannot be made. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from slicelift_hub.launcher.backends.volcano.amounts import count
from slicelift_hub.launcher.backends.volcano.picture import Object, Picture, containers

# of the kubelet: the image is not there or cannot be read
_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
)
_CONTAINER = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CreatePodSandboxError",
)
_MOUNTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_CLAIM = re.compile(
    r'persistentvolumeclaim "(?P<name>[^"]+)" (?P<what>not found|is being deleted|bound to non-existent \S+)'
)
# a kubelet that starts before the Secret is there says so once, and tries again
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A stable word and one sentence."""

    reason: str
    message: str


def pod_trouble(picture: Picture) -> Trouble | None:
    """The first that stands in the way of a pod: claims first, since they keep pods from getting a place.

    A picture without a PodGroup is of no gang.
    """
    for found in chain(_claims(picture), _containers(picture), _mounts(picture)):
        return found
    return None


def is_stuck(pod: Object) -> bool:
    """Placed, and none of its containers has come up."""
    begun = any("waiting" not in (each.get("state") or {"waiting": {}}) for each in containers(pod))
    return bool(pod.get("spec", {}).get("nodeName")) and not begun


def _claims(picture: Picture) -> Iterator[Trouble]:
    if picture.placed >= picture.least:
        # what the scheduler said before stays beside the place that it has found since
        return
    for text in picture.scheduler_says():
        match = _CLAIM.search(text)
        # made since: the scheduler does not look again while nothing else changes
        if match and not (match["what"] == "not found" and picture.claims.get(match["name"])):
            missing = match["what"] == "not found"
            message = f"The claim {match['name']} that the job's pods use {match['what']}."
            yield Trouble(reason="claim", message=no_claim(match["name"]) if missing else message)
    if not picture.pods:
        return
    for name, claim in sorted(picture.claims.items()):
        if claim.get("status", {}).get("phase") == "Pending":
            wait = "its storage class may wait for a first pod while Volcano waits for the claim"
            yield Trouble(reason="claim", message=f"The claim {name} is not bound to a volume yet; {wait}.")


def no_claim(name: str) -> str:
    """Of a claim that pods use and nobody has made."""
    return f"The claim {name} that the job's pods use does not exist."


def _containers(picture: Picture) -> Iterator[Trouble]:
    for pod in picture.pods:
        for container in containers(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason, text = str(waiting.get("reason", "")), str(waiting.get("message", ""))
            if reason in _IMAGE:
                yield Trouble(
                    reason="image", message=_image(pod, container, f"{reason}: {text}", picture=picture)
                )
            elif reason in _CONTAINER:
                yield Trouble(
                    reason="container", message=f"{_where(pod)} cannot be made: {reason}: {text[:300]}"
                )


def _image(pod: Object, container: Object, text: str, *, picture: Picture) -> str:
    image = container.get("image") or "(unnamed)"
    node = pod.get("spec", {}).get("nodeName", "?")
    if picture.group is None:
        return f"The image {image} cannot be had on node {node} ({text[:300]})."
    held = count(picture.placed, "pod")
    return f"The image {image} cannot be had on node {node} ({text[:300]}); the gang holds its place with {held} meanwhile."


def _mounts(picture: Picture) -> Iterator[Trouble]:
    late = picture.now - picture.since > _PATIENCE_SECONDS
    stuck = {str(pod["metadata"]["name"]): pod for pod in picture.pods if late and is_stuck(pod)}
    for event in picture.told("Pod"):
        pod = stuck.get(str(event.get("involvedObject", {}).get("name")))
        if pod is not None and event.get("reason") in _MOUNTS:
            text = str(event.get("message", ""))[:300]
            yield Trouble(reason="mount", message=f"A volume of {_where(pod)} cannot be mounted: {text}")


def _where(pod: Object) -> str:
    return f"pod {pod['metadata']['name']} on node {pod.get('spec', {}).get('nodeName', '?')}"
