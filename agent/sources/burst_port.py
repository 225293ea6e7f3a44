"""One NIC in burst sampling: the sampled counters, and their increments between two samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.host import Host
from agent.sampling.bursts import Grid, Windows
from agent.sampling.facts import names
from agent.sources.ethtool_drivers import typed
from agent.sources.link import parse_speed
from agent.sources.rdma_files import rdma_driver
from railscope.catalog import bursts as c
from railscope.catalog import nic, nic_link, rdma
from railscope.catalog.declare import Metric
from railscope.reading import PRESENT, Absent, reason_of

RECEIVE, TRANSMIT = "receive", "transmit"
_STEPS = 10**6
"""Resolution of the histograms: millionths."""
_NS_PER_US, _NS_PER_SECOND, _BITS = 1000, 10**9, 8
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
_REFRESHED_NS = {"bnxt_en": 1_000_000_000, "mana": 2_000_000_000}
"""Refresh periods of drivers that return cached counters; the other drivers read the NIC on each call.

drivers/net/ethernet: broadcom/bnxt/bnxt.h, BNXT_DEF_STATS_COAL_TICKS; microsoft/mana/mana_en.c,
MANA_GF_STATS_PERIOD.
"""

_MAX_REFRESHED_NS = 2_000_000_000
"""Counters refreshed less often, as in a recording with few moments, cannot show bursts."""

What = tuple[Metric, str]
"""A histogram and a direction."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Sampling plan of a NIC: its list of statistics, the positions of its counters, counter files."""

    interface: str
    device: str
    names: tuple[str, ...]
    positions: Mapping[What, tuple[int, ...]]
    refreshed_ns: int
    """Refresh period of the driver's counters; 0 if each call reads the NIC."""
    link_downs: int | None
    """Position of the link-down counter: with it, the speed is read again only after the link went down."""
    notifications: Mapping[What, str]

    @property
    def counters(self) -> tuple[What, ...]:
        """Keys of the counters in the list of statistics."""
        return tuple(self.positions)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the counter files."""
        return tuple(self.notifications.values())


def plan(host: Host, interface: str, cards: Mapping[str, str]) -> Planned | None:
    """Sampling plan of an interface; None if its driver does not count the traffic of a port.

    `cards` maps interfaces and PCI addresses to RDMA devices. The kernel's own link from an interface
    to its device comes first: a driver can report a wrong address.
    """
    try:
        driver = host.call("ethtool", "driver", interface)
        listed = host.call("ethtool", "statistics", interface)["names"]
    except OSError:
        return None
    positions: dict[What, tuple[int, ...]] = {}
    link_downs = None
    for metric, _, position in typed(driver["driver"], listed):
        if metric is nic_link.LINK_DOWNS:
            link_downs = position
        if what := _COUNTED.get(metric):
            positions[what] = (*positions.get(what, ()), position)
    if not positions:
        return None
    device = cards.get(interface) or cards.get(driver.get("bus", ""), "")
    files = _notification_files(host, device, driver["driver"]) if device else {}
    refreshed_ns = max(_REFRESHED_NS.get(driver["driver"], 0), host.grain_ns)
    if refreshed_ns > _MAX_REFRESHED_NS:
        return None
    return Planned(interface, device, tuple(listed), positions, refreshed_ns, link_downs, files)


def _notification_files(host: Host, device: str, pci_driver: str) -> dict[What, str]:
    """Files that count congestion notifications."""
    driver = rdma_driver(pci_driver, device)
    directory = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    found: dict[What, str] = {}
    for file in names(host, directory):
        metric = rdma.meaning(driver, file)
        if metric and metric.name in _NOTIFICATIONS:
            what = c.NIC_NOTIFICATIONS, _NOTIFICATIONS[metric.name]
            found.setdefault(what, f"{directory}/{file}")
    return found


@dataclass(slots=True)
class Kept:
    """State of a NIC's windows since the start of the agent, retained while the NIC is absent."""

    windows: dict[What, Windows] = field(default_factory=dict)
    planned: Planned | None = None
    looked: _Look | None = None
    """The last valid sample, taken with `planned`."""
    unseen: int = 0
    counted_ns: int | None = None
    """Time up to which every window has been counted, as seen or as unseen."""


class Port:
    """A NIC, its counters at the last valid sample, and the histograms of increments between samples."""

    def __init__(self, host: Host, planned: Planned, window_ns: int, kept: Kept) -> None:
        self.planned = planned
        self.window_ns = max(window_ns, planned.refreshed_ns)
        """Window length: at least the refresh period of the driver."""
        self.problem: Absent | None = None
        """Reason why the last sample has no values."""
        self.kept = kept
        if kept.planned != planned:
            kept.planned, kept.looked = planned, None
        self._grid = Grid(self.window_ns)
        self._list: list[str] | None = None
        self._notifications = host.keep(planned.files)
        self._speed = host.keep([f"/sys/class/net/{planned.interface}/speed"])
        self._megabits = 0
        self._link_downs = 0
        self._speed_due = True
        wanted = dict.fromkeys([*planned.counters, *planned.notifications])
        for metric, direction in wanted:
            new = Windows(metric, (planned.interface, direction))
            kept.windows.setdefault((metric, direction), new)
        self.windows = {what: kept.windows[what] for what in wanted}
        self.look_at_speed()

    def close(self) -> None:
        """Close the open files."""
        self._notifications.close()
        self._speed.close()

    def look_at_speed(self) -> None:
        """Read the line rate if it may have changed; without one, utilization is unavailable."""
        if self._megabits and not self._speed_due:
            return
        self._speed_due = self.planned.link_downs is None
        try:
            speed = parse_speed(self._speed.text(0))
        except OSError as error:
            speed = reason_of(error)
        self._megabits = speed if isinstance(speed, int) else 0

    def look(self, host: Host) -> bool:
        """Take one sample. Return True if the NIC's list of statistics differs from the planned one.

        An answer that took longer than a window is dropped, as its time is uncertain. If no window
        has ended since the last sample, none is taken.
        """
        began_ns = host.clock.now().boot_ns
        if self.kept.looked and not self._grid.between(self.kept.looked.at_ns, began_ns):
            return False
        try:
            statistics = host.call("ethtool", "statistics", self.planned.interface)
        except OSError as error:
            self.problem = reason_of(error)
            self._give_up(host.clock.now().boot_ns)
            return False
        if statistics["names"] is not self._list:
            if tuple(statistics["names"]) != self.planned.names:
                self._give_up(host.clock.now().boot_ns)
                return True
            self._list = statistics["names"]
        values = statistics["values"]
        counters = {
            what: [values[position] for position in positions]
            for what, positions in self.planned.positions.items()
        }
        if self.planned.link_downs is not None:
            self._speed_due |= self._link_downs != values[self.planned.link_downs]
            self._link_downs = values[self.planned.link_downs]
        self._read_notifications(counters)
        self.problem = None
        now_ns = host.clock.now().boot_ns
        if now_ns - began_ns > self._grid.window_ns:
            self.kept.looked = None
            self._give_up(now_ns)
        else:
            self._compare(_Look(now_ns, counters))
        return False

    def _read_notifications(self, counters: dict[What, list[int]]) -> None:
        wanted = self.planned.notifications
        values, reasons = [0] * len(wanted), bytearray(len(wanted))
        self._notifications.read_into(values, reasons, 0)
        for what, value, reason in zip(wanted, values, reasons, strict=True):
            if reason == PRESENT:
                counters[what] = [value]

    def _give_up(self, now_ns: int) -> None:
        """Count windows as unseen once no later sample can cover them."""
        before = self.kept.looked
        if before and not self._grid.tells_of_each(before.at_ns, now_ns):
            self.kept.looked = before = None
        if before is None and self.kept.counted_ns is not None:
            self.kept.unseen += self._grid.between(self.kept.counted_ns, now_ns)
            self.kept.counted_ns = now_ns

    def _compare(self, now: _Look) -> None:
        before, self.kept.counted_ns = self.kept.looked, self.kept.counted_ns or now.at_ns
        windows = self._grid.between(self.kept.counted_ns, now.at_ns)
        if before and (not windows or self._waits(before, now)):
            return
        self.kept.looked, self.kept.counted_ns = now, now.at_ns
        if before is None or not self._grid.tells_of_each(before.at_ns, now.at_ns):
            self.kept.unseen += windows
            return
        grown = now.grown_since(before)
        if min(grown.values(), default=0) < 0:
            self.kept.unseen += windows  # the NIC has reset its counters
            return
        elapsed_ns = now.at_ns - before.at_ns
        for what, amount in grown.items():
            value = self._value(what[0], amount, elapsed_ns)
            if value is not None:
                self.windows[what].see(windows, value)

    def _waits(self, before: _Look, now: _Look) -> bool:
        """True if the driver has not refreshed its counters since the last sample, as far as is visible."""
        soon_ns = before.at_ns + 2 * self.planned.refreshed_ns
        return now.at_ns < soon_ns and all(
            now.counters[what] == before.counters[what] for what in self.planned.positions
        )

    def _value(self, metric: Metric, amount: int, elapsed_ns: int) -> int | None:
        """Increment within a time, in the histogram's millionths; None if the line rate is unavailable."""
        if amount == 0:
            return 0
        if metric is c.NIC_UTILIZATION:
            if not self._megabits:
                return None
            return amount * _BITS * _NS_PER_SECOND // (self._megabits * elapsed_ns)
        if metric is c.NIC_PAUSE:  # the NIC's clock differs from the node's
            return min(amount * _NS_PER_US * _STEPS // elapsed_ns, _STEPS)
        return amount * _NS_PER_SECOND * _STEPS // elapsed_ns


@dataclass(frozen=True, slots=True)
class _Look:
    """Counters of a NIC at one time; those that could not be read are omitted."""

    at_ns: int
    counters: dict[What, list[int]]

    def grown_since(self, before: _Look) -> dict[What, int]:
        """Increment of each counter; of several priorities, that of the one paused longest."""
        found = {}
        for what, now in self.counters.items():
            then = before.counters.get(what)
            if then is None:
                continue
            if len(now) == 1:
                found[what] = now[0] - then[0]
                continue
            grown = [after - earlier for after, earlier in zip(now, then, strict=True)]
            found[what] = min(grown) if min(grown) < 0 else max(grown)
        return found
