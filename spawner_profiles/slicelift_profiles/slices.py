"""MIG slices: their names, resource names, sizes, and where they fit on a GPU.

The facts are in mig.json, each with its source; starts that nobody printed are marked as inferred.
A slice is named as NVIDIA names it (`1g.10gb`, `1g.10gb+me`, `1g.24gb+gfx`, `1g.24gb-me`); in the name of a
Kubernetes resource the plus is a dot (`nvidia.com/mig-1g.10gb.me`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from slicelift_profiles.faults import ProfileError, closest, one_of

# what pods ask for: whole GPUs, and slices by name
GPU = "nvidia.com/gpu"
RESOURCE_PREFIX = "nvidia.com/mig-"
# else an image's NVIDIA_VISIBLE_DEVICES=all would show a container that asks for no GPU every one of its node
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}

# Where nobody printed the usable memory: no GPU that printed it gives less than 0.889 of the name's number.
ABOUT_USABLE = 0.88

_NAME = re.compile(r"(?P<compute>[1-9])g\.(?P<memory>[1-9]\d*)gb(?P<variant>[+.]me\.all|[+.]me|[+.]gfx|-me)?")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One kind of MIG instance of one product. `starts` and `size` count memory slices.

    `memory_gb` is the number in the name and more than what a program gets; `usable_memory_gib` is what
    `nvidia-smi mig -lgip` prints, None where nobody printed it, as is `sm_count`.
    """

    name: str
    compute_slices: int
    memory_gb: int
    size: int
    starts: tuple[int, ...]
    max_instances: int
    sm_count: int | None = None
    usable_memory_gib: float | None = None

    @property
    def resource_name(self) -> str:
        """What a pod asks for (device plugin, strategy `mixed`)."""
        return resource_name(self.name)

    @property
    def variant(self) -> str:
        """`+me`, `+me.all`, `+gfx` or `-me`; empty for a plain slice."""
        return parse(self.name).variant

    @property
    def memory_is_about(self) -> bool:
        """True when `memory_gib` is our cautious guess and must be shown as "about"."""
        return self.usable_memory_gib is None

    @property
    def memory_gib(self) -> float:
        """What a program can count on, in GiB; see `memory_is_about`."""
        return self.memory_gb * ABOUT_USABLE if self.usable_memory_gib is None else self.usable_memory_gib


@dataclass(frozen=True, kw_only=True)
class Product:
    """A GPU that can be sliced. `placements`: "printed", "secondary" or "inferred"; mig.json says by whom."""

    name: str
    title: str
    compute_slices: int
    memory_slices: int
    pci_device_ids: tuple[int, ...]
    placements: str
    slices: tuple[Slice, ...]


class SliceName(NamedTuple):
    """The parts of a name; `variant` as NVIDIA writes it."""

    compute_slices: int
    memory_gb: int
    variant: str


class Placement(NamedTuple):
    """A slice at its first memory slice."""

    start: int
    name: str


Layout = tuple[Placement, ...]


def products() -> tuple[str, ...]:
    """The names of all products known."""
    return tuple(_table())


def product(name: str) -> Product:
    """Raises ProfileError listing what is known."""
    try:
        return _table()[name]
    except KeyError:
        raise ProfileError(
            "unknown-product",
            f"Asked for the GPU product {name!r}, which is not one that can be sliced.",
            f"{closest(name, products())} Known: {one_of(products())}.".strip(),
        ) from None


def product_of_device(pci_device_id: int) -> Product | None:
    """By NVML's combined PCI id (device in the upper 16 bits, vendor 10DE in the lower)."""
    found = (item for item in _table().values() if pci_device_id in item.pci_device_ids)
    return next(found, None)


def parse(name: str) -> SliceName:
    """Read a slice's name, `+` or `.` before the variant. Raises ProfileError when it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ProfileError("bad-slice-name", f"{name!r} is not the name of a MIG slice.", _name_hint(name))
    variant = match["variant"] or ""
    return SliceName(int(match["compute"]), int(match["memory"]), re.sub(r"^\.", "+", variant))


def canonical(name: str) -> str:
    """The one spelling used everywhere: `1g.10gb.me` becomes `1g.10gb+me`."""
    compute, memory, variant = parse(name)
    return f"{compute}g.{memory}gb{variant}"


def without_gpu(resources: Iterable[str]) -> Mapping[str, str]:
    """Variables of a container that asks for these resources: `NO_GPU` unless one of them is a GPU, a share or a slice.

    Also in other vendors' words (`volcano.sh/vgpu-number`): their plugins set the variable themselves.
    """
    return {} if any(name.startswith("nvidia.com/") or "gpu" in name for name in resources) else NO_GPU


def resource_name(name: str) -> str:
    """`1g.10gb+me` -> `nvidia.com/mig-1g.10gb.me`."""
    return RESOURCE_PREFIX + canonical(name).replace("+", ".")


def slice_name(resource: str) -> str:
    """`nvidia.com/mig-1g.10gb.me` -> `1g.10gb+me`. Raises ProfileError for any other resource."""
    if not resource.startswith(RESOURCE_PREFIX):
        raise ProfileError(
            "bad-resource-name",
            f"The resource {resource!r} is not a MIG slice.",
            f"Such a resource starts with {RESOURCE_PREFIX}, as {RESOURCE_PREFIX}1g.10gb does.",
        )
    return canonical(resource.removeprefix(RESOURCE_PREFIX))


def get(name: str, *, product: str) -> Slice:
    """The slice of that product. Raises ProfileError listing the product's slices."""
    wanted, gpu = canonical(name), _product(product)
    for item in gpu.slices:
        if item.name == wanted:
            return item
    names = [item.name for item in gpu.slices]
    raise ProfileError(
        "unknown-slice",
        f"{gpu.title} has no slice {wanted}.",
        f"{closest(wanted, names)} It has: {one_of(names)}.".strip(),
    )


def known(name: str) -> tuple[str, ...]:
    """The products that have this slice; empty when none has."""
    wanted = canonical(name)
    return tuple(gpu.name for gpu in _table().values() if any(s.name == wanted for s in gpu.slices))


def plain(product: str) -> tuple[Slice, ...]:
    """The slices without a variant, smallest first."""
    return tuple(sorted((s for s in _product(product).slices if not s.variant), key=_by_size))


def classic(product: str) -> tuple[Slice, ...]:
    """The plain slice of least memory for each number of compute slices: what published layouts show."""
    smallest: dict[int, Slice] = {}
    for item in plain(product):
        smallest.setdefault(item.compute_slices, item)
    return tuple(smallest.values())


def fits(memory_gib: float, *, product: str) -> Slice | None:
    """The smallest plain slice with that much usable memory (never the name's number); None if none has."""
    return next((item for item in plain(product) if item.memory_gib >= memory_gib), None)


def nearest(name: str, free: Mapping[str, int], *, product: str) -> Slice | None:
    """What to offer when `name` is taken: the smallest free slice that does as much, else the largest free.

    `free` counts free instances by slice name; names of other products are passed over.
    """
    wanted = get(name, product=product)
    left = [s for s in plain(product) if free.get(s.name, 0) > 0 and s.name != wanted.name]
    enough = [
        s for s in left if s.memory_gib >= wanted.memory_gib and s.compute_slices >= wanted.compute_slices
    ]
    return enough[0] if enough else left[-1] if left else None


def legal(layout: Iterable[Placement], *, product: str) -> bool:
    """Whether these instances can live on one GPU together. Raises ProfileError for an unknown slice."""
    gpu, placed = _product(product), sorted(layout)
    kinds = [get(item.name, product=product) for item in placed]
    if any(place.start not in kind.starts for place, kind in zip(placed, kinds, strict=True)):
        return False
    ends = [place.start + kind.size for place, kind in zip(placed, kinds, strict=True)]
    overlap = any(end > after.start for end, after in zip(ends, placed[1:], strict=False))
    return not overlap and _within_counts(kinds, gpu)


def layouts(product: str, *, names: Iterable[str] | None = None) -> tuple[Layout, ...]:
    """All maximal layouts of one GPU (none can take another instance), sorted.

    Of the `classic` slices unless `names` says of which.
    """
    gpu = _product(product)
    kinds = classic(product) if names is None else tuple(get(name, product=product) for name in names)
    options = tuple(Placement(start, kind.name) for kind in kinds for start in kind.starts)
    found = {_ordered(layout) for layout in _grow((), options, gpu) if not _addable(layout, options, gpu)}
    return tuple(sorted(found))


def arrange(wanted: Mapping[str, int], *, product: str, busy: Layout = ()) -> Layout | None:
    """Places for `wanted` (slice name -> count) beside the instances in `busy`; None when there is no room.

    The largest are placed first: small ones first may leave holes that no 3g fits into.
    """
    kinds = [get(name, product=product) for name, count in wanted.items() for _ in range(count)]
    taken = [get(place.name, product=product) for place in busy]
    if not _within_counts(kinds + taken, _product(product)):
        return None
    kinds.sort(key=_by_size, reverse=True)
    return _arrange(busy, tuple(kinds), product)


def _product(name: str) -> Product:
    """`product`, for functions that have a parameter of that name."""
    return product(name)


def _by_size(item: Slice) -> tuple[float, int, int]:
    return item.memory_gib, item.compute_slices, item.size


def _within_counts(kinds: list[Slice], gpu: Product) -> bool:
    names = [kind.name for kind in kinds]
    media = sum(kind.variant.startswith("+me") for kind in kinds)
    compute = sum(kind.compute_slices for kind in kinds)
    return (
        compute <= gpu.compute_slices
        and media <= 1
        and all(names.count(kind.name) <= kind.max_instances for kind in kinds)
    )


def _addable(layout: Layout, options: tuple[Placement, ...], gpu: Product) -> bool:
    return any(legal((*layout, option), product=gpu.name) for option in options if option not in layout)


def _grow(layout: Layout, options: tuple[Placement, ...], gpu: Product) -> Iterator[Layout]:
    """Every legal layout, each from left to right only, so that none comes twice by another order."""
    yield layout
    after = layout[-1].start if layout else -1
    for option in options:
        if option.start > after and legal((*layout, option), product=gpu.name):
            yield from _grow((*layout, option), options, gpu)


def _ordered(layout: Iterable[Placement]) -> Layout:
    return tuple(sorted(layout))


def _arrange(busy: Layout, kinds: tuple[Slice, ...], product: str) -> Layout | None:
    if not kinds:
        return _ordered(busy)
    first, rest = kinds[0], kinds[1:]
    for start in first.starts:
        layout = (*busy, Placement(start, first.name))
        found = _arrange(layout, rest, product) if legal(layout, product=product) else None
        if found is not None:
            return found
    return None


def _name_hint(name: str) -> str:
    if re.match(r"\d+c\.", name):
        return (
            "A compute instance (1c.3g.20gb) has no resource of its own: name the whole slice, as in 3g.20gb."
        )
    return "A name is like 1g.10gb, 3g.40gb, 1g.10gb+me or 1g.24gb+gfx."


@functools.cache
def _table() -> dict[str, Product]:
    text = resources.files("slicelift_profiles").joinpath("mig.json").read_text(encoding="utf-8")
    return {name: _to_product(name, entry) for name, entry in json.loads(text)["products"].items()}


def _to_product(name: str, entry: Mapping[str, Any]) -> Product:
    return Product(
        name=name,
        title=entry["title"],
        compute_slices=entry["compute_slices"],
        memory_slices=entry["memory_slices"],
        pci_device_ids=tuple(int(text, 16) for text in entry["pci_device_ids"]),
        placements=entry["placements"],
        slices=tuple(_to_slice(name, row) for name, row in entry["slices"].items()),
    )


def _to_slice(name: str, row: Mapping[str, Any]) -> Slice:
    return Slice(
        name=name,
        compute_slices=row["compute"],
        memory_gb=row["memory_gb"],
        size=row["size"],
        starts=tuple(row["starts"]),
        max_instances=row["max"],
        sm_count=row.get("sms"),
        usable_memory_gib=row.get("usable_gib"),
    )
