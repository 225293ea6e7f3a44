"""Rules about the traffic of NICs: pause, congestion control, losses, and the receive path over PCIe.

Pause that a NIC transmits: the node cannot absorb what arrives. Pause that it receives: the network cannot. A NIC is
compared with its peers over the same window, as a phase of a job, or congestion of the whole network, affects all.
Sources: torvalds/linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; IEEE 802.1Qbb.
"""

from __future__ import annotations

from statistics import median

from railscope.catalog import declare, nic as n, nic_settings, pcie
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.health import health_facts, nic_signals as s, rule
from railscope_agent.health.nic_link_rules import MIN_ERRORS

STORM_PAUSING, STORM_RECEIVING = 0.5, 0.03
PAUSING = s.PeerLimit(s.pausing, "pauses the switch {} of the time", ".2%", 0.003, 6.0, 0.05)
PAUSED = s.PeerLimit(s.paused, "paused {} of the time", ".2%", 0.01, 6.0, 0.05)
MARKED = s.PeerLimit(s.marked, "{} of the packets marked", ".2%", 0.004, 4.0)
DISCARDS = s.PeerLimit(s.discards, "{} packets dropped per second", ".3g", 0.5, 6.0, 10.0)
WRITE_STALL = s.PeerLimit(s.write_stall, "PCIe writes stalled {} of the time", ".0%", 0.1, 3.0, 0.3)
REORDERED = s.PeerLimit(
    s.rate_of(s.OUT_OF_SEQUENCE), "{} packets out of order per second", ".3g", 0.2, 6.0
)
ADAPTIVE = s.PeerLimit(s.rate_of(s.ADAPTIVE), "{} retransmissions per second", ".3g", 5.0, 8.0)
MIN_SOCKET_SHARE = 0.7
MIN_INCAST_RECEIVING, INCAST_PEERS = 0.2, 1.25
MAX_ACK_TIMEOUTS, MAX_SEQUENCE_ERRORS = 0.1, 10.0
MIN_IGNORED, MIN_IGNORED_SHARE = 10.0, 0.05
MIN_MARKS = 1.0
MIN_SENDING, MAX_UNPROTECTED = 0.02, 0.05


def _is_storm(facts: health_facts.HealthFacts) -> bool:
    return health_facts.any_holds((_reports_storm, _stands_still), lambda test: test(facts))


def _storms(facts: health_facts.HealthFacts) -> float:
    """Pause storms that the NIC reported within the window."""
    return s.total(facts, s.count_of(n.STORM_ERRORS), s.count_of(n.STORM_WARNINGS))


def _reports_storm(facts: health_facts.HealthFacts) -> bool:
    return _storms(facts) > 0 or s.require_readings(facts, n.STORM_ERRORS, n.STORM_WARNINGS)


def _stands_still(facts: health_facts.HealthFacts) -> bool:
    return s.pausing(facts) > STORM_PAUSING and s.receiving(facts) < STORM_RECEIVING


def _describe_storm(facts: health_facts.HealthFacts) -> str:
    storms = s.known_signal(facts, _storms)
    reported = f"; the NIC reported {storms:.0f} storms" if storms else ""
    share = s.known_signal(facts, s.pausing)
    return f"{'' if share is None else PAUSING.describe(facts)}{reported}".removeprefix("; ")


def _pauses(facts: health_facts.HealthFacts) -> bool:
    """True if the NIC pauses its switch port, more than the switch pauses it, and not in a storm."""
    # A NIC that is paused itself cannot send acknowledgements, and pauses in turn: the cause is elsewhere.
    if not PAUSING.is_exceeded(facts) or s.pausing(facts) <= (
        s.known_signal(facts, s.paused) or 0.0
    ):
        return False
    return not s.known_signal(facts, _is_storm)


def _of_socket(facts: health_facts.HealthFacts) -> tuple[int, int]:
    """Return the number of NICs of the same NUMA node that pause about as much, and of all of them."""
    node = facts.labels.get("numa_node")
    pausing = s.pausing(facts)
    shares = [
        share
        for peer in facts.peers
        if node
        and peer.labels.get("numa_node") == node
        and (share := s.known_signal(peer, s.pausing)) is not None
    ]
    # The NIC itself counts as one.
    return 1 + sum(share > pausing / 2 for share in shares), 1 + len(shares)


def _is_host_bound(facts: health_facts.HealthFacts) -> bool:
    """True if the NICs of a socket pause together, without a degraded link of this one."""
    if not _pauses(facts) or facts.reading(pcie.PCIE_PATH_STATE) == _degraded_path():
        return False
    alike, members = _of_socket(facts)
    return alike >= s.MIN_PEERS and alike >= MIN_SOCKET_SHARE * members


def _describe_host_bound(facts: health_facts.HealthFacts) -> str:
    alike, members = _of_socket(facts)
    return f"{PAUSING.describe(facts)}; {alike} of {members} NICs of NUMA node {facts.labels['numa_node']} do"


def _is_pcie_bound(facts: health_facts.HealthFacts) -> bool:
    stalls = (s.known_signal(facts, s.write_stall) or 0.0) > WRITE_STALL.floor
    return stalls or facts.reading(pcie.PCIE_PATH_STATE) == _degraded_path()


def _is_slow(facts: health_facts.HealthFacts) -> bool:
    return _pauses(facts) and not _is_host_bound(facts)


def _degraded_path() -> int:
    """Return the state of a path with a degraded link."""
    (code,) = (code for code, name in pcie.PCIE_PATH_STATE.states.items() if name == "degraded")
    return code


def _describe_pcie_bound(facts: health_facts.HealthFacts) -> str:
    stall = s.known_signal(facts, s.write_stall)
    because = "a degraded PCIe link" if stall is None else WRITE_STALL.describe(facts)
    return f"{PAUSING.describe(facts)}; {because}"


def _is_paused(facts: health_facts.HealthFacts) -> bool:
    return PAUSED.is_exceeded(facts) and (s.known_signal(facts, s.pausing) or 0.0) < s.paused(facts)


def _is_incast(facts: health_facts.HealthFacts) -> bool:
    if (s.known_signal(facts, s.pausing) or 0.0) > PAUSING.floor or not MARKED.is_exceeded(facts):
        return False
    usual = s.usual(facts, s.receiving) or 0.0
    return s.receiving(facts) > max(INCAST_PEERS * usual, MIN_INCAST_RECEIVING)


def _describe_incast(facts: health_facts.HealthFacts) -> str:
    usual = s.usual(facts, s.receiving) or 0.0
    return (
        f"receives {s.receiving(facts):.0%} of the line rate, median of the peers {usual:.0%};"
        f" {MARKED.describe(facts)}"
    )


def _lossless_discards(facts: health_facts.HealthFacts) -> float:
    """Packets of lossless priorities that the NIC dropped within the window."""
    lossless = _lossless_priorities(facts)
    counts = [
        facts.change(metric, *part)
        for metric in (n.PRIORITY_DISCARDS, n.PRIORITY_CONGESTION_DISCARDS)
        for part in facts.parts(metric)
        if part[-1] in lossless
    ]
    supported = [each for each in counts if each is not Absent.UNSUPPORTED]
    if not supported:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return float(sum(health_facts.require_value(each).increase for each in supported))


def _discards(facts: health_facts.HealthFacts) -> bool:
    return DISCARDS.is_exceeded(facts) or s.require_readings(facts, *s.DISCARDS)


def _retries(facts: health_facts.HealthFacts) -> bool:
    return health_facts.any_holds(
        (
            lambda of: s.count(of, s.RETRIES_EXCEEDED) > 0,
            lambda of: _is_fast(of, s.ACK_TIMEOUTS, MAX_ACK_TIMEOUTS),
            lambda of: _is_fast(of, s.SEQUENCE_ERRORS, MAX_SEQUENCE_ERRORS),
            ADAPTIVE.is_exceeded,
        ),
        lambda test: test(facts),
    )


def _is_fast(facts: health_facts.HealthFacts, metric: declare.Metric, limit: float) -> bool:
    return s.count(facts, metric) >= MIN_ERRORS and s.rate(facts, metric) > limit


_RETRY_TEXTS = {
    s.ACK_TIMEOUTS: "acknowledgement timeouts",
    s.SEQUENCE_ERRORS: "sequence errors",
    s.ADAPTIVE: "adaptive retransmissions",
    s.RETRIES_EXCEEDED: "aborted connections",
}


def _describe_retries(facts: health_facts.HealthFacts) -> str:
    rates = {
        text: s.known_signal(facts, s.rate_of(metric)) for metric, text in _RETRY_TEXTS.items()
    }
    return ", ".join(f"{rate:.3g} {text} per second" for text, rate in rates.items() if rate)


def _ignored(facts: health_facts.HealthFacts) -> tuple[float, float]:
    """Notifications ignored and handled, per second."""
    handled = s.known_signal(facts, s.rate_of(s.HANDLED))
    return s.rate(facts, s.IGNORED), handled or 0.0


def _ignores(facts: health_facts.HealthFacts) -> bool:
    ignored, handled = _ignored(facts)
    return ignored > MIN_IGNORED and ignored > MIN_IGNORED_SHARE * (ignored + handled)


def _describe_ignored(facts: health_facts.HealthFacts) -> str:
    ignored, handled = _ignored(facts)
    return f"{ignored:.3g} notifications ignored per second, {handled:.3g} handled"


def _marks(facts: health_facts.HealthFacts) -> float:
    return s.rate(facts, s.MARKED)


def _is_silent(facts: health_facts.HealthFacts) -> bool:
    """True if the NIC sends no notifications for marked packets, while peers with marks do."""
    notifies = [
        s.known_signal(peer, s.rate_of(s.NOTIFIED)) or 0.0
        for peer in facts.peers
        if (s.known_signal(peer, _marks) or 0.0) > MIN_MARKS
    ]
    # Peers without notifications either: the whole network has congestion control switched off, or none is
    # needed.
    if len(notifies) < s.MIN_PEERS or not median(notifies):
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return _marks(facts) > MIN_MARKS and s.rate(facts, s.NOTIFIED) == 0


def _lossless_priorities(facts: health_facts.HealthFacts) -> set[str]:
    enabled = facts.parts(nic_settings.PFC_ENABLED)
    return {part[-1] for part, reading in enabled.items() if reading == 1}


def _unprotected(facts: health_facts.HealthFacts) -> float:
    """Share of sent RDMA bytes outside the lossless priorities of the NIC."""
    lossless = _lossless_priorities(facts)
    changes = {
        part[-1]: facts.change(n.PRIORITY_SENT, *part) for part in facts.parts(n.PRIORITY_SENT)
    }
    if not lossless or not lossless <= changes.keys() or s.sending(facts) < MIN_SENDING:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    protected = sum(
        float(
            health_facts.require_value(changes[each]).rate(SECOND_NS, health_facts.SHORTEST_RATE_NS)
        )
        for each in lossless
    )
    sent = s.rate(facts, n.RDMA_SENT)
    return max(1.0 - protected / sent, 0.0)


_NIC, _NIC_AND_RDMA = ("nic",), ("nic", "rdma")
TRAFFIC_RULES = (
    rule.HealthRule("pfc_storm", rule.FAILED, _is_storm,
        f"the NIC reported a pause storm within ten minutes, or pauses its switch port more than {STORM_PAUSING:.0%} of the time and receives almost nothing",
        "mlx5 counters.rst, tx_pause_storm_warning_events and tx_pause_storm_error_events",
        sources=_NIC, metrics=(n.STORM_ERRORS, n.STORM_WARNINGS, *s.PAUSING, *s.TRAFFIC), compares_readings=True,
        describe=_describe_storm, actions=rule.RequiredActions(("inspect", "drain")),
        remedy="reset the NIC; enable the pause watchdog of the switch", alert="RailscopePfcStorm"),
    rule.HealthRule("host_bound_receiver", rule.DEGRADED, _is_host_bound,
        f"the NIC pauses its switch port more than its peers, as do {MIN_SOCKET_SHARE:.0%} of the NICs of its NUMA node, at least {s.MIN_PEERS}",
        "Railscope: the memory or the IOMMU of a socket limits all of its NICs", sources=(*_NIC, "pcie"),
        metrics=(*s.PAUSING, *s.PAUSED, pcie.PCIE_PATH_STATE), compares_readings=True, describe=_describe_host_bound,
        remedy="check memory bandwidth, IOMMU and other processes of the node", alert="RailscopePfcPauseShare"),
    rule.HealthRule("pcie_bound_receiver", rule.DEGRADED, lambda facts: _is_slow(facts) and _is_pcie_bound(facts),
        "the NIC pauses its switch port more than its peers, and PCIe writes stall or a PCIe link is degraded",
        "mlx5 counters.rst, outbound_pci_stalled_wr_events", sources=_NIC,
        metrics=(*s.PAUSING, *s.PAUSED, n.PCIE_WRITE_STALLED, n.PCIE_WRITE_STALL, pcie.PCIE_PATH_STATE), compares_readings=True,
        describe=_describe_pcie_bound, remedy="check width and speed of the PCIe link, ATS and ACS; reseat the NIC", alert="RailscopePfcPauseShare"),
    rule.HealthRule("slow_receiver", rule.DEGRADED, lambda facts: _is_slow(facts) and not _is_pcie_bound(facts),
        "the NIC pauses its switch port more than 0.3 % of the time and six times as much as the median of the peers, or more than 5 %",
        "IEEE 802.1Qbb: the node accepts data more slowly than it arrives", sources=_NIC,
        metrics=(*s.PAUSING, *s.PAUSED, n.PCIE_WRITE_STALLED, n.PCIE_WRITE_STALL, pcie.PCIE_PATH_STATE), compares_readings=True,
        describe=PAUSING.describe, remedy="check firmware and settings of the NIC, and the load of the node", alert="RailscopePfcPauseShare"),
    rule.HealthRule("paused_by_switch", rule.DEGRADED, _is_paused,
        "the switch pauses the NIC more than 1 % of the time and six times as much as the median of the peers, or more than 5 %",
        "IEEE 802.1Qbb: the network cannot accept what the NIC sends; the cause is elsewhere", sources=_NIC,
        metrics=(*s.PAUSED, *s.PAUSING), compares_readings=True,
        describe=PAUSED.describe, remedy="find the receiver that pauses the switch, by railscope diagnose or at the switch", alert="RailscopePfcPauseShare"),
    rule.HealthRule("incast_receiver", rule.DEGRADED, _is_incast,
        "more than 0.4 % of the packets are marked, four times as many as at the peers, and the NIC receives a quarter more than they do",
        "Railscope: more is sent to the NIC than its link carries", sources=_NIC_AND_RDMA,
        metrics=(s.MARKED, n.RDMA_RECEIVED_PACKETS, s.PORT_RECEIVED_PACKETS, *s.TRAFFIC, *s.PAUSING), compares_readings=True,
        describe=_describe_incast, remedy="spread the senders' traffic, or place the job on other nodes", alert="RailscopeIncast"),
    rule.HealthRule("lossless_discards", rule.DEGRADED, lambda facts: _lossless_discards(facts) > 0,
        "packets of a lossless priority dropped within ten minutes",
        "IEEE 802.1Qbb: with enough headroom a lossless priority loses none", sources=_NIC,
        metrics=(n.PRIORITY_DISCARDS, n.PRIORITY_CONGESTION_DISCARDS, nic_settings.PFC_ENABLED), compares_readings=True,
        describe=lambda facts: f"{_lossless_discards(facts):.0f} packets dropped", remedy="check buffer sizes and headroom of the NIC", alert="RailscopeLosslessDiscards"),
    rule.HealthRule("receive_discards", rule.DEGRADED, _discards,
        "more than 0.5 received packets per second dropped and six times as many as at the peers, or more than 10",
        "mlx5 counters.rst, rx_discards_phy; out_of_buffer: no receive request", sources=_NIC_AND_RDMA,
        metrics=s.DISCARDS, compares_readings=True,
        describe=DISCARDS.describe, remedy="check PCIe, buffers and the receiving process", alert="RailscopeLosslessDiscards"),
    rule.HealthRule("transport_retry", rule.DEGRADED, _retries,
        f"more than {MAX_ACK_TIMEOUTS} acknowledgement timeouts or {MAX_SEQUENCE_ERRORS:.0f} sequence errors per second, far more adaptive retransmissions than the peers, or an aborted connection",
        "RailscopeRdmaRetransmission: packets are lost and sent again", sources=("rdma",),
        metrics=(s.ACK_TIMEOUTS, s.SEQUENCE_ERRORS, s.ADAPTIVE, s.RETRIES_EXCEEDED), compares_readings=True,
        describe=_describe_retries, remedy="check links and drops on the paths of the NIC", alert="RailscopeRdmaRetransmission"),
    rule.HealthRule("out_of_order", rule.DEGRADED, REORDERED.is_exceeded,
        "more than 0.2 packets out of order per second, and six times as many as at the peers",
        "Railscope: spraying reorders the packets of all peers alike; a loss those of one", sources=("rdma",),
        metrics=(s.OUT_OF_SEQUENCE,), compares_readings=True, is_needed=False,
        describe=REORDERED.describe, remedy="check the link of the NIC, and drops on its paths", alert="RailscopeRdmaRetransmission"),
    rule.HealthRule("cnp_ignored", rule.DEGRADED, _ignores,
        f"more than {MIN_IGNORED:.0f} congestion notifications per second ignored, and {MIN_IGNORED_SHARE:.0%} of all",
        "mlx5 counters.rst, rp_cnp_ignored: rate control is off", sources=("rdma",),
        metrics=(s.IGNORED, s.HANDLED), compares_readings=True,
        describe=_describe_ignored, remedy="restore the reaction point of the NIC"),
    rule.HealthRule("cnp_not_sent", rule.DEGRADED, _is_silent,
        "marked packets arrive, no congestion notification is sent, and most peers with marked packets send some",
        "mlx5 counters.rst, np_cnp_sent: the notification point is off", sources=("rdma",),
        metrics=(s.MARKED, s.NOTIFIED), compares_readings=True,
        describe=lambda facts: f"{_marks(facts):.3g} marked packets and no notification per second",
        remedy="restore the notification point of the NIC", alert="RailscopeMarksWithoutNotifications"),
    rule.HealthRule("unprotected_traffic", rule.DEGRADED, lambda facts: _unprotected(facts) > MAX_UNPROTECTED,
        f"more than {MAX_UNPROTECTED:.0%} of the sent RDMA bytes are outside the lossless priorities of the NIC",
        "IEEE 802.1Qbb: traffic outside of them is lost in congestion", sources=("nic", "nic_settings"),
        metrics=(n.PRIORITY_SENT, n.RDMA_SENT, nic_settings.PFC_ENABLED, *s.TRAFFIC), compares_readings=True,
        describe=lambda facts: f"{_unprotected(facts):.0%} of the RDMA bytes", remedy="restore traffic class and priority mapping of the NIC"),
    rule.HealthRule("pcie_stalled", rule.DEGRADED, lambda facts: WRITE_STALL.is_exceeded(facts) and not s.known_signal(facts, _pauses),
        "PCIe writes of the NIC stall more than 10 % of the time and three times as much as those of the peers, or more than 30 %",
        "mlx5 counters.rst, outbound_pci_stalled_wr_events", sources=_NIC,
        metrics=(n.PCIE_WRITE_STALLED, n.PCIE_WRITE_STALL), compares_readings=True, is_needed=False,
        describe=WRITE_STALL.describe, remedy="check width and speed of the PCIe link, ATS and ACS", alert="RailscopePfcPauseShare"),
)  # fmt: skip
