"""NICs: the statistics of their drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from railscope import counter_unwrap
from railscope.catalog import declare, entities, nic as c
from railscope.frame import Entity
from railscope.reading import Absent, is_failure, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import counter_total, probe_result, row_builder, source
from railscope_agent.sources import ethtool_statistics, source_bases
from railscope_agent.topology import rail_rules
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_interface import NetworkInterface, read_driver

_SUBJECT = "statistics of"


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


class NicSource(source_bases.UnwrappingSource):
    """PFC, ECN, discards, PCIe stall, PHY and FEC of every NIC, as far as its driver counts them.

    Statistics of drivers are read by the kernel's ethtool interface. Their list changes while a NIC runs
    (PFC enabled for a priority, channels added). Names and values are returned together by each read; if
    the names differ from those of the probe, values are looked up by name, and the next probe creates the
    right columns.
    """

    name = "nic"
    lane = source.SYSTEM
    period_seconds = 1.0
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
        # The states of this run are newer than those of the file.
        self._before |= self._counter_states
        nics: list[_NicStatistics] = []
        totals = {nic.interface: nic.discarded for nic in self._nics}
        network = self._wiring.scan(host)
        for nic in self._wiring.find_nics(host):
            interface, described = nic.key[0], network.interfaces[nic.key[0]]
            # Kept over probes: the sum must not restart when the list of statistics changes.
            total = totals.get(interface) or counter_total.CounterTotal()
            if not described.is_port or nic.facts.get("role") == rail_rules.BRIDGE:
                columnless_entities.append(nic)
                continue
            try:
                if not described.driver:
                    read_driver(host, interface)  # its failure is the reason
                names = host.call("ethtool", "statistics", interface)["names"]
            except OSError as error:
                findings.append(_statistics_failure(interface, error))
                if is_failure(error) and (usual := self._usual_metrics(described)):
                    start = columns.add_each(usual, nic)
                    nics.append(_unlisted(interface, start, len(usual), total))
                else:
                    columnless_entities.append(nic)
                continue
            name = described.driver
            matched = ethtool_statistics.match_statistics(described, names)
            findings.append(_statistics_finding(interface, name, names, matched))
            matched = [each for each in matched if self._needs(name, names, each)]
            if not matched:
                columnless_entities.append(nic)
                continue
            start = len(columns.columns)
            for metric, part, _ in matched:
                of_nic = metric.about is entities.NIC
                columns.add(metric, nic if of_nic else Entity(metric.about, (*nic.key, part)))
            positions = [position for _, _, position in matched]
            counters = {names[position]: start + i for i, position in enumerate(positions)}
            before = self._before.get(interface)
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
            pick = counter_unwrap.column_picker(positions)
            nics.append(_NicStatistics(interface, names, positions, pick, start, discards, total))
        self._nics = nics
        self._replace_unwraps(host, unwraps)
        return columns.result(*findings, columnless_entities=columnless_entities)

    def _usual_metrics(self, interface: NetworkInterface) -> list[declare.Metric]:
        return [m for m in ethtool_statistics.usual_metrics(interface) if self.selects(m)]

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
                if not nic.names[0]:  # as long as the driver cannot be read, no list has a meaning
                    read_driver(host, nic.interface)
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
            if unwrap := self._unwraps.get(nic.interface):
                # Before the sum below, which needs values of 64 bits.
                unwrap.extend_values(into.values, into.reasons)
            if nic.discards:
                into.put(total, nic.discarded.update(into, nic.discards))
        self._save_unwraps(host)


def _unlisted(
    interface: str, start: int, width: int, total: counter_total.CounterTotal
) -> _NicStatistics:
    """Return a NIC whose list of statistics cannot be read: no list is equal to that of the plan."""
    names, positions = [""] * width, [*range(width)]
    pick = counter_unwrap.column_picker(positions)
    return _NicStatistics(interface, names, positions, pick, start, {}, total)


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
    return probe_result.ProbeFinding(_SUBJECT, verdict, detail, device=interface)


def _statistics_failure(interface: str, error: OSError) -> probe_result.ProbeFinding:
    if reason_of(error) is Absent.UNSUPPORTED:
        return probe_result.ProbeFinding.absent(
            _SUBJECT, "the driver has no ethtool interface", device=interface
        )
    if not is_failure(error):
        return probe_result.ProbeFinding.absent(
            _SUBJECT, error.strerror or str(error), device=interface
        )
    return probe_result.ProbeFinding.failed(
        _SUBJECT, error, "allow the agent the ioctl SIOCETHTOOL", device=interface
    )
