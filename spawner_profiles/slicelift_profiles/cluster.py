"""What a worker of a preset gets on a cluster: its size, its place, and how often its gang starts again.

One machine ignores all of it; `ClusterSettings.lost_on_one_machine` names what changes a job by being ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slicelift_profiles.documents import Document, Place
from slicelift_profiles.faults import Fault

NEVER = "Never"
# what stands for the start of our agent in a command of an admin's
REST = "..."

_MEMORY = re.compile(r"([1-9][0-9]*)(Mi|Gi|Ti)")
_BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
# names that the runtime, torch or Volcano set themselves
_OWN = re.compile(
    r"(SLICELIFT_|PYTHON|VC_|VK_|LD_)|^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|PATH|HOME)$"
)
# that a job goes without these on one machine changes what it does, not only how it is kept
_CHANGING = (
    "image",
    "command",
    "check",
    "environment",
    "resources",
    "capabilities",
    "topology",
    "node_selector",
    "tolerations",
)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How close the nodes of a gang must lie: `hard` waits for it. Tiers are those of Volcano's HyperNodes."""

    mode: str
    highest_tier: int


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """`cpu` counts cores, memory is text as Kubernetes has it; those `_per_gpu` hold for workers with whole GPUs.

    `attempts` counts the starts in all; an elastic gang may lose as many workers, times the most that it can have.
    `policies` are Volcano's own, of the task, and win over ours. A `command` ends in `...`, for the start of our agent;
    `python` is the interpreter in `image`, where the kernel's is not. `check` is what a gang measures before it trains,
    as `slicelift.runtime.network` reads it. A gang whose GPUs have done nothing for `idle_minutes` is told so; with the
    `idle_action` "stop" it is told at half of them, and then ended.
    """

    attempts: int = 3
    grace_seconds: int = 120
    max_hours: float | None = None
    idle_minutes: int | None = None
    idle_action: str = "tell"
    cpu: float = 4
    memory: str = "16Gi"
    cpu_per_gpu: float | None = None
    memory_per_gpu: str | None = None
    shm: str = "8Gi"
    disk: str = "50Gi"
    queue: str = ""
    image: str = ""
    python: str = ""
    container: str = "worker"
    command: tuple[str, ...] = ()
    restart_policy: str = NEVER
    policies: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    topology: Topology | None = None
    check: Mapping[str, Any] = field(default_factory=dict)
    priority_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    min_success: int | None = None

    @property
    def lost_on_one_machine(self) -> tuple[str, ...]:
        """The settings of this preset without which a job on one machine differs from what was meant."""
        return tuple(name for name in _CHANGING if getattr(self, name))

    def cores(self, gpus: int) -> float:
        """Of a worker with that many whole GPUs."""
        return self.cpu_per_gpu * gpus if gpus and self.cpu_per_gpu is not None else self.cpu

    def memory_text(self, gpus: int) -> str:
        """Of a worker with that many whole GPUs, in the largest unit that leaves no rest."""
        if not gpus or self.memory_per_gpu is None:
            return self.memory
        return amount_text(amount_bytes(self.memory_per_gpu) * gpus)


def make_settings(entry: Mapping[str, Any]) -> ClusterSettings:
    """From the checked `cluster` of a preset."""
    listed = {
        key: tuple(entry[key])
        for key in ("command", "policies", "capabilities", "tolerations")
        if key in entry
    }
    topology = {"topology": Topology(**entry["topology"])} if "topology" in entry else {}
    return ClusterSettings(**{**entry, **listed, **topology})


def amount_bytes(text: str) -> int:
    """`16Gi` -> bytes, of a text that the schema has checked."""
    match = _MEMORY.fullmatch(text)
    return int(match[1]) * _BYTES[match[2]] if match else 0


def amount_text(size_bytes: int) -> str:
    """Bytes -> `16Gi`, in the largest unit that leaves no rest."""
    unit = next((unit for unit in ("Ti", "Gi") if size_bytes % _BYTES[unit] == 0), "Mi")
    return f"{size_bytes // _BYTES[unit]}{unit}"


def meaning(document: Document, place: Place, entry: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of one preset's `cluster` that its schema cannot say."""
    for name in entry.get("environment") or {}:
        if _OWN.search(str(name)):
            message = f"sets {name}, which the job itself sets"
            yield document.fault((*place, "environment", name), "own-variable", message, "Leave it out.")
    command = entry.get("command")
    if isinstance(command, list) and command and not str(command[-1]).endswith(REST):
        message = f"has a command that does not end in {REST}, so nothing would start the job"
        yield document.fault(
            (*place, "command"), "command-without-rest", message, f"Let its last word end in {REST}"
        )
    shm, memory = entry.get("shm"), entry.get("memory")
    if _is_memory(shm) and _is_memory(memory) and amount_bytes(str(shm)) > amount_bytes(str(memory)):
        message = f"gives /dev/shm {shm}, which is part of the worker's memory of {memory}"
        yield document.fault((*place, "shm"), "shm-too-large", message, "Give less, or more memory.")
    if "idle_action" in entry and "idle_minutes" not in entry:
        message = "says what happens to idle GPUs but not after how long"
        yield document.fault((*place, "idle_action"), "idle-without-minutes", message, "Add idle_minutes.")
    yield from _check_meaning(document, (*place, "check"), entry.get("check"))


def _check_meaning(document: Document, place: Place, check: object) -> Iterator[Fault]:
    asked = check.get("all_reduce") if isinstance(check, Mapping) else None
    if isinstance(asked, Mapping) and "on_slow" in asked and "least_gbit" not in asked:
        message = "says what happens on a slow network but not which one is slow"
        yield document.fault(
            (*place, "all_reduce"), "check-without-measure", message, "Add least_gbit, in Gbit/s."
        )


def _is_memory(value: object) -> bool:
    return isinstance(value, str) and _MEMORY.fullmatch(value) is not None
