"""Signals of a NIC: rates, shares and ratios from its facts, and comparison with the peers of its node.

A signal is a function of facts that raises AbsentFact while a reading is absent. The peers of a NIC have the same
role, model and PCI function; a comparison needs `MIN_PEERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeAlias

from railscope.catalog import METRICS, declare, host, nic as n
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.health import health_facts

MIN_PEERS = 3
PAUSE_QUANTA_BYTES = 65_535 * 512 // 8
"""Bytes at line rate for which one frame stops a priority at most (IEEE 802.1Qbb)."""
Signal: TypeAlias = Callable[[health_facts.HealthFacts], float]


def rdma(stem: str) -> declare.Metric:
    """Return the metric of an RDMA counter."""
    return METRICS[f"railscope_rdma_{stem}_total"]


ACK_TIMEOUTS, SEQUENCE_ERRORS = rdma("ack_timeouts"), rdma("packet_sequence_errors")
RETRIES_EXCEEDED = rdma("transport_retries_exceeded")
PORT_RECEIVED, PORT_SENT = rdma("receive_bytes"), rdma("transmit_bytes")
PORT_SYMBOL_ERRORS = rdma("symbol_errors")
PORT_LINK_DOWNS = rdma("link_downs")
PORT_UP = METRICS["railscope_rdma_port_up"]
PORT_RATE = METRICS["railscope_rdma_port_rate_bytes_per_second"]

TRAFFIC = (n.RDMA_RECEIVED, n.RDMA_SENT, PORT_RECEIVED, PORT_SENT, host.LINK_SPEED, PORT_RATE)
"""Metrics of `receiving`, `sending` and `line_rate`."""
_SENT_PAUSES = (n.PFC_SENT_TIME, n.PFC_SENT), (n.GLOBAL_PAUSE_SENT_TIME, n.GLOBAL_PAUSE_SENT)
"""Durations and frames of PFC, and those of link-wide pause (IEEE 802.3x)."""
PAUSING = (*_SENT_PAUSES[0], *_SENT_PAUSES[1], *TRAFFIC[-2:])
UNCORRECTED = (n.UNCORRECTED_SYMBOLS, n.FEC_UNCORRECTABLE_BLOCKS, PORT_SYMBOL_ERRORS)
"""Counters of data beyond correction. A driver may list one that it does not count: all of them are judged."""


def value(facts: health_facts.HealthFacts, metric: declare.Metric, *part: str) -> float:
    """Return a reading in base units."""
    return float(facts.number(metric, *part) * metric.scale)


def rate(facts: health_facts.HealthFacts, metric: declare.Metric) -> float:
    """Return the increase per second of all parts of a counter, in base units."""
    limit, scale = metric.max_per_second, float(metric.scale)
    return _combine(
        facts,
        metric,
        lambda of: min(float(of.rate(SECOND_NS, health_facts.SHORTEST_RATE_NS)) * scale, limit),
    )


def count(facts: health_facts.HealthFacts, metric: declare.Metric) -> float:
    """Return the increase of all parts of a counter over the window, in base units."""
    return _combine(facts, metric, lambda of: of.increase * float(metric.scale))


def _combine(
    facts: health_facts.HealthFacts,
    metric: declare.Metric,
    measure: Callable[[health_facts.CounterIncrease], float],
) -> float:
    changes = [facts.change(metric, *part) for part in facts.parts(metric)]
    # A part that the NIC does not have adds nothing; one that cannot be read now makes the sum unknown.
    supported = [change for change in changes if change is not Absent.UNSUPPORTED]
    if not supported:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    found = [measure(health_facts.require_value(change)) for change in supported]
    return sum(found) if metric.adds_parts else max(found)


def value_of(metric: declare.Metric, *part: str) -> Signal:
    """Return the signal of a reading."""
    return lambda facts: value(facts, metric, *part)


def rate_of(metric: declare.Metric) -> Signal:
    """Return the signal of a counter's increase per second."""
    return lambda facts: rate(facts, metric)


def count_of(metric: declare.Metric) -> Signal:
    """Return the signal of a counter's increase over the window."""
    return lambda facts: count(facts, metric)


def total(facts: health_facts.HealthFacts, *signals: Signal) -> float:
    """Return the sum of the signals that the NIC supports. Raises AbsentFact without any."""
    found = [each for signal in signals if (each := known_signal(facts, signal)) is not None]
    # Without any, the evaluation of the first ones raises the error with its reason.
    return sum(found) if found else first(facts, *signals)


def first(facts: health_facts.HealthFacts, *signals: Signal) -> float:
    """Return the first of these signals that the NIC supports."""
    for signal in signals:
        try:
            return signal(facts)
        except health_facts.AbsentFact as absent:
            if absent.reason is not Absent.UNSUPPORTED:
                raise
    raise health_facts.AbsentFact(Absent.UNSUPPORTED)


def require_readings(facts: health_facts.HealthFacts, *metrics: declare.Metric) -> bool:
    """Return False. Raises AbsentFact if a reading is absent: for a sum or a comparison without it."""
    return health_facts.require_all(
        each for metric in metrics for each in facts.parts(metric).values()
    )


def known_signal(facts: health_facts.HealthFacts, signal: Signal) -> float | None:
    """Return a signal; None while it is absent."""
    try:
        return signal(facts)
    except health_facts.AbsentFact:
        return None


def of_peers(facts: health_facts.HealthFacts, signal: Signal) -> list[float]:
    """Return a signal of each peer that has it; nothing for too few peers."""
    found = [known_signal(peer, signal) for peer in facts.peers]
    present = [each for each in found if each is not None]
    return present if len(present) >= MIN_PEERS else []


def usual(facts: health_facts.HealthFacts, signal: Signal) -> float | None:
    """Return the median of a signal over the peers; None for too few peers."""
    peers = of_peers(facts, signal)
    return median(peers) if peers else None


def is_up(facts: health_facts.HealthFacts) -> bool:
    """True if the NIC has a carrier; a port without an interface, if it is active."""
    return first(facts, value_of(host.LINK_UP), value_of(PORT_UP)) != 0


def line_rate(facts: health_facts.HealthFacts) -> float:
    """Bytes per second of the link."""
    return first(facts, value_of(host.LINK_SPEED), value_of(PORT_RATE))


def receiving(facts: health_facts.HealthFacts) -> float:
    """Received RDMA bytes, relative to the line rate."""
    received = first(facts, rate_of(n.RDMA_RECEIVED), rate_of(PORT_RECEIVED))
    return _of_line_rate(facts, received)


def sending(facts: health_facts.HealthFacts) -> float:
    """Sent RDMA bytes, relative to the line rate."""
    sent = first(facts, rate_of(n.RDMA_SENT), rate_of(PORT_SENT))
    return _of_line_rate(facts, sent)


def _of_line_rate(facts: health_facts.HealthFacts, amount: float) -> float:
    speed = line_rate(facts)
    if not speed:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return amount / speed


def pausing(facts: health_facts.HealthFacts) -> float:
    """Share of time in which the NIC pauses its switch port, by durations; without them by frames, which is an upper bound.

    A port uses PFC or link-wide pause. Many drivers list the counters of both, and those of the other one are 0.
    """
    shares = []
    for duration, frames in _SENT_PAUSES:
        try:
            shares.append(first(facts, rate_of(duration), partial(_full_stop, frames=frames)))
        except health_facts.AbsentFact as absent:
            if absent.reason is not Absent.UNSUPPORTED:
                raise
    if not shares:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return max(shares)


def _full_stop(facts: health_facts.HealthFacts, frames: declare.Metric) -> float:
    return min(_of_line_rate(facts, rate(facts, frames) * PAUSE_QUANTA_BYTES), 1.0)


def bit_errors(facts: health_facts.HealthFacts) -> float:
    """Corrected bits, relative to received bits."""
    received = rate(facts, n.LINE_RECEIVED)
    if not received:
        raise health_facts.AbsentFact(Absent.UNSUPPORTED)
    return rate(facts, n.CORRECTED) / (8 * received)


def link_downs(facts: health_facts.HealthFacts) -> float:
    """Times that the link went down within the window."""
    return first(
        facts,
        count_of(n.LINK_DOWNS),
        count_of(PORT_LINK_DOWNS),
        # Each outage has two changes of the carrier, except one that has not ended.
        lambda of: (count(of, host.LINK_CHANGES) + (not is_up(of))) // 2,
    )


@dataclass(frozen=True, slots=True)
class PeerLimit:
    """A limit of a signal: `floor`, and `factor` times the median of the peers, at most `always`.

    Without peers the limit is `always`; without that, the signal cannot be judged.
    """

    signal: Signal
    text: str
    """Text with a place for the signal."""
    form: str
    """Format of the signal."""
    floor: float
    factor: float
    always: float = math.inf

    def limit(self, facts: health_facts.HealthFacts) -> float:
        """Return the limit. Raises AbsentFact if there is none."""
        of_peers = usual(facts, self.signal)
        if of_peers is None and math.isinf(self.always):
            raise health_facts.AbsentFact(Absent.UNSUPPORTED)
        limit = math.inf if of_peers is None else self.floor + self.factor * of_peers
        return min(limit, self.always)

    def is_exceeded(self, facts: health_facts.HealthFacts) -> bool:
        """True if the signal is above the limit."""
        return self.signal(facts) > self.limit(facts)

    def describe(self, facts: health_facts.HealthFacts) -> str:
        """Describe the signal, and that of the peers."""
        of_peers = usual(facts, self.signal)
        text = self.text.format(format(self.signal(facts), self.form))
        return text if of_peers is None else f"{text}, median of the peers {of_peers:{self.form}}"
