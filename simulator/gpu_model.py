"""Common properties of all GPUs of a model, and capabilities of its generation and driver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

MEBIBYTE = 1 << 20


class Generation(IntEnum):
    """Architectures, numbered as NVML does (nvml.h, NVML_DEVICE_ARCH_*)."""

    VOLTA = 5
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10


@dataclass(frozen=True, slots=True)
class Thresholds:
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
    generation: Generation
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
    thresholds: Thresholds
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
        return self.generation >= Generation.HOPPER

    @property
    def remaps_rows(self) -> bool:
        """True if bad memory is replaced by spare rows; older models retire pages."""
        return self.generation >= Generation.AMPERE

    @property
    def has_mig(self) -> bool:
        """True if the GPU can be partitioned into MIG instances."""
        return self.generation in {Generation.AMPERE, Generation.HOPPER, Generation.BLACKWELL}

    @property
    def tells_margins(self) -> bool:
        """True if temperatures are reported as margins to the limit, and limits relative to it."""
        return self.generation >= Generation.ADA

    @property
    def averages_power(self) -> bool:
        """True if average power is reported, too: from Ampere on, but not on GA100."""
        return self.generation >= Generation.ADA

    @property
    def joins_fabric(self) -> bool:
        """True if it must join an NVLink fabric before it can compute."""
        return self.generation >= Generation.HOPPER and self.nvlink is not None

    @property
    def tells_recovery(self) -> bool:
        """True if the driver reports a recovery action: field 230 and Xid 154."""
        return self.driver_branch >= _RECOVERY_SINCE


_RECOVERY_SINCE = 570
