"""PCIe links of GPUs, from NVML."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit
from railscope.catalog.entities import (
    GPU,
    GPU_PCIE_ERROR,
)
from railscope.catalog.gpu import DRIVER_LOAD

GPU_PCIE_GENERATION = Metric(
    "railscope_gpu_pcie_link_generation",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    help="PCIe generation the GPU's link runs at now; idle GPUs may run slower to save power.",
    origin="nvmlDeviceGetCurrPcieLinkGeneration",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_LINK_GEN"},
)
GPU_PCIE_GENERATION_LIMIT = Metric(
    "railscope_gpu_pcie_link_generation_limit",
    Kind.GAUGE,
    GPU,
    help="Highest PCIe generation that GPU and slot can reach together.",
    origin="nvmlDeviceGetMaxPcieLinkGeneration",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_MAX_LINK_GEN"},
)
GPU_PCIE_WIDTH = Metric(
    "railscope_gpu_pcie_link_width_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    rollups=(Rollup.MIN,),
    help="Lanes the GPU's PCIe link uses now.",
    origin="nvmlDeviceGetCurrPcieLinkWidth",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_LINK_WIDTH"},
)
GPU_PCIE_WIDTH_LIMIT = Metric(
    "railscope_gpu_pcie_link_width_limit_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    help="Most lanes that GPU and slot can use together.",
    origin="nvmlDeviceGetMaxPcieLinkWidth",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"},
)
GPU_PCIE_EXPECTED_WIDTH = Metric(
    "railscope_gpu_pcie_expected_width_lanes",
    Kind.GAUGE,
    GPU,
    unit=Unit.LANES,
    help="Lanes that the GPU's link should use: those of its slot, or as configured. None in guests.",
    origin="/sys/bus/pci/devices/*/max_link_width of both ends, settings [pcie]",
)
GPU_PCIE_EXPECTED_GENERATION = Metric(
    "railscope_gpu_pcie_expected_generation",
    Kind.GAUGE,
    GPU,
    help="PCIe generation that the GPU's link should reach under load: that of its slot, or as configured. None in guests.",
    origin="/sys/bus/pci/devices/*/max_link_speed of both ends, settings [pcie]",
)
GPU_PCIE_REPLAYS = Metric(
    "railscope_gpu_pcie_replays_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="PCIe packets the GPU had to send again.",
    origin="nvmlDeviceGetPcieReplayCounter",
    other_names={"dcgm-exporter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"},
)
GPU_PCIE_GENERATION_OWN = Metric(
    "railscope_gpu_pcie_link_generation_gpu_limit",
    Kind.GAUGE,
    GPU,
    help="Highest PCIe generation of the GPU alone.",
    origin="nvmlDeviceGetGpuMaxPcieLinkGeneration",
)
GPU_PCIE_ROLLOVERS = Metric(
    "railscope_gpu_pcie_replay_rollovers_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="Times so many replays failed that the PCIe link was trained anew.",
    origin="nvmlDeviceGetFieldValues 95 PCIE_REPLAY_ROLLOVER_COUNTER",
)
GPU_PCIE_RECOVERIES = Metric(
    "railscope_gpu_pcie_recoveries_total",
    Kind.COUNTER,
    GPU,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    help="Times the PCIe link left its working state to recover.",
    origin="nvmlDeviceGetFieldValues 169 PCIE_L0_TO_RECOVERY_COUNTER",
)
GPU_PCIE_ERRORS = Metric(
    "railscope_gpu_pcie_errors_total",
    Kind.COUNTER,
    GPU_PCIE_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="PCIe errors the GPU counted, by kind.",
    origin="nvmlDeviceGetFieldValues 173 to 183",
)
GPU_PCIE_TRANSMITTED = Metric(
    "railscope_gpu_pcie_transmitted_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="Bytes the GPU sent over PCIe.",
    origin="nvmlDeviceGetFieldValues 197 PCIE_COUNT_TX_BYTES",
)
GPU_PCIE_RECEIVED = Metric(
    "railscope_gpu_pcie_received_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="newer drivers",
    help="Bytes the GPU received over PCIe.",
    origin="nvmlDeviceGetFieldValues 198 PCIE_COUNT_RX_BYTES",
)
