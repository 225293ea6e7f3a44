"""Formulas for the metrics of dcgm-exporter, and the types of that table.

Names and types are from its etc/default-counters.csv and from NVIDIA/DCGM, dcgmlib/dcgm_fields.h.
Units are those in which DCGM reports the field, even if its name differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from railscope.catalog import (
    declare,
    gpu as c,
    gpu_health as h,
    gpu_sharing as s,
    kernel as k,
    nvlink as n,
)

EACH = "*"
"""Any value of a key part, for example every link of a GPU."""


@dataclass(frozen=True, slots=True)
class DcgmUnit:
    """A DCGM unit, and the number of it per Railscope base unit."""

    name: str
    per_base_unit: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class FormulaTerm:
    """A reading of a GPU or a MIG device; `part` is its key without the device.

    If a part is `EACH`, all readings of the device are summed; a missing one is not an error. `weights` are
    factors by the last part of the key.
    """

    metric: declare.Metric
    part: tuple[str, ...] = ()
    weight: int = 1
    weights: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DcgmFormula:
    """A weighted sum of readings; with `denominator`, as a share of that sum."""

    terms: tuple[FormulaTerm, ...]
    denominator: tuple[FormulaTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class DcgmMetric:
    """A metric of dcgm-exporter.

    `gpu` are the formulas in order; the first one with all readings of a GPU is used. `mig` computes the
    metric for a MIG device; a partitioned GPU has no sample of its own then. `otherwise_zero` is a metric
    of the node: while that has a value, a GPU without the reading shows 0.
    """

    name: str
    kind: declare.MetricKind
    measure: DcgmUnit
    help: str
    gpu: tuple[DcgmFormula, ...]
    mig: DcgmFormula | None = None
    otherwise_zero: declare.Metric | None = None
    remark: str = ""

    @property
    def sentence(self) -> str:
        """Help text with the unit."""
        return f"{self.help}, {self.measure.name}." if self.measure.name else f"{self.help}."

    @property
    def formulas(self) -> tuple[DcgmFormula, ...]:
        """All formulas of the metric."""
        return (*self.gpu, self.mig) if self.mig else self.gpu


def reading_of(metric: declare.Metric, *part: str) -> DcgmFormula:
    """Return a formula for one reading, or for the sum of those that `EACH` matches."""
    return DcgmFormula((FormulaTerm(metric, part),))


def _dcgm_metric(  # noqa: PLR0913 - one argument for each column of the table
    kind: declare.MetricKind,
    name: str,
    measure: DcgmUnit,
    help_: str,
    *gpu: DcgmFormula,
    mig: DcgmFormula | None = None,
    remark: str = "",
) -> DcgmMetric:
    """Return a row; the name comes without the common prefix."""
    return DcgmMetric(f"DCGM_FI_{name}", kind, measure, help_, gpu, mig, remark=remark)


dcgm_gauge = partial(_dcgm_metric, declare.MetricKind.GAUGE)
dcgm_counter = partial(_dcgm_metric, declare.MetricKind.COUNTER)

COUNT = DcgmUnit("")
CODE = DcgmUnit("as a code")
FLAG = DcgmUnit("1 or 0")
CELSIUS = DcgmUnit("in degrees Celsius")
WATTS = DcgmUnit("in W")
MILLIJOULES = DcgmUnit("in mJ", Fraction(1000))
MEGAHERTZ = DcgmUnit("in MHz", Fraction(1, 10**6))
MEBIBYTES = DcgmUnit("in MiB", Fraction(1, 1 << 20))
# GPU_UTIL and similar fields are percent; the profiling fields are ratios (DcgmGpmManager.cpp divides GPM's
# percent by 100), and so is FB_USED_PERCENT in spite of its name (dcgm_fields.h).
PERCENT = DcgmUnit("in percent", Fraction(100))
SHARE = DcgmUnit("from 0 to 1")
# The help texts of older releases state microseconds; the values have always been NVML's nanoseconds
# (NVIDIA/dcgm-exporter, pull request 589).
NANOSECONDS = DcgmUnit("in ns", Fraction(10**9))
BYTES_PER_SECOND = DcgmUnit("in B/s")
# As documented by DCGM, and as measured. The public source divides NVML's KiB per second by 1000 instead
# (DcgmCacheManager.cpp), which would be 2.4 percent more.
MEBIBYTES_PER_SECOND = DcgmUnit("in MiB/s", Fraction(1, 1 << 20))


def _difference(total: declare.Metric, taken: declare.Metric) -> DcgmFormula:
    return DcgmFormula((FormulaTerm(total), FormulaTerm(taken, weight=-1)))


def _used_share(
    used: declare.Metric, total: declare.Metric, reserved: declare.Metric
) -> DcgmFormula:
    return DcgmFormula((FormulaTerm(used),), _difference(total, reserved).terms)


_REASONS = DcgmFormula((FormulaTerm(c.GPU_THROTTLE_ACTIVE, (EACH,), weights=c.THROTTLE_BITS),))
_NVLINK_TRAFFIC = DcgmFormula(
    (FormulaTerm(c.GPU_NVLINK_TRANSMIT), FormulaTerm(c.GPU_NVLINK_RECEIVE))
)
_GPU_USED_SHARE = _used_share(c.GPU_MEMORY_USED, c.GPU_MEMORY_TOTAL, c.GPU_MEMORY_RESERVED)
_MIG_USED_SHARE = _used_share(s.MIG_MEMORY_USED, s.MIG_MEMORY_SIZE, s.MIG_MEMORY_RESERVED)

_UP_TO_AMPERE = "Up to Ampere; later GPUs report margins instead."
_BEFORE_AMPERE = "Before Ampere."
_FROM_HOPPER = "Hopper and later."
_OLDER_NAME = "Older name of `DCGM_FI_DEV_CLOCKS_EVENT_REASONS`."
_CRC_OF_HOPPER = "On Hopper the CRC errors of the data link layer. None from Blackwell on."
_RATE_NOT_COUNT = (
    "A rate, although older releases declare it a counter. From Hopper on; for older GPUs use "
    "`rate()` of `railscope_gpu_nvlink_transmitted_bytes_total` and similar counters."
)
_NO_XID = (
    "0 if there was none so far, as in dcgm-exporter. Absent while the kernel log cannot be read and "
    "no event of the driver has reported an Xid."
)

_LOAD: tuple[DcgmMetric, ...] = (
    dcgm_gauge("DEV_SM_CLOCK", MEGAHERTZ, "SM clock", reading_of(c.GPU_CLOCK_SPEED, "sm")),
    dcgm_gauge("DEV_MEM_CLOCK", MEGAHERTZ, "Memory clock", reading_of(c.GPU_CLOCK_SPEED, "memory")),
    dcgm_gauge("DEV_VIDEO_CLOCK", MEGAHERTZ, "Video clock", reading_of(c.GPU_CLOCK_SPEED, "video")),
    dcgm_gauge("DEV_MAX_SM_CLOCK", MEGAHERTZ, "Maximum SM clock", reading_of(c.GPU_CLOCK_LIMIT, "sm")),
    dcgm_gauge("DEV_MAX_MEM_CLOCK", MEGAHERTZ, "Maximum memory clock", reading_of(c.GPU_CLOCK_LIMIT, "memory")),
    dcgm_gauge("DEV_MAX_VIDEO_CLOCK", MEGAHERTZ, "Maximum video clock", reading_of(c.GPU_CLOCK_LIMIT, "video")),
    dcgm_gauge("DEV_CLOCKS_EVENT_REASONS", COUNT, "Reasons for reduced clocks: a bit mask", _REASONS),
    dcgm_gauge("DEV_CLOCK_THROTTLE_REASONS", COUNT, "Reasons for reduced clocks: a bit mask", _REASONS, remark=_OLDER_NAME),
    dcgm_gauge("DEV_GPU_TEMP", CELSIUS, "GPU temperature", reading_of(c.GPU_TEMPERATURE)),
    dcgm_gauge("DEV_MEMORY_TEMP", CELSIUS, "Memory temperature", reading_of(c.GPU_MEMORY_TEMPERATURE)),
    dcgm_gauge("DEV_GPU_TEMP_LIMIT", CELSIUS, "Margin to the nearest slowdown", reading_of(c.GPU_TEMPERATURE_MARGIN), remark=_FROM_HOPPER),
    *(
        dcgm_gauge(f"DEV_{name}_TEMP", CELSIUS, description, reading_of(c.GPU_TEMPERATURE_THRESHOLD, threshold), remark=_UP_TO_AMPERE)
        for name, description, threshold in (
            ("GPU_MAX_OP", "Maximum operating temperature of the GPU", "gpu_maximum"),
            ("MEM_MAX_OP", "Maximum operating temperature of the memory", "memory_maximum"),
            ("SLOWDOWN", "GPU temperature at which it slows down", "slowdown"),
            ("SHUTDOWN", "GPU temperature at which it shuts down", "shutdown"),
        )
    ),
    dcgm_gauge("DEV_POWER_USAGE", WATTS, "Power of the board", reading_of(c.GPU_POWER)),
    dcgm_gauge("DEV_POWER_USAGE_INSTANT", WATTS, "Instantaneous power", reading_of(c.GPU_POWER_INSTANT)),
    dcgm_counter("DEV_TOTAL_ENERGY_CONSUMPTION", MILLIJOULES, "Energy since driver load", reading_of(c.GPU_ENERGY)),
    dcgm_gauge("DEV_ENFORCED_POWER_LIMIT", WATTS, "Enforced power limit", reading_of(c.GPU_POWER_LIMIT)),
    *(
        dcgm_gauge(f"DEV_POWER_MGMT_LIMIT{name}", WATTS, description, reading_of(c.GPU_POWER_BOUNDS, bound))
        for name, description, bound in (
            ("", "Requested power limit", "requested"),
            ("_MIN", "Minimum power limit", "minimum"),
            ("_MAX", "Maximum power limit", "maximum"),
            ("_DEF", "Default power limit", "default"),
        )
    ),
    dcgm_gauge("DEV_PSTATE", CODE, "Performance state", reading_of(c.GPU_PERFORMANCE_STATE)),
    dcgm_gauge("DEV_FAN_SPEED", PERCENT, "Requested speed of the first fan", reading_of(c.GPU_FAN_SPEED, "0")),
    dcgm_gauge("DEV_GPU_UTIL", PERCENT, "Time with a running kernel", reading_of(c.GPU_UTILIZATION)),
    dcgm_gauge("DEV_MEM_COPY_UTIL", PERCENT, "Time with memory traffic", reading_of(c.GPU_MEMORY_ACTIVITY)),
    dcgm_gauge("DEV_ENC_UTIL", PERCENT, "Time with a busy video encoder", reading_of(c.GPU_ENGINE_UTILIZATION, "encoder")),
    dcgm_gauge("DEV_DEC_UTIL", PERCENT, "Time with a busy video decoder", reading_of(c.GPU_ENGINE_UTILIZATION, "decoder")),
    *(
        dcgm_counter(f"DEV_{name}_VIOLATION", NANOSECONDS, f"Time with clocks reduced by {cause}", reading_of(c.GPU_THROTTLE_TIME, reason))
        for name, cause, reason in (
            ("POWER", "the power cap", "software_power_cap"),
            ("THERMAL", "heat", "thermal"),
            ("SYNC_BOOST", "sync boost", "sync_boost"),
            ("BOARD_LIMIT", "the limit of the board", "board_limit"),
            ("LOW_UTIL", "low utilization", "low_utilization"),
            ("RELIABILITY", "the reliability voltage", "reliability"),
            ("TOTAL_APP_CLOCKS", "anything, below the application clocks", "application_clocks"),
            ("TOTAL_BASE_CLOCKS", "anything, below the base clocks", "base_clocks"),
        )
    ),
)  # fmt: skip
_MEMORY: tuple[DcgmMetric, ...] = (
    dcgm_gauge("DEV_FB_TOTAL", MEBIBYTES, "Installed memory", reading_of(c.GPU_MEMORY_TOTAL), mig=reading_of(s.MIG_MEMORY_SIZE)),
    dcgm_gauge("DEV_FB_FREE", MEBIBYTES, "Free memory", reading_of(c.GPU_MEMORY_FREE), mig=reading_of(s.MIG_MEMORY_FREE)),
    dcgm_gauge("DEV_FB_USED", MEBIBYTES, "Memory used by processes", reading_of(c.GPU_MEMORY_USED), mig=reading_of(s.MIG_MEMORY_USED)),
    dcgm_gauge("DEV_FB_RESERVED", MEBIBYTES, "Memory reserved by the driver", reading_of(c.GPU_MEMORY_RESERVED), mig=reading_of(s.MIG_MEMORY_RESERVED)),
    dcgm_gauge("DEV_FB_USED_PERCENT", SHARE, "Memory in use, relative to the memory without the driver's own", _GPU_USED_SHARE, mig=_MIG_USED_SHARE, remark="A share, not percent, despite its name."),
    dcgm_gauge("DEV_BAR1_TOTAL", MEBIBYTES, "BAR1 address space", reading_of(c.GPU_BAR1_SIZE), mig=reading_of(s.MIG_BAR1_SIZE)),
    dcgm_gauge("DEV_BAR1_FREE", MEBIBYTES, "Free BAR1 address space", _difference(c.GPU_BAR1_SIZE, c.GPU_BAR1_USED), mig=_difference(s.MIG_BAR1_SIZE, s.MIG_BAR1_USED)),
    dcgm_gauge("DEV_BAR1_USED", MEBIBYTES, "Used BAR1 address space", reading_of(c.GPU_BAR1_USED), mig=reading_of(s.MIG_BAR1_USED)),
)  # fmt: skip
_HEALTH: tuple[DcgmMetric, ...] = (
    replace(dcgm_gauge("DEV_XID_ERRORS", CODE, "Number of the last Xid", reading_of(h.GPU_LAST_XID), remark=_NO_XID), otherwise_zero=k.XIDS),
    dcgm_gauge("DEV_ECC_CURRENT", FLAG, "True if ECC is enabled", reading_of(h.GPU_ECC_MODE)),
    dcgm_gauge("DEV_ECC_PENDING", FLAG, "True if ECC will be enabled after a reset", reading_of(h.GPU_ECC_PENDING)),
    *(
        dcgm_counter(f"DEV_ECC_{short}_{span}_TOTAL", COUNT, f"{correction} memory errors {since}", reading_of(h.GPU_ECC_ERRORS, error, lifetime))
        for span, since, lifetime in (("VOL", "since driver load", "volatile"), ("AGG", "over the lifetime of the board", "aggregate"))
        for short, correction, error in (("SBE", "Corrected", "corrected"), ("DBE", "Uncorrected", "uncorrected"))
    ),
    dcgm_gauge("DEV_THRESHOLD_SRM", FLAG, "True if on-chip memory had too many errors", reading_of(h.GPU_SRAM_THRESHOLD), remark="Requires root."),
    dcgm_counter("DEV_RETIRED_SBE", COUNT, "Pages retired for corrected errors", reading_of(h.GPU_RETIRED_PAGES, "correctable"), remark=_BEFORE_AMPERE),
    dcgm_counter("DEV_RETIRED_DBE", COUNT, "Pages retired for uncorrected errors", reading_of(h.GPU_RETIRED_PAGES, "uncorrectable"), remark=_BEFORE_AMPERE),
    dcgm_counter("DEV_RETIRED_PENDING", FLAG, "True if retirement of pages is pending", reading_of(h.GPU_RETIRED_PENDING), remark=_BEFORE_AMPERE),
    dcgm_counter("DEV_CORRECTABLE_REMAPPED_ROWS", COUNT, "Rows remapped for corrected errors", reading_of(h.GPU_REMAPPED_ROWS, "correctable")),
    dcgm_counter("DEV_UNCORRECTABLE_REMAPPED_ROWS", COUNT, "Rows remapped for uncorrected errors", reading_of(h.GPU_REMAPPED_ROWS, "uncorrectable")),
    dcgm_gauge("DEV_ROW_REMAP_FAILURE", FLAG, "True if a row could not be remapped", reading_of(h.GPU_ROW_REMAP_FAILURE)),
    dcgm_gauge("DEV_ROW_REMAP_PENDING", FLAG, "True if a remap is pending until a reset", reading_of(h.GPU_ROW_REMAP_PENDING)),
    dcgm_gauge("DEV_GPU_RECOVERY_ACTION", CODE, "Recovery action required by the driver", reading_of(h.GPU_RECOVERY_ACTION)),
    dcgm_gauge("DEV_MIG_MODE", FLAG, "True if MIG is enabled", reading_of(s.GPU_MIG_MODE)),
    dcgm_gauge("DEV_PERSISTENCE_MODE", FLAG, "True if persistence mode is enabled", reading_of(c.GPU_PERSISTENCE)),
)  # fmt: skip
_LINKS: tuple[DcgmMetric, ...] = (
    dcgm_counter("DEV_PCIE_REPLAY_COUNTER", COUNT, "Retransmitted PCIe packets", reading_of(h.GPU_PCIE_REPLAYS)),
    dcgm_gauge("DEV_PCIE_LINK_GEN", COUNT, "Current PCIe generation", reading_of(h.GPU_PCIE_GENERATION)),
    dcgm_gauge("DEV_PCIE_LINK_WIDTH", COUNT, "Current number of PCIe lanes", reading_of(h.GPU_PCIE_WIDTH)),
    dcgm_gauge("DEV_PCIE_MAX_LINK_GEN", COUNT, "Maximum PCIe generation", reading_of(h.GPU_PCIE_GENERATION_LIMIT)),
    dcgm_gauge("DEV_PCIE_MAX_LINK_WIDTH", COUNT, "Maximum number of PCIe lanes", reading_of(h.GPU_PCIE_WIDTH_LIMIT)),
    dcgm_counter("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", COUNT, "CRC errors of flits, all NVLinks", reading_of(n.NVLINK_ERRORS, EACH, "crc_flit"), reading_of(n.NVLINK_ERRORS, EACH, "crc"), remark=_CRC_OF_HOPPER),
    dcgm_counter("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", COUNT, "CRC errors of data, all NVLinks", reading_of(n.NVLINK_ERRORS, EACH, "crc_data"), remark="Up to Ampere."),
    dcgm_counter("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", COUNT, "Replays, all NVLinks", reading_of(n.NVLINK_ERRORS, EACH, "replay"), remark="Up to Hopper."),
    dcgm_counter("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", COUNT, "Recoveries, all NVLinks", reading_of(n.NVLINK_ERRORS, EACH, "recovery"), remark="Up to Hopper."),
    dcgm_gauge("DEV_NVLINK_BANDWIDTH_TOTAL", MEBIBYTES_PER_SECOND, "NVLink traffic of both directions", _NVLINK_TRAFFIC, remark=_RATE_NOT_COUNT),
)  # fmt: skip
_PROFILING: tuple[DcgmMetric, ...] = (
    dcgm_gauge("PROF_GR_ENGINE_ACTIVE", SHARE, "Time with an active context", reading_of(c.GPU_GRAPHICS_ACTIVITY), mig=reading_of(c.MIG_GRAPHICS_ACTIVITY), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_SM_ACTIVE", SHARE, "SMs and time with a warp", reading_of(c.GPU_SM_ACTIVITY), mig=reading_of(c.MIG_SM_ACTIVITY), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_SM_OCCUPANCY", SHARE, "Resident warps as a share of the maximum", reading_of(c.GPU_SM_OCCUPANCY), mig=reading_of(c.MIG_SM_OCCUPANCY), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_PIPE_TENSOR_ACTIVE", SHARE, "Time with an active tensor pipe", reading_of(c.GPU_TENSOR_ACTIVITY), mig=reading_of(c.MIG_TENSOR_ACTIVITY), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_DRAM_ACTIVE", SHARE, "Memory traffic as a share of the peak bandwidth",
          reading_of(c.GPU_DRAM_ACTIVITY), mig=reading_of(c.MIG_DRAM_ACTIVITY), remark=_FROM_HOPPER),
    *(
        dcgm_gauge(f"PROF_PIPE_{name}_ACTIVE", SHARE, f"Time with an active {unit} pipe", reading_of(c.GPU_PIPE_ACTIVITY, pipe), mig=reading_of(c.MIG_PIPE_ACTIVITY, pipe), remark=_FROM_HOPPER)
        for name, unit, pipe in (
            ("FP64", "FP64", "fp64"),
            ("FP32", "FP32", "fp32"),
            ("FP16", "FP16", "fp16"),
            ("INT", "integer", "integer"),
            ("TENSOR_IMMA", "integer tensor", "tensor_imma"),
            ("TENSOR_HMMA", "half-precision tensor", "tensor_hmma"),
            ("TENSOR_DFMA", "FP64 tensor", "tensor_dfma"),
        )
    ),
    dcgm_gauge("PROF_PCIE_TX_BYTES", BYTES_PER_SECOND, "PCIe traffic from the GPU", reading_of(c.GPU_PCIE_TRANSMIT), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_PCIE_RX_BYTES", BYTES_PER_SECOND, "PCIe traffic to the GPU", reading_of(c.GPU_PCIE_RECEIVE), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_NVLINK_TX_BYTES", BYTES_PER_SECOND, "NVLink traffic from the GPU", reading_of(c.GPU_NVLINK_TRANSMIT), remark=_FROM_HOPPER),
    dcgm_gauge("PROF_NVLINK_RX_BYTES", BYTES_PER_SECOND, "NVLink traffic to the GPU", reading_of(c.GPU_NVLINK_RECEIVE), remark=_FROM_HOPPER),
)  # fmt: skip

DCGM_METRICS: tuple[DcgmMetric, ...] = (*_LOAD, *_MEMORY, *_HEALTH, *_LINKS, *_PROFILING)
