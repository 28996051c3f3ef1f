"""What may be asked of this launcher: the machine's bounds, and the rules of a policy file (docs/policy.md).

Pure but for the files of rules and presets, which are read again when they change. A refusal says which rule it is of,
where that stands, and what would be allowed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicelift.errors import Denied, Refused
from slicelift.models import JobSpec
from slicelift_profiles import ProfileError, presets, rules
from slicelift_profiles.presets import Preset, Presets
from slicelift_profiles.rules import Rule, Rules

from slicelift_hub.launcher.bodies import depth
from slicelift_hub.launcher.idle import IdleLimit
from slicelift_hub.launcher.ledger_limits import WallTime
from slicelift_hub.launcher.ledger_runs import make_needs
from slicelift_hub.launcher.names import check_path, check_secret_name, check_sha256, is_plain
from slicelift_hub.launcher.vault import MAX_SECRETS
from slicelift_hub.leases import GPUS, SLOTS, Pool

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Whose job it is. `under_way` gives that person's jobs that are not over; asked only where a rule counts them."""

    owner: str
    groups: Collection[str] = ()
    under_way: Callable[[], Sequence[JobSpec]] = tuple


# The most that a spec may hold of each, so that what is accepted can be started and tracked: MLflow takes 500 characters
# of an experiment behind the owner's account, the system 128 KiB in one variable of an environment.
LIMITS: Mapping[str, tuple[int, str]] = {
    "name": (200, "characters"),
    "experiment": (200, "characters"),
    "model_name": (200, "characters"),
    "queue": (100, "characters"),
    "preset": (100, "characters"),
    "slice": (100, "characters"),
    "image": (512, "characters"),
    "python": (4096, "characters"),
    "tags": (100, "entries"),
    "tags: a name": (250, "characters"),
    "tags: a value": (8000, "characters"),
    "parameters": (100_000, "bytes"),
    "parameters: nesting": (50, "levels"),
    "secrets": (MAX_SECRETS, "entries"),
    "data": (10_000, "entries"),
    "workers": (1024, "workers"),
    "gpus_per_worker": (64, "GPUs"),
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What one launcher allows; `pools` as the inventory has them.

    `leased`: the launcher gives out what the pools hold. Otherwise the backend has queues of its own, and whether they
    take a job is theirs to say. Of `presets`, what they say of clusters holds only there. `image`: of jobs that name none.
    """

    pools: Mapping[str, Pool] = field(default_factory=dict)
    queues: tuple[str, ...] = ("default",)
    leased: bool = True
    image: str = ""
    rules: Callable[[], Rules] = rules.load
    presets: Callable[[], Presets] = presets.load
    # held from the count of what a person has to the submit, so that two at once do not both pass
    admission: threading.Lock = field(default_factory=threading.Lock)

    @property
    def slices(self) -> tuple[Pool, ...]:
        """The slices that can be asked for."""
        return tuple(pool for name, pool in sorted(self.pools.items()) if name not in (SLOTS, GPUS))

    def check(self, spec: JobSpec, asker: Asker) -> WallTime | None:
        """How long the job may take. Raises `Refused` when it may not run, or could not however long it waited."""
        _check_sizes(spec)
        _check_words(spec)
        self._check_preset(spec)
        if self.leased:
            self._check_slice(spec)
            self._check_queue(spec)
            for pool, count in make_needs(spec).items():
                self._check_fits(spec, pool, count)
        rule = self.rule_of(asker)
        _check_rule(rule, spec)
        self._check_image(rule, spec)
        if rule.max_jobs is not None or rule.max_gpus is not None:
            _check_at_once(rule, spec, asker.under_way())
        return self._wall_time(rule, spec)

    def rule_of(self, asker: Asker) -> Rule:
        """The one rule that holds for a person. Raises `no-rule`."""
        try:
            return self.rules().of(asker.owner, asker.groups)
        except ProfileError as error:
            raise Denied(error.code, error.message, error.hint) from error

    def idle_limit(self, preset: str) -> IdleLimit | None:
        """For how long GPUs of its jobs may do nothing; None where nothing limits that, or the preset is no more."""
        settings = next((each.cluster for each in self.presets().presets if each.name == preset), None)
        if self.leased or settings is None or settings.idle_minutes is None:
            return None
        return IdleLimit(minutes=settings.idle_minutes, stop=settings.idle_action == "stop")

    def notes(self, spec: JobSpec, asker: Asker) -> list[str]:
        """What a user should know before submitting."""
        notes = []
        pool = self.pools.get(spec.slice or "")
        if pool is not None and pool.simulated:
            notes.append(f"Slice {pool.name} is simulated: a place in a list, with no GPU behind it.")
        if spec.slice is None and not spec.gpus_per_worker:
            notes.append("The job runs on CPU slots." if self.leased else "The job runs on CPUs.")
        rule = self.rule_of(asker)
        bounds = _bounds(rule)
        if bounds:
            notes.append(f"Rule {rule.name} ({rule.place()}) allows you {bounds}.")
        limit = self._wall_time(rule, spec)
        if limit is not None:
            notes.append(
                f"The job is ended when its wall time is over: {_text(limit.seconds)} ({limit.source})."
            )
        return notes

    def _wall_time(self, rule: Rule, spec: JobSpec) -> WallTime | None:
        """The shorter one of the rule's and the preset's."""
        found = []
        if rule.wall_seconds is not None:
            found.append(WallTime(seconds=float(rule.wall_seconds), source=f"rule {rule.name}"))
        hours = None if self.leased else self._preset(spec).cluster.max_hours
        if hours is not None:
            found.append(WallTime(seconds=3600 * hours, source=f"preset {spec.preset}"))
        return min(found, key=lambda limit: limit.seconds, default=None)

    def _check_queue(self, spec: JobSpec) -> None:
        if spec.queue not in self.queues:
            message = f"There is no queue {spec.queue!r}."
            raise Refused("queue-unknown", message, f"Queues: {', '.join(self.queues)}.")

    def _check_image(self, rule: Rule, spec: JobSpec) -> None:
        """What a preset or the launcher itself would run in is the admin's choice, whoever names it."""
        chosen = self._preset(spec).cluster.image
        if chosen or not spec.image or spec.image == self.image or rule.images is None:
            return
        if not rules.fits_image(spec.image, rule.images):
            raise _refusal(rule, "images", asked=spec.image)

    def _preset(self, spec: JobSpec) -> Preset:
        try:
            return self.presets().get(spec.preset)
        except ProfileError as error:
            raise Refused(error.code, error.message, error.hint) from error

    def _check_preset(self, spec: JobSpec) -> None:
        """Whoever made the spec may have checked nothing."""
        preset = self._preset(spec)
        try:
            preset.check(workers=spec.workers, gpus_per_worker=spec.gpus_per_worker, slice=spec.slice)
        except ProfileError as error:
            raise Refused(error.code, error.message, error.hint) from error

    def _check_slice(self, spec: JobSpec) -> None:
        if spec.slice is not None and spec.slice not in {pool.name for pool in self.slices}:
            have = ", ".join(pool.name for pool in self.slices) or "none"
            raise Refused(
                "slice-unknown", f"This machine has no slice {spec.slice!r}.", f"Slices here: {have}."
            )

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


def ended_reason(limit: WallTime) -> str:
    """The reason of a run that took too long."""
    return f"wall time of {limit.source} ({_text(limit.seconds)}) is over"


def gpus_of(spec: JobSpec) -> int:
    """Whole GPUs of a job."""
    return spec.workers * spec.gpus_per_worker


def _check_rule(rule: Rule, spec: JobSpec) -> None:
    """What the rule says of this one job."""
    _check_listed(rule, "queues", asked=spec.queue)
    _check_listed(rule, "presets", asked=spec.preset)
    if spec.slice is not None:
        _check_listed(rule, "slices", asked=spec.slice)
    if rule.max_workers is not None and spec.workers > rule.max_workers:
        raise _refusal(rule, "max_workers", asked=f"{spec.workers}")
    if rule.max_gpus_per_job is not None and gpus_of(spec) > rule.max_gpus_per_job:
        each = f"{gpus_of(spec)} ({spec.workers} workers with {spec.gpus_per_worker} each)"
        raise _refusal(rule, "max_gpus_per_job", asked=each)


def _check_listed(rule: Rule, key: str, *, asked: str) -> None:
    patterns: tuple[str, ...] | None = getattr(rule, key)
    if patterns is not None and not rules.fits(asked, patterns):
        raise _refusal(rule, key, asked=asked)


def _check_at_once(rule: Rule, spec: JobSpec, under_way: Sequence[JobSpec]) -> None:
    """What the rule says of all jobs of a person together."""
    if rule.max_jobs is not None and len(under_way) >= rule.max_jobs:
        raise _refusal(rule, "max_jobs", asked=f"one beside {len(under_way)}")
    have = sum(gpus_of(each) for each in under_way)
    if rule.max_gpus is not None and gpus_of(spec) and have + gpus_of(spec) > rule.max_gpus:
        asked = f"{gpus_of(spec)} beside the {have} of {len(under_way)} jobs that wait or run"
        raise _refusal(rule, "max_gpus", asked=asked)


_WAYS_ON = {
    "max_workers": "Ask for fewer with --workers.",
    "max_gpus_per_job": "Ask for fewer with --workers or --gpus-per-worker (0 trains on CPU).",
    "max_gpus": "Wait for one to end, or cancel one; `slicelift jobs` lists them.",
    "max_jobs": "Wait for one to end, or cancel one; `slicelift jobs` lists them.",
}


def _refusal(rule: Rule, key: str, *, asked: str) -> Refused:
    value = getattr(rule, key)
    message = f"Rule {rule.name} ({rule.place(key)}) says {rule.text(key)}; asked was {asked}."
    detail = {"rule": rule.name, "file": Path(rule.file).name, "line": rule.lines.get(key, 1), "key": key}
    detail["allowed"] = list(value) if isinstance(value, tuple) else value
    hint = _WAYS_ON.get(key, "Choose one of those, or ask your admin for another rule.")
    return Refused(f"policy-{key.replace('_', '-')}", message, hint, detail=detail)


def _bounds(rule: Rule) -> str:
    """What a rule allows, in words; "" when it limits nothing but time."""
    counts = {
        "workers a job": rule.max_workers,
        "whole GPUs a job": rule.max_gpus_per_job,
        "whole GPUs at once": rule.max_gpus,
        "jobs at once": rule.max_jobs,
    }
    said = [f"at most {count} {what}" for what, count in counts.items() if count is not None]
    for key in ("queues", "presets", "slices", "images"):
        patterns: tuple[str, ...] | None = getattr(rule, key)
        if patterns is not None:
            said.append(f"the {key} {_list(patterns)}")
    return ", ".join(said)


def _list(patterns: Iterable[str]) -> str:
    return ", ".join(patterns)


def _text(seconds: float) -> str:
    """`90 s`, `45 min`, `12 h`: in the largest unit that leaves no rest."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _check_sizes(spec: JobSpec) -> None:
    """The limits come first: whatever is said later may quote what was sent."""
    for what, has in _sizes(spec):
        most, unit = LIMITS[what]
        if has > most:
            message = f"The job's `{what}` has {has:,} {unit}; {most:,} are allowed."
            detail = {"field": what, "has": has, "most": most}
            raise Refused("spec-too-large", message, "Make it smaller and submit again.", detail=detail)


def _sizes(spec: JobSpec) -> Iterator[tuple[str, int]]:
    for name in ("name", "experiment", "model_name", "queue", "preset", "slice", "image", "python"):
        yield name, len(getattr(spec, name) or "")
    for name in ("tags", "secrets", "data"):
        yield name, len(getattr(spec, name))
    yield "workers", spec.workers
    yield "gpus_per_worker", spec.gpus_per_worker
    yield "tags: a name", max(map(len, spec.tags), default=0)
    yield "tags: a value", max(map(len, spec.tags.values()), default=0)
    yield "parameters: nesting", depth(spec.parameters, most=LIMITS["parameters: nesting"][0])
    # as they are handed to the ranks
    yield "parameters", len(repr(dict(spec.parameters)).encode(errors="surrogatepass"))


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
    if not 1 <= spec.least_workers <= spec.workers:
        message = f"Asked were {spec.workers} workers and at least {spec.min_workers}."
        raise Refused("bad-workers", message, "The least is from 1 to the number of workers.")
    if not spec.name.strip() or not is_plain(spec.name):
        raise Refused(
            "bad-name",
            f"{spec.name[:60]!r} cannot be a job's name.",
            "Use 1 to 200 characters, no control characters.",
        )
    if spec.image and not _IMAGE.fullmatch(spec.image):
        message = f"{spec.image[:100]!r} is not an image."
        raise Refused("bad-image", message, "It is like registry/team/lab@sha256:<64 digits>.")
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
