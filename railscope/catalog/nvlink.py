"""NVLink: traffic and signal quality of each link, by generation."""

from fractions import Fraction

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import (
    GPU,
    NVLINK,
    NVLINK_BER,
    NVLINK_ERROR,
    NVLINK_FEC,
    NVLINK_RECOVERY,
)
from railscope.catalog.gpu import DRIVER_LOAD

KIBIBYTE = Fraction(1024)

NVLINK_INFO = Metric(
    "railscope_nvlink_info",
    Kind.INFO,
    NVLINK,
    help="What this NVLink is: its version, and what it leads to.",
    origin="nvmlDeviceGetNvLinkVersion, nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo",
)
NVLINK_LINKS = Metric(
    "railscope_gpu_nvlinks",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    since="Volta",
    help="NVLinks the GPU has.",
    origin="nvmlDeviceGetFieldValues 91 NVLINK_LINK_COUNT",
)
NVLINK_ACTIVE = Metric(
    "railscope_gpu_nvlinks_active",
    Kind.GAUGE,
    GPU,
    rollups=(Rollup.MIN,),
    since="Volta",
    help="NVLinks of the GPU that are up.",
    origin="nvmlDeviceGetFieldValues 165 NVLINK_GET_STATE, nvmlDeviceGetNvLinkState",
)
NVLINK_STATE = Metric(
    "railscope_nvlink_state",
    Kind.STATE,
    NVLINK,
    since="Volta",
    states={0: "inactive", 1: "active", 2: "sleep", 3: "active_without_traffic"},
    help="State of the link.",
    origin="nvmlDeviceGetFieldValues 165 NVLINK_GET_STATE, nvmlDeviceGetNvLinkState",
)
NVLINK_POWER_STATE = Metric(
    "railscope_nvlink_power_state",
    Kind.STATE,
    NVLINK,
    since="Hopper",
    states={0: "high_speed", 1: "low_power"},
    help="Power state of the link; an idle link may rest.",
    origin="nvmlDeviceGetFieldValues 167 NVLINK_GET_POWER_STATE",
)
NVLINK_SPEED = Metric(
    "railscope_nvlink_speed_bytes_per_second",
    Kind.GAUGE,
    NVLINK,
    unit=Unit.BYTES_PER_SECOND,
    scale=Fraction(10**6),
    rollups=(Rollup.MIN,),
    since="Volta",
    help="Raw speed of the link in one direction; about six percent above the nominal one.",
    origin="nvmlDeviceGetFieldValues 164 NVLINK_GET_SPEED, 84 to 89, 132 to 137 (MB/s)",
)
GPU_NVLINK_TRANSMITTED = Metric(
    "railscope_gpu_nvlink_transmitted_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes transmitted over all NVLinks of the GPU, without the protocol.",
    origin="nvmlDeviceGetFieldValues 138, scope of all links (KiB)",
)
NVLINK_TRANSMITTED = Metric(
    "railscope_nvlink_transmitted_bytes_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes transmitted over the link, without the protocol.",
    origin="nvmlDeviceGetFieldValues 138, scope of the link (KiB)",
)
GPU_NVLINK_RECEIVED = Metric(
    "railscope_gpu_nvlink_received_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes received over all NVLinks of the GPU, without the protocol.",
    origin="nvmlDeviceGetFieldValues 139, scope of all links (KiB)",
)
NVLINK_RECEIVED = Metric(
    "railscope_nvlink_received_bytes_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes received over the link, without the protocol.",
    origin="nvmlDeviceGetFieldValues 139, scope of the link (KiB)",
)
GPU_NVLINK_RAW_TRANSMITTED = Metric(
    "railscope_gpu_nvlink_raw_transmitted_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes transmitted over all NVLinks of the GPU, with the protocol.",
    origin="nvmlDeviceGetFieldValues 140, scope of all links (KiB)",
)
NVLINK_RAW_TRANSMITTED = Metric(
    "railscope_nvlink_raw_transmitted_bytes_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes transmitted over the link, with the protocol.",
    origin="nvmlDeviceGetFieldValues 140, scope of the link (KiB)",
)
GPU_NVLINK_RAW_RECEIVED = Metric(
    "railscope_gpu_nvlink_raw_received_bytes_total",
    Kind.COUNTER,
    GPU,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes received over all NVLinks of the GPU, with the protocol.",
    origin="nvmlDeviceGetFieldValues 141, scope of all links (KiB)",
)
NVLINK_RAW_RECEIVED = Metric(
    "railscope_nvlink_raw_received_bytes_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.BYTES,
    scale=KIBIBYTE,
    resets=DRIVER_LOAD,
    since="Volta",
    help="Bytes received over the link, with the protocol.",
    origin="nvmlDeviceGetFieldValues 141, scope of the link (KiB)",
)
NVLINK_TRANSMITTED_PACKETS = Metric(
    "railscope_nvlink_transmitted_packets_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.PACKETS,
    resets=DRIVER_LOAD,
    since="Blackwell",
    help="Packets transmitted over the link.",
    origin="nvmlDeviceGetFieldValues 201 NVLINK_COUNT_XMIT_PACKETS",
)
NVLINK_RECEIVED_PACKETS = Metric(
    "railscope_nvlink_received_packets_total",
    Kind.COUNTER,
    NVLINK,
    unit=Unit.PACKETS,
    resets=DRIVER_LOAD,
    since="Blackwell",
    help="Packets received over the link.",
    origin="nvmlDeviceGetFieldValues 203 NVLINK_COUNT_RCV_PACKETS",
)
NVLINK_ERRORS = Metric(
    "railscope_nvlink_errors_total",
    Kind.COUNTER,
    NVLINK_ERROR,
    unit=Unit.ERRORS,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Volta",
    help="Errors of the link, by kind: replay, recovery and CRC up to Hopper, packets and symbols from Blackwell on.",
    origin="nvmlDeviceGetFieldValues 32 to 58, 96 to 119, 148 to 159, 161 to 163, 205 to 212, 219, 221, 289, 290",
    other_names={
        "dcgm-exporter": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
    },
)
NVLINK_RECOVERIES = Metric(
    "railscope_nvlink_recoveries_total",
    Kind.COUNTER,
    NVLINK_RECOVERY,
    rollups=(Rollup.SUM,),
    resets=DRIVER_LOAD,
    since="Blackwell",
    help="Recoveries of the link, by how they ended.",
    origin="nvmlDeviceGetFieldValues 213 SUCCESSFUL, 214 FAILED",
)
NVLINK_BIT_ERRORS = Metric(
    "railscope_nvlink_bit_error_decades",
    Kind.GAUGE,
    NVLINK_BER,
    scale=per(1000),
    rollups=(Rollup.MIN,),
    since="Blackwell",
    help="Bit error ratio as the power of ten below one: 12 stands for 1e-12. Higher is better.",
    origin="nvmlDeviceGetFieldValues 220 EFFECTIVE_BER, 222 SYMBOL_BER, 293 RAW_BER_V2 or 218 RAW_BER (mantissa and exponent)",
)
NVLINK_CODEWORDS = Metric(
    "railscope_nvlink_fec_codewords_total",
    Kind.COUNTER,
    NVLINK_FEC,
    resets=DRIVER_LOAD,
    since="Blackwell",
    help="Codewords by how many of their symbols error correction had to mend.",
    origin="nvmlDeviceGetFieldValues 235 to 250 FEC_HISTORY",
)
NVLINK_PLR_BLOCKS = Metric(
    "railscope_nvlink_retry_blocks_total",
    Kind.COUNTER,
    NVLINK_RECOVERY,
    resets=DRIVER_LOAD,
    since="Blackwell",
    help="Blocks the physical layer sent, and those it had to send again.",
    origin="nvmlDeviceGetFieldValues 294 PLR_XMIT_BLOCKS, 295 PLR_XMIT_RETRY_BLOCKS",
)
