"""Standard error counters of NICs that the statistics of their drivers lack: blocks corrected by FEC, pause frames.

A metric that the driver's statistics contain for a NIC is reported by the source `nic`, and not by
`link_errors`: one NIC, one meaning, one source.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from railscope.catalog import declare, entities, nic as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, is_failure, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling import probe_result, row_builder, source
from railscope_agent.sources import ethtool_statistics
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_interface import NetworkInterface

_COUNTERS: Mapping[str, Mapping[str, declare.Metric]] = {
    "fec": {
        "corrected_blocks": c.FEC_CORRECTED_BLOCKS,
        "uncorrectable_blocks": c.FEC_UNCORRECTABLE_BLOCKS,
        "corrected_bits": c.CORRECTED,
    },
    "pause": {"receive_frames": c.GLOBAL_PAUSE_RECEIVED, "transmit_frames": c.GLOBAL_PAUSE_SENT},
    "standard_statistics": ethtool_statistics.GROUPS,
}
_SUBJECT = "error correction and pause of"
_USUAL = {
    "fec": ("corrected_blocks", "uncorrectable_blocks"),
    "pause": ("receive_frames", "transmit_frames"),
    "standard_statistics": ("FrameCheckSequenceErrors",),
}
"""Usual counters of a request: if it fails, they are absent for the reason of the failure."""
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


class LinkErrorSource(source.Source):
    """Blocks and bits corrected by FEC, uncorrectable blocks, pause frames.

    Counters of standard groups, FEC and pause frames are read over ethtool netlink: mlx5 reports blocks of
    forward error correction, and many drivers pause frames, only there
    (Documentation/networking/ethtool-netlink.rst, FEC_GET, PAUSE_GET and STATS_GET). Pause frames are
    those of IEEE 802.3 clause 31B, as opposed to PFC.
    """

    name = "link_errors"
    lane = source.SYSTEM
    period_seconds = 5.0

    def __init__(self, wiring: NetworkScanner | None = None) -> None:
        self._wiring = wiring or NetworkScanner()
        self._requests: list[_CounterRequest] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Read the counters of every NIC; those that its driver's statistics contain are left to `nic`."""
        columns = probe_result.ColumnBuilder()
        findings: list[probe_result.ProbeFinding] = []
        self._requests = []
        network = self._wiring.scan(host)
        for interface in network.ports:
            findings += self._plan(host, network.interfaces[interface], columns)
        return columns.result(*findings, columnless_entities=self._wiring.find_nics(host))

    def _plan(
        self, host: Host, nic: NetworkInterface, columns: probe_result.ColumnBuilder
    ) -> list[probe_result.ProbeFinding]:
        problems: list[probe_result.ProbeFinding] = []
        interface = nic.name
        elsewhere = _metrics_of_statistics(host, nic)
        for name, counters in {**_COUNTERS, **_OF_DRIVERS.get(nic.driver, {})}.items():
            counts: Container[str]
            try:
                counts = _counts(host, name, interface)
            except OSError as error:
                # The driver does not implement the request: there is nothing to report, and nothing to fix.
                if not is_failure(error):
                    continue
                problems.append(_request_failure(interface, name, error))
                counts = _USUAL[name]
            columns_by_key = {
                key: columns.add(metric, Entity(entities.NIC, (interface,)))
                for key, metric in counters.items()
                if key in counts and metric not in elsewhere and self.selects(metric)
            }
            if columns_by_key:
                self._requests.append(_CounterRequest(interface, name, columns_by_key))
        return problems

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


def _metrics_of_statistics(host: Host, nic: NetworkInterface) -> set[declare.Metric]:
    """Metrics that `nic` reports for a NIC from the driver's statistics."""
    try:
        names = host.call("ethtool", "statistics", nic.name)["names"]
    except OSError:
        return set()  # then `nic` reports none either, and has a finding with the reason
    return {metric for metric, _, _ in ethtool_statistics.match_statistics(nic, names)}


def _request_failure(interface: str, name: str, error: OSError) -> probe_result.ProbeFinding:
    remedy = "allow the agent netlink sockets (AF_NETLINK)"
    return probe_result.ProbeFinding.failed(_SUBJECT, error, remedy, name, interface)
