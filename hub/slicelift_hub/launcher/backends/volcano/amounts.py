"""Amounts of resources: from Kubernetes' notation to numbers, and from numbers to words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from slicelift.models import size_text
from slicelift_profiles.slices import RESOURCE_PREFIX

Amounts = Mapping[str, float]

GPU = "nvidia.com/gpu"
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


def quantity(value: object) -> float:
    """`256Gi`, `500m`, `8`, `1e3` -> a number; 0 for what is no quantity."""
    return _read(str(value).strip())


def amounts(listed: Mapping[str, object] | None) -> dict[str, float]:
    """A resource list of Kubernetes in numbers: cores, bytes, devices."""
    return {name: quantity(value) for name, value in (listed or {}).items()}


def plus(first: Amounts, *others: Amounts) -> dict[str, float]:
    """The sum, over all names."""
    total = dict(first)
    for other in others:
        for name, value in other.items():
            total[name] = total.get(name, 0.0) + value
    return total


def times(each: Amounts, count: int) -> dict[str, float]:
    """The same, `count` times."""
    return {name: value * count for name, value in each.items()}


def is_device(name: str) -> bool:
    """Whether it is counted by devices (GPUs, slices, network cards), not cores or bytes."""
    return "/" in name


def by_weight(names: Iterable[str]) -> list[str]:
    """GPUs and slices first: they are what people wait for."""
    return sorted(names, key=lambda name: (not name.startswith("nvidia.com/"), not is_device(name), name))


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


# a look at a job reads those of all nodes and queues, and a thousand jobs are looked at every few seconds
@lru_cache(maxsize=4096)
def _read(text: str) -> float:
    for suffix, factor in (*_BINARY.items(), *_SUFFIXES.items()):
        if text.endswith(suffix):
            return _number(text.removesuffix(suffix)) * factor
    return _number(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
