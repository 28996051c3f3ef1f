"""What may be asked of this launcher. Pure: it looks at a spec and at what the machine has, and says no with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slicelift.errors import Refused
from slicelift.models import JobSpec

from slicelift_hub.launcher.ledger_runs import make_needs
from slicelift_hub.launcher.names import check_path, check_secret_name, check_sha256, is_plain
from slicelift_hub.leases import GPUS, SLOTS, Pool

_LONGEST_NAME = 200


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
        _check_words(spec)
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


def _check_words(spec: JobSpec) -> None:
    check_sha256(spec.snapshot_id)
    for path in (spec.script, spec.notebook):
        check_path(path)
    if spec.cwd not in ("", "."):
        check_path(spec.cwd)
    for name in spec.secrets:
        check_secret_name(name)
    if spec.workers < 1 or spec.gpus_per_worker < 0:
        message = f"Asked were {spec.workers} workers with {spec.gpus_per_worker} GPUs each."
        raise Refused("bad-workers", message, "A gang has at least one worker: --workers 1.")
    if not spec.name.strip() or len(spec.name) > _LONGEST_NAME or not is_plain(spec.name):
        raise Refused(
            "bad-name",
            f"{spec.name[:60]!r} cannot be a job's name.",
            "Use 1 to 200 characters, no control characters.",
        )
    if not spec.python:
        raise Refused("interpreter-missing", "The spec names no interpreter.", "Name one with --python.")
