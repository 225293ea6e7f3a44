"""What all GPUs of a model have in common, and what follows from its generation and its driver."""

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
    """Degrees Celsius at which the clocks go down, are halved, and the GPU shuts down.

    `memory` is what the memory may have; None where its temperature is not told.
    """

    operating: int
    slowdown: int
    shutdown: int
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class NvLinkModel:
    """The NVLinks of a GPU: how many, how fast in one direction, and what they lead to.

    `version` is NVML's number of it. Without NVSwitches on the PCI bus the links lead to switches
    that the host does not see; where `peers` is set they lead to other GPUs.
    """

    links: int
    version: int
    raw_megabytes: int
    nominal_megabytes: int
    nvswitches: int = 0
    peers: bool = False


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size of MIG instance. `first_instance` is the number NVML gives the first one of it."""

    name: str
    slices: int
    memory_slices: int
    multiprocessors: int
    memory_mebibytes: int
    bar1_mebibytes: int
    first_instance: int


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A size of virtual GPU."""

    number: int
    name: str
    frame_buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One model, with the driver that its servers run."""

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
    least_limit_watts: int
    limit_watts: int
    thresholds: Thresholds
    pcie_generation: int
    banks: int = 0
    """Banks of memory with spare rows."""
    nvlink: NvLinkModel | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    vgpu_type: VgpuType | None = None
    per_node: int = 8
    grace: bool = False
    """Whether a Grace processor is on the module, linked by C2C."""

    @property
    def memory_bytes(self) -> int:
        """Memory installed."""
        return self.memory_mebibytes * MEBIBYTE

    @property
    def reserved_bytes(self) -> int:
        """Memory that the driver keeps for itself."""
        return self.reserved_mebibytes * MEBIBYTE

    @property
    def power_limit_milliwatts(self) -> int:
        """The limit it comes with, which is the highest, too."""
        return self.limit_watts * 1000

    @property
    def driver_branch(self) -> int:
        """The number before the first dot: what calls there are depends on it."""
        return int(self.driver.partition(".")[0])

    @property
    def has_gpm(self) -> bool:
        """Whether NVML tells what the SMs do."""
        return self.generation >= Generation.HOPPER

    @property
    def remaps_rows(self) -> bool:
        """Whether bad memory is replaced by spare rows; before, its pages were given up."""
        return self.generation >= Generation.AMPERE

    @property
    def has_mig(self) -> bool:
        """Whether it can be cut into instances."""
        return self.generation in {Generation.AMPERE, Generation.HOPPER, Generation.BLACKWELL}

    @property
    def tells_margins(self) -> bool:
        """Whether temperatures are told as what is left to the limit, and limits relative to it."""
        return self.generation >= Generation.ADA

    @property
    def averages_power(self) -> bool:
        """Whether power is told as an average, too: from Ampere on, but not on GA100."""
        return self.generation >= Generation.ADA

    @property
    def joins_fabric(self) -> bool:
        """Whether it must join an NVLink fabric before it can compute."""
        return self.generation >= Generation.HOPPER and self.nvlink is not None

    @property
    def tells_recovery(self) -> bool:
        """Whether the driver says what it wants done: field 230 and Xid 154."""
        return self.driver_branch >= _RECOVERY_SINCE


_RECOVERY_SINCE = 570
