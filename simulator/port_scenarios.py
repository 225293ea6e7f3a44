"""Faults of links, NICs and settings: the effect of each on the port that it strikes, and on the job."""

from __future__ import annotations

from typing import Literal

from simulator.conditions import JobConditions, PortConditions, Scenario, SlowedExchange
from simulator.job import EXCHANGE_RATE
from simulator.nic_models import LANES, nic_of
from simulator.port_settings import SMALL_MTU_BYTES, USUAL, PortSettings
from simulator.span import Span, seconds
from simulator.spec import NodeSpec

_HALF = 0.5


class Outages(Scenario):
    """The link of one rail is down intermittently, and the job waits for it."""

    outages: tuple[Span, ...] = ()

    def job(self, span: Span) -> JobConditions:
        """Nothing is exchanged during an outage."""
        down = sum(span.share_in(outage) for outage in self.outages)
        return JobConditions(exchange_pace=1.0 - down)

    def link_outages(self, rail: int | None) -> tuple[Span, ...]:
        """Return the spans in which the link is down."""
        return self.outages if rail == self.spec.struck else ()


class Flapping(Outages):
    """A loose connector: the link goes down repeatedly, briefly or for some seconds."""

    times = 6

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        room_ns = (duration_ns - self.onset_ns) // (self.times + 1)
        lengths_ns = [
            min(seconds(self.dice.uniform(0.4, 6.0)), room_ns // 2) for _ in range(self.times)
        ]
        starts_ns = [self.onset_ns + room_ns * number for number in range(self.times)]
        self.outages = tuple(
            Span(start_ns, start_ns + length_ns)
            for start_ns, length_ns in zip(starts_ns, lengths_ns, strict=True)
        )


class SpeedDown(Outages):
    """A cable fails: bit errors rise, the link goes down, and recovers on half of its lanes."""

    left_lanes = LANES // 2

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        rest_ns = duration_ns - self.onset_ns
        self.broken_ns = self.onset_ns + rest_ns // 2
        length_ns = min(seconds(self.dice.uniform(3.0, 8.0)), rest_ns // 4)
        self.outages = (Span(self.broken_ns, self.broken_ns + length_ns),)

    def job(self, span: Span) -> JobConditions:
        """Waits for the outage, then exchanges at the remaining link speed."""
        pace = super().job(span).exchange_pace
        slow = span.share_after(self.outages[0].end_ns)
        most = min(self.left_lanes / LANES / EXCHANGE_RATE, 1.0)
        return JobConditions(exchange_pace=pace * (1.0 - slow * (1.0 - most)))

    def struck_port(self, span: Span) -> PortConditions:
        """Rising errors before the outage, none of the bad lanes after it."""
        if span.end_ns >= self.broken_ns:
            return PortConditions(lanes=self.left_lanes)
        failing = Span(self.onset_ns, (self.onset_ns + 2 * self.broken_ns) // 3)
        return PortConditions(margin_lost=_ramp(span, failing))


class OpticsFading(Scenario):
    """A dirty or failing transceiver: decreasing optical power on one lane."""

    def struck_port(self, span: Span) -> PortConditions:
        """The complete margin is lost some time before the end."""
        fading = Span(self.onset_ns, self.duration_ns - (self.duration_ns - self.onset_ns) // 4)
        return PortConditions(margin_lost=_ramp(span, fading))


class NicLost(Scenario):
    """A NIC disappears from the bus; the other ranks wait for its data."""

    def job(self, span: Span) -> JobConditions:
        """Hung from the onset on."""
        return JobConditions(hung=span.end_ns > self.onset_ns)

    def struck_port(self, span: Span) -> PortConditions:
        """Removed from the onset on."""
        return PortConditions(removed=self.onset_ns <= span.end_ns)


class PcieDegraded(Scenario):
    """The PCIe link of a NIC retrains after errors, at half of its width or of its speed."""

    errors = 40

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.halved: Literal["lanes", "speed"] = "lanes" if self.dice.random() < _HALF else "speed"

    def job(self, span: Span) -> JobConditions:
        """All rails wait for the NIC that cannot accept its traffic."""
        nic = nic_of(self.spec.nic, self.spec.struck)
        carried = nic.halved_pcie_bytes_per_second / (nic.gigabits * 125_000_000)
        most = min(carried / EXCHANGE_RATE, 1.0)
        return JobConditions(exchange_pace=1.0 - span.share_after(self.onset_ns) * (1.0 - most))

    def struck_port(self, span: Span) -> PortConditions:
        """Errors at the onset, then half of the link."""
        return PortConditions(
            pcie_halved=self.halved if self.onset_ns <= span.end_ns else "",
            pcie_errors=self.errors if span.passes(self.onset_ns) else 0,
        )


class SettingsDrift(SlowedExchange):
    """Settings of the node's ports are reverted: one of four per rail, in rotation.

    Without pause, or in a priority without it, traffic that finds no buffer is lost. Without
    notifications senders do not slow down, and only pause limits them. A smaller MTU means more packets.
    """

    slowest, fastest = 0.5, 0.8
    drifted = (
        PortSettings(pausing=False),
        PortSettings(notifying=False),
        PortSettings(trust="pcp"),
        PortSettings(mtu_bytes=SMALL_MTU_BYTES),
    )

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.lossy = self.dice.uniform(0.0005, 0.003)
        self.pausing = self.dice.uniform(0.02, 0.08)

    def port(self, rail: int | None, span: Span) -> PortConditions:
        """The ports of all rails drift; those for storage do not."""
        if rail is None or span.end_ns < self.onset_ns:
            return PortConditions()
        share = span.share_after(self.onset_ns)
        settings = self.drifted[rail % len(self.drifted)]
        held = settings.protected and not settings.notifying
        return PortConditions(
            settings=settings,
            lossy=0.0 if settings.protected else share * self.lossy,
            pausing=share * self.pausing if held else 0.0,
            marked=0.0 if settings == USUAL else share * 0.02,
        )


def _ramp(span: Span, whole: Span) -> float:
    """Fraction of a gradual change over a whole span that has completed at the end of another one."""
    passed_ns = min(max(span.end_ns - whole.start_ns, 0), whole.length_ns)
    return passed_ns / max(whole.length_ns, 1)
