"""Histograms of short windows, which no scrape interval can miss.

A window is as long as burst sampling's period, 100 ms by default, but never shorter than the resolution
of a NIC's driver. Each window counts once, in the bucket of its measured value. So a share of windows is
a share of time, and windows times the window length are seconds: those in `..._count` less those in
`..._bucket{le="0.5"}` are the time in which a port was paused for more than half of a window. Buckets of
windows of one length add up over rails and nodes.
"""

# fmt: off
from fractions import Fraction

from railscope.catalog.declare import AGENT_START, BASIC, FULL, MICRO, NANO, MetricTable
from railscope.catalog.entities import GPU, GPU_WINDOW, NIC, NIC_WINDOW

_NIC = MetricTable(NIC, resets=AGENT_START)
_NIC_WINDOWS = MetricTable(NIC_WINDOW, resets=AGENT_START)
_GPU = MetricTable(GPU, resets=AGENT_START)
_GPU_WINDOWS = MetricTable(GPU_WINDOW, resets=AGENT_START)

SHARES = tuple(
    Fraction(share) for share in ("0", "0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9")
)
RATES = tuple(Fraction(10) ** power for power in range(1, 6))
NIC_PAUSE = _NIC_WINDOWS.histogram("railscope_nic_burst_pause_ratio", "Windows by the share of their time in which the switch paused this port (receive) or this port paused the switch (transmit).", "growth of the PFC and pause times of ethtool statistics; of the priority paused longest", bounds=SHARES, scale=MICRO, detail=FULL)
NIC_UTILIZATION = _NIC_WINDOWS.histogram("railscope_nic_burst_utilization_ratio", "Windows by the share of the line rate that the port received or sent in them.", "growth of the port's bytes in ethtool statistics; /sys/class/net/*/speed", bounds=SHARES, scale=MICRO, detail=FULL)
NIC_NOTIFICATIONS = _NIC_WINDOWS.histogram("railscope_nic_burst_congestion_notifications_per_second", "Windows by the rate of congestion notifications (CNP) that the port acted on (receive) or sent.", "growth of the CNP counters below /sys/class/infiniband/*/ports/*/hw_counters", bounds=(Fraction(0), *RATES), scale=MICRO, detail=FULL)
GPU_UTILIZATION_WINDOWS = _GPU_WINDOWS.histogram("railscope_gpu_burst_utilization_ratio", "Windows by the share of their time in which the GPU ran a kernel, as the driver averaged it.", "nvmlDeviceGetSamples(NVML_GPU_UTILIZATION_SAMPLES) (percent)", bounds=SHARES, scale=MICRO, detail=FULL)
GPU_POWER_WINDOWS = _GPU_WINDOWS.histogram("railscope_gpu_burst_power_ratio", "Windows by the power the GPU drew in them as a share of its limit.", "nvmlDeviceGetSamples(NVML_TOTAL_POWER_SAMPLES) (mW); nvmlDeviceGetEnforcedPowerLimit", bounds=(*SHARES, Fraction(1)), scale=MICRO, detail=FULL)
NIC_WINDOW_LENGTH = _NIC.gauge("railscope_nic_burst_window_seconds", "Length of a window in the histograms of bursts of the NIC.", "the setting bursts.window_seconds", scale=NANO, detail=FULL)
NIC_MISSED = _NIC.counter("railscope_nic_burst_missed_windows_total", "Windows without a measurement of the NIC: a read failed, or came too late.", "agent", detail=BASIC)
GPU_WINDOW_LENGTH = _GPU.gauge("railscope_gpu_burst_window_seconds", "Length of a window in the histograms of bursts of the GPU.", "the setting bursts.window_seconds", scale=NANO, detail=FULL)
GPU_MISSED = _GPU.counter("railscope_gpu_burst_missed_windows_total", "Windows without a measurement of the GPU: a read failed, or came too late.", "agent", detail=BASIC)
