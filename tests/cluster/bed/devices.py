"""GPUs and slices of the real node, declared: a stand-in device plugin tells the kubelet of them. No GPU is behind any."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from bed import processes
from bed.layout import Layout
from bed.processes import Program

NAME = "stand-in-device-plugin"
GPU = "nvidia.com/gpu"
# six H100 of 80 GB: four whole, one cut in 4 x 1g.10gb and 3g.40gb, one in 3 x 2g.20gb and 1g.10gb
DEFAULT = {GPU: 4, "nvidia.com/mig-1g.10gb": 5, "nvidia.com/mig-2g.20gb": 3, "nvidia.com/mig-3g.40gb": 1}


def start(layout: Layout, binaries: Path) -> None:
    """The stand-in, with `DEFAULT` unless something is declared already."""
    if not layout.geometry.exists():
        declare(layout, DEFAULT)
    command = (str(binaries / NAME), str(layout.geometry))
    processes.start(layout, Program(name=NAME, command=command, inside=True))


def declare(layout: Layout, counts: dict[str, int]) -> None:
    """What the node has from now on; the kubelet knows within a second. Names no longer declared count 0."""
    _write(layout, [_device(name, number) for name, count in counts.items() for number in range(count)])


def declared(layout: Layout) -> list[dict[str, object]]:
    """`{resource, uuid, healthy}` of every device."""
    found: list[dict[str, object]] = json.loads(layout.geometry.read_text())["devices"]
    return found


def set_health(layout: Layout, device: str, *, healthy: bool) -> None:
    """Withdraws a device, by its UUID, or gives it back; raises `KeyError` when none has this UUID."""
    devices = declared(layout)
    if device not in {one["uuid"] for one in devices}:
        raise KeyError(f"no device {device}")
    _write(layout, [one | ({"healthy": healthy} if one["uuid"] == device else {}) for one in devices])


def _device(resource: str, number: int) -> dict[str, object]:
    """The same UUIDs in every bed."""
    kind = "GPU" if resource == GPU else "MIG"
    return {
        "resource": resource,
        "uuid": f"{kind}-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{resource}-{number}')}",
        "healthy": True,
    }


def _write(layout: Layout, devices: list[dict[str, object]]) -> None:
    fresh = layout.geometry.with_suffix(".new")
    fresh.write_text(json.dumps({"devices": devices}, indent=1))
    fresh.replace(layout.geometry)
