"""Rules about the traffic of NICs that need no other NIC: pause storms, losses, and unprotected traffic.

The diagnosis of the collector compares NICs with their peers. Sources: torvalds/linux
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; IEEE 802.1Qbb.
"""

from __future__ import annotations

from railscope.catalog import declare, nic as n, nic_settings
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.health import health_facts, nic_signals as s, rule
from railscope_agent.health.nic_link_rules import MIN_ERRORS

STORM_PAUSING, STORM_RECEIVING = 0.5, 0.03
MAX_ACK_TIMEOUTS, MAX_SEQUENCE_ERRORS = 0.1, 10.0
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
    pauses = "" if share is None else f"pauses the switch {share:.2%} of the time"
    return f"{pauses}{reported}".removeprefix("; ")


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


def _retries(facts: health_facts.HealthFacts) -> bool:
    limits = {s.ACK_TIMEOUTS: MAX_ACK_TIMEOUTS, s.SEQUENCE_ERRORS: MAX_SEQUENCE_ERRORS}
    return health_facts.any_holds(
        (s.RETRIES_EXCEEDED, *limits),
        lambda metric: (
            _is_fast(facts, metric, limits[metric])
            if metric in limits
            else s.count(facts, metric) > 0
        ),
    )


def _is_fast(facts: health_facts.HealthFacts, metric: declare.Metric, limit: float) -> bool:
    return s.count(facts, metric) >= MIN_ERRORS and s.rate(facts, metric) > limit


_RETRY_TEXTS = {
    s.ACK_TIMEOUTS: "acknowledgement timeouts",
    s.SEQUENCE_ERRORS: "sequence errors",
    s.RETRIES_EXCEEDED: "aborted connections",
}


def _describe_retries(facts: health_facts.HealthFacts) -> str:
    rates = {
        text: s.known_signal(facts, s.rate_of(metric)) for metric, text in _RETRY_TEXTS.items()
    }
    return ", ".join(f"{rate:.3g} {text} per second" for text, rate in rates.items() if rate)


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
    rule.HealthRule("lossless_discards", rule.DEGRADED, lambda facts: _lossless_discards(facts) > 0,
        "packets of a lossless priority dropped within ten minutes",
        "IEEE 802.1Qbb: with enough headroom a lossless priority loses none", sources=_NIC,
        metrics=(n.PRIORITY_DISCARDS, n.PRIORITY_CONGESTION_DISCARDS, nic_settings.PFC_ENABLED), compares_readings=True,
        describe=lambda facts: f"{_lossless_discards(facts):.0f} packets dropped", remedy="check buffer sizes and headroom of the NIC", alert="RailscopeLosslessDiscards"),
    rule.HealthRule("transport_retry", rule.DEGRADED, _retries,
        f"more than {MAX_ACK_TIMEOUTS} acknowledgement timeouts or {MAX_SEQUENCE_ERRORS:.0f} sequence errors per second, or an aborted connection",
        "RailscopeRdmaRetransmission: packets are lost and sent again", sources=("rdma",),
        metrics=(s.ACK_TIMEOUTS, s.SEQUENCE_ERRORS, s.RETRIES_EXCEEDED), compares_readings=True,
        describe=_describe_retries, remedy="check links and drops on the paths of the NIC", alert="RailscopeRdmaRetransmission"),
    rule.HealthRule("unprotected_traffic", rule.DEGRADED, lambda facts: _unprotected(facts) > MAX_UNPROTECTED,
        f"more than {MAX_UNPROTECTED:.0%} of the sent RDMA bytes are outside the lossless priorities of the NIC",
        "IEEE 802.1Qbb: traffic outside of them is lost in congestion", sources=("nic", "nic_settings"),
        metrics=(n.PRIORITY_SENT, n.RDMA_SENT, nic_settings.PFC_ENABLED, *s.TRAFFIC), compares_readings=True,
        describe=lambda facts: f"{_unprotected(facts):.0%} of the RDMA bytes", remedy="restore traffic class and priority mapping of the NIC"),
)  # fmt: skip
