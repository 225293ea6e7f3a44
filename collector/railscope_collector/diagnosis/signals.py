"""Signals: the named quantities that detectors compare, each with its formula, unit and meaning.

A formula takes the sums of one kind of device over a window of slots, and returns one value for each device; NaN
is unknown. Symbols in brackets are those of the literature on RoCE congestion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import numpy as np

from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.quantities import (
    LIMITS,
    PRIORITIES,
    DeviceKind,
    Limit,
    QuantityKind,
)
from railscope_collector.diagnosis.slot_sums import Floats, SlotSums, divide, or_zero

PAUSE_QUANTA_BITS = 65_535 * 512
"""Bit times for which one frame stops a priority at most (IEEE 802.1Qbb)."""

BITS_PER_BYTE = 8
_PAUSE_KINDS = "", "global_"
"""Prefixes of the quantities of PFC and of link-wide pause (IEEE 802.3x)."""


@dataclass(frozen=True)
class WindowSums:
    """Sums of one kind of device over `count` slots up to `end_slot`."""

    sums: SlotSums
    end_slot: int
    count: int

    def rate(self, *names: str) -> Floats:
        """Return the rate of the first of these quantities that a device reports."""
        return reduce(_first_known, map(self._rate, self._reported(names)))

    def total(self, *names: str) -> Floats:
        """Return the sum of quantities; those that a device does not report are left out."""
        first, *further = map(self._total, self._reported(names))
        return _sum_known(np.stack([first, *further])) if further else first

    def _reported(self, names: Sequence[str]) -> Sequence[str]:
        """Return the quantities that any device has reported; the first one if there are none."""
        if len(names) == 1:
            return names
        return [name for name in names if self.sums.has_readings(name)] or names[:1]

    def last(self, *names: str) -> Floats:
        """Return the newest value of the first of these quantities that a device has ever reported."""
        found = (self.sums.latest(name) for name in names)
        return reduce(_first_known, found)

    def current(self, name: str) -> Floats:
        """Return the newest value within the window; NaN without one."""
        return self.sums.last(name, self.end_slot, self.count)

    @cached_property
    def line_rate(self) -> Floats:
        """Bytes per second of the link; the expected speed while it is down."""
        rate = self.last("link_speed", "port_rate")
        return np.where(rate > 0, rate, self.last("expected_speed", "port_rate"))

    def _rate(self, name: str) -> Floats:
        return self.sums.rate(name, self.end_slot, self.count)

    def _total(self, name: str) -> Floats:
        return self.sums.total(name, self.end_slot, self.count)


class SingleSlots(WindowSums):
    """Sums of each of the slots, shape (slots, devices): formulas that take each device by itself take each slot by itself."""

    def current(self, name: str) -> Floats:
        """Return the value of each slot; NaN without one."""
        return self._rate(name)

    def _rate(self, name: str) -> Floats:
        return self.sums.history(name, self.end_slot, self.count)

    def _total(self, name: str) -> Floats:
        return self.sums.totals(name, self.end_slot, self.count)


def _first_known(first: Floats, second: Floats) -> Floats:
    return np.where(np.isnan(first), second, first)


def _sum_known(rows: Floats) -> Floats:
    are_known = ~np.isnan(rows)
    sums = np.where(are_known, rows, 0.0).sum(axis=0)
    found: Floats = np.where(are_known.any(axis=0), sums, np.nan)
    return found


def _rdma_rate(w: WindowSums, way: str) -> Floats:
    """RDMA bytes per second, `sent` or `received`; irdma counts them by version of IP (hw/irdma/verbs.c)."""
    found = w.rate(f"rdma_{way}_bytes", f"port_{way}_bytes")
    by_version = [f"ipv{version}_{way}_bytes" for version in (4, 6)]
    if not any(map(w.sums.has_readings, by_version)):
        return found
    return _first_known(found, _sum_known(np.stack([w.rate(name) for name in by_version])))


def _full_stop(w: WindowSums, frames: Floats) -> Floats:
    """Upper bound of the share of time that these frames per second stop a priority."""
    return np.minimum(frames * PAUSE_QUANTA_BITS / BITS_PER_BYTE / w.line_rate, 1.0)


def _pause_share(w: WindowSums, way: str, direction: str) -> Floats:
    """Share of time in which a priority or the link is stopped; by the number of frames if there are no durations.

    A port uses PFC or link-wide pause. Many drivers list the counters of both, and those of the other one are 0.
    """
    return np.fmax(
        *(
            _first_known(
                w.rate(f"{kind}{way}_seconds"),
                _full_stop(w, w.rate(f"{kind}pause_frames_{direction}")),
            )
            for kind in _PAUSE_KINDS
        )
    )


def _pause_frames(w: WindowSums, direction: str) -> Floats:
    """Pause frames per second, of PFC or link-wide."""
    return np.fmax(*(w.rate(f"{kind}pause_frames_{direction}") for kind in _PAUSE_KINDS))


def _unprotected_share(w: WindowSums) -> Floats:
    """Share of sent RDMA bytes outside the lossless priorities of the NIC's settings.

    Without the settings, outside the priority that carries most bytes in the cluster.
    """
    sent = np.stack([w.rate(f"priority_{number}_sent_bytes") for number in PRIORITIES])
    if np.isnan(sent).all():
        return np.full(sent.shape[1], np.nan)
    lossless = np.stack([w.last(f"priority_{number}_lossless") for number in PRIORITIES])
    usual = int(or_zero(sent).sum(axis=1).argmax())
    is_set = np.nansum(lossless, axis=0) > 0
    protected = np.where(is_set, np.nansum(sent * (lossless > 0), axis=0), sent[usual])
    return np.maximum(1.0 - divide(protected, _rdma_rate(w, "sent")), 0.0)


def _stall_share(w: WindowSums, seconds: str, gauge: str) -> Floats:
    """Share of time in which PCIe stalls the NIC: of the counter, or of the gauge of the last second."""
    return np.fmax(w.rate(seconds), w.rate(gauge))


_DISCARDS = (
    "discarded_in_buffer",
    "discarded_by_priority",
    "discarded_in_congestion",
    "discarded_at_port",
    "out_of_buffer",
)


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of one kind of device."""

    name: str
    device: DeviceKind
    unit: str
    text: str
    formula: Callable[[WindowSums], Floats]


def _counted_heat(sums: WindowSums) -> Floats:
    """Return the time in which heat limits the clock; one counter contains what others count of its reasons."""
    names = ("thermal_seconds", "software_thermal_seconds", "hardware_thermal_seconds")
    return reduce(np.fmax, map(sums.rate, names))


_PACKETS = ("roce_received_packets", "port_received_packets", "udp_received_packets")

_NIC = [
    ("receive", "ratio", "Received RDMA bytes, relative to the line rate [Rr].", lambda w: divide(_rdma_rate(w, "received"), w.line_rate)),
    ("send", "ratio", "Sent RDMA bytes, relative to the line rate [Rt].", lambda w: divide(_rdma_rate(w, "sent"), w.line_rate)),
    ("pausing_share", "ratio", "Share of time in which the NIC pauses its switch [Pt].", lambda w: _pause_share(w, "pausing", "sent")),
    ("paused_share", "ratio", "Share of time in which the switch pauses the NIC [Pr].", lambda w: _pause_share(w, "paused", "received")),
    ("pause_frames", "per second", "Pause frames sent and received [Ft + Fr].", lambda w: _pause_frames(w, "sent") + _pause_frames(w, "received")),
    ("pausing_frames", "ratio", "Pause frames sent, relative to the rate that stops a priority completely [Ft].", lambda w: _full_stop(w, _pause_frames(w, "sent"))),
    ("pause_storms", "events", "Pause storms that the NIC reports [St].", lambda w: w.total("storm_warnings", "storm_errors")),
    ("marked_share", "ratio", "Marked packets, relative to those received [M].", lambda w: divide(w.total("marked_packets"), reduce(_first_known, map(w.total, _PACKETS)))),
    ("marks", "per second", "Marked packets received.", lambda w: w.rate("marked_packets")),
    ("notifications_sent", "per second", "Congestion notifications sent as receiver [Cn].", lambda w: w.rate("notifications_sent")),
    ("notifications_handled", "per second", "Congestion notifications handled as sender, or received if the driver counts only these; without those of slow restart [Cr].", lambda w: np.fmax(w.rate("notifications_handled", "notifications_received") - or_zero(w.rate("slow_restart_notifications")), 0)),
    ("notifications_ignored", "per second", "Congestion notifications ignored as sender [Ci].", lambda w: w.rate("notifications_ignored")),
    ("out_of_order", "per second", "Packets received out of order [O].", lambda w: w.rate("out_of_sequence")),
    ("ack_timeouts", "per second", "Acknowledgements that did not arrive in time [A].", lambda w: w.rate("ack_timeouts")),
    ("naks", "per second", "Packets that a receiver reported missing [Q].", lambda w: w.rate("sequence_naks")),
    ("adaptive_retransmissions", "per second", "Adaptive retransmissions.", lambda w: w.rate("adaptive_retransmissions")),
    ("discards", "per second", "Packets that the NIC dropped on receipt [X].", lambda w: _sum_known(np.stack([w.rate(name) for name in _DISCARDS]))),
    ("write_stall", "ratio", "Share of time in which PCIe writes stall: the receive path [I].", lambda w: _stall_share(w, "write_stalled_seconds", "write_stall")),
    ("bit_errors", "errors per bit", "Corrected bits, relative to received bits [B].", lambda w: divide(w.total("corrected_bits"), w.total("line_bytes") * BITS_PER_BYTE)),
    ("uncorrected_symbols", "per second", "Symbols or blocks beyond correction [U].", lambda w: np.fmax(w.rate("uncorrected_symbols"), w.rate("uncorrected_blocks"))),
    ("link_downs", "events", "Times that the link went down [D].", lambda w: np.fmax(w.total("link_downs"), np.fmax(w.total("port_link_downs"), np.floor(w.total("carrier_changes") / 2)))),
    ("link_up", "1 or 0", "1 if the link is up.", lambda w: _first_known(w.current("link_up"), w.current("port_up"))),
    ("link_speed", "bytes per second", "Speed of the link.", lambda w: w.current("link_speed")),
    ("pcie_width", "ratio", "Lanes of the PCIe link, relative to those it supports.", lambda w: divide(w.last("pcie_width"), w.last("pcie_width_limit"))),
    ("pcie_speed", "ratio", "Speed of the PCIe link, relative to that it supports.", lambda w: divide(w.last("pcie_speed"), w.last("pcie_speed_limit"))),
    ("unprotected_share", "ratio", "Share of sent RDMA bytes outside the usual priority [K].", _unprotected_share),
]  # fmt: skip

_GPU = [
    ("utilization", "ratio", "Share of time in which any kernel runs [u]; also one that waits; of the whole interval (GPM) rather than of its last moments.", lambda w: w.rate("graphics_activity", "utilization")),
    ("activity", "ratio", "Share of multiprocessors with work [a].", lambda w: w.rate("sm_activity")),
    ("tensor", "ratio", "Share of time in which tensor cores work [τ].", lambda w: w.rate("tensor_activity")),
    ("power", "watts", "Power [w].", lambda w: w.rate("energy", "power")),
    ("clock", "hertz", "Clock of the multiprocessors [f].", lambda w: w.rate("clock")),
    ("temperature", "celsius", "Temperature [θ].", lambda w: w.rate("temperature")),
    ("thermal_share", "ratio", "Share of time in which heat limits the clock.", lambda w: np.minimum(np.fmax(_counted_heat(w), w.rate("thermal_active")), 1.0)),
    ("thermal_counted", "ratio", "Share of time in which heat limits the clock; as the driver counts it rather than at moments.", _counted_heat),
    ("slowdown_share", "ratio", "Share of time in which hardware limits the clock.", lambda w: np.minimum(w.rate("hardware_slowdown_active"), 1.0)),
    ("power_brake_share", "ratio", "Share of time in which the power brake limits the clock.", lambda w: np.minimum(np.fmax(w.rate("power_brake_seconds"), w.rate("power_brake_active")), 1.0)),
    ("nvlink", "bytes per second", "Sent over NVLink [V].", lambda w: w.rate("nvlink_bytes", "nvlink_rate")),
    ("nvlink_errors", "per second", "Errors of NVLink [Nc].", lambda w: w.rate("nvlink_errors")),
    ("nvlink_recoveries", "events", "Recoveries of NVLink [Nr].", lambda w: w.total("nvlink_recoveries")),
    ("pcie_width", "ratio", "PCIe lanes, relative to those expected.", lambda w: divide(w.current("width"), w.last("width_expected"))),
    ("pcie_generation", "ratio", "PCIe generation, relative to that expected.", lambda w: divide(w.current("generation"), w.last("generation_expected"))),
    ("device_state", "state", "Owner of the device: 0 the driver, 4 missing.", lambda w: w.last("device_state")),
]  # fmt: skip

_NODE = [
    ("cpu", "ratio", "Share of processor time in use [c].", lambda w: 1.0 - divide(w.total("cpu_idle_seconds"), w.total("cpu_seconds"))),
    ("cpu_pressure", "ratio", "Share of time in which tasks wait for a processor [psi].", lambda w: w.rate("cpu_pressure_seconds")),
    ("io_pressure", "ratio", "Share of time in which tasks wait for storage.", lambda w: w.rate("io_pressure_seconds")),
]  # fmt: skip

_MOUNT = [
    ("read_latency", "seconds", "Mean duration of a read [lat].", lambda w: divide(w.total("read_seconds", "target_wait_seconds"), w.total("read_operations", "target_requests"))),
    ("write_latency", "seconds", "Mean duration of a write.", lambda w: divide(w.total("write_seconds"), w.total("write_operations"))),
    ("reads", "per second", "Reads, or requests to a Lustre target.", lambda w: w.rate("read_operations", "target_requests")),
    ("writes", "per second", "Writes.", lambda w: w.rate("write_operations")),
]  # fmt: skip

_PORT = [
    ("port_errors", "per second", "Damaged packets that the switch port received.", lambda w: w.rate("port_errors")),
    ("port_fcs_errors", "per second", "Packets with a wrong checksum that the switch port received.", lambda w: w.rate("port_fcs_errors")),
    ("port_symbol_errors", "per second", "Symbols that the switch port could not read.", lambda w: w.rate("port_symbol_errors")),
    ("port_uncorrectable_frames", "per second", "Frames that the switch port could not correct.", lambda w: w.rate("port_uncorrectable_frames")),
    ("port_uncorrectable_symbols", "per second", "Symbols that the switch port could not correct.", lambda w: w.rate("port_uncorrectable_symbols")),
    ("port_up", "1 or 0", "1 if the switch port is up.", lambda w: w.last("switch_port_up")),
    ("switch_pauses_received", "frames", "Pause frames that the switch port received.", lambda w: _first_known(w.total("switch_pauses_received"), w.total("all_pauses_received"))),
    ("switch_pauses_sent", "frames", "Pause frames that the switch port sent.", lambda w: _first_known(w.total("switch_pauses_sent"), w.total("all_pauses_sent"))),
]  # fmt: skip

_QUEUE = [
    ("queue_marks", "per second", "Packets that the queue marks.", lambda w: w.rate("queue_marks")),
    ("queue_drops", "per second", "Packets that the queue drops.", lambda w: w.rate("queue_drops")),
    ("queue_wred_drops", "per second", "Packets that the queue drops early.", lambda w: w.rate("queue_wred_drops")),
    ("queue_buffer_drops", "per second", "Packets dropped for want of buffer.", lambda w: w.rate("queue_buffer_drops")),
    ("queue_pauses_received", "per second", "Pause frames that stop the queue.", lambda w: w.rate("queue_pauses_received")),
    ("switch_pause_rate", "per second", "Pause frames that the switch port sends.", lambda w: w.rate("queue_pauses_sent")),
    ("queue_packets", "per second", "Packets that the queue sends.", lambda w: w.rate("queue_packets")),
    ("queue_marked_share", "ratio", "Packets that the queue marks, relative to those it sends.", lambda w: divide(w.total("queue_marks"), w.total("queue_packets"))),
    ("queue_occupancy", "bytes", "Highest fill of the queue.", lambda w: w.current("queue_occupancy")),
    ("watchdog_storms", "events", "Pause storms that the PFC watchdog of the switch detected, or ended where it counts the ends only.", lambda w: _first_known(w.total("watchdog_storms"), w.total("watchdog_restored"))),
    ("headroom_used", "bytes", "Headroom in use.", lambda w: w.last("headroom_used")),
    ("headroom_share", "ratio", "Share of the headroom in use.", lambda w: w.last("headroom_share")),
    ("headroom_peak", "ratio", "Highest share of the headroom in use.", lambda w: w.last("headroom_peak")),
    ("headroom_drops", "packets", "Packets dropped for want of headroom.", lambda w: w.total("group_drops")),
]  # fmt: skip


def _limited_value(limit: Limit) -> Callable[[WindowSums], Floats]:
    """Return the formula of a quantity with a limit: the increase of a counter, the mean, or the last value."""
    name, kind = limit.quantity.name, limit.quantity.kind
    if kind is QuantityKind.COUNTER:
        return lambda w: w.total(name)
    return lambda w: w.rate(name) if kind is QuantityKind.MEAN else w.current(name)


_LIMITED = {
    kind: [
        (limit.quantity.name, limit.unit, limit.meaning, _limited_value(limit))
        for limit in LIMITS
        if limit.quantity.device is kind
    ]
    for kind in DeviceKind
}

SIGNALS: dict[DeviceKind, dict[str, Signal]] = {
    kind: {
        name: Signal(name, kind, unit, text, formula)
        for name, unit, text, formula in (*rows, *_LIMITED[kind])
    }
    for kind, rows in (
        (DeviceKind.NIC, _NIC),
        (DeviceKind.GPU, _GPU),
        (DeviceKind.NODE, _NODE),
        (DeviceKind.MOUNT, _MOUNT),
        (DeviceKind.PORT, _PORT),
        (DeviceKind.QUEUE, _QUEUE),
    )
}
"""All signals by kind of device and name."""


class SignalTable:
    """Signals of all devices of one kind over the same window or slots, each computed once."""

    def __init__(self, kind: DeviceKind, window: WindowSums) -> None:
        self._window = window
        self._signals = SIGNALS[kind]
        self._found: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        """Return a signal of all devices."""
        if name not in self._found:
            with np.errstate(invalid="ignore", divide="ignore"):
                self._found[name] = self._signals[name].formula(self._window)
        return self._found[name]

    def __len__(self) -> int:
        """Return the number of devices."""
        return self._window.sums.devices


@dataclass(frozen=True)
class ClusterSignals:
    """Signals of all devices in windows that end with one slot."""

    devices: ClusterDevices
    slot: int
    window: int
    """Slots of a usual window."""
    _tables: dict[tuple[type[WindowSums], DeviceKind, int, int], SignalTable] = field(
        default_factory=dict
    )

    @property
    def nic(self) -> SignalTable:
        """Signals of NICs in the usual window."""
        return self.table(DeviceKind.NIC, self.window)

    @property
    def gpu(self) -> SignalTable:
        """Signals of GPUs in the usual window."""
        return self.table(DeviceKind.GPU, self.window)

    @property
    def node(self) -> SignalTable:
        """Signals of nodes in the usual window."""
        return self.table(DeviceKind.NODE, self.window)

    @property
    def mount(self) -> SignalTable:
        """Signals of mounts in the usual window."""
        return self.table(DeviceKind.MOUNT, self.window)

    def table(self, kind: DeviceKind, count: int, before: int = 0) -> SignalTable:
        """Return signals over `count` slots that end `before` slots earlier."""
        return self._table(WindowSums, kind, count, before)

    def slots(self, kind: DeviceKind, count: int, before: int = 0) -> SignalTable:
        """Return signals of each of `count` slots that end `before` slots earlier, shape (slots, devices), oldest first."""
        return self._table(SingleSlots, kind, count, before)

    def _table(
        self, sums: type[WindowSums], kind: DeviceKind, count: int, before: int
    ) -> SignalTable:
        key = sums, kind, count, before
        if key not in self._tables:
            window = sums(self.devices.sums[kind], self.slot - before, count)
            self._tables[key] = SignalTable(kind, window)
        return self._tables[key]

    def clear(self) -> None:
        """Drop all tables: they are computed again when they are read."""
        self._tables.clear()
