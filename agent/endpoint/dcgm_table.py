"""Formulas for the metrics of dcgm-exporter.

Names and types are those of its etc/default-counters.csv and of NVIDIA/DCGM, dcgmlib/dcgm_fields.h. Units
are those in which DCGM reports the field, even if its name differs.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from agent.endpoint.dcgm_formula import EACH, Formula, Measure, Row, Term, counter, gauge, of
from railscope.catalog import gpu as c
from railscope.catalog import gpu_activity as a
from railscope.catalog import gpu_ecc, gpu_modes, gpu_pcie, gpu_power
from railscope.catalog import gpu_health as h
from railscope.catalog import gpu_sharing as s
from railscope.catalog import kernel as k
from railscope.catalog import nvlink as n
from railscope.catalog.declare import Metric

COUNT = Measure("")
CODE = Measure("as a code")
FLAG = Measure("1 or 0")
CELSIUS = Measure("in degrees Celsius")
WATTS = Measure("in W")
MILLIJOULES = Measure("in mJ", Fraction(1000))
MEGAHERTZ = Measure("in MHz", Fraction(1, 10**6))
MEBIBYTES = Measure("in MiB", Fraction(1, 1 << 20))
# GPU_UTIL and similar fields are percent; the profiling fields are ratios (DcgmGpmManager.cpp divides GPM's
# percent by 100), and so is FB_USED_PERCENT in spite of its name (dcgm_fields.h).
PERCENT = Measure("in percent", Fraction(100))
SHARE = Measure("from 0 to 1")
# The help texts of older releases claim microseconds; the values are NVML's nanoseconds and always were
# (NVIDIA/dcgm-exporter, pull request 589).
NANOSECONDS = Measure("in ns", Fraction(10**9))
BYTES_PER_SECOND = Measure("in B/s")
# As documented by DCGM, and as measured. The public source divides NVML's KiB per second by 1000 instead
# (DcgmCacheManager.cpp), which would be 2.4 percent more.
MEBIBYTES_PER_SECOND = Measure("in MiB/s", Fraction(1, 1 << 20))


def _rest(total: Metric, taken: Metric) -> Formula:
    return Formula((Term(total), Term(taken, weight=-1)))


def _used_share(used: Metric, total: Metric, reserved: Metric) -> Formula:
    return Formula((Term(used),), _rest(total, reserved).terms)


_REASONS = Formula((Term(c.GPU_THROTTLE_ACTIVE, (EACH,), weights=c.THROTTLE_BITS),))
_NVLINK_TRAFFIC = Formula((Term(a.GPU_NVLINK_TRANSMIT), Term(a.GPU_NVLINK_RECEIVE)))
_GPU_USED_SHARE = _used_share(c.GPU_MEMORY_USED, c.GPU_MEMORY_TOTAL, c.GPU_MEMORY_RESERVED)
_MIG_USED_SHARE = _used_share(s.MIG_MEMORY_USED, s.MIG_MEMORY_SIZE, s.MIG_MEMORY_RESERVED)

_UP_TO_AMPERE = "Up to Ampere; later GPUs tell margins instead."
_BEFORE_AMPERE = "Before Ampere."
_FROM_HOPPER = "From Hopper on."
_OLDER_NAME = "Older name of `DCGM_FI_DEV_CLOCKS_EVENT_REASONS`."
_CRC_OF_HOPPER = "On Hopper the CRC errors of the data link layer. None from Blackwell on."
_RATE_NOT_COUNT = (
    "A rate, though older releases declare it a counter. From Hopper on; for older GPUs take "
    "`rate()` of `railscope_gpu_nvlink_transmitted_bytes_total` and its like."
)
_NO_XID = (
    "0 stands for none so far, as in dcgm-exporter. Absent while the kernel log cannot be read and "
    "no event of the driver has told of an Xid."
)

_LOAD: tuple[Row, ...] = (
    gauge("DEV_SM_CLOCK", MEGAHERTZ, "SM clock", of(c.GPU_CLOCK_SPEED, "sm")),
    gauge("DEV_MEM_CLOCK", MEGAHERTZ, "Memory clock", of(c.GPU_CLOCK_SPEED, "memory")),
    gauge("DEV_VIDEO_CLOCK", MEGAHERTZ, "Video clock", of(c.GPU_CLOCK_SPEED, "video")),
    gauge("DEV_MAX_SM_CLOCK", MEGAHERTZ, "Highest SM clock", of(c.GPU_CLOCK_LIMIT, "sm")),
    gauge("DEV_MAX_MEM_CLOCK", MEGAHERTZ, "Highest memory clock", of(c.GPU_CLOCK_LIMIT, "memory")),
    gauge("DEV_MAX_VIDEO_CLOCK", MEGAHERTZ, "Highest video clock", of(c.GPU_CLOCK_LIMIT, "video")),
    gauge("DEV_CLOCKS_EVENT_REASONS", COUNT, "What holds the clocks down: a bit mask", _REASONS),
    gauge("DEV_CLOCK_THROTTLE_REASONS", COUNT, "What holds the clocks down: a bit mask", _REASONS, remark=_OLDER_NAME),
    gauge("DEV_GPU_TEMP", CELSIUS, "GPU temperature", of(c.GPU_TEMPERATURE)),
    gauge("DEV_MEMORY_TEMP", CELSIUS, "Memory temperature", of(c.GPU_MEMORY_TEMPERATURE)),
    gauge("DEV_GPU_TEMP_LIMIT", CELSIUS, "Margin to the nearest slowdown", of(gpu_power.GPU_TEMPERATURE_MARGIN), remark=_FROM_HOPPER),
    *(
        gauge(f"DEV_{name}_TEMP", CELSIUS, what, of(gpu_power.GPU_TEMPERATURE_THRESHOLD, threshold), remark=_UP_TO_AMPERE)
        for name, what, threshold in (
            ("GPU_MAX_OP", "Highest GPU temperature in operation", "gpu_maximum"),
            ("MEM_MAX_OP", "Highest memory temperature in operation", "memory_maximum"),
            ("SLOWDOWN", "GPU temperature that slows down", "slowdown"),
            ("SHUTDOWN", "GPU temperature that shuts down", "shutdown"),
        )
    ),
    gauge("DEV_POWER_USAGE", WATTS, "Power of the board", of(c.GPU_POWER)),
    gauge("DEV_POWER_USAGE_INSTANT", WATTS, "Power at this instant", of(gpu_power.GPU_POWER_INSTANT)),
    counter("DEV_TOTAL_ENERGY_CONSUMPTION", MILLIJOULES, "Energy since driver load", of(c.GPU_ENERGY)),
    gauge("DEV_ENFORCED_POWER_LIMIT", WATTS, "Power limit that holds", of(c.GPU_POWER_LIMIT)),
    *(
        gauge(f"DEV_POWER_MGMT_LIMIT{name}", WATTS, what, of(gpu_power.GPU_POWER_BOUNDS, bound))
        for name, what, bound in (
            ("", "Power limit asked for", "requested"),
            ("_MIN", "Lowest power limit there is", "minimum"),
            ("_MAX", "Highest power limit there is", "maximum"),
            ("_DEF", "Power limit by default", "default"),
        )
    ),
    gauge("DEV_PSTATE", CODE, "Performance state", of(c.GPU_PERFORMANCE_STATE)),
    gauge("DEV_FAN_SPEED", PERCENT, "Speed the first fan is told to run at", of(gpu_power.GPU_FAN_SPEED, "0")),
    gauge("DEV_GPU_UTIL", PERCENT, "Time with a kernel", of(c.GPU_UTILIZATION)),
    gauge("DEV_MEM_COPY_UTIL", PERCENT, "Time with memory traffic", of(c.GPU_MEMORY_ACTIVITY)),
    gauge("DEV_ENC_UTIL", PERCENT, "Time the video encoder worked", of(c.GPU_ENGINE_UTILIZATION, "encoder")),
    gauge("DEV_DEC_UTIL", PERCENT, "Time the video decoder worked", of(c.GPU_ENGINE_UTILIZATION, "decoder")),
    *(
        counter(f"DEV_{name}_VIOLATION", NANOSECONDS, f"Time held down by {what}", of(c.GPU_THROTTLE_TIME, reason))
        for name, what, reason in (
            ("POWER", "the power cap", "software_power_cap"),
            ("THERMAL", "heat", "thermal"),
            ("SYNC_BOOST", "sync boost", "sync_boost"),
            ("BOARD_LIMIT", "the limit of the board", "board_limit"),
            ("LOW_UTIL", "low use", "low_utilization"),
            ("RELIABILITY", "the reliability voltage", "reliability"),
            ("TOTAL_APP_CLOCKS", "anything, below the application clocks", "application_clocks"),
            ("TOTAL_BASE_CLOCKS", "anything, below the base clocks", "base_clocks"),
        )
    ),
)  # fmt: skip
_MEMORY: tuple[Row, ...] = (
    gauge("DEV_FB_TOTAL", MEBIBYTES, "Memory installed", of(c.GPU_MEMORY_TOTAL), mig=of(s.MIG_MEMORY_SIZE)),
    gauge("DEV_FB_FREE", MEBIBYTES, "Memory no one holds", of(c.GPU_MEMORY_FREE), mig=of(s.MIG_MEMORY_FREE)),
    gauge("DEV_FB_USED", MEBIBYTES, "Memory that processes hold", of(c.GPU_MEMORY_USED), mig=of(s.MIG_MEMORY_USED)),
    gauge("DEV_FB_RESERVED", MEBIBYTES, "Memory the driver keeps", of(c.GPU_MEMORY_RESERVED), mig=of(s.MIG_MEMORY_RESERVED)),
    gauge("DEV_FB_USED_PERCENT", SHARE, "Memory in use, of what the driver leaves", _GPU_USED_SHARE, mig=_MIG_USED_SHARE, remark="Not percent, for all its name says."),
    gauge("DEV_BAR1_TOTAL", MEBIBYTES, "BAR1 address space", of(c.GPU_BAR1_SIZE), mig=of(s.MIG_BAR1_SIZE)),
    gauge("DEV_BAR1_FREE", MEBIBYTES, "BAR1 address space not in use", _rest(c.GPU_BAR1_SIZE, c.GPU_BAR1_USED), mig=_rest(s.MIG_BAR1_SIZE, s.MIG_BAR1_USED)),
    gauge("DEV_BAR1_USED", MEBIBYTES, "BAR1 address space in use", of(c.GPU_BAR1_USED), mig=of(s.MIG_BAR1_USED)),
)  # fmt: skip
_HEALTH: tuple[Row, ...] = (
    replace(gauge("DEV_XID_ERRORS", CODE, "Number of the last Xid", of(h.GPU_LAST_XID), remark=_NO_XID), otherwise_zero=k.XIDS),
    gauge("DEV_ECC_CURRENT", FLAG, "Whether ECC is on", of(gpu_ecc.GPU_ECC_MODE)),
    gauge("DEV_ECC_PENDING", FLAG, "Whether ECC is on after a reset", of(gpu_ecc.GPU_ECC_PENDING)),
    *(
        counter(f"DEV_ECC_{short}_{span}_TOTAL", COUNT, f"{what} memory errors {since}", of(gpu_ecc.GPU_ECC_ERRORS, error, lifetime))
        for span, since, lifetime in (("VOL", "since driver load", "volatile"), ("AGG", "of the board's life", "aggregate"))
        for short, what, error in (("SBE", "Corrected", "corrected"), ("DBE", "Uncorrected", "uncorrected"))
    ),
    gauge("DEV_THRESHOLD_SRM", FLAG, "Whether on-chip memory had too many errors", of(gpu_ecc.GPU_SRAM_THRESHOLD), remark="Needs root."),
    counter("DEV_RETIRED_SBE", COUNT, "Pages retired for corrected errors", of(gpu_ecc.GPU_RETIRED_PAGES, "correctable"), remark=_BEFORE_AMPERE),
    counter("DEV_RETIRED_DBE", COUNT, "Pages retired for uncorrected errors", of(gpu_ecc.GPU_RETIRED_PAGES, "uncorrectable"), remark=_BEFORE_AMPERE),
    counter("DEV_RETIRED_PENDING", FLAG, "Whether pages wait to be retired", of(gpu_ecc.GPU_RETIRED_PENDING), remark=_BEFORE_AMPERE),
    counter("DEV_CORRECTABLE_REMAPPED_ROWS", COUNT, "Rows remapped for corrected errors", of(gpu_ecc.GPU_REMAPPED_ROWS, "correctable")),
    counter("DEV_UNCORRECTABLE_REMAPPED_ROWS", COUNT, "Rows remapped for uncorrected errors", of(gpu_ecc.GPU_REMAPPED_ROWS, "uncorrectable")),
    gauge("DEV_ROW_REMAP_FAILURE", FLAG, "Whether a row could not be remapped", of(gpu_ecc.GPU_ROW_REMAP_FAILURE)),
    gauge("DEV_ROW_REMAP_PENDING", FLAG, "Whether a remap waits for a reset", of(gpu_ecc.GPU_ROW_REMAP_PENDING)),
    gauge("DEV_GPU_RECOVERY_ACTION", CODE, "What the driver wants done", of(h.GPU_RECOVERY_ACTION)),
    gauge("DEV_MIG_MODE", FLAG, "Whether the GPU is cut into instances", of(s.GPU_MIG_MODE)),
    gauge("DEV_PERSISTENCE_MODE", FLAG, "Whether the driver keeps the GPU ready", of(gpu_modes.GPU_PERSISTENCE)),
)  # fmt: skip
_LINKS: tuple[Row, ...] = (
    counter("DEV_PCIE_REPLAY_COUNTER", COUNT, "PCIe packets sent again", of(gpu_pcie.GPU_PCIE_REPLAYS)),
    gauge("DEV_PCIE_LINK_GEN", COUNT, "PCIe generation now", of(gpu_pcie.GPU_PCIE_GENERATION)),
    gauge("DEV_PCIE_LINK_WIDTH", COUNT, "PCIe lanes now", of(gpu_pcie.GPU_PCIE_WIDTH)),
    gauge("DEV_PCIE_MAX_LINK_GEN", COUNT, "Highest PCIe generation", of(gpu_pcie.GPU_PCIE_GENERATION_LIMIT)),
    gauge("DEV_PCIE_MAX_LINK_WIDTH", COUNT, "Most PCIe lanes", of(gpu_pcie.GPU_PCIE_WIDTH_LIMIT)),
    counter("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", COUNT, "CRC errors of flits, all NVLinks", of(n.NVLINK_ERRORS, EACH, "crc_flit"), of(n.NVLINK_ERRORS, EACH, "crc"), remark=_CRC_OF_HOPPER),
    counter("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", COUNT, "CRC errors of data, all NVLinks", of(n.NVLINK_ERRORS, EACH, "crc_data"), remark="Up to Ampere."),
    counter("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", COUNT, "Replays, all NVLinks", of(n.NVLINK_ERRORS, EACH, "replay"), remark="Up to Hopper."),
    counter("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", COUNT, "Recoveries, all NVLinks", of(n.NVLINK_ERRORS, EACH, "recovery"), remark="Up to Hopper."),
    gauge("DEV_NVLINK_BANDWIDTH_TOTAL", MEBIBYTES_PER_SECOND, "NVLink traffic of both directions", _NVLINK_TRAFFIC, remark=_RATE_NOT_COUNT),
)  # fmt: skip
_PROFILING: tuple[Row, ...] = (
    gauge("PROF_GR_ENGINE_ACTIVE", SHARE, "Time with a context at work", of(a.GPU_GRAPHICS_ACTIVITY), mig=of(a.MIG_GRAPHICS_ACTIVITY), remark=_FROM_HOPPER),
    gauge("PROF_SM_ACTIVE", SHARE, "SMs and time with a warp", of(a.GPU_SM_ACTIVITY), mig=of(a.MIG_SM_ACTIVITY), remark=_FROM_HOPPER),
    gauge("PROF_SM_OCCUPANCY", SHARE, "Warps, of what the SMs could hold", of(a.GPU_SM_OCCUPANCY), mig=of(a.MIG_SM_OCCUPANCY), remark=_FROM_HOPPER),
    gauge("PROF_PIPE_TENSOR_ACTIVE", SHARE, "Time a tensor pipe worked", of(a.GPU_TENSOR_ACTIVITY), mig=of(a.MIG_TENSOR_ACTIVITY), remark=_FROM_HOPPER),
    gauge("PROF_DRAM_ACTIVE", SHARE, "Memory traffic, of the peak bandwidth", of(a.GPU_DRAM_ACTIVITY), mig=of(a.MIG_DRAM_ACTIVITY), remark=_FROM_HOPPER),
    *(
        gauge(f"PROF_PIPE_{name}_ACTIVE", SHARE, f"Time the {what} pipe worked", of(a.GPU_PIPE_ACTIVITY, pipe), mig=of(a.MIG_PIPE_ACTIVITY, pipe), remark=_FROM_HOPPER)
        for name, what, pipe in (
            ("FP64", "FP64", "fp64"),
            ("FP32", "FP32", "fp32"),
            ("FP16", "FP16", "fp16"),
            ("INT", "integer", "integer"),
            ("TENSOR_IMMA", "integer tensor", "tensor_imma"),
            ("TENSOR_HMMA", "half-precision tensor", "tensor_hmma"),
            ("TENSOR_DFMA", "FP64 tensor", "tensor_dfma"),
        )
    ),
    gauge("PROF_PCIE_TX_BYTES", BYTES_PER_SECOND, "PCIe traffic from the GPU", of(a.GPU_PCIE_TRANSMIT), remark=_FROM_HOPPER),
    gauge("PROF_PCIE_RX_BYTES", BYTES_PER_SECOND, "PCIe traffic to the GPU", of(a.GPU_PCIE_RECEIVE), remark=_FROM_HOPPER),
    gauge("PROF_NVLINK_TX_BYTES", BYTES_PER_SECOND, "NVLink traffic from the GPU", of(a.GPU_NVLINK_TRANSMIT), remark=_FROM_HOPPER),
    gauge("PROF_NVLINK_RX_BYTES", BYTES_PER_SECOND, "NVLink traffic to the GPU", of(a.GPU_NVLINK_RECEIVE), remark=_FROM_HOPPER),
)  # fmt: skip

ROWS: tuple[Row, ...] = (*_LOAD, *_MEMORY, *_HEALTH, *_LINKS, *_PROFILING)
