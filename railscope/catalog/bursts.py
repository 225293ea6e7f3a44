"""Histograms of short windows, which no scrape interval can miss.

A window is as long as burst sampling's period, 100 ms by default, but never shorter than the resolution
of a NIC's driver. Each window counts once, in the bucket of its measured value. So a share of windows is
a share of time, and windows times the window length are seconds: those in `..._count` less those in
`..._bucket{le="0.5"}` are the time in which a port was paused for more than half of a window. Buckets of
windows of one length add up over rails and nodes.
"""

from fractions import Fraction

from railscope.catalog.declare import EntityKind, Kind, Metric, Unit, per
from railscope.catalog.entities import GPU, GPU_WINDOW, NIC, NIC_WINDOW

START = "Counts from the start of the agent."
NANOSECOND = per(10**9)
MILLIONTH = per(10**6)
SHARES = tuple(
    Fraction(share) for share in ("0", "0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9")
)
RATES = tuple(Fraction(10) ** power for power in range(1, 6))


def _histogram(  # noqa: PLR0913, PLR0917 - one row of the table below
    name: str, about: EntityKind, bounds: tuple[Fraction, ...], unit: Unit, help_: str, origin: str
) -> Metric:
    return Metric(
        f"railscope_{name}",
        Kind.HISTOGRAM,
        about,
        unit=unit,
        scale=MILLIONTH,
        bounds=bounds,
        resets=START,
        help=help_,
        origin=origin,
    )


NIC_PAUSE = _histogram(
    "nic_burst_pause_ratio",
    NIC_WINDOW,
    SHARES,
    Unit.RATIO,
    "Windows by the share of their time in which the switch paused us (receive) or we paused it (transmit).",
    "growth of the PFC and pause times of ethtool statistics; of the priority paused longest",
)
NIC_UTILIZATION = _histogram(
    "nic_burst_utilization_ratio",
    NIC_WINDOW,
    SHARES,
    Unit.RATIO,
    "Windows by the share of the line rate that the port received or sent in them.",
    "growth of the port's bytes in ethtool statistics; /sys/class/net/*/speed",
)
NIC_NOTIFICATIONS = _histogram(
    "nic_burst_congestion_notifications_per_second",
    NIC_WINDOW,
    (Fraction(0), *RATES),
    Unit.NONE,
    "Windows by the rate of congestion notifications (CNP) that the port acted on (receive) or sent.",
    "growth of the CNP counters below /sys/class/infiniband/*/ports/*/hw_counters",
)
GPU_UTILIZATION_WINDOWS = _histogram(
    "gpu_burst_utilization_ratio",
    GPU_WINDOW,
    SHARES,
    Unit.RATIO,
    "Windows by the share of their time in which the GPU ran a kernel, as the driver averaged it.",
    "nvmlDeviceGetSamples(NVML_GPU_UTILIZATION_SAMPLES) (percent)",
)
GPU_POWER_WINDOWS = _histogram(
    "gpu_burst_power_ratio",
    GPU_WINDOW,
    (*SHARES, Fraction(1)),
    Unit.RATIO,
    "Windows by the power the GPU drew in them as a share of its limit.",
    "nvmlDeviceGetSamples(NVML_TOTAL_POWER_SAMPLES) (mW); nvmlDeviceGetEnforcedPowerLimit",
)


def _window(name: str, about: EntityKind, what: str) -> Metric:
    return Metric(
        f"railscope_{name}_burst_window_seconds",
        Kind.GAUGE,
        about,
        unit=Unit.SECONDS,
        scale=NANOSECOND,
        help=f"Length of a window in the histograms of bursts of {what}.",
        origin="the setting bursts.window_seconds",
    )


def _missed(name: str, about: EntityKind, what: str) -> Metric:
    return Metric(
        f"railscope_{name}_burst_missed_windows_total",
        Kind.COUNTER,
        about,
        resets=START,
        help=f"Windows without a measurement of {what}: a read failed, or came too late.",
        origin="agent",
    )


NIC_WINDOW_LENGTH = _window("nic", NIC, "the network card")
NIC_MISSED = _missed("nic", NIC, "the network card")
GPU_WINDOW_LENGTH = _window("gpu", GPU, "the GPU")
GPU_MISSED = _missed("gpu", GPU, "the GPU")
