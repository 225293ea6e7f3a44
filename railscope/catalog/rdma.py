"""Metrics of RDMA ports: the files of `counters/` and `hw_counters/`, with one meaning per metric.

`meaning` maps a driver's file to its metric. A file without a metric is still reported, through the
metrics that `other` returns, with its own name as a label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

# fmt: off
from railscope.catalog.declare import (
    BASIC,
    MEGABIT,
    PORT_BYTES,
    STANDARD,
    Metric,
    MetricTable,
    Rollup,
)
from railscope.catalog.entities import RDMA_COUNTER, RDMA_PORT
from railscope.catalog.rdma_counters import COUNTERS, RESOURCES, RdmaRow

DRIVER_LOAD = "Counts from driver load or from when the counter was last cleared."
_PORT = MetricTable(RDMA_PORT, resets=DRIVER_LOAD)

PORT_STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
ACTIVE_STATES = frozenset({4, 5})
"""States in which a port carries traffic: an active one stays active while its link recovers (enum ib_port_state)."""
PHYSICAL_STATES = {
    1: "sleep",
    2: "polling",
    3: "disabled",
    4: "training",
    5: "link_up",
    6: "link_error_recovery",
    7: "phy_test",
}
_DIRECTORY = "/sys/class/infiniband/*/ports/*"
RDMA_INFO = _PORT.info("railscope_rdma_port_info", "Identity of this RDMA port: driver, PCI address, firmware, board, interface and rail.", "/sys/class/infiniband/*/{fw_ver,board_id,hca_type,device}, ports/*/link_layer", detail=BASIC)
RDMA_STATE = _PORT.state("railscope_rdma_port_state", "Logical state of the port; a port carries traffic while it is active or active_defer.", "/sys/class/infiniband/*/ports/*/state", states=PORT_STATES)
RDMA_PHYSICAL_STATE = _PORT.state("railscope_rdma_port_physical_state", "Physical state of the port's link.", "/sys/class/infiniband/*/ports/*/phys_state", states=PHYSICAL_STATES)
RDMA_UP = _PORT.gauge("railscope_rdma_port_up", "1 if the port's logical state is active or active_defer, 0 otherwise.", "/sys/class/infiniband/*/ports/*/state", rollups=(Rollup.SUM, Rollup.MIN), detail=BASIC)
RDMA_RATE = _PORT.gauge("railscope_rdma_port_rate_bytes_per_second", "Line rate of the port.", "/sys/class/infiniband/*/ports/*/rate (Gb/s)", scale=MEGABIT, rollups=(Rollup.SUM, Rollup.MIN), detail=BASIC)
RDMA_SATURATED = _PORT.gauge("railscope_rdma_saturated_counters", "Narrow counters of the port at their maximum value: the real count may be higher.", "/sys/class/infiniband/*/ports/*/counters/* at all ones")
RDMA_OTHER = _PORT.counter("railscope_rdma_vendor_total", "Counter of the RDMA driver without its own metric, under the driver's name.", "/sys/class/infiniband/*/ports/*/{counters,counters_ext,hw_counters}/*, */hw_counters/* as port 0", about=RDMA_COUNTER, saturates=True)
RDMA_OTHER_VALUE = _PORT.gauge("railscope_rdma_vendor_value", "Current value of the RDMA driver without its own metric, under the driver's name.", "hw_counters: bnxt_re db_fifo_register; mana current_rate, num_qps_*; any active_*, watermark_*", about=RDMA_COUNTER)
_VALUES = ("active_", "watermark_", "num_qps_")
_VALUE = {"db_fifo_register", "current_rate"}


def other(file: str) -> Metric:
    """Return the metric for a file without its own: drivers mix current values with counters."""
    return RDMA_OTHER_VALUE if file.startswith(_VALUES) or file in _VALUE else RDMA_OTHER


def _counter(row: RdmaRow) -> Metric:
    return _PORT.counter(
        f"railscope_rdma_{row.stem}_total", row.meaning, f"{_DIRECTORY}: {row.files}",
        rollups=(Rollup.SUM,) if row.summed else (), bits=row.bits, saturates=row.saturates,
        detail=BASIC if row.basic else STANDARD,
        valid=PORT_BYTES if row.stem.endswith("_bytes") else None,
    )


def _resource(row: RdmaRow) -> Metric:
    return _PORT.gauge(
        f"railscope_rdma_{row.stem}", row.meaning, f"{_DIRECTORY}/hw_counters: {row.files}"
    )


RDMA_COUNTERS: tuple[Metric, ...] = tuple(map(_counter, COUNTERS))
RDMA_RESOURCES: tuple[Metric, ...] = tuple(map(_resource, RESOURCES))
_ROWS = (*zip(RDMA_COUNTERS, COUNTERS, strict=True), *zip(RDMA_RESOURCES, RESOURCES, strict=True))


def reported_by(row: RdmaRow) -> Iterator[tuple[str, str]]:
    """Yield the pairs of driver and file of a row, without remarks in parentheses."""
    for part in row.files.split("; "):
        drivers, _, files = part.partition(": ")
        for driver in drivers.split(", "):
            for file in files.split(", "):
                yield driver, file.partition(" (")[0]


EVERY_DRIVER = "ib"
FILES: dict[str, dict[str, Metric]] = defaultdict(dict)
"""The metric of each file, by driver; those of port management under "ib"."""
for _metric, _row in _ROWS:
    for _driver, _file in reported_by(_row):
        if FILES[_driver].setdefault(_file, _metric) is not _metric:
            _message = f"{_file} of {_driver} has two metrics"
            raise ValueError(_message)


def _agreed() -> dict[str, Metric]:
    by_file: dict[str, set[Metric]] = defaultdict(set)
    for files in FILES.values():
        for file, metric in files.items():
            by_file[file].add(metric)
    return {file: metrics.pop() for file, metrics in by_file.items() if len(metrics) == 1}


COUNTER_FILES = _agreed()
"""Metric of each file name that has the same meaning in every driver that has it."""


def meaning(driver: str, file: str) -> Metric | None:
    """Return the metric of a file; for an unknown driver, only if all other drivers agree on it."""
    if driver not in FILES:
        return COUNTER_FILES.get(file)
    return FILES[driver].get(file) or FILES[EVERY_DRIVER].get(file)


OPTIONAL = frozenset(
    {
        "cc_rx_ce_pkts", "cc_rx_cnp_pkts", "cc_tx_cnp_pkts",
        "rdma_tx_bytes", "rdma_rx_bytes", "rdma_tx_packets", "rdma_rx_packets",
    }
)
"""Counters of mlx5 without a file: RDMA netlink reports those that are enabled."""
_DATA = {"port_xmit_data", "port_rcv_data", "port_xmit_data_64", "port_rcv_data_64"}
_WORD_BYTES, _FLIT_BYTES = 4, 8
_NARROW_DRIVERS = {"mlx5", "mlx4"}
_WIDE = ("np_", "rp_", "cc_", "rdma_", "rx_icrc_")


def bytes_per_step(driver: str, file: str) -> int:
    """Return the size of one step of a file in the unit of its metric.

    Port management counts words of four octets (Documentation/ABI/stable/sysfs-class-infiniband); hfi1
    puts its count of flits there, which have eight (hw/hfi1/mad.c, C_DC_XMIT_FLITS).
    """
    if file not in _DATA:
        return 1
    return _FLIT_BYTES if driver == "hfi1" else _WORD_BYTES


def wraps_at_32_bits(driver: str, file: str) -> bool:
    """True if a file of `hw_counters/` is a 32-bit counter that wraps to zero.

    The queue counters of mlx5 and the diagnostic counters of mlx4 do; congestion, ICRC and optional
    counters of mlx5 have 64 bits, as do all counters of the other drivers (irdma extends its own).
    """
    return driver in _NARROW_DRIVERS and not file.startswith(_WIDE)


def highest(file: str) -> int:
    """Return the value at which a narrow counter of port management saturates; 0 if it does not."""
    metric = FILES[EVERY_DRIVER].get(file)
    return (1 << metric.wraps_at_bits) - 1 if metric and metric.saturates else 0
