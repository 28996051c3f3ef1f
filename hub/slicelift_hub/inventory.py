"""What this machine has to give out: MIG slices and whole GPUs from NVML, else a declared list, called simulated.

`discover` decides which; the launcher declares the result into the ledger (`slicelift_hub.leases`) and leaves it as
`inventory.json` in its home, where the spawn form finds the products and the notes that the ledger does not keep.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slicelift.errors import Unavailable, UserError
from slicelift_profiles import ProfileError, slices
from slicelift_profiles.documents import Document, check, read
from slicelift_profiles.faults import Fault, first_of

AUTO, NVML, SIMULATED, NONE = "auto", "nvml", "simulated", "none"
SCHEMA = "inventory.schema.json"
FILE = "inventory.json"
# mig-parted's all-balanced: what one GPU is most often cut into
DEFAULT_PRODUCT = "H100-80GB"
DEFAULT_SLICES: Mapping[str, int] = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}

_MIG_NAME = re.compile(r"\bMIG (\S+)$")


@dataclass(frozen=True, kw_only=True)
class MigSlice:
    """One MIG instance. Without `uuid` it is a simulated one; `product` is empty for a GPU we do not know."""

    name: str
    product: str = ""
    uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class WholeGpu:
    """A GPU that is not in MIG mode, by NVML's index, which is the order of the PCI bus."""

    index: int
    product: str = ""
    title: str = ""
    uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """`source` is nvml, simulated or none; `notes` are sentences for admins and for the spawn form."""

    source: str
    slices: tuple[MigSlice, ...] = ()
    gpus: tuple[WholeGpu, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        """Whether its slices are places in a list with no GPU behind them."""
        return self.source == SIMULATED

    def products(self, name: str) -> tuple[str, ...]:
        """The products that slices of this name are cut from here, each once."""
        return tuple(dict.fromkeys(item.product for item in self.slices if item.name == name))

    def entries(self) -> list[dict[str, str]]:
        """The slices as `leases.make_inventory` takes them."""
        return [{"name": item.name, "uuid": item.uuid} for item in self.slices]


def discover(setting: str = AUTO) -> Inventory:
    """What there is, by the setting `auto`, `nvml`, `simulated`, `none` or the path of a declared inventory.

    `auto` asks NVML and falls back to the simulated default where there is no driver; a driver that answers with an
    error gives an empty inventory that says so, never a simulated one. Raises `SliceliftError` when `nvml` was asked
    for and there is no driver, or when the declared file is at fault (with file and line).
    """
    if setting == NONE:
        return Inventory(source=NONE)
    if setting == SIMULATED:
        return simulated_default()
    if setting not in (AUTO, NVML):
        return load(Path(setting).expanduser())
    found = read_nvml()
    if found is None and setting == NVML:
        raise Unavailable(
            "nvml-missing", "There is no NVIDIA driver on this machine.", "Use inventory = 'auto'."
        )
    return found or _by_device_files() or simulated_default()


def configured(setting: str, *, slices: Sequence[Mapping[str, str]], gpus: int) -> Inventory:
    """`discover`, but for what an admin has written out: `slices` unless empty, `gpus` unless negative."""
    found = discover(setting)
    if slices:
        named = tuple(MigSlice(name=row["name"], uuid=row.get("uuid", "")) for row in slices)
        source = NVML if all(item.uuid for item in named) else SIMULATED
        found = replace(found, source=source, slices=named, notes=())
    if gpus >= 0:
        found = replace(found, gpus=tuple(WholeGpu(index=index) for index in range(gpus)))
    return found


def simulated_default() -> Inventory:
    """One H100 of 80 GB cut as all-balanced, simulated."""
    cut = _cut(DEFAULT_PRODUCT, DEFAULT_SLICES)
    note = "There is no GPU here: the slices are simulated (one H100, all-balanced), and sessions run on CPU."
    return Inventory(source=SIMULATED, slices=tuple(cut), notes=(note,))


def load(path: Path) -> Inventory:
    """A declared inventory (docs/profiles.md). Raises UserError `inventory-invalid` with file and line."""
    try:
        document = read(path)
    except ProfileError as error:
        raise UserError(error.code, error.message, error.hint) from None
    faults = _faults(document)
    if faults:
        raise UserError("inventory-invalid", first_of(faults), faults[0].fix)
    rows = document.data["gpus"]
    cut = [item for row in rows for item in _cut(row["product"], row["slices"])]
    note = f"The slices are declared in {path.name} and simulated: there is no GPU behind them."
    return Inventory(source=SIMULATED, slices=tuple(cut), notes=(note,) if cut else ())


def read_nvml() -> Inventory | None:
    """What NVML shows; None where there is no driver. A fault of one GPU costs that GPU and is noted."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None if _is_absent(nvml, error) else _broken(error)
    try:
        return _survey(nvml)
    except nvml.NVMLError as error:
        return _broken(error)
    finally:
        nvml.nvmlShutdown()


def still_there(uuid: str) -> bool:
    """Whether NVML shows that MIG instance now: somebody may have cut the GPU anew since it was declared."""
    found = read_nvml()
    return found is not None and any(item.uuid == uuid for item in found.slices)


def publish(home: Path, inventory: Inventory) -> None:
    """Leave it in the launcher's home, whole or not at all."""
    body = {"source": inventory.source, "notes": list(inventory.notes)}
    rows = {
        "slices": [vars(item) for item in inventory.slices],
        "gpus": [vars(item) for item in inventory.gpus],
    }
    partial = home / f"{FILE}.{os.getpid()}.partial"
    partial.write_text(json.dumps(body | rows, indent=1), encoding="utf-8")
    partial.replace(home / FILE)


def published(home: Path) -> Inventory:
    """What the launcher of that home declared last; one that says so where it never has."""
    try:
        data = json.loads((home / FILE).read_bytes())
        return Inventory(
            source=data["source"],
            slices=tuple(MigSlice(**row) for row in data["slices"]),
            gpus=tuple(WholeGpu(**row) for row in data["gpus"]),
            notes=tuple(data["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        note = "The launcher has not told yet which slices this machine has."
        return Inventory(source=NONE, notes=(note,))


def _cut(product: str, wanted: Mapping[str, int]) -> Iterator[MigSlice]:
    for name, count in wanted.items():
        for _ in range(count):
            yield MigSlice(name=slices.canonical(name), product=product)


def _faults(document: Document) -> list[Fault]:
    """The file's own faults, then the schema's, then what only a reader of the meaning sees."""
    if document.data is None and document.faults:
        return list(document.faults)
    return sorted([*document.faults, *check(document, schema=SCHEMA)] or _illegal(document))


def _illegal(document: Document) -> list[Fault]:
    """What a schema cannot say: a product or slice that does not exist, a GPU cut as none can be."""
    found = []
    for index, row in enumerate(document.data["gpus"]):
        try:
            if slices.arrange(row["slices"], product=row["product"]) is None:
                message = f"one {row['product']} cannot be cut into {_spell(row['slices'])}"
                fix = "Spread them over several GPUs, one entry each."
                found.append(document.fault(("gpus", index, "slices"), "illegal-layout", message, fix))
        except ProfileError as error:
            key = "product" if error.code == "unknown-product" else "slices"
            message = error.message.rstrip(".")
            found.append(document.fault(("gpus", index, key), error.code, message, error.hint))
    return found


def _spell(wanted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in wanted.items())


def _nvml() -> Any:
    try:
        # by name, since it is untyped and only a hub has it
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _by_device_files() -> Inventory | None:
    """Whole GPUs by their device files, for an environment without NVML's bindings."""
    count = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if not count:
        return None
    gpus = tuple(WholeGpu(index=index) for index in range(count))
    note = "NVML's bindings are not installed, so MIG slices are not seen: pip install nvidia-ml-py."
    return Inventory(source=NVML, gpus=gpus, notes=(note,))


def _is_absent(nvml: Any, error: Exception) -> bool:
    absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    return getattr(error, "value", None) in absent and not any(Path("/dev").glob("nvidia[0-9]*"))


def _broken(error: Exception) -> Inventory:
    note = f"The NVIDIA driver answers with an error ({error}): no GPU is given out until nvidia-smi works again."
    return Inventory(source=NVML, notes=(note,))


def _survey(nvml: Any) -> Inventory:
    found_slices: list[MigSlice] = []
    gpus: list[WholeGpu] = []
    notes: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            whole = _whole(nvml, device, index)
            if not _in_mig_mode(nvml, device, index, notes):
                gpus.append(whole)
                continue
            cut = list(_instances(nvml, device, whole, notes))
            found_slices += cut
            if not cut:
                notes.append(
                    f"GPU {index} ({whole.title}) is in MIG mode and has no slice: see nvidia-smi mig -cgi."
                )
        except nvml.NVMLError as error:
            notes.append(f"GPU {index} is left out: NVML says {error}.")
    return Inventory(source=NVML, slices=tuple(found_slices), gpus=tuple(gpus), notes=tuple(notes))


def _whole(nvml: Any, device: Any, index: int) -> WholeGpu:
    product = slices.product_of_device(nvml.nvmlDeviceGetPciInfo(device).pciDeviceId)
    return WholeGpu(
        index=index,
        product=product.name if product else "",
        title=_text(nvml.nvmlDeviceGetName(device)),
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
    )


def _in_mig_mode(nvml: Any, device: Any, index: int, notes: list[str]) -> bool:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(device)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return False
    if current != pending:
        notes.append(f"GPU {index}: a change of its MIG mode waits for a reset of the GPU.")
    return bool(current)


def _instances(nvml: Any, device: Any, whole: WholeGpu, notes: list[str]) -> Iterator[MigSlice]:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, place)
        except nvml.NVMLError as error:
            # the places are a fixed number, most of them empty
            if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        name = _text(nvml.nvmlDeviceGetName(instance))
        slice_name = _slice_name(name)
        if slice_name:
            uuid = _text(nvml.nvmlDeviceGetUUID(instance))
            yield MigSlice(name=slice_name, product=whole.product, uuid=uuid)
        else:
            notes.append(f"GPU {whole.index}: {name!r} is no whole slice and is not given out.")


@functools.cache
def _slice_name(device_name: str) -> str:
    """`NVIDIA H100 80GB HBM3 MIG 1g.10gb` -> `1g.10gb`; empty for a compute instance (`MIG 1c.3g.40gb`)."""
    match = _MIG_NAME.search(device_name)
    try:
        return slices.canonical(match[1]) if match else ""
    except ProfileError:
        return ""


def _text(value: str | bytes) -> str:
    # older bindings return bytes
    return value.decode() if isinstance(value, bytes) else value
