"""NICs: the statistics of their drivers, and the standard counters that those lack.

A metric that the driver's statistics contain for a NIC is reported by the source `nic`, and not by
`link_errors`: one NIC, one meaning, one source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from railscope import counter_unwrap
from railscope.catalog import declare, entities, nic as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import counter_total, fact_readers, probe_result, row_builder, source
from railscope_agent.sources import ethtool_statistics, nic_interfaces, source_bases
from railscope_agent.topology import rail_rules
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import nic_entity


@dataclass(slots=True)
class _NicStatistics:
    """A NIC of the last probe: its statistics, and those of them that become columns."""

    interface: str
    names: list[str]
    positions: list[int]
    pick: Callable[[Sequence[int]], Sequence[int]]
    start: int
    discards: dict[str | tuple[str, ...], int]
    """Column of the discards of each priority; the column of their sum follows the statistics."""
    discarded: counter_total.CounterTotal


class NicSource(source_bases.UnwrappingSource, source.SourceWithoutResources):
    """PFC, ECN, discards, PCIe stall, PHY and FEC of every NIC, as far as its driver counts them.

    Statistics of drivers are read by the kernel's ethtool interface. Their list changes while a NIC runs
    (PFC enabled for a priority, channels added). Names and values are returned together by each read; if
    the names differ from those of the probe, values are looked up by name, and the next probe creates the
    right columns.
    """

    name = "nic"
    family = "network"
    longest_period_seconds = 20.0
    """Some drop counters are 32 bits wide: they wrap after 21 seconds at 200 million packets per second."""

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        super().__init__()
        self._wiring = wiring or NetworkScanner()
        self._nics: list[_NicStatistics] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Read the driver and the list of statistics of every interface."""
        columns = probe_result.ColumnBuilder()
        findings: list[probe_result.ProbeFinding] = []
        columnless_entities: list[Entity] = []
        unwraps: dict[str, counter_unwrap.CounterUnwrapper] = {}
        self._before |= self._counter_states
        nics: list[_NicStatistics] = []
        totals = {nic.interface: nic.discarded for nic in self._nics}
        network = self._wiring.scan(host)
        for interface in _interfaces(host):
            try:
                driver = host.call("ethtool", "driver", interface)
                statistics = host.call("ethtool", "statistics", interface)
            except OSError as error:
                findings.append(_statistics_failure(interface, error))
                continue
            nic = nic_entity(interface, driver, network.device_at(driver.get("bus", "")))
            matched = ethtool_statistics.match_statistics(driver["driver"], statistics["names"])
            names = statistics["names"]
            findings.append(_statistics_finding(interface, driver["driver"], names, matched))
            matched = [each for each in matched if self._needs(driver["driver"], names, each)]
            if not matched or nic.facts.get("role") == rail_rules.BRIDGE:
                columnless_entities.append(nic)
                continue
            start = len(columns.columns)
            for metric, part, _ in matched:
                of_nic = metric.about is entities.NIC
                columns.add(metric, nic if of_nic else Entity(metric.about, (*nic.key, part)))
            positions = [position for _, _, position in matched]
            counters = {names[position]: start + i for i, position in enumerate(positions)}
            before = self._before.get(interface)
            name = driver["driver"]
            unwraps[interface] = counter_unwrap.CounterUnwrapper(
                {n: i for n, i in counters.items() if ethtool_statistics.is_narrow(name, n)},
                [n for name, n in counters.items() if ethtool_statistics.resets_with_narrow(name)],
                before,
            )
            discards: dict[str | tuple[str, ...], int] = {
                part: column
                for column, (metric, part, _) in enumerate(matched, start)
                if metric is c.PRIORITY_DISCARDS
            }
            if discards:
                columns.add(c.ALL_PRIORITIES_DISCARDS, nic)
            total = totals.get(interface) or counter_total.CounterTotal()
            pick = counter_unwrap.column_picker(positions)
            nics.append(_NicStatistics(interface, names, positions, pick, start, discards, total))
        self._nics = nics
        self._replace_unwraps(host, unwraps)
        return columns.result(*findings, columnless_entities=columnless_entities)

    def _needs(
        self, driver: str, names: list[str], matched: tuple[declare.Metric, str, int]
    ) -> bool:
        """True for a selected metric, a part of the sum of discards, and a counter that shows resets."""
        metric, _, position = matched
        is_part = metric is c.PRIORITY_DISCARDS and self.selects(c.ALL_PRIORITIES_DISCARDS)
        name = names[position]
        return (
            self.selects(metric)
            or is_part
            or ethtool_statistics.is_narrow(driver, name)
            or ethtool_statistics.resets_with_narrow(name)
        )

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read each NIC once and select the statistics that have a column."""
        for nic in self._nics:
            width = len(nic.positions)
            total = nic.start + width
            try:
                statistics = host.call("ethtool", "statistics", nic.interface)
            except OSError as error:
                into.put_none(nic.start, width + bool(nic.discards), reason_of(error))
                continue
            if statistics["names"] is not nic.names and statistics["names"] != nic.names:
                values = dict(zip(statistics["names"], statistics["values"], strict=True))
                names = (nic.names[position] for position in nic.positions)
                into.put_readings(nic.start, (values.get(name, Absent.GONE) for name in names))
                # For example, PFC on another priority: probe again for new statistics.
                into.needs_probe = True
            else:
                into.put_all(nic.start, nic.pick(statistics["values"]))
            self._unwraps[nic.interface].extend_values(into.values, into.reasons)
            if nic.discards:
                into.put(total, nic.discarded.update(into, nic.discards))
        self._save_unwraps(host)


def _interfaces(host: Host) -> list[str]:
    try:
        return host.names(nic_interfaces.NET)
    except FileNotFoundError:
        return []


def _statistics_finding(
    interface: str, driver: str, names: list[str], matched: list[tuple[declare.Metric, str, int]]
) -> probe_result.ProbeFinding:
    """Number of published statistics; for a driver without a table also the unpublished names."""
    detail = f"driver {driver}, {len(matched)} typed statistics"
    if driver not in ethtool_statistics.DRIVERS:
        positions = {position for _, _, position in matched}
        unmatched = [name for position, name in enumerate(names) if position not in positions]
        detail = f"driver {driver}, {len(matched)} of {len(names)} statistics have standard names"
        if unmatched:
            detail += f"; the rest: {ethtool_statistics.format_statistic_names(unmatched)}"
    verdict = probe_result.ProbeVerdict.SUPPORTED if matched else probe_result.ProbeVerdict.ABSENT
    return probe_result.ProbeFinding(f"statistics of {interface}", verdict, detail)


def _statistics_failure(interface: str, error: OSError) -> probe_result.ProbeFinding:
    subject = f"statistics of {interface}"
    reason = reason_of(error)
    if reason is Absent.UNSUPPORTED:
        return probe_result.ProbeFinding.absent(subject, "the driver has no ethtool interface")
    if reason is Absent.GONE:  # not an interface, or removed meanwhile
        return probe_result.ProbeFinding.absent(subject, error.strerror or "unknown interface")
    return probe_result.ProbeFinding.failed(subject, error, "allow the agent the ioctl SIOCETHTOOL")


_COUNTERS: Mapping[str, Mapping[str, declare.Metric]] = {
    "fec": {
        "corrected_blocks": c.FEC_CORRECTED_BLOCKS,
        "uncorrectable_blocks": c.FEC_UNCORRECTABLE_BLOCKS,
        "corrected_bits": c.CORRECTED,
    },
    "pause": {"receive_frames": c.GLOBAL_PAUSE_RECEIVED, "transmit_frames": c.GLOBAL_PAUSE_SENT},
    "standard_statistics": ethtool_statistics.GROUPS,
}
_OF_DRIVERS: Mapping[str, Mapping[str, Mapping[str, declare.Metric]]] = {
    "mlx5_core": {"pause": {"receive_frames": c.PAUSE_RECEIVED, "transmit_frames": c.PAUSE_SENT}},
    "bnxt_en": {
        "standard_statistics": {
            **ethtool_statistics.GROUPS,
            "SymbolErrorDuringCarrier": c.UNCORRECTED_SYMBOLS,
        }
    },
}
"""Drivers that count something else under these names; their own statistics contain it too.

mlx5 counts PFC frames together with pause frames; bnxt reports rx_pcs_symbol_err as the symbol
errors of the standard group (bnxt_ethtool.c, bnxt_get_eth_phy_stats).
"""


@dataclass(frozen=True, slots=True)
class _CounterRequest:
    """A request to a NIC, and the column of each counter of the answer."""

    interface: str
    name: str
    columns: dict[str, int]


class LinkErrorSource(source.SourceWithoutResources):
    """Blocks and bits corrected by FEC, uncorrectable blocks, pause frames.

    Counters of standard groups, FEC and pause frames are read over ethtool netlink: mlx5 reports blocks of
    forward error correction, and many drivers pause frames, only there
    (Documentation/networking/ethtool-netlink.rst, FEC_GET, PAUSE_GET and STATS_GET). Pause frames are
    those of IEEE 802.3 clause 31B, as opposed to PFC.
    """

    name = "link_errors"
    family = "network"

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        self._wiring = wiring or NetworkScanner()
        self._requests: list[_CounterRequest] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Read the counters of every NIC; those that its driver's statistics contain are left to `nic`."""
        columns = probe_result.ColumnBuilder()
        findings: list[probe_result.ProbeFinding] = []
        self._requests = []
        for interface in nic_interfaces.physical_interfaces(host):
            findings += self._plan(host, interface, columns)
        return columns.result(*findings, columnless_entities=self._wiring.find_nics(host))

    def _plan(
        self, host: Host, interface: str, columns: probe_result.ColumnBuilder
    ) -> list[probe_result.ProbeFinding]:
        problems: list[probe_result.ProbeFinding] = []
        first = len(columns.columns)
        driver = _read_driver(host, interface)
        elsewhere = _metrics_of_statistics(host, interface, driver)
        for name, counters in {**_COUNTERS, **_OF_DRIVERS.get(driver, {})}.items():
            try:
                counts = _counts(host, name, interface)
            except OSError as error:
                problems += _request_failure(interface, name, error)
                continue
            columns_by_key = {
                key: columns.add(metric, Entity(entities.NIC, (interface,)))
                for key, metric in counters.items()
                if key in counts and metric not in elsewhere and self.selects(metric)
            }
            if columns_by_key:
                self._requests.append(_CounterRequest(interface, name, columns_by_key))
        return problems or [_counters_finding(interface, len(columns.columns) - first)]

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read each NIC again."""
        for request in self._requests:
            try:
                counts = _counts(host, request.name, request.interface)
            except OSError as error:
                into.put_each(request.columns.values(), reason_of(error))
                continue
            for key, column in request.columns.items():
                into.put(column, counts.get(key, Absent.UNSUPPORTED))


def _counts(host: Host, name: str, interface: str) -> dict[str, Reading]:
    """Counters in an answer; for FEC the first number is the total, lanes follow."""
    statistics: Json = host.call("netlink", name, interface).get("statistics", {})
    totals = {key: n[0] if isinstance(n, list) and n else n for key, n in statistics.items()}
    return {key: total for key, total in totals.items() if isinstance(total, int)}


def _read_driver(host: Host, interface: str) -> str:
    try:
        driver: str = host.call("ethtool", "driver", interface)["driver"]
    except OSError:
        return fact_readers.read_link_name(host, f"{nic_interfaces.NET}/{interface}/device/driver")
    return driver


def _metrics_of_statistics(host: Host, interface: str, driver: str) -> set[declare.Metric]:
    """Metrics that `nic` reports for a NIC from the driver's statistics."""
    try:
        names = host.call("ethtool", "statistics", interface)["names"]
    except OSError:
        return set()  # then `nic` reports none either, and has a finding with the reason
    return {metric for metric, _, _ in ethtool_statistics.match_statistics(driver, names)}


def _counters_finding(interface: str, counters: int) -> probe_result.ProbeFinding:
    subject = f"error correction and pause of {interface}"
    if counters:
        return probe_result.ProbeFinding.supported(
            subject, probe_result.format_count(counters, "counter")
        )
    return probe_result.ProbeFinding.absent(subject, "none except the driver's statistics")


def _request_failure(interface: str, name: str, error: OSError) -> list[probe_result.ProbeFinding]:
    if reason_of(error) in {Absent.UNSUPPORTED, Absent.GONE}:
        return []
    subject = f"error correction and pause of {interface}"
    remedy = "allow the agent netlink sockets (AF_NETLINK)"
    return [probe_result.ProbeFinding.failed(subject, error, remedy, name)]
