"""What a user should know before a submit: what defeats its purpose, what is missing, what would keep it waiting. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slicelift.models import JobSpec
from slicelift_profiles.presets import Preset

from slicelift_hub.launcher.backends.volcano.sites import Site
from slicelift_hub.launcher.backends.volcano.waiting import Why
from slicelift_hub.launcher.backends.volcano.worker import is_elastic, job_image, restarts_in_place

# of the presets, the one that starts a gang again as a whole
_WHOLE = "torchrun"


def make_notes(
    spec: JobSpec,
    *,
    preset: Preset,
    site: Site,
    wait: Why | None,
    unlimited: Sequence[tuple[str, str]] = (),
    flat: bool = False,
) -> list[str]:
    """Sentences, the most telling first. `unlimited` as in `quotas`.

    `flat`: the preset wants nodes that lie close, and the cluster has no HyperNodes.
    """
    notes = [f"It would wait: {wait.message}"] if wait is not None else []
    if flat:
        notes.append(
            f"The preset {preset.name} wants nodes that lie close, and the cluster has no HyperNodes to tell which do: "
            "Volcano takes any."
        )
    notes += [_forgotten(resource, queue) for resource, queue in unlimited]
    return [*notes, *_doubts(spec, preset), *_missing(spec, site), *_image(spec, preset, site)]


def _forgotten(resource: str, queue: str) -> str:
    message = f"The queue {queue} has limits, and none of {resource}: whoever runs the cluster should list it there."
    return message  # noqa: RET504 - the Chinese of what is bound to this name is checked


def _doubts(spec: JobSpec, preset: Preset) -> list[str]:
    """Where the preset's own choices defeat its purpose."""
    doubts = []
    if restarts_in_place(preset) and spec.workers > 1:
        doubts.append(
            f"The preset {preset.name} restarts a failed worker inside its pod (restartPolicy "
            f"{preset.cluster.restart_policy}): the pod never counts as failed, so its RestartJob never fires, and the "
            f"other workers wait for a peer that cannot join them again. --preset {_WHOLE} starts the whole gang again."
        )
    if is_elastic(spec, preset):
        doubts.append(
            f"The gang starts as soon as {spec.min_workers} of its {spec.workers} workers have a place; batch size and "
            "steps must not depend on the number of workers."
        )
    if is_elastic(spec, preset) and preset.cluster.check:
        doubts.append(
            f"The network between the workers is not checked, as the preset {preset.name} would have it: who belongs to an "
            "elastic gang changes."
        )
    return doubts


def _missing(spec: JobSpec, site: Site) -> list[str]:
    notes = []
    if not site.checkpoints_claim:
        notes.append(
            "Checkpoints are kept in the pods alone (no c.Volcano.checkpoints_claim): a restart begins anew."
        )
    if spec.data and not site.data_claim:
        notes.append("Every worker fetches the data for itself (no c.Volcano.data_claim).")
    return notes


def _image(spec: JobSpec, preset: Preset, site: Site) -> list[str]:
    image = job_image(spec, preset.cluster, site)
    if "@sha256:" in image:
        return []
    return [f"The image {image} is named by a tag: a retry may run another one than the first attempt did."]
