"""Counters of standard groups, FEC and pause frames that the driver's own statistics lack.

mlx5 reports blocks of forward error correction, and many drivers pause frames, over ethtool netlink
only (Documentation/networking/ethtool-netlink.rst, FEC_GET, PAUSE_GET and STATS_GET). A metric that
the driver's statistics contain for a NIC is reported by `nic`, and not here: one NIC, one meaning,
one source. Pause frames are those of IEEE 802.3 clause 31B, as opposed to PFC; mlx5 counts both
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.host import Host, Json
from agent.sampling.facts import counted, linked
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.ethtool_drivers import typed
from agent.sources.ethtool_standard import GROUPS
from agent.sources.settings.card import NET, physical_interfaces
from agent.topology.cards import Cards
from railscope.catalog import nic as c
from railscope.catalog import nic_detail as d
from railscope.catalog import nic_link as link
from railscope.catalog.declare import Metric
from railscope.catalog.entities import NIC
from railscope.entity import Entity
from railscope.reading import Absent, Reading, reason_of

_COUNTERS: Mapping[str, Mapping[str, Metric]] = {
    "fec": {
        "corrected_blocks": link.FEC_CORRECTED_BLOCKS,
        "uncorrectable_blocks": link.FEC_UNCORRECTABLE_BLOCKS,
        "corrected_bits": link.CORRECTED,
    },
    "pause": {"receive_frames": d.GLOBAL_PAUSE_RECEIVED, "transmit_frames": d.GLOBAL_PAUSE_SENT},
    "standard_statistics": GROUPS,
}
_OF_DRIVERS: Mapping[str, Mapping[str, Mapping[str, Metric]]] = {
    "mlx5_core": {"pause": {"receive_frames": c.PAUSE_RECEIVED, "transmit_frames": c.PAUSE_SENT}},
    "bnxt_en": {
        "standard_statistics": {**GROUPS, "SymbolErrorDuringCarrier": link.UNCORRECTED_SYMBOLS}
    },
}
"""Drivers that count something else under these names; their own statistics contain it too.

mlx5 counts PFC frames together with pause frames; bnxt reports rx_pcs_symbol_err as the symbol
errors of the standard group (bnxt_ethtool.c, bnxt_get_eth_phy_stats).
"""


def standard_counters(driver: str) -> Mapping[str, Mapping[str, Metric]]:
    """Return the metrics of each request's counters for a driver."""
    return {**_COUNTERS, **_OF_DRIVERS.get(driver, {})}


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to a NIC, and the column of each counter of the answer."""

    interface: str
    name: str
    columns: dict[str, int]


class LinkErrors(HoldsNothing):
    """Blocks and bits corrected by FEC, uncorrectable blocks, pause frames."""

    name = "link_errors"
    family = "network"

    def __init__(self, period_seconds: float = 5.0, cards: Cards | None = None) -> None:
        self.period_seconds = period_seconds
        self._cards = cards or Cards()
        self._questions: list[_Question] = []

    def probe(self, host: Host) -> Inventory:
        """Read the counters of every NIC; those that its driver's statistics contain are left to `nic`."""
        columns = Columns()
        findings: list[Finding] = []
        self._questions = []
        for interface in physical_interfaces(host):
            findings += self._plan(host, interface, columns)
        return Inventory(tuple(columns.columns), self._cards.look(host), tuple(findings))

    def _plan(self, host: Host, interface: str, columns: Columns) -> list[Finding]:
        trouble: list[Finding] = []
        first = len(columns.columns)
        driver = _driver(host, interface)
        elsewhere = _told_elsewhere(host, interface, driver)
        for name, counters in standard_counters(driver).items():
            try:
                counts = _counts(host, name, interface)
            except OSError as error:
                trouble += _trouble(interface, name, error)
                continue
            wanted = {
                key: columns.add(metric, Entity(NIC, (interface,)))
                for key, metric in counters.items()
                if key in counts and metric not in elsewhere
            }
            if wanted:
                self._questions.append(_Question(interface, name, wanted))
        return trouble or [_finding(interface, len(columns.columns) - first)]

    def read(self, host: Host, into: Table) -> None:
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


def _driver(host: Host, interface: str) -> str:
    try:
        driver: str = host.call("ethtool", "driver", interface)["driver"]
    except OSError:
        return linked(host, f"{NET}/{interface}/device/driver")
    return driver


def _told_elsewhere(host: Host, interface: str, driver: str) -> set[Metric]:
    """Metrics that `nic` reports for a NIC from the driver's statistics."""
    try:
        names = host.call("ethtool", "statistics", interface)["names"]
    except OSError:
        return set()  # then `nic` reports none either, and has a finding with the reason
    return {metric for metric, _, _ in typed(driver, names)}


def _finding(interface: str, counters: int) -> Finding:
    verdict = Verdict.SUPPORTED if counters else Verdict.ABSENT
    detail = counted(counters, "counter") if counters else "nothing beside the driver's statistics"
    return Finding(f"error correction and pause of {interface}", verdict, detail)


def _trouble(interface: str, name: str, error: OSError) -> list[Finding]:
    reason = reason_of(error)
    if reason in {Absent.UNSUPPORTED, Absent.GONE}:
        return []
    verdict = Verdict.DENIED if reason is Absent.DENIED else Verdict.BROKEN
    remedy = "allow the agent netlink sockets (AF_NETLINK)" if reason is Absent.DENIED else ""
    what = f"error correction and pause of {interface}"
    return [Finding(what, verdict, f"{name}: {error.strerror or error}", remedy)]
