"""Amounts of resources in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slicelift.models import size_text
from slicelift_profiles.slices import GPU, RESOURCE_PREFIX

from slicelift_hub.counting import NVIDIA, is_device


def by_weight(names: Iterable[str]) -> list[str]:
    """GPUs and slices first: they are what people wait for."""
    return sorted(names, key=lambda name: (not name.startswith(NVIDIA), not is_device(name), name))


def phrase(name: str, value: float) -> str:
    """`nvidia.com/gpu`, 3 -> `3 GPUs`."""
    if name == "memory":
        return f"{size_text(max(0.0, value))} of memory"
    count = f"{value:g}" if name == "cpu" else f"{int(value):,}"
    return f"{count} {noun(name, count == '1')}"


def noun(name: str, single: bool = False) -> str:
    """What one or many of it are called."""
    ending = "" if single else "s"
    if name == GPU:
        return f"GPU{ending}"
    if name == "cpu":
        return f"core{ending}"
    if name == "memory":
        return "memory"
    if name.startswith(RESOURCE_PREFIX):
        return f"slice{ending} {name.removeprefix(RESOURCE_PREFIX)}"
    return name


def count(value: float, what: str) -> str:
    """`2 jobs`, `1 job`."""
    return f"{int(value):,} {what}{'' if int(value) == 1 else 's'}"
