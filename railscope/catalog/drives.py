"""Metrics of the health of NVMe drives; their traffic is reported with the node's disks."""

from railscope.catalog.declare import Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NVME_DIRECTION, NVME_DRIVE, NVME_WARNING

_LOG = "NVMe SMART / health log (page 0x02),"
_LIFETIME = "Counts over the life of the drive."
_HUNDREDTH = per(100)

STATES = {
    0: "new",
    1: "live",
    2: "resetting",
    3: "connecting",
    4: "deleting",
    5: "deleting_without_io",
    6: "dead",
}
"""enum nvme_ctrl_state of the kernel."""

INFO = Metric(
    "railscope_nvme_info",
    Kind.INFO,
    NVME_DRIVE,
    help="What the drive is: model, serial number, firmware, and how the kernel calls it.",
    origin="/sys/class/nvme/*/{model,serial,firmware_rev,transport}",
)
STATE = Metric(
    "railscope_nvme_state",
    Kind.STATE,
    NVME_DRIVE,
    states=STATES,
    help="How the kernel's connection to the drive is.",
    origin="/sys/class/nvme/*/state",
)
WARNING = Metric(
    "railscope_nvme_critical_warning",
    Kind.GAUGE,
    NVME_WARNING,
    rollups=(Rollup.SUM,),
    help="Whether the drive warns of this (1) or not (0).",
    origin=f"{_LOG} critical warning",
)


def _gauge(stem: str, unit: Unit, help_: str, origin: str, rollup: Rollup = Rollup.MAX) -> Metric:
    return Metric(
        f"railscope_nvme_{stem}_{unit}", Kind.GAUGE, NVME_DRIVE,
        unit=unit, scale=_HUNDREDTH if unit is Unit.RATIO else per(1), rollups=(rollup,),
        help=help_, origin=f"{_LOG} {origin}",
    )  # fmt: skip


def _counter(stem: str, help_: str, origin: str, unit: Unit = Unit.NONE) -> Metric:
    name = f"railscope_nvme_{stem}_{unit}_total" if unit else f"railscope_nvme_{stem}_total"
    return Metric(
        name, Kind.COUNTER, NVME_DRIVE,
        unit=unit, rollups=(Rollup.SUM,), resets=_LIFETIME, help=help_, origin=f"{_LOG} {origin}",
    )  # fmt: skip


TEMPERATURE = _gauge(
    "temperature", Unit.CELSIUS, "Temperature of the drive as a whole.", "composite temperature (K)"
)
USED = _gauge(
    "used",
    Unit.RATIO,
    "Share of the drive's life that is used up, as its maker reckons; 1 and more: over.",
    "percentage used",
)
SPARE = _gauge(
    "spare", Unit.RATIO, "Share of the spare capacity that is left.", "available spare", Rollup.MIN
)
SPARE_LIMIT = _gauge(
    "spare_limit",
    Unit.RATIO,
    "Share of spare capacity below which the drive warns.",
    "available spare threshold",
)
MEDIA_ERRORS = _counter(
    "media",
    "Times the drive could not read or write its data rightly.",
    "media and data integrity errors",
    Unit.ERRORS,
)
LOGGED_ERRORS = _counter(
    "logged", "Entries the drive ever made in its error log.", "error log entries", Unit.ERRORS
)
UNSAFE_SHUTDOWNS = _counter(
    "unsafe_shutdowns", "Times the drive lost power without notice.", "unsafe shutdowns"
)
POWER_CYCLES = _counter("power_cycles", "Times the drive was switched on.", "power cycles")
POWER_ON_TIME = Metric(
    "railscope_nvme_power_on_seconds_total",
    Kind.COUNTER,
    NVME_DRIVE,
    unit=Unit.SECONDS,
    scale=per(1) * 3600,
    rollups=(Rollup.MAX,),
    resets=_LIFETIME,
    help="Time the drive was switched on.",
    origin=f"{_LOG} power on hours (h)",
)
BUSY_TIME = Metric(
    "railscope_nvme_controller_busy_seconds_total",
    Kind.COUNTER,
    NVME_DRIVE,
    unit=Unit.SECONDS,
    scale=per(1) * 60,
    rollups=(Rollup.MAX,),
    resets=_LIFETIME,
    help="Time the drive's controller had commands to carry out.",
    origin=f"{_LOG} controller busy time (min)",
)
WARM_TIME = Metric(
    "railscope_nvme_warm_seconds_total",
    Kind.COUNTER,
    NVME_DRIVE,
    unit=Unit.SECONDS,
    scale=per(1) * 60,
    rollups=(Rollup.MAX,),
    resets=_LIFETIME,
    help="Time the drive was warmer than its warning temperature.",
    origin=f"{_LOG} warning composite temperature time (min)",
)
HOT_TIME = Metric(
    "railscope_nvme_hot_seconds_total",
    Kind.COUNTER,
    NVME_DRIVE,
    unit=Unit.SECONDS,
    scale=per(1) * 60,
    rollups=(Rollup.MAX,),
    resets=_LIFETIME,
    help="Time the drive was warmer than its critical temperature.",
    origin=f"{_LOG} critical composite temperature time (min)",
)
DATA = Metric(
    "railscope_nvme_lifetime_transferred_bytes_total",
    Kind.COUNTER,
    NVME_DIRECTION,
    unit=Unit.BYTES,
    scale=per(1) * 512_000,
    rollups=(Rollup.SUM,),
    resets=_LIFETIME,
    help="Data the host read or wrote over the life of the drive.",
    origin=f"{_LOG} data units read, written (1000 x 512 bytes, rounded up)",
)
