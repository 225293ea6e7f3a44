"""Available GPU models, as data.

Sources: NVIDIA's data sheets and MIG User Guide, the output of nvidia-smi for each model, and
NVIDIA/k8s-test-infra (mock profiles). Firmware versions and part numbers are only plausible where no such
output is public (B200, GB200). Spare banks: 512 per stack of HBM3.
"""

from __future__ import annotations

from simulator.gpu_model import (
    MEBIBYTE,
    Generation,
    GpuModel,
    MigProfile,
    NvLinkModel,
    Thresholds,
    VgpuType,
)

_NEWEST_DRIVER = "590.48.01"
_GIBIBYTE = 1024 * MEBIBYTE

_V100 = GpuModel(
    name="Tesla V100-SXM2-32GB", short_name="v100", generation=Generation.VOLTA,
    compute_capability=(7, 0), driver="535.183.01",
    pci_device=0x1DB5_10DE, pci_subsystem=0x1249_10DE,
    vbios="88.00.91.00.01", inforom="G503.0204.00.02", part_number="900-2G503-0010-000",
    memory_mebibytes=32768, reserved_mebibytes=262, bar1_mebibytes=32768, multiprocessors=80,
    memory_megahertz=877, idle_megahertz=135, max_megahertz=1530,
    idle_video_megahertz=555, max_video_megahertz=1372,
    idle_watts=42, min_limit_watts=150, limit_watts=300,
    thresholds=Thresholds(83, 87, 90, 85), pcie_generation=3,
    nvlink=NvLinkModel(6, 2, 25_781, 25_000, peers=True),
)  # fmt: skip

_T4 = GpuModel(
    name="Tesla T4", short_name="t4", generation=Generation.TURING,
    compute_capability=(7, 5), driver="535.183.01",
    pci_device=0x1EB8_10DE, pci_subsystem=0x12A2_10DE,
    vbios="90.04.84.00.06", inforom="G183.0200.00.02", part_number="900-2G183-0000-001",
    memory_mebibytes=15360, reserved_mebibytes=388, bar1_mebibytes=256, multiprocessors=40,
    memory_megahertz=5001, idle_megahertz=300, max_megahertz=1590,
    idle_video_megahertz=540, max_video_megahertz=1470,
    idle_watts=12, min_limit_watts=60, limit_watts=70,
    thresholds=Thresholds(85, 93, 96), pcie_generation=3,
    vgpu_type=VgpuType(232, "GRID T4-4Q", 4 * _GIBIBYTE),
)  # fmt: skip

_A100 = GpuModel(
    name="NVIDIA A100-SXM4-80GB", short_name="a100", generation=Generation.AMPERE,
    compute_capability=(8, 0), driver="550.163.01",
    pci_device=0x20B2_10DE, pci_subsystem=0x147F_10DE,
    vbios="92.00.36.00.02", inforom="G506.0212.00.01", part_number="692-2G506-0212-002",
    memory_mebibytes=81920, reserved_mebibytes=869, bar1_mebibytes=131072, multiprocessors=108,
    memory_megahertz=1593, idle_megahertz=210, max_megahertz=1410,
    idle_video_megahertz=585, max_video_megahertz=1290,
    idle_watts=62, min_limit_watts=100, limit_watts=400,
    thresholds=Thresholds(85, 89, 92, 95), pcie_generation=4, banks=640,
    nvlink=NvLinkModel(12, 4, 25_781, 25_000, nvswitches=6),
    mig_profiles=(
        MigProfile("1g.10gb", 1, 1, 14, 9728, 16383, 7),
        MigProfile("2g.20gb", 2, 2, 28, 19968, 32767, 3),
        MigProfile("3g.40gb", 3, 4, 42, 40448, 65535, 2),
    ),
)  # fmt: skip

_L40S = GpuModel(
    name="NVIDIA L40S", short_name="l40s", generation=Generation.ADA,
    compute_capability=(8, 9), driver="580.95.05",
    pci_device=0x26B9_10DE, pci_subsystem=0x1851_10DE,
    vbios="95.02.66.00.02", inforom="G133.0242.00.03", part_number="900-2G133-0080-000",
    memory_mebibytes=46068, reserved_mebibytes=609, bar1_mebibytes=65536, multiprocessors=142,
    memory_megahertz=9001, idle_megahertz=210, max_megahertz=2520,
    idle_video_megahertz=1185, max_video_megahertz=1965,
    idle_watts=35, min_limit_watts=100, limit_watts=350,
    thresholds=Thresholds(88, 90, 93), pcie_generation=4, banks=192,
    vgpu_type=VgpuType(1166, "NVIDIA L40S-12Q", 12 * _GIBIBYTE),
)  # fmt: skip

_H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3", short_name="h100", generation=Generation.HOPPER,
    compute_capability=(9, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2330_10DE, pci_subsystem=0x16C1_10DE,
    vbios="96.00.A5.00.01", inforom="G520.0200.00.05", part_number="692-2G520-0200-000",
    memory_mebibytes=81559, reserved_mebibytes=479, bar1_mebibytes=131072, multiprocessors=132,
    memory_megahertz=2619, idle_megahertz=345, max_megahertz=1980,
    idle_video_megahertz=765, max_video_megahertz=1545,
    idle_watts=71, min_limit_watts=200, limit_watts=700,
    thresholds=Thresholds(85, 87, 93, 95), pcie_generation=5, banks=2560,
    nvlink=NvLinkModel(18, 6, 26_562, 25_000, nvswitches=4),
    mig_profiles=(
        MigProfile("1g.10gb", 1, 1, 16, 9728, 16383, 7),
        MigProfile("2g.20gb", 2, 2, 32, 19968, 32767, 3),
        MigProfile("3g.40gb", 3, 4, 60, 40320, 65535, 2),
    ),
)  # fmt: skip

_H200 = GpuModel(
    name="NVIDIA H200", short_name="h200", generation=Generation.HOPPER,
    compute_capability=(9, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2335_10DE, pci_subsystem=0x18BE_10DE,
    vbios="96.00.A5.00.03", inforom="G520.0280.02.02", part_number="695-2G520-0280-001",
    memory_mebibytes=143771, reserved_mebibytes=614, bar1_mebibytes=262144, multiprocessors=132,
    memory_megahertz=3201, idle_megahertz=345, max_megahertz=1980,
    idle_video_megahertz=765, max_video_megahertz=1545,
    idle_watts=77, min_limit_watts=200, limit_watts=700,
    thresholds=Thresholds(85, 87, 93, 95), pcie_generation=5, banks=3072,
    nvlink=NvLinkModel(18, 6, 26_562, 25_000, nvswitches=4),
    mig_profiles=(
        MigProfile("1g.18gb", 1, 1, 16, 16384, 14809, 7),
        MigProfile("2g.35gb", 2, 2, 32, 33280, 29618, 3),
        MigProfile("3g.71gb", 3, 4, 60, 71424, 59237, 2),
    ),
)  # fmt: skip

_B200 = GpuModel(
    name="NVIDIA B200", short_name="b200", generation=Generation.BLACKWELL,
    compute_capability=(10, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2901_10DE, pci_subsystem=0x1999_10DE,
    vbios="97.00.82.00.1E", inforom="G525.0225.00.05", part_number="692-2G525-0225-000",
    memory_mebibytes=183359, reserved_mebibytes=721, bar1_mebibytes=262144, multiprocessors=148,
    memory_megahertz=3996, idle_megahertz=120, max_megahertz=1965,
    idle_video_megahertz=690, max_video_megahertz=1620,
    idle_watts=140, min_limit_watts=200, limit_watts=1000,
    thresholds=Thresholds(87, 89, 94, 95), pcie_generation=5, banks=4096,
    nvlink=NvLinkModel(18, 7, 53_125, 50_000),
)  # fmt: skip

_GB200 = GpuModel(
    name="NVIDIA GB200", short_name="gb200", generation=Generation.BLACKWELL,
    compute_capability=(10, 0), driver=_NEWEST_DRIVER,
    pci_device=0x2941_10DE, pci_subsystem=0x2046_10DE,
    vbios="97.00.B9.00.27", inforom="G548.0201.00.06", part_number="692-2G548-0201-000",
    memory_mebibytes=189471, reserved_mebibytes=718, bar1_mebibytes=262144, multiprocessors=152,
    memory_megahertz=3996, idle_megahertz=120, max_megahertz=2062,
    idle_video_megahertz=690, max_video_megahertz=1620,
    idle_watts=160, min_limit_watts=200, limit_watts=1200,
    thresholds=Thresholds(87, 89, 94, 95), pcie_generation=5, banks=4096,
    nvlink=NvLinkModel(18, 7, 53_125, 50_000), per_node=4, grace=True,
)  # fmt: skip

MODELS: dict[str, GpuModel] = {
    model.name: model for model in (_V100, _T4, _A100, _L40S, _H100, _H200, _B200, _GB200)
}
SHORT_NAMES: dict[str, GpuModel] = {model.short_name: model for model in MODELS.values()}


def find(name: str) -> GpuModel:
    """Return the model with a name, or a short name such as `h100`. Raises ValueError if unknown."""
    found = MODELS.get(name) or SHORT_NAMES.get(name)
    if found is None:
        known = ", ".join(f"{model.short_name} ({model.name})" for model in MODELS.values())
        message = f"no GPU model {name!r}; there are {known}"
        raise ValueError(message)
    return found
