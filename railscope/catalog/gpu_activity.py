"""Activity of a GPU's SMs and links, from hardware counters (GPM).

nvml.h, nvmlGpmMetricsGet: averages between two samples at least 100 ms apart. Before Hopper there is no
GPM, and NVML has no equivalent: these metrics are absent there.
"""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import (
    GPU,
    GPU_CACHE,
    GPU_CYCLE,
    GPU_ENGINE,
    GPU_PIPE,
    MIG,
    MIG_PIPE,
)

MILLIONTHS = per(10**6)
CHIP_RESET = "Counts from the GPU's last reset."

GPU_GRAPHICS_ACTIVITY = Metric(
    "railscope_gpu_graphics_activity_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper",
    help="Share of time in which any compute or graphics context was active.",
    origin="nvmlGpmMetricsGet 1 GRAPHICS_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
)
GPU_SM_ACTIVITY = Metric(
    "railscope_gpu_sm_activity_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(
        Rollup.MEAN,
        Rollup.MIN,
    ),
    since="Hopper",
    help="Share of SMs and time with at least one warp resident.",
    origin="nvmlGpmMetricsGet 2 SM_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_SM_ACTIVE"},
)
GPU_SM_OCCUPANCY = Metric(
    "railscope_gpu_sm_occupancy_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper",
    help="Warps resident as a share of what the SMs could hold.",
    origin="nvmlGpmMetricsGet 3 SM_OCCUPANCY (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_SM_OCCUPANCY"},
)
GPU_TENSOR_ACTIVITY = Metric(
    "railscope_gpu_tensor_activity_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(
        Rollup.MEAN,
        Rollup.MIN,
    ),
    since="Hopper",
    help="Share of time in which a tensor pipe worked, whatever the type of number.",
    origin="nvmlGpmMetricsGet 5 ANY_TENSOR_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"},
)
GPU_DRAM_ACTIVITY = Metric(
    "railscope_gpu_dram_bandwidth_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper",
    help="Memory traffic as a share of the peak bandwidth.",
    origin="nvmlGpmMetricsGet 10 DRAM_BW_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_DRAM_ACTIVE"},
)
GPU_PIPE_ACTIVITY = Metric(
    "railscope_gpu_pipe_activity_ratio",
    Kind.GAUGE,
    GPU_PIPE,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper",
    help="Share of time in which one pipe of the SMs worked; tensor pipes by type of number.",
    origin="nvmlGpmMetricsGet 4, 6, 7, 8, 9, 11, 12, 13 (percent)",
    other_names={
        "dcgm-exporter": "DCGM_FI_PROF_PIPE_FP64_ACTIVE, DCGM_FI_PROF_PIPE_FP32_ACTIVE, DCGM_FI_PROF_PIPE_FP16_ACTIVE, DCGM_FI_PROF_PIPE_INT_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE"
    },
)
GPU_ENGINE_ACTIVITY = Metric(
    "railscope_gpu_engine_activity_ratio",
    Kind.GAUGE,
    GPU_ENGINE,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper",
    help="Share of time in which one media engine worked.",
    origin="nvmlGpmMetricsGet 30 to 37 NVDEC, 40 to 47 NVJPG, 50 and 51 NVOFA, 166 to 169 NVENC (percent)",
)
GPU_PCIE_TRANSMIT = Metric(
    "railscope_gpu_pcie_transmit_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU sends over PCIe.",
    origin="nvmlGpmMetricsGet 20 PCIE_TX_PER_SEC (MiB/s)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_PCIE_TX_BYTES"},
)
GPU_PCIE_RECEIVE = Metric(
    "railscope_gpu_pcie_receive_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU receives over PCIe.",
    origin="nvmlGpmMetricsGet 21 PCIE_RX_PER_SEC (MiB/s)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_PCIE_RX_BYTES"},
)
GPU_NVLINK_TRANSMIT = Metric(
    "railscope_gpu_nvlink_transmit_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU sends over all its NVLinks.",
    origin="nvmlGpmMetricsGet 61 NVLINK_TOTAL_TX_PER_SEC (MiB/s)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, DCGM_FI_PROF_NVLINK_TX_BYTES"
    },
)
GPU_NVLINK_RECEIVE = Metric(
    "railscope_gpu_nvlink_receive_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU receives over all its NVLinks.",
    origin="nvmlGpmMetricsGet 60 NVLINK_TOTAL_RX_PER_SEC (MiB/s)",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, DCGM_FI_PROF_NVLINK_RX_BYTES"
    },
)
GPU_C2C_TRANSMIT = Metric(
    "railscope_gpu_c2c_transmit_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU sends to its Grace processor.",
    origin="nvmlGpmMetricsGet 100 C2C_TOTAL_TX_PER_SEC (MiB/s)",
)
GPU_C2C_RECEIVE = Metric(
    "railscope_gpu_c2c_receive_bytes_per_second",
    Kind.GAUGE,
    GPU,
    unit=Unit.BYTES_PER_SECOND,
    rollups=(Rollup.SUM,),
    since="Hopper",
    help="Bytes a second the GPU receives from its Grace processor.",
    origin="nvmlGpmMetricsGet 101 C2C_TOTAL_RX_PER_SEC (MiB/s)",
)
GPU_CACHE_SHARE = Metric(
    "railscope_gpu_cache_access_ratio",
    Kind.GAUGE,
    GPU_CACHE,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    rollups=(Rollup.MEAN,),
    since="Hopper, newer drivers",
    help="Share of accesses to host, peer or GPU memory that hit or missed the L2 cache.",
    origin="nvmlGpmMetricsGet 160 to 165 (percent)",
)
GPU_CYCLES = Metric(
    "railscope_gpu_sm_cycles_total",
    Kind.COUNTER,
    GPU_CYCLE,
    unit=Unit.CYCLES,
    rollups=(Rollup.SUM,),
    resets=CHIP_RESET,
    since="Hopper, newer drivers",
    help="Cycles of all SMs, elapsed and with each pipe active: their ratio is exact over any interval.",
    origin="nvmlGpmMetricsGet 248 to 254, 257 to 260",
)
MIG_GRAPHICS_ACTIVITY = Metric(
    "railscope_mig_graphics_activity_ratio",
    Kind.GAUGE,
    MIG,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Share of time in which a context of the MIG instance was active.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 1 GRAPHICS_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
)
MIG_SM_ACTIVITY = Metric(
    "railscope_mig_sm_activity_ratio",
    Kind.GAUGE,
    MIG,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Share of the MIG instance's SMs and time with at least one warp resident.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 2 SM_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_SM_ACTIVE"},
)
MIG_SM_OCCUPANCY = Metric(
    "railscope_mig_sm_occupancy_ratio",
    Kind.GAUGE,
    MIG,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Warps resident as a share of what the SMs of the MIG instance could hold.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 3 SM_OCCUPANCY (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_SM_OCCUPANCY"},
)
MIG_TENSOR_ACTIVITY = Metric(
    "railscope_mig_tensor_activity_ratio",
    Kind.GAUGE,
    MIG,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Share of time in which a tensor pipe of the MIG instance worked.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 5 ANY_TENSOR_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"},
)
MIG_DRAM_ACTIVITY = Metric(
    "railscope_mig_dram_bandwidth_ratio",
    Kind.GAUGE,
    MIG,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Memory traffic of the MIG instance as a share of its peak bandwidth.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 10 DRAM_BW_UTIL (percent)",
    other_names={"dcgm-exporter": "DCGM_FI_PROF_DRAM_ACTIVE"},
)
MIG_PIPE_ACTIVITY = Metric(
    "railscope_mig_pipe_activity_ratio",
    Kind.GAUGE,
    MIG_PIPE,
    unit=Unit.RATIO,
    scale=MILLIONTHS,
    since="Hopper",
    help="Share of time in which one pipe of the SMs of the MIG instance worked.",
    origin="nvmlGpmMigSampleGet, nvmlGpmMetricsGet 4, 6, 7, 8, 9, 11, 12, 13 (percent)",
    other_names={
        "dcgm-exporter": "DCGM_FI_PROF_PIPE_FP64_ACTIVE, DCGM_FI_PROF_PIPE_FP32_ACTIVE, DCGM_FI_PROF_PIPE_FP16_ACTIVE, DCGM_FI_PROF_PIPE_INT_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE, DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE"
    },
)
