"""Errors of a port's signal, as counted by the NIC: it samples its optics periodically."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from simulator.nic_models import LANES
from simulator.noise import whole
from simulator.optics import SYMBOLS_OF_A_BROKEN_BLOCK, Optics, blocks_with_errors, broken_blocks
from simulator.port_counters import PortCounters
from simulator.span import Span, seconds

SAMPLE_PERIOD_NS = seconds(10)
"""Period at which the NIC samples its optics; in between, the counters of an idle port do not change."""


@dataclass
class Signal:
    """Received bits and signal quality since the last sample; `up_ns` is time with a link."""

    gigabits: int
    bit_error_rate: float
    optics: Optics
    dice: random.Random
    error_dice: random.Random
    first_sample_ns: int
    up_ns: int
    _strained_ns: list[float] = field(init=False)
    _breaking: float = 0.0

    def __post_init__(self) -> None:
        """Start with a normal signal."""
        self._strained_ns = [float(self.up_ns)] * LANES

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.up_ns, self._strained_ns, self._breaking = 0, [0.0] * LANES, 0.0

    def advance(self, up_ns: int, lanes: int) -> None:
        """Advance by some time with a link on this many lanes."""
        length_ns = up_ns * lanes // LANES
        self.up_ns += length_ns
        shares = [
            self.optics.strain(lane) * LANES / lanes if lane < lanes else 0.0
            for lane in range(LANES)
        ]
        for lane, share in enumerate(shares):
            self._strained_ns[lane] += length_ns * share
        bit_error_rate = self.bit_error_rate * sum(shares) / LANES
        self._breaking += broken_blocks(self._bits(length_ns), bit_error_rate)

    def due(self, span: Span) -> bool:
        """True if the NIC samples during a span."""
        return span.count_recurring(self.first_sample_ns, SAMPLE_PERIOD_NS) > 0

    def sample(self, counters: PortCounters, loaded: float) -> None:
        """Count bits and the errors among them; packets are hit in proportion to the link's load."""
        bits, mended = self._bits(self.up_ns), []
        for strained_ns in self._strained_ns:
            strain = strained_ns / self.up_ns if self.up_ns else 0.0
            mean = bits * self.bit_error_rate / LANES * strain
            mended.append(max(round(self.dice.gauss(mean, math.sqrt(mean))), 0))
        broken = whole(self._breaking, self.error_dice)
        bad_frames = whole(broken * loaded, self.error_dice)
        self.reload()
        counters.observed_bits += bits
        counters.mended_bits = [
            before + fresh for before, fresh in zip(counters.mended_bits, mended, strict=True)
        ]
        counters.mended_blocks += max(blocks_with_errors(bits, sum(mended)) - broken, 0)
        counters.broken_blocks += broken
        counters.symbol_errors += broken * SYMBOLS_OF_A_BROKEN_BLOCK
        counters.checksum_errors += bad_frames
        counters.out_of_sequence += bad_frames

    def _bits(self, length_ns: int) -> int:
        """Bits on all lanes in some time: line coding adds a sixteenth, 425 Gb/s for 400 Gb/s."""
        return length_ns * self.gigabits * 17 // 16
