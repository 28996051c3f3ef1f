"""What may be asked of this launcher. Pure: it looks at a spec and at what the machine has, and says no with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from slicelift.errors import Refused
from slicelift.models import JobSpec
from slicelift_profiles import presets

from slicelift_hub.launcher.ledger_runs import make_needs
from slicelift_hub.launcher.names import check_path, check_secret_name, check_sha256, is_plain
from slicelift_hub.launcher.vault import MAX_SECRETS
from slicelift_hub.leases import GPUS, SLOTS, Pool

# The most that a spec may hold of each, so that what is accepted can be started and tracked: MLflow takes 500 characters
# of an experiment behind the owner's account, the system 128 KiB in one variable of an environment.
LIMITS: Mapping[str, tuple[int, str]] = {
    "name": (200, "characters"),
    "experiment": (200, "characters"),
    "model_name": (200, "characters"),
    "queue": (100, "characters"),
    "preset": (100, "characters"),
    "slice": (100, "characters"),
    "python": (4096, "characters"),
    "tags": (100, "entries"),
    "tags: a name": (250, "characters"),
    "tags: a value": (8000, "characters"),
    "parameters": (100_000, "bytes"),
    "parameters: nesting": (50, "levels"),
    "secrets": (MAX_SECRETS, "entries"),
    "data": (10_000, "entries"),
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of one launcher; `pools` as the inventory has them."""

    pools: Mapping[str, Pool]
    queues: tuple[str, ...] = ("default",)

    @property
    def slices(self) -> tuple[Pool, ...]:
        """The slices that can be asked for."""
        return tuple(pool for name, pool in sorted(self.pools.items()) if name not in (SLOTS, GPUS))

    def check(self, spec: JobSpec) -> None:
        """Raises `Refused` when the job could never run here, however long it waited."""
        _check_sizes(spec)
        _check_words(spec)
        if spec.preset not in _preset_names():
            hint = f"Presets: {', '.join(_preset_names())}."
            raise Refused("unknown-preset", f"There is no preset {spec.preset!r}.", hint)
        if spec.queue not in self.queues:
            message = f"There is no queue {spec.queue!r}."
            raise Refused("queue-unknown", message, f"Queues: {', '.join(self.queues)}.")
        if spec.slice is not None:
            self._check_slice(spec, spec.slice)
        for pool, count in make_needs(spec).items():
            self._check_fits(spec, pool, count)

    def notes(self, spec: JobSpec) -> list[str]:
        """What a user should know before submitting."""
        notes = []
        pool = self.pools.get(spec.slice or "")
        if pool is not None and pool.simulated:
            notes.append(f"Slice {pool.name} is simulated: a place in a list, with no GPU behind it.")
        if spec.slice is None and not spec.gpus_per_worker:
            notes.append("The job runs on CPU slots.")
        return notes

    def _check_slice(self, spec: JobSpec, name: str) -> None:
        if spec.workers != 1 or spec.gpus_per_worker:
            message = f"A slice goes with one worker; asked were {spec.workers} workers on {name}."
            hint = "Use --workers 1, or whole GPUs for a gang: slices cannot talk to each other."
            raise Refused("slice-one-worker", message, hint)
        if name not in {pool.name for pool in self.slices}:
            have = ", ".join(pool.name for pool in self.slices) or "none"
            raise Refused("slice-unknown", f"This machine has no slice {name!r}.", f"Slices here: {have}.")

    def _check_fits(self, spec: JobSpec, pool: str, count: int) -> None:
        total = self.pools[pool].total if pool in self.pools else 0
        if count <= total:
            return
        if pool == GPUS:
            message = f"{spec.workers} workers with {spec.gpus_per_worker} GPUs each need {count}; there are {total}."
            hint = "Ask for fewer with --workers or --gpus-per-worker (0 trains on CPU)."
        else:
            message = f"The gang asks for {count} workers; this machine has {total} slots."
            hint = f"Use --workers {total} or fewer." if total else "This launcher has no slots: see --slots."
        detail = {"asked": count, "has": total, "pool": pool}
        raise Refused("gang-too-large", message, hint, detail=detail)


@cache
def _preset_names() -> tuple[str, ...]:
    return presets.load().names


def _check_sizes(spec: JobSpec) -> None:
    """The limits come first: whatever is said later may quote what was sent."""
    for what, has in _sizes(spec):
        most, unit = LIMITS[what]
        if has > most:
            message = f"The job's `{what}` has {has:,} {unit}; {most:,} are allowed."
            detail = {"field": what, "has": has, "most": most}
            raise Refused("spec-too-large", message, "Make it smaller and submit again.", detail=detail)


def _sizes(spec: JobSpec) -> Iterator[tuple[str, int]]:
    for field in ("name", "experiment", "model_name", "queue", "preset", "slice", "python"):
        yield field, len(getattr(spec, field) or "")
    for field in ("tags", "secrets", "data"):
        yield field, len(getattr(spec, field))
    yield "tags: a name", max(map(len, spec.tags), default=0)
    yield "tags: a value", max(map(len, spec.tags.values()), default=0)
    yield "parameters: nesting", _depth(spec.parameters)
    # as they are handed to the ranks
    yield "parameters", len(repr(dict(spec.parameters)).encode(errors="surrogatepass"))


def _depth(value: Any) -> int:
    """Levels of lists and objects, without recursion; one more than allowed stands for all deeper ones."""
    most, depth, level = LIMITS["parameters: nesting"][0], 0, [value]
    while depth <= most:
        level = [child for item in level for child in _children(item)]
        if not level:
            break
        depth += 1
    return depth


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _check_words(spec: JobSpec) -> None:
    check_sha256(spec.snapshot_id)
    for path in (spec.script, spec.notebook):
        check_path(path)
    if spec.cwd not in ("", "."):
        check_path(spec.cwd)
    for ref in spec.data:
        check_path(ref.path)
    for name in spec.secrets:
        check_secret_name(name)
    if spec.workers < 1 or spec.gpus_per_worker < 0:
        message = f"Asked were {spec.workers} workers with {spec.gpus_per_worker} GPUs each."
        raise Refused("bad-workers", message, "A gang has at least one worker: --workers 1.")
    if not spec.name.strip() or not is_plain(spec.name):
        raise Refused(
            "bad-name",
            f"{spec.name[:60]!r} cannot be a job's name.",
            "Use 1 to 200 characters, no control characters.",
        )
    for text in (spec.experiment, spec.model_name, *spec.tags):
        if not is_plain(text):
            message = f"{text[:60]!r} holds control characters."
            raise Refused(
                "bad-name", message, "Names of experiments, models and tags are of printable characters."
            )
    if not spec.python:
        raise Refused("interpreter-missing", "The spec names no interpreter.", "Name one with --python.")
    if not is_plain(spec.python):
        message = f"{spec.python[:60]!r} cannot be the path of an interpreter."
        raise Refused("interpreter-missing", message, "Name one with --python.")
