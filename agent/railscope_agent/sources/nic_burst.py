"""Burst sampling of NICs: traffic, pause and notifications of each short window.

Each sample reads one ethtool answer and two counter files per NIC, on the source's own thread; the
increments between two samples become histograms, which are reported once per second. Drivers count
effects of the switch on this node as received, effects of this node as sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from railscope.catalog import bursts as c, declare, entities, nic, rdma
from railscope.frame import Entity
from railscope.reading import PRESENT, Absent, is_failure, reason_of
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.host import Host
from railscope_agent.sampling import (
    answer_readings,
    burst_windows,
    fact_readers,
    probe_result,
    row_builder,
)
from railscope_agent.sampling.source import BURSTS, Source
from railscope_agent.sources.ethtool_statistics import match_statistics
from railscope_agent.sources.network_links import NET
from railscope_agent.sources.rdma_counter_files import rdma_driver
from railscope_agent.topology import rail_rules
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_interface import NetworkInterface, parse_speed

RECEIVE, TRANSMIT = "receive", "transmit"
_STEPS = 10**6
"""Resolution of the histograms: millionths."""
_BITS = 8
_COUNTED = {
    nic.RECEIVED: (c.NIC_UTILIZATION, RECEIVE),
    nic.SENT: (c.NIC_UTILIZATION, TRANSMIT),
    nic.PFC_RECEIVED_TIME: (c.NIC_PAUSE, RECEIVE),
    nic.GLOBAL_PAUSE_RECEIVED_TIME: (c.NIC_PAUSE, RECEIVE),
    nic.PFC_SENT_TIME: (c.NIC_PAUSE, TRANSMIT),
    nic.GLOBAL_PAUSE_SENT_TIME: (c.NIC_PAUSE, TRANSMIT),
}
"""Histogram of each counter's increments."""
_NOTIFICATIONS = {
    "railscope_rdma_congestion_notifications_handled_total": RECEIVE,
    "railscope_rdma_congestion_notifications_sent_total": TRANSMIT,
}
_REFRESHED_NS = {"bnxt_en": SECOND_NS, "mana": 2 * SECOND_NS}
"""Refresh periods of drivers that return cached counters; the other drivers read the NIC on each call.

drivers/net/ethernet: broadcom/bnxt/bnxt.h, BNXT_DEF_STATS_COAL_TICKS; microsoft/mana/mana_en.c,
MANA_GF_STATS_PERIOD.
"""

_MAX_REFRESHED_NS = 2_000_000_000
"""Counters refreshed less often, as in a recording with few moments, cannot show bursts."""

_OF_NIC = (c.NIC_WINDOW_LENGTH, c.NIC_MISSED)
CounterKey = tuple[declare.Metric, str]
"""A histogram and a direction."""


@dataclass(frozen=True, slots=True)
class NicSamplingPlan:
    """Sampling plan of a NIC: its list of statistics, the positions of its counters, counter files."""

    interface: str
    device: str
    names: tuple[str, ...]
    positions: Mapping[CounterKey, tuple[int, ...]]
    refreshed_ns: int
    """Refresh period of the driver's counters; 0 if each call reads the NIC."""
    link_downs: int | None
    """Position of the link-down counter: with it, the speed is read again only after the link went down."""
    notifications: Mapping[CounterKey, str]


def plan_sampling(
    host: Host, interface: NetworkInterface, *, shares_device: bool
) -> NicSamplingPlan | None:
    """Sampling plan of an interface; None if its driver does not count the traffic of a port.

    The notifications of an RDMA device that several ports share are those of no single port. Raises OSError.
    """
    refreshed_ns = max(_REFRESHED_NS.get(interface.driver, 0), host.statistics_period_ns)
    if refreshed_ns > _MAX_REFRESHED_NS:
        return None
    listed = host.call("ethtool", "statistics", interface.name)["names"]
    positions: dict[CounterKey, tuple[int, ...]] = {}
    link_downs = None
    for metric, _, position in match_statistics(interface, listed):
        if metric is nic.LINK_DOWNS:
            link_downs = position
        if counter_key := _COUNTED.get(metric):
            positions[counter_key] = (*positions.get(counter_key, ()), position)
    if not positions:
        return None
    device = interface.rdma_device
    has_files = device and not shares_device
    files = _notification_files(host, device, interface.driver) if has_files else {}
    return NicSamplingPlan(
        interface.name, device, tuple(listed), positions, refreshed_ns, link_downs, files
    )


def _notification_files(host: Host, device: str, pci_driver: str) -> dict[CounterKey, str]:
    """Files that count congestion notifications."""
    driver = rdma_driver(pci_driver, device)
    directory = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    paths: dict[CounterKey, str] = {}
    for file in fact_readers.list_names(host, directory):
        metric = rdma.meaning(driver, file)
        if metric and metric.name in _NOTIFICATIONS:
            counter_key = c.NIC_NOTIFICATIONS, _NOTIFICATIONS[metric.name]
            paths.setdefault(counter_key, f"{directory}/{file}")
    return paths


@dataclass(slots=True)
class NicWindows:
    """State of a NIC's windows since the start of the agent, retained while the NIC is absent."""

    windows: dict[CounterKey, burst_windows.WindowHistogram] = field(default_factory=dict)
    planned: NicSamplingPlan | None = None
    last: _NicCounters | None = None
    """The last valid sample, taken with `planned`."""
    unseen: int = 0
    counted_ns: int | None = None
    """Time up to which every window has been counted, as seen or as unseen."""


class BurstPort:
    """A NIC, its counters at the last valid sample, and the histograms of increments between samples."""

    def __init__(
        self, host: Host, planned: NicSamplingPlan, window_ns: int, history: NicWindows
    ) -> None:
        self.planned = planned
        self.window_ns = max(window_ns, planned.refreshed_ns)
        """Window length: at least the refresh period of the driver."""
        self.problem: Absent | None = None
        """Reason why the last sample has no values."""
        self.history = history
        # Values of another list of statistics are not comparable, while the histograms continue.
        if history.planned != planned:
            history.planned, history.last = planned, None
        self._grid = burst_windows.WindowGrid(self.window_ns)
        self._list: list[str] | None = None
        self._notifications = host.open_file_group(tuple(planned.notifications.values()))
        self._speed = host.open_file_group([f"{NET}/{planned.interface}/speed"])
        self._megabits = 0
        self._link_downs = 0
        self._speed_due = True
        counters = dict.fromkeys([*planned.positions, *planned.notifications])
        for metric, direction in counters:
            new = burst_windows.WindowHistogram(metric, (planned.interface, direction))
            history.windows.setdefault((metric, direction), new)
        self.windows = {counter: history.windows[counter] for counter in counters}
        self.read_speed()

    def close(self) -> None:
        """Close the open files."""
        self._notifications.close()
        self._speed.close()

    def read_speed(self) -> None:
        """Read the line rate if it may have changed; without one, utilization is unavailable."""
        if self._megabits and not self._speed_due:
            return
        self._speed_due = self.planned.link_downs is None
        speed = answer_readings.content_reading(self._speed.texts()[0], parse_speed)
        self._megabits = speed if isinstance(speed, int) else 0

    def sample(self, host: Host) -> bool:
        """Take one sample. Return True if the NIC's list of statistics differs from the planned one.

        An answer that took longer than a window is dropped, as its time is uncertain. If no window
        has ended since the last sample, none is taken.
        """
        began_ns = host.clock.now().boot_ns
        # A call of the driver that could end no window would only cost time of the firmware.
        if self.history.last and not self._grid.count_windows(self.history.last.at_ns, began_ns):
            return False
        try:
            statistics = host.call("ethtool", "statistics", self.planned.interface)
        except OSError as error:
            self.problem = reason_of(error)
            self._discard_sample(host.clock.now().boot_ns)
            return False
        # The host returns the same list while the names do not change: the comparison of hundreds of names is
        # rare.
        if statistics["names"] is not self._list:
            if tuple(statistics["names"]) != self.planned.names:
                self._discard_sample(host.clock.now().boot_ns)
                return True
            self._list = statistics["names"]
        values = statistics["values"]
        counters = {
            counter_key: [values[position] for position in positions]
            for counter_key, positions in self.planned.positions.items()
        }
        if self.planned.link_downs is not None:
            self._speed_due |= self._link_downs != values[self.planned.link_downs]
            self._link_downs = values[self.planned.link_downs]
        self._read_notifications(counters)
        self.problem = None
        now_ns = host.clock.now().boot_ns
        if now_ns - began_ns > self._grid.window_ns:
            self.history.last = None
            self._discard_sample(now_ns)
        else:
            self._compare(_NicCounters(now_ns, counters))
        return False

    def _read_notifications(self, counters: dict[CounterKey, list[int]]) -> None:
        paths = self.planned.notifications
        values, reasons = [0] * len(paths), bytearray(len(paths))
        self._notifications.read_into(values, reasons, 0)
        for counter_key, value, reason in zip(paths, values, reasons, strict=True):
            if reason == PRESENT:
                counters[counter_key] = [value]

    def _discard_sample(self, now_ns: int) -> None:
        """Count windows as unseen once no later sample can cover them."""
        before = self.history.last
        if before and not self._grid.reports_each_window(before.at_ns, now_ns):
            self.history.last = before = None
        if before is None and self.history.counted_ns is not None:
            self.history.unseen += self._grid.count_windows(self.history.counted_ns, now_ns)
            self.history.counted_ns = now_ns

    def _compare(self, now: _NicCounters) -> None:
        before, self.history.counted_ns = self.history.last, self.history.counted_ns or now.at_ns
        windows = self._grid.count_windows(self.history.counted_ns, now.at_ns)
        if before and (not windows or self._is_waiting(before, now)):
            return
        self.history.last, self.history.counted_ns = now, now.at_ns
        if before is None or not self._grid.reports_each_window(before.at_ns, now.at_ns):
            self.history.unseen += windows
            return
        grown = now.grown_since(before)
        if min(grown.values(), default=0) < 0:
            self.history.unseen += windows  # the NIC has reset its counters
            return
        elapsed_ns = now.at_ns - before.at_ns
        for counter_key, amount in grown.items():
            value = self._value(counter_key[0], amount, elapsed_ns)
            if value is not None:
                self.windows[counter_key].count(windows, value)

    def _is_waiting(self, before: _NicCounters, now: _NicCounters) -> bool:
        """True if the driver has not refreshed its counters since the last sample, as far as is visible."""
        soon_ns = before.at_ns + 2 * self.planned.refreshed_ns
        return now.at_ns < soon_ns and all(
            now.counters[counter_key] == before.counters[counter_key]
            for counter_key in self.planned.positions
        )

    def _value(self, metric: declare.Metric, amount: int, elapsed_ns: int) -> int | None:
        """Increment within a time, in the histogram's millionths; None if the line rate is unavailable."""
        if amount == 0:
            return 0
        if metric is c.NIC_UTILIZATION:
            if not self._megabits:
                return None
            # Integers: bits per second in megabits are millionths of the line rate at once.
            return amount * _BITS * SECOND_NS // (self._megabits * elapsed_ns)
        if metric is c.NIC_PAUSE:  # the NIC's clock differs from the node's
            return min(amount * MICROSECOND_NS * _STEPS // elapsed_ns, _STEPS)
        return amount * SECOND_NS * _STEPS // elapsed_ns


@dataclass(frozen=True, slots=True)
class _NicCounters:
    """Counters of a NIC at one time; those that could not be read are omitted."""

    at_ns: int
    counters: dict[CounterKey, list[int]]

    def grown_since(self, before: _NicCounters) -> dict[CounterKey, int]:
        """Increment of each counter; of several priorities, that of the one paused longest."""
        increases = {}
        for counter, now in self.counters.items():
            earlier = before.counters.get(counter)
            if earlier is None:
                continue
            if len(now) == 1:
                increases[counter] = now[0] - earlier[0]
                continue
            grown = [after - start for after, start in zip(now, earlier, strict=True)]
            # A decrease shows a reset, which the maximum would hide.
            increases[counter] = min(grown) if min(grown) < 0 else max(grown)
        return increases


class NicBurstSource(Source):
    """Windows of every NIC that carries RDMA, or of the configured interfaces."""

    name = "nic_burst"
    lane = BURSTS

    def __init__(
        self,
        window_seconds: float = 0.1,
        interfaces: Sequence[str] = (),
        wiring: NetworkScanner | None = None,
    ) -> None:
        self.period_seconds = window_seconds
        # Samples later than MAX_WINDOWS carry no information: half of that tolerates late ones.
        self.longest_period_seconds = window_seconds * burst_windows.MAX_WINDOWS / 2
        self._wiring = wiring or NetworkScanner()
        self._window_ns = round(window_seconds * SECOND_NS)
        self._interfaces = tuple(interfaces)
        self._ports: dict[str, BurstPort] = {}
        self._histories: dict[str, NicWindows] = {}
        self._columns: list[tuple[BurstPort, int]] = []
        self._failed: dict[str, Absent] = {}
        """NICs whose statistics could not be listed, with the reason; their columns follow the others."""
        self._reported_ns = 0

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Select the NICs. An unchanged NIC continues with its state."""
        network = self._wiring.scan(host)
        named = Counter((i.rdma_device, i.rdma_port) for i in network.interfaces.values())
        ports: dict[str, BurstPort] = {}
        self._failed = {}
        for interface, described in network.interfaces.items():
            shares_device = named[described.rdma_device, described.rdma_port] > 1
            if not self._is_selected(described, network.device_of(interface).role):
                continue
            try:
                planned = plan_sampling(host, described, shares_device=shares_device)
            except OSError as error:
                if is_failure(error):
                    self._failed[interface] = reason_of(error)
                continue
            if planned is None:
                continue
            # Taken out: what is left afterwards is closed.
            before = self._ports.pop(interface, None)
            if before is None or before.planned != planned:
                if before:
                    before.close()
                history = self._histories.setdefault(interface, NicWindows())
                before = BurstPort(host, planned, self._window_ns, history)
            ports[interface] = before
        self.close()
        self._ports = ports
        # The columns may be others now: the next read reports them at once.
        self._reported_ns = 0
        return self._place_columns().result()

    def _is_selected(self, interface: NetworkInterface, role: str) -> bool:
        if self._interfaces:
            return any(fnmatchcase(interface.name, pattern) for pattern in self._interfaces)
        return interface.is_port and bool(interface.rdma_device) and role != rail_rules.BRIDGE

    def _place_columns(self) -> probe_result.ColumnBuilder:
        columns = probe_result.ColumnBuilder()
        self._columns = []
        for interface, port in self._ports.items():
            about = Entity(entities.NIC, (interface,))
            first = columns.add_each(_OF_NIC, about)
            for windows in port.windows.values():
                windows.add_columns(columns)
            self._columns.append((port, first))
        for interface in self._failed:
            columns.add_each(_OF_NIC, Entity(entities.NIC, (interface,)))
        return columns

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Sample every NIC; once per second, report the windows."""
        for port in self._ports.values():
            into.needs_probe |= port.sample(host)
        now_ns = host.clock.now().boot_ns
        if now_ns // SECOND_NS == self._reported_ns // SECOND_NS:
            into.is_intermediate = True
            return
        self._reported_ns = now_ns
        for port, first in self._columns:
            into.put_all(first, (port.window_ns, port.history.unseen))
            for windows in port.windows.values():
                windows.put(into, port.problem)
            port.read_speed()
        first = len(into.values) - len(_OF_NIC) * len(self._failed)
        for reason in self._failed.values():
            into.put_none(first, len(_OF_NIC), reason)
            first += len(_OF_NIC)

    def close(self) -> None:
        """Close the open files; the histograms continue from their current state."""
        for port in self._ports.values():
            port.close()
        self._ports = {}
