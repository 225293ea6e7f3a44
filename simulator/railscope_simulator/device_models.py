"""Available GPU and NIC models, with the capabilities of each GPU generation and driver.

The models are data: data/gpu_models.toml and data/nic_models.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from msgspec import convert

from railscope_simulator.data import read_table

MEBIBYTE = 1 << 20


class GpuGeneration(IntEnum):
    """Architectures, numbered as NVML does (nvml.h, NVML_DEVICE_ARCH_*)."""

    VOLTA = 5
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10


@dataclass(frozen=True, slots=True)
class GpuTemperatureThresholds:
    """Temperatures in degrees Celsius of clock slowdown, halved clocks, and shutdown.

    `memory` is the limit of the memory; None if its temperature is not reported.
    """

    operating: int
    slowdown: int
    shutdown: int
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class NvLinkModel:
    """NVLinks of a GPU: number, speed in one direction, and peers.

    `version` is NVML's number of it. Without NVSwitches on the PCI bus the links lead to switches that
    the host does not see; with `peers` they lead to other GPUs.
    """

    links: int
    version: int
    raw_megabytes: int
    nominal_megabytes: int
    nvswitches: int = 0
    peers: bool = False


@dataclass(frozen=True, slots=True)
class MigProfile:
    """MIG instance profile. `first_instance` is NVML's id of the first instance."""

    name: str
    slices: int
    memory_slices: int
    multiprocessors: int
    memory_mebibytes: int
    bar1_mebibytes: int
    first_instance: int


@dataclass(frozen=True, slots=True)
class VgpuType:
    """Virtual GPU type."""

    number: int
    name: str
    frame_buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """GPU model, with the driver that its nodes run."""

    name: str
    short_name: str
    generation: GpuGeneration
    compute_capability: tuple[int, int]
    driver: str
    pci_device: int
    pci_subsystem: int
    vbios: str
    inforom: str
    part_number: str
    memory_mebibytes: int
    reserved_mebibytes: int
    bar1_mebibytes: int
    multiprocessors: int
    memory_megahertz: int
    idle_megahertz: int
    max_megahertz: int
    idle_video_megahertz: int
    max_video_megahertz: int
    idle_watts: float
    min_limit_watts: int
    limit_watts: int
    thresholds: GpuTemperatureThresholds
    pcie_generation: int
    banks: int = 0
    """Memory banks with spare rows."""
    nvlink: NvLinkModel | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    vgpu_type: VgpuType | None = None
    per_node: int = 8
    grace: bool = False
    """True if a Grace processor is on the module, connected by C2C."""

    @property
    def memory_bytes(self) -> int:
        """Memory installed."""
        return self.memory_mebibytes * MEBIBYTE

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved by the driver."""
        return self.reserved_mebibytes * MEBIBYTE

    @property
    def power_limit_milliwatts(self) -> int:
        """Default power limit, which is also the maximum."""
        return self.limit_watts * 1000

    @property
    def driver_branch(self) -> int:
        """Major version of the driver, which determines the available calls."""
        return int(self.driver.partition(".")[0])

    @property
    def has_gpm(self) -> bool:
        """True if NVML reports SM activity (GPM)."""
        return self.generation >= GpuGeneration.HOPPER

    @property
    def remaps_rows(self) -> bool:
        """True if bad memory is replaced by spare rows; older models retire pages."""
        return self.generation >= GpuGeneration.AMPERE

    @property
    def has_mig(self) -> bool:
        """True if the GPU can be partitioned into MIG instances."""
        return self.generation in {
            GpuGeneration.AMPERE,
            GpuGeneration.HOPPER,
            GpuGeneration.BLACKWELL,
        }

    @property
    def has_temperature_margins(self) -> bool:
        """True if temperatures are reported as margins to the limit, and limits relative to it."""
        return self.generation >= GpuGeneration.ADA

    @property
    def averages_power(self) -> bool:
        """True if average power is reported, too: from Ampere on, but not on GA100."""
        return self.generation >= GpuGeneration.ADA

    @property
    def joins_fabric(self) -> bool:
        """True if it must join an NVLink fabric before it can compute."""
        return self.generation >= GpuGeneration.HOPPER and self.nvlink is not None

    @property
    def has_recovery_action(self) -> bool:
        """True if the driver reports a recovery action: field 230 and Xid 154."""
        return self.driver_branch >= _RECOVERY_SINCE


_RECOVERY_SINCE = 570


SHORT_NAMES: dict[str, GpuModel] = {
    name: convert({**row, "short_name": name}, GpuModel)
    for name, row in read_table("gpu_models", dict[str, dict[str, Any]]).items()
}
MODELS: dict[str, GpuModel] = {model.name: model for model in SHORT_NAMES.values()}


def find_model(name: str) -> GpuModel:
    """Return the model with a name, or a short name such as `h100`. Raises ValueError if unknown."""
    found = MODELS.get(name) or SHORT_NAMES.get(name)
    if found is None:
        models = ", ".join(f"{model.short_name} ({model.name})" for model in MODELS.values())
        message = f"unknown GPU model: {name!r}: expected one of {models}"
        raise ValueError(message)
    return found


LANES = 4
"""Lanes of every port: 400 Gb/s are four of 100, 200 four of 50, 100 four of 25."""

PCIE_BYTES_PER_LANE = {3: 985_000_000, 4: 1_969_000_000, 5: 3_938_000_000}
"""Bytes per second of a lane of a PCIe generation in one direction, after line coding."""

PCIE_GOODPUT = 0.85
"""Share available for data after packet headers, acknowledgements and credits."""


@dataclass(frozen=True, slots=True)
class NicModel:
    """NIC model, with one port.

    `interface_name` is formatted with the slot, `rdma_name` with the number among the driver's NICs, or
    PCI domain and bus. `loaded`, `link_up` and `link_down` are the driver's kernel log messages.
    """

    name: str
    driver: str
    pci_vendor: int
    pci_device: int
    firmware: str
    interface_firmware: str
    board_id: str
    hca_type: str
    interface_name: str
    rdma_name: str
    mac_prefix: str
    gigabits: int
    storage_gigabits: int
    loaded: str
    link_up: str = "Link up"
    link_down: str = "Link down"
    pcie_generation: int = 5
    pcie_lanes: int = 16

    @property
    def halved_pcie_bytes_per_second(self) -> float:
        """Bytes per second of the NIC's PCIe link in one direction at half its width or speed."""
        lane = PCIE_BYTES_PER_LANE[self.pcie_generation]
        return lane * self.pcie_lanes / 2 * PCIE_GOODPUT


_NIC_MODELS = read_table("nic_models", dict[str, NicModel])
CONNECTX7, THOR2 = (_NIC_MODELS[name] for name in ("cx7", "bnxt"))

_MIXED_RAILS = 4


def nic_of(nic: str, rail: int | None) -> NicModel:
    """Return the NIC model of a rail, or of storage, on a node with such NICs."""
    if nic == "mixed":
        return THOR2 if rail is not None and rail >= _MIXED_RAILS else CONNECTX7
    return _NIC_MODELS[nic]
