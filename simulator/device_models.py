"""Available GPU and NIC models, as data, with the capabilities of each GPU generation and driver.

Sources for GPUs: NVIDIA's data sheets and MIG User Guide, the output of nvidia-smi for each model,
and NVIDIA/k8s-test-infra (mock profiles). Firmware versions and part numbers are only plausible
where no such output is public (B200, GB200). Spare banks: 512 per stack of HBM3.

Sources for NICs (driver names, identities, kernel messages): torvalds/linux drivers/net/ethernet
and drivers/infiniband/hw of each driver; PCI ids of pci-ids.ucw.cz. Firmware versions are plausible
ones from the vendors' release notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

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


_NEWEST_DRIVER = "590.48.01"
_GIBIBYTE = 1024 * MEBIBYTE

_V100 = GpuModel(
    name="Tesla V100-SXM2-32GB", short_name="v100", generation=GpuGeneration.VOLTA,
    compute_capability=(7, 0), driver="535.183.01",
    pci_device=0x1DB5_10DE, pci_subsystem=0x1249_10DE,
    vbios="88.00.91.00.01", inforom="G503.0204.00.02", part_number="900-2G503-0010-000",
    memory_mebibytes=32768, reserved_mebibytes=262, bar1_mebibytes=32768, multiprocessors=80,
    memory_megahertz=877, idle_megahertz=135, max_megahertz=1530,
    idle_video_megahertz=555, max_video_megahertz=1372,
    idle_watts=42, min_limit_watts=150, limit_watts=300,
    thresholds=GpuTemperatureThresholds(83, 87, 90, 85), pcie_generation=3,
    nvlink=NvLinkModel(6, 2, 25_781, 25_000, peers=True),
)  # fmt: skip

_T4 = GpuModel(
    name="Tesla T4", short_name="t4", generation=GpuGeneration.TURING,
    compute_capability=(7, 5), driver="535.183.01",
    pci_device=0x1EB8_10DE, pci_subsystem=0x12A2_10DE,
    vbios="90.04.84.00.06", inforom="G183.0200.00.02", part_number="900-2G183-0000-001",
    memory_mebibytes=15360, reserved_mebibytes=388, bar1_mebibytes=256, multiprocessors=40,
    memory_megahertz=5001, idle_megahertz=300, max_megahertz=1590,
    idle_video_megahertz=540, max_video_megahertz=1470,
    idle_watts=12, min_limit_watts=60, limit_watts=70,
    thresholds=GpuTemperatureThresholds(85, 93, 96), pcie_generation=3,
    vgpu_type=VgpuType(232, "GRID T4-4Q", 4 * _GIBIBYTE),
)  # fmt: skip

_A100 = GpuModel(
    name="NVIDIA A100-SXM4-80GB", short_name="a100", generation=GpuGeneration.AMPERE,
    compute_capability=(8, 0), driver="550.163.01",
    pci_device=0x20B2_10DE, pci_subsystem=0x147F_10DE,
    vbios="92.00.36.00.02", inforom="G506.0212.00.01", part_number="692-2G506-0212-002",
    memory_mebibytes=81920, reserved_mebibytes=869, bar1_mebibytes=131072, multiprocessors=108,
    memory_megahertz=1593, idle_megahertz=210, max_megahertz=1410,
    idle_video_megahertz=585, max_video_megahertz=1290,
    idle_watts=62, min_limit_watts=100, limit_watts=400,
    thresholds=GpuTemperatureThresholds(85, 89, 92, 95), pcie_generation=4, banks=640,
    nvlink=NvLinkModel(12, 4, 25_781, 25_000, nvswitches=6),
    mig_profiles=(
        MigProfile("1g.10gb", 1, 1, 14, 9728, 16383, 7),
        MigProfile("2g.20gb", 2, 2, 28, 19968, 32767, 3),
        MigProfile("3g.40gb", 3, 4, 42, 40448, 65535, 2),
    ),
)  # fmt: skip

_L40S = GpuModel(
    name="NVIDIA L40S", short_name="l40s", generation=GpuGeneration.ADA,
    compute_capability=(8, 9), driver="580.95.05",
    pci_device=0x26B9_10DE, pci_subsystem=0x1851_10DE,
    vbios="95.02.66.00.02", inforom="G133.0242.00.03", part_number="900-2G133-0080-000",
    memory_mebibytes=46068, reserved_mebibytes=609, bar1_mebibytes=65536, multiprocessors=142,
    memory_megahertz=9001, idle_megahertz=210, max_megahertz=2520,
    idle_video_megahertz=1185, max_video_megahertz=1965,
    idle_watts=35, min_limit_watts=100, limit_watts=350,
    thresholds=GpuTemperatureThresholds(88, 90, 93), pcie_generation=4, banks=192,
    vgpu_type=VgpuType(1166, "NVIDIA L40S-12Q", 12 * _GIBIBYTE),
)  # fmt: skip

_H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3", short_name="h100", generation=GpuGeneration.HOPPER,
    compute_capability=(9, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2330_10DE, pci_subsystem=0x16C1_10DE,
    vbios="96.00.A5.00.01", inforom="G520.0200.00.05", part_number="692-2G520-0200-000",
    memory_mebibytes=81559, reserved_mebibytes=479, bar1_mebibytes=131072, multiprocessors=132,
    memory_megahertz=2619, idle_megahertz=345, max_megahertz=1980,
    idle_video_megahertz=765, max_video_megahertz=1545,
    idle_watts=71, min_limit_watts=200, limit_watts=700,
    thresholds=GpuTemperatureThresholds(85, 87, 93, 95), pcie_generation=5, banks=2560,
    nvlink=NvLinkModel(18, 6, 26_562, 25_000, nvswitches=4),
    mig_profiles=(
        MigProfile("1g.10gb", 1, 1, 16, 9728, 16383, 7),
        MigProfile("2g.20gb", 2, 2, 32, 19968, 32767, 3),
        MigProfile("3g.40gb", 3, 4, 60, 40320, 65535, 2),
    ),
)  # fmt: skip

_H200 = GpuModel(
    name="NVIDIA H200", short_name="h200", generation=GpuGeneration.HOPPER,
    compute_capability=(9, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2335_10DE, pci_subsystem=0x18BE_10DE,
    vbios="96.00.A5.00.03", inforom="G520.0280.02.02", part_number="695-2G520-0280-001",
    memory_mebibytes=143771, reserved_mebibytes=614, bar1_mebibytes=262144, multiprocessors=132,
    memory_megahertz=3201, idle_megahertz=345, max_megahertz=1980,
    idle_video_megahertz=765, max_video_megahertz=1545,
    idle_watts=77, min_limit_watts=200, limit_watts=700,
    thresholds=GpuTemperatureThresholds(85, 87, 93, 95), pcie_generation=5, banks=3072,
    nvlink=NvLinkModel(18, 6, 26_562, 25_000, nvswitches=4),
    mig_profiles=(
        MigProfile("1g.18gb", 1, 1, 16, 16384, 14809, 7),
        MigProfile("2g.35gb", 2, 2, 32, 33280, 29618, 3),
        MigProfile("3g.71gb", 3, 4, 60, 71424, 59237, 2),
    ),
)  # fmt: skip

_B200 = GpuModel(
    name="NVIDIA B200", short_name="b200", generation=GpuGeneration.BLACKWELL,
    compute_capability=(10, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2901_10DE, pci_subsystem=0x1999_10DE,
    vbios="97.00.82.00.1E", inforom="G525.0225.00.05", part_number="692-2G525-0225-000",
    memory_mebibytes=183359, reserved_mebibytes=721, bar1_mebibytes=262144, multiprocessors=148,
    memory_megahertz=3996, idle_megahertz=120, max_megahertz=1965,
    idle_video_megahertz=690, max_video_megahertz=1620,
    idle_watts=140, min_limit_watts=200, limit_watts=1000,
    thresholds=GpuTemperatureThresholds(87, 89, 94, 95), pcie_generation=5, banks=4096,
    nvlink=NvLinkModel(18, 7, 53_125, 50_000),
)  # fmt: skip

_GB200 = GpuModel(
    name="NVIDIA GB200", short_name="gb200", generation=GpuGeneration.BLACKWELL,
    compute_capability=(10, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2941_10DE, pci_subsystem=0x2046_10DE,
    vbios="97.00.B9.00.27", inforom="G548.0201.00.06", part_number="692-2G548-0201-000",
    memory_mebibytes=189471, reserved_mebibytes=718, bar1_mebibytes=262144, multiprocessors=152,
    memory_megahertz=3996, idle_megahertz=120, max_megahertz=2062,
    idle_video_megahertz=690, max_video_megahertz=1620,
    idle_watts=160, min_limit_watts=200, limit_watts=1200,
    thresholds=GpuTemperatureThresholds(87, 89, 94, 95), pcie_generation=5, banks=4096,
    nvlink=NvLinkModel(18, 7, 53_125, 50_000), per_node=4, grace=True,
)  # fmt: skip

MODELS: dict[str, GpuModel] = {
    model.name: model for model in (_V100, _T4, _A100, _L40S, _H100, _H200, _B200, _GB200)
}
SHORT_NAMES: dict[str, GpuModel] = {model.short_name: model for model in MODELS.values()}


def find_model(name: str) -> GpuModel:
    """Return the model with a name, or a short name such as `h100`. Raises ValueError if unknown."""
    found = MODELS.get(name) or SHORT_NAMES.get(name)
    if found is None:
        known = ", ".join(f"{model.short_name} ({model.name})" for model in MODELS.values())
        message = f"no GPU model {name!r}; there are {known}"
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
    board: str
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


CONNECTX7 = NicModel(
    name="ConnectX-7", driver="mlx5_core", pci_vendor=0x15B3, pci_device=0x1021,
    firmware="28.39.1002", interface_firmware="28.39.1002 (MT_0000000838)",
    board="MT_0000000838", hca_type="MT4129",
    interface_name="ens{slot}f0np0", rdma_name="mlx5_{number}", mac_prefix="a088c2",
    gigabits=400, storage_gigabits=200, loaded="firmware version: 28.39.1002",
)  # fmt: skip

THOR2 = NicModel(
    name="BCM57608", driver="bnxt_en", pci_vendor=0x14E4, pci_device=0x1760,
    firmware="231.0.162.0", interface_firmware="231.0.162.0/pkg 231.1.162.1",
    board="", hca_type="BCM57608",
    interface_name="ens{slot}np0", rdma_name="bnxt_re{number}", mac_prefix="bc97e1",
    gigabits=400, storage_gigabits=200,
    loaded="Broadcom BCM57608 Ethernet found at mem 2a0000000000",
    link_up="NIC Link is Up, 400000 Mbps (PAM4 112Gbps) full duplex, Flow control: none",
    link_down="NIC Link is Down",
)  # fmt: skip

E810 = NicModel(
    name="E810-C", driver="ice", pci_vendor=0x8086, pci_device=0x1592,
    firmware="1.71", interface_firmware="4.40 0x8001c967 1.3534.0",
    board="IRDMA Board ID", hca_type="IRDMA",
    interface_name="ens{slot}f0np0", rdma_name="roce{domain}p{bus}s0", mac_prefix="b49691",
    gigabits=100, storage_gigabits=100,
    loaded="The DDP package was successfully loaded: ICE OS Default Package version 1.3.36.0",
    link_up="NIC Link is up 100 Gbps Full Duplex, Requested FEC: RS-FEC, Negotiated FEC: RS-FEC,"
    " Autoneg Advertised: Off, Autoneg Negotiated: False, Flow Control: None",
    link_down="NIC Link is Down",
    pcie_generation=4,
)  # fmt: skip

_MIXED_RAILS = 4

NICS: Mapping[str, str] = MappingProxyType(
    {
        "cx7": "NVIDIA ConnectX-7 of 400 Gb/s (mlx5).",
        "bnxt": "Broadcom BCM57608 of 400 Gb/s (bnxt_en, bnxt_re).",
        "irdma": "Intel E810 of 100 Gb/s (ice, irdma).",
        "mixed": "ConnectX-7 on the first four rails, BCM57608 on the others.",
    }
)
"""NICs by name: description in one sentence."""

_MODELS = {"cx7": CONNECTX7, "bnxt": THOR2, "irdma": E810, "mixed": CONNECTX7}


def nic_of(nic: str, rail: int | None) -> NicModel:
    """Return the NIC model of a rail, or of storage, on a node with such NICs."""
    if nic == "mixed" and rail is not None and rail >= _MIXED_RAILS:
        return THOR2
    return _MODELS[nic]
