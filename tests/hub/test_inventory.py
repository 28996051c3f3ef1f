"""What the machine has: NVML through a stand-in for its Python interface, declared lists, and the words of faults."""

# ruff: noqa: N802 - the names are NVML's
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slicelift.errors import Unavailable, UserError
from slicelift_hub import inventory
from slicelift_hub.database import open_database
from slicelift_hub.inventory import MigSlice, WholeGpu
from slicelift_hub.leases import Leases, make_inventory
from slicelift_hub.sessions import Sessions
from slicelift_hub.spawner import LocalSliceSpawner
from slicelift_profiles import slices

H100 = 0x233010DE


class NVMLError(Exception):
    """As pynvml's: a number with words."""

    def __init__(self, value: int, words: str = "") -> None:
        super().__init__(words or f"error {value}")
        self.value = value


@dataclass
class Gpu:
    """One GPU of the stand-in. `mig` is (current, pending) or None where it has no such mode."""

    name: str = "NVIDIA H100 80GB HBM3"
    pci: int = H100
    mig: tuple[int, int] | None = (1, 1)
    instances: tuple[tuple[str, str], ...] = ()
    fault: int = 0


@dataclass
class NvmlStandIn:
    """The part of the module `pynvml` that the inventory calls, over a list of GPUs."""

    gpus: list[Gpu] = field(default_factory=list)
    init_error: int = 0
    open: int = 0
    NVMLError: type[Exception] = NVMLError
    NVML_ERROR_NOT_SUPPORTED: int = 3
    NVML_ERROR_NOT_FOUND: int = 6
    NVML_ERROR_DRIVER_NOT_LOADED: int = 9
    NVML_ERROR_LIBRARY_NOT_FOUND: int = 12

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error, "Driver/library version mismatch")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].fault:
            raise NVMLError(self.gpus[index].fault, "GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:
        return SimpleNamespace(pciDeviceId=gpu.pci)

    def nvmlDeviceGetName(self, device: Any) -> Any:
        return device.name if isinstance(device, Gpu) else device[0].encode()

    def nvmlDeviceGetUUID(self, device: Any) -> str:
        return f"GPU-{id(device)}" if isinstance(device, Gpu) else str(device[1])

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> tuple[int, int]:
        if gpu.mig is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return gpu.mig

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, place: int) -> Any:
        if place >= len(gpu.instances):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return gpu.instances[place]


Nvml = Callable[..., NvmlStandIn]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    def make(*gpus: Gpu, **more: Any) -> NvmlStandIn:
        stand_in = NvmlStandIn(gpus=list(gpus), **more)
        monkeypatch.setitem(sys.modules, "pynvml", stand_in)  # type: ignore[arg-type]
        return stand_in

    return make


def cut(name: str, uuid: str) -> tuple[str, str]:
    return (f"NVIDIA H100 80GB HBM3 MIG {name}", uuid)


def test_slices_come_with_their_uuid_and_whole_gpus_with_their_index(nvml: Nvml) -> None:
    stand_in = nvml(
        Gpu(instances=(cut("3g.40gb", "MIG-a"), cut("1g.10gb+me", "MIG-b"))),
        Gpu(mig=(0, 0)),
        Gpu(name="NVIDIA GeForce RTX 4090", pci=0x268410DE, mig=None),
    )
    found = inventory.discover()
    assert found.slices == (
        MigSlice(name="3g.40gb", product="H100-80GB", uuid="MIG-a"),
        MigSlice(name="1g.10gb+me", product="H100-80GB", uuid="MIG-b"),
    )
    assert [(gpu.index, gpu.product, gpu.title) for gpu in found.gpus] == [
        (1, "H100-80GB", "NVIDIA H100 80GB HBM3"),
        (2, "", "NVIDIA GeForce RTX 4090"),
    ]
    assert (found.source, found.simulated, found.notes, stand_in.open) == ("nvml", False, (), 0)
    assert (inventory.still_there("MIG-a"), inventory.still_there("MIG-z")) == (True, False)


def test_faults_of_one_gpu_cost_that_gpu_and_are_told(nvml: Nvml) -> None:
    nvml(
        Gpu(fault=15),
        Gpu(mig=(1, 1)),
        Gpu(mig=(1, 0), instances=(cut("1c.3g.40gb", "MIG-c"), cut("1g.10gb", "MIG-d"))),
    )
    found = inventory.discover()
    assert [item.uuid for item in found.slices] == ["MIG-d"]
    assert found.gpus == ()
    assert found.notes == (
        "GPU 0 is left out: NVML says GPU is lost.",
        "GPU 1 (NVIDIA H100 80GB HBM3) is in MIG mode and has no slice: see nvidia-smi mig -cgi.",
        "GPU 2: a change of its MIG mode waits for a reset of the GPU.",
        "GPU 2: 'NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb' is no whole slice and is not given out.",
    )


def test_a_broken_driver_gives_nothing_and_never_something_simulated(nvml: Nvml) -> None:
    nvml(init_error=18)
    found = inventory.discover()
    assert (found.source, found.slices, found.gpus) == ("nvml", (), ())
    assert "Driver/library version mismatch" in found.notes[0]


def test_without_a_driver_there_is_one_simulated_h100_or_an_error(nvml: Nvml) -> None:
    nvml(init_error=12)
    found = inventory.discover()
    assert sorted(item.name for item in found.slices) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    assert found.simulated
    assert slices.arrange(inventory.DEFAULT_SLICES, product=inventory.DEFAULT_PRODUCT)
    with pytest.raises(Unavailable, match="no NVIDIA driver"):
        inventory.discover("nvml")
    assert inventory.discover("none").slices == ()


def test_a_declared_inventory_is_simulated_and_comes_back_from_the_home(tmp_path: Path) -> None:
    file = tmp_path / "机器 one.yaml"
    file.write_text("gpus:\n  - product: A30-24GB\n    slices: {1g.6gb: 4}\n")
    found = inventory.discover(str(file))
    assert found.slices == (MigSlice(name="1g.6gb", product="A30-24GB"),) * 4
    assert found.notes == (
        "The slices are declared in 机器 one.yaml and simulated: there is no GPU behind them.",
    )
    inventory.publish(tmp_path, found)
    assert inventory.published(tmp_path) == found
    (tmp_path / inventory.FILE).write_text("{")
    assert inventory.published(tmp_path).notes == (
        "The launcher has not told yet which slices this machine has.",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "gpus:\n  - product: H100-80GB\n    slices: {3g.40gb: 2, 1g.10gb: 1}\n",
            ":3: one H100-80GB cannot be cut into 2 x 3g.40gb, 1 x 1g.10gb.",
        ),
        ("gpus:\n  - product: H100\n    slices: {1g.10gb: 1}\n", ":2: Asked for the GPU product 'H100'"),
        ("gpus:\n  - product: A30-24GB\n    slices: {1g.10gb: 1}\n", ":3: A30 24 GB has no slice 1g.10gb"),
        (
            "gpus:\n  - product: A30-24GB\n    slices: {1g.6gb: many}\n",
            ":3: gpus[0].slices.1g.6gb is the text",
        ),
        ("gpus: [\n", ": this is not YAML as expected"),
        ("", ":1: the file is empty"),
    ],
)
def test_faults_of_a_declared_inventory_have_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as refusal:
        inventory.discover(str(file))
    assert refusal.value.message.startswith(f"{file}:")
    assert words in refusal.value.message


def test_what_an_admin_writes_out_goes_before_what_is_found(nvml: Nvml) -> None:
    nvml(Gpu(mig=(0, 0)))
    found = inventory.configured("auto", slices=[{"name": "1g.10gb"}], gpus=-1)
    assert (found.simulated, found.slices, len(found.gpus)) == (True, (MigSlice(name="1g.10gb"),), 1)
    found = inventory.configured("none", slices=[], gpus=2)
    assert found.gpus == (WholeGpu(index=0), WholeGpu(index=1))


def test_the_instance_that_nvml_names_is_what_a_session_sees(nvml: Nvml, tmp_path: Path) -> None:
    nvml(Gpu(instances=(cut("3g.40gb", "MIG-a"), cut("1g.10gb", "MIG-b"))))
    engine = open_database(tmp_path / "ledger.db")
    slots = make_inventory(slots=1, gpus=[], slices=inventory.discover().entries())
    Leases(engine).declare(slots)
    session = Sessions(engine).begin("session:anna:", {"1g.10gb": 1})
    spawner = SimpleNamespace(home=tmp_path, user=SimpleNamespace(name="anna"), api_token="t", _told={})
    spawner.launcher_url, spawner._session = "http://127.0.0.1:1", session
    found = LocalSliceSpawner.user_env(spawner, {"CUDA_VISIBLE_DEVICES": "of whoever started the hub"})
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-b"
    assert found["SLICELIFT_SLICE"] == "1g.10gb"
    assert "SLICELIFT_SLICE_SIMULATED" not in found


def test_a_gpu_cut_anew_keeps_what_is_held_until_it_is_given_back(nvml: Nvml, tmp_path: Path) -> None:
    """The launcher declares again at its next start; the new slices are there beside the held one."""
    leases = Leases(open_database(tmp_path / "ledger.db"))
    nvml(Gpu(instances=(cut("3g.40gb", "MIG-a"),)))
    leases.declare(make_inventory(slots=1, gpus=[], slices=inventory.discover().entries()))
    leases.request("session:anna:", {"3g.40gb": 1})
    nvml(Gpu(instances=(cut("1g.10gb", "MIG-b"), cut("1g.10gb", "MIG-c"))))
    leases.declare(make_inventory(slots=1, gpus=[], slices=inventory.discover().entries()))
    pools = leases.capacity()
    assert {name: (pool.total, pool.free) for name, pool in pools.items()} == {
        "1g.10gb": (2, 2),
        "slots": (1, 1),
    }
    assert leases.request("other", {"3g.40gb": 1}) == []
