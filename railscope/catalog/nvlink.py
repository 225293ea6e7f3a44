"""NVLink: traffic and signal quality of each link, by generation."""

# fmt: off
from railscope.catalog import declare, entities, gpu

_GPU = declare.MetricTable(entities.GPU, resets=gpu.DRIVER_LOAD)
_LINK = declare.MetricTable(entities.NVLINK, resets=gpu.DRIVER_LOAD)

NVLINK_INFO = _LINK.info("railscope_nvlink_info", "Identity of this NVLink: version and remote device.", "nvmlDeviceGetNvLinkVersion, nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo")
NVLINK_LINKS = _GPU.gauge("railscope_gpu_nvlinks", "NVLinks the GPU has.", "nvmlDeviceGetFieldValues 91 NVLINK_LINK_COUNT", since="Volta")
NVLINK_ACTIVE = _GPU.gauge("railscope_gpu_nvlinks_active", "NVLinks of the GPU that are up.", "nvmlDeviceGetFieldValues 165 NVLINK_GET_STATE, nvmlDeviceGetNvLinkState", since="Volta")
NVLINK_STATE = _LINK.state("railscope_nvlink_state", "State of the link.", "nvmlDeviceGetFieldValues 165 NVLINK_GET_STATE, nvmlDeviceGetNvLinkState", states={0: "inactive", 1: "active", 2: "sleep", 3: "active_without_traffic"}, since="Volta")
NVLINK_POWER_STATE = _LINK.state("railscope_nvlink_power_state", "Power state of the link; an idle link may be in low power.", "nvmlDeviceGetFieldValues 167 NVLINK_GET_POWER_STATE", states={0: "high_speed", 1: "low_power"}, since="Hopper")
NVLINK_SPEED = _LINK.gauge("railscope_nvlink_speed_bytes_per_second", "Raw speed of the link in one direction; about six percent above the nominal one.", "nvmlDeviceGetFieldValues 164 NVLINK_GET_SPEED, 84 to 89, 132 to 137 (MB/s)", scale=declare.MEGA, since="Volta")
GPU_NVLINK_TRANSMITTED = _GPU.counter("railscope_gpu_nvlink_transmitted_bytes_total", "Bytes transmitted over all NVLinks of the GPU, without the protocol.", "nvmlDeviceGetFieldValues 138, scope of all links (KiB)", scale=declare.KIBI, rollups=(declare.Rollup.SUM,), since="Volta")
NVLINK_TRANSMITTED = _LINK.counter("railscope_nvlink_transmitted_bytes_total", "Bytes transmitted over the link, without the protocol.", "nvmlDeviceGetFieldValues 138, scope of the link (KiB)", scale=declare.KIBI, since="Volta")
GPU_NVLINK_RECEIVED = _GPU.counter("railscope_gpu_nvlink_received_bytes_total", "Bytes received over all NVLinks of the GPU, without the protocol.", "nvmlDeviceGetFieldValues 139, scope of all links (KiB)", scale=declare.KIBI, rollups=(declare.Rollup.SUM,), since="Volta")
NVLINK_RECEIVED = _LINK.counter("railscope_nvlink_received_bytes_total", "Bytes received over the link, without the protocol.", "nvmlDeviceGetFieldValues 139, scope of the link (KiB)", scale=declare.KIBI, since="Volta")
GPU_NVLINK_RAW_TRANSMITTED = _GPU.counter("railscope_gpu_nvlink_raw_transmitted_bytes_total", "Bytes transmitted over all NVLinks of the GPU, with the protocol.", "nvmlDeviceGetFieldValues 140, scope of all links (KiB)", scale=declare.KIBI, since="Volta")
NVLINK_RAW_TRANSMITTED = _LINK.counter("railscope_nvlink_raw_transmitted_bytes_total", "Bytes transmitted over the link, with the protocol.", "nvmlDeviceGetFieldValues 140, scope of the link (KiB)", scale=declare.KIBI, since="Volta")
GPU_NVLINK_RAW_RECEIVED = _GPU.counter("railscope_gpu_nvlink_raw_received_bytes_total", "Bytes received over all NVLinks of the GPU, with the protocol.", "nvmlDeviceGetFieldValues 141, scope of all links (KiB)", scale=declare.KIBI, since="Volta")
NVLINK_RAW_RECEIVED = _LINK.counter("railscope_nvlink_raw_received_bytes_total", "Bytes received over the link, with the protocol.", "nvmlDeviceGetFieldValues 141, scope of the link (KiB)", scale=declare.KIBI, since="Volta")
NVLINK_TRANSMITTED_PACKETS = _LINK.counter("railscope_nvlink_transmitted_packets_total", "Packets transmitted over the link.", "nvmlDeviceGetFieldValues 201 NVLINK_COUNT_XMIT_PACKETS", since="Blackwell")
NVLINK_RECEIVED_PACKETS = _LINK.counter("railscope_nvlink_received_packets_total", "Packets received over the link.", "nvmlDeviceGetFieldValues 203 NVLINK_COUNT_RCV_PACKETS", since="Blackwell")
NVLINK_ERRORS = _GPU.counter("railscope_nvlink_errors_total", "Errors of the link, by kind: replay, recovery and CRC up to Hopper, packets and symbols since Blackwell.", "nvmlDeviceGetFieldValues 32 to 58, 96 to 119, 148 to 159, 161 to 163, 205 to 212, 219, 221, 289, 290", about=entities.NVLINK_ERROR, rollups=(declare.Rollup.SUM,), since="Volta", dcgm="DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL")
NVLINK_RECOVERIES = _GPU.counter("railscope_nvlink_recoveries_total", "Recoveries of the link, by how they ended.", "nvmlDeviceGetFieldValues 213 SUCCESSFUL, 214 FAILED", about=entities.NVLINK_RECOVERY, since="Blackwell")
NVLINK_BIT_ERRORS = _GPU.gauge("railscope_nvlink_bit_error_decades", "Bit error ratio as the power of ten below one: 12 stands for 1e-12. Higher is better.", "nvmlDeviceGetFieldValues 220 EFFECTIVE_BER, 222 SYMBOL_BER, 293 RAW_BER_V2 or 218 RAW_BER (mantissa and exponent)", about=entities.NVLINK_BER, scale=declare.MILLI, since="Blackwell")
NVLINK_CODEWORDS = _GPU.counter("railscope_nvlink_fec_codewords_total", "Codewords by number of symbols that error correction corrected.", "nvmlDeviceGetFieldValues 235 to 250 FEC_HISTORY", about=entities.NVLINK_FEC, since="Blackwell")
NVLINK_PLR_BLOCKS = _GPU.counter("railscope_nvlink_retry_blocks_total", "Blocks the physical layer sent, and those it had to send again.", "nvmlDeviceGetFieldValues 294 PLR_XMIT_BLOCKS, 295 PLR_XMIT_RETRY_BLOCKS", about=entities.NVLINK_RECOVERY, since="Blackwell")
