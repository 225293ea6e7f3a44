"""NICs: the statistics of their drivers, and the standard counters that those lack.

Statistics of drivers are read by the kernel's ethtool interface. Their list changes while a NIC
runs (PFC enabled for a priority, channels added). Names and values are returned together by each
read; if the names differ from those of the probe, values are looked up by name, and the next probe
creates the right columns.

Counters of standard groups, FEC and pause frames are read over ethtool netlink: mlx5 reports blocks
of forward error correction, and many drivers pause frames, only there
(Documentation/networking/ethtool-netlink.rst, FEC_GET, PAUSE_GET and STATS_GET). A metric that the
driver's statistics contain for a NIC is reported by the source `nic`, and not by `link_errors`: one
NIC, one meaning, one source. Pause frames are those of IEEE 802.3 clause 31B, as opposed to PFC;
mlx5 counts both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

from agent.host import Host, Json
from agent.sampling import counter_unwrap, known_devices, source
from agent.sources import ethtool_statistics
from agent.sources.nic_interfaces import NET, physical_interfaces
from agent.topology.network import NetworkScanner, NicFinder, nic_entity as card_of
from agent.topology.rails import BRIDGE
from railscope.catalog import declare, entities, nic as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of

_NET = "/sys/class/net"


@dataclass(slots=True)
class _NicStatistics:
    """A NIC of the last probe: its statistics, and those of them that become columns."""

    interface: str
    names: list[str]
    positions: list[int]
    start: int
    unwrap: counter_unwrap.CounterUnwrapper


class NicSource(source.SourceWithoutResources):
    """PFC, ECN, discards, PCIe stall, PHY and FEC of every NIC, as far as its driver counts them."""

    name = "nic"
    family = "network"
    longest_period_seconds = 20.0
    """Some drop counters are 32 bits wide: they wrap after 21 seconds at 200 million packets per second."""

    def __init__(self, period_seconds: float = 1.0, wiring: NetworkScanner | None = None) -> None:
        self.period_seconds = period_seconds
        self._wiring = wiring or NetworkScanner()
        self._nics: list[_NicStatistics] = []
        self._memory: counter_unwrap.CounterStateFile | None = None
        self._before: dict[str, counter_unwrap.CarriedCounters] = {}
        """Counters before a restart, or hidden from the last probe by failed calls."""

    def remember(self, memory: counter_unwrap.CounterStateFile) -> None:
        """Load the counter wraps from before a restart, and store them from now on."""
        self._memory = memory
        self._before = memory.load()

    @property
    def _carried(self) -> dict[str, counter_unwrap.CarriedCounters]:
        return {card.interface: card.unwrap.carried for card in self._nics}

    def probe(self, host: Host) -> source.ProbeResult:
        """Read the driver and the list of statistics of every interface."""
        columns = source.ColumnBuilder()
        findings: list[source.ProbeFinding] = []
        bystanders: list[Entity] = []
        before, nics = self._before | self._carried, list[_NicStatistics]()
        network = self._wiring.look(host)
        for interface in _interfaces(host):
            try:
                driver = host.call("ethtool", "driver", interface)
                statistics = host.call("ethtool", "statistics", interface)
            except OSError as error:
                findings.append(_statistics_failure(interface, error))
                continue
            card = card_of(interface, driver, network.at(driver.get("bus", "")))
            found = ethtool_statistics.match_statistics(driver["driver"], statistics["names"])
            findings.append(
                _statistics_finding(interface, driver["driver"], statistics["names"], found)
            )
            if not found or card.facts.get("role") == BRIDGE:
                bystanders.append(card)
                continue
            start = len(columns.columns)
            for metric, part, _ in found:
                columns.add(metric, _about(card, metric, part))
            positions = [position for _, _, position in found]
            counter_names = [statistics["names"][position] for position in positions]
            unwrap = _unwrap(driver["driver"], counter_names, start, before.get(interface))
            nics.append(_NicStatistics(interface, statistics["names"], positions, start, unwrap))
        self._nics = nics
        self._before = known_devices.find_hidden(host, before, self._carried)
        return source.ProbeResult(tuple(columns.columns), tuple(bystanders), tuple(findings))

    def read(self, host: Host, into: source.RowBuilder) -> None:
        """Read each NIC once and select the statistics that have a column."""
        for card in self._nics:
            width = len(card.positions)
            try:
                statistics = host.call("ethtool", "statistics", card.interface)
            except OSError as error:
                into.put_none(card.start, width, reason_of(error))
                continue
            if statistics["names"] is not card.names and statistics["names"] != card.names:
                _read_by_name(card, statistics, into)
                into.grown = (
                    True  # for example, PFC on another priority: probe again for new statistics
                )
            else:
                values = statistics["values"]
                picked = itemgetter(*card.positions)(values)
                into.put_all(card.start, picked if width > 1 else (picked,))
            card.unwrap.carry_on(into.values, into.reasons)
        if self._memory:
            unwraps = {card.interface: card.unwrap for card in self._nics}
            self._memory.keep(unwraps, host.clock.now().boot_ns)


def _unwrap(
    driver: str, counter_names: list[str], start: int, before: counter_unwrap.CarriedCounters | None
) -> counter_unwrap.CounterUnwrapper:
    columns = {name: start + offset for offset, name in enumerate(counter_names)}
    wide = [
        column for name, column in columns.items() if ethtool_statistics.resets_with_narrow(name)
    ]
    return counter_unwrap.CounterUnwrapper(
        {n: column for n, column in columns.items() if ethtool_statistics.is_narrow(driver, n)},
        wide,
        before,
    )


def _read_by_name(card: _NicStatistics, statistics: Json, into: source.RowBuilder) -> None:
    values = dict(zip(statistics["names"], statistics["values"], strict=True))
    for offset, position in enumerate(card.positions):
        value = values.get(card.names[position])
        into.put(card.start + offset, Absent.GONE if value is None else value)


def _about(card: Entity, metric: declare.Metric, part: str) -> Entity:
    return card if metric.about is entities.NIC else Entity(metric.about, (*card.key, part))


def _interfaces(host: Host) -> list[str]:
    try:
        return host.names(_NET)
    except FileNotFoundError:
        return []


def _statistics_finding(
    interface: str, driver: str, names: list[str], found: list[tuple[declare.Metric, str, int]]
) -> source.ProbeFinding:
    """Number of published statistics; for a driver without a table also the unpublished names."""
    what = f"statistics of {interface}"
    if driver in ethtool_statistics.DRIVERS:
        detail = f"driver {driver}, {len(found)} typed statistics"
        return source.ProbeFinding(
            what, source.ProbeVerdict.SUPPORTED if found else source.ProbeVerdict.ABSENT, detail
        )
    used = {position for _, _, position in found}
    rest = [name for position, name in enumerate(names) if position not in used]
    detail = f"driver {driver}, {len(found)} of {len(names)} statistics have standard names"
    if rest:
        detail += f"; the rest: {ethtool_statistics.format_statistic_names(rest)}"
    return source.ProbeFinding(
        what, source.ProbeVerdict.SUPPORTED if found else source.ProbeVerdict.ABSENT, detail
    )


def _statistics_failure(interface: str, error: OSError) -> source.ProbeFinding:
    reason = reason_of(error)
    if reason is Absent.UNSUPPORTED:
        detail = "the driver has no ethtool interface"
        return source.ProbeFinding(f"statistics of {interface}", source.ProbeVerdict.ABSENT, detail)
    if reason is Absent.GONE:  # not an interface, or removed meanwhile
        detail = error.strerror or "unknown interface"
        return source.ProbeFinding(f"statistics of {interface}", source.ProbeVerdict.ABSENT, detail)
    verdict = source.ProbeVerdict.DENIED if reason is Absent.DENIED else source.ProbeVerdict.BROKEN
    remedy = "allow the agent the ioctl SIOCETHTOOL" if reason is Absent.DENIED else ""
    return source.ProbeFinding(
        f"statistics of {interface}", verdict, error.strerror or str(error), remedy
    )


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


def standard_counters(driver: str) -> Mapping[str, Mapping[str, declare.Metric]]:
    """Return the metrics of each request's counters for a driver."""
    return {**_COUNTERS, **_OF_DRIVERS.get(driver, {})}


@dataclass(frozen=True, slots=True)
class _CounterRequest:
    """A request to a NIC, and the column of each counter of the answer."""

    interface: str
    name: str
    columns: dict[str, int]


class LinkErrorSource(source.SourceWithoutResources):
    """Blocks and bits corrected by FEC, uncorrectable blocks, pause frames."""

    name = "link_errors"
    family = "network"

    def __init__(self, period_seconds: float = 5.0, nics: NicFinder | None = None) -> None:
        self.period_seconds = period_seconds
        self._nics = nics or NicFinder()
        self._questions: list[_CounterRequest] = []

    def probe(self, host: Host) -> source.ProbeResult:
        """Read the counters of every NIC; those that its driver's statistics contain are left to `nic`."""
        columns = source.ColumnBuilder()
        findings: list[source.ProbeFinding] = []
        self._questions = []
        for interface in physical_interfaces(host):
            findings += self._plan(host, interface, columns)
        return source.ProbeResult(tuple(columns.columns), self._nics.look(host), tuple(findings))

    def _plan(
        self, host: Host, interface: str, columns: source.ColumnBuilder
    ) -> list[source.ProbeFinding]:
        problems: list[source.ProbeFinding] = []
        first = len(columns.columns)
        driver = _read_driver(host, interface)
        elsewhere = _metrics_of_statistics(host, interface, driver)
        for name, counters in standard_counters(driver).items():
            try:
                counts = _counts(host, name, interface)
            except OSError as error:
                problems += _request_failure(interface, name, error)
                continue
            wanted = {
                key: columns.add(metric, Entity(entities.NIC, (interface,)))
                for key, metric in counters.items()
                if key in counts and metric not in elsewhere
            }
            if wanted:
                self._questions.append(_CounterRequest(interface, name, wanted))
        return problems or [_counters_finding(interface, len(columns.columns) - first)]

    def read(self, host: Host, into: source.RowBuilder) -> None:
        """Read each NIC again."""
        for question in self._questions:
            try:
                counts = _counts(host, question.name, question.interface)
            except OSError as error:
                for column in question.columns.values():
                    into.put(column, reason_of(error))
                continue
            for key, column in question.columns.items():
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
        return source.read_link_name(host, f"{NET}/{interface}/device/driver")
    return driver


def _metrics_of_statistics(host: Host, interface: str, driver: str) -> set[declare.Metric]:
    """Metrics that `nic` reports for a NIC from the driver's statistics."""
    try:
        names = host.call("ethtool", "statistics", interface)["names"]
    except OSError:
        return set()  # then `nic` reports none either, and has a finding with the reason
    return {metric for metric, _, _ in ethtool_statistics.match_statistics(driver, names)}


def _counters_finding(interface: str, counters: int) -> source.ProbeFinding:
    verdict = source.ProbeVerdict.SUPPORTED if counters else source.ProbeVerdict.ABSENT
    detail = (
        source.format_count(counters, "counter")
        if counters
        else "none except the driver's statistics"
    )
    return source.ProbeFinding(f"error correction and pause of {interface}", verdict, detail)


def _request_failure(interface: str, name: str, error: OSError) -> list[source.ProbeFinding]:
    reason = reason_of(error)
    if reason in {Absent.UNSUPPORTED, Absent.GONE}:
        return []
    verdict = source.ProbeVerdict.DENIED if reason is Absent.DENIED else source.ProbeVerdict.BROKEN
    remedy = "allow the agent netlink sockets (AF_NETLINK)" if reason is Absent.DENIED else ""
    what = f"error correction and pause of {interface}"
    return [source.ProbeFinding(what, verdict, f"{name}: {error.strerror or error}", remedy)]
