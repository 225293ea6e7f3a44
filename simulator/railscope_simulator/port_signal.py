"""Optics and signal quality of a port: bit errors, FEC blocks, optical power."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from railscope_simulator import device_models, spec
from railscope_simulator.port import PortCounters

BLOCK_BITS = 5440
"""Bits of a block with its parity."""

_CORRECTABLE_SYMBOLS = 15
SYMBOLS_OF_A_BROKEN_BLOCK = 17
_WORST_BIT_ERROR_RATE = 2.8e-3
"""Bit error rate of one lane, with the others clean, at which one block in 500 000 cannot be corrected."""
_HARMLESS = 0.05
"""Below this number of errors per block, uncorrectable blocks are rarer than once in a node's lifetime."""
_LEAKED = 0.1
"""Share of a lane's degradation that affects the other lanes."""

SAMPLE_PERIOD_NS = spec.seconds_to_ns(10)
"""Period at which the NIC samples its optics; in between, the counters of an idle port do not change."""


class PortOptics:
    """The transceivers, or the copper, at a port and the errors of their signal.

    One decibel less power makes bit errors ten times as frequent. Forward error correction corrects up to 15
    symbols of ten bits in a block of 544 (IEEE 802.3, clause 91, RS(544,514)); errors are isolated, so that
    their number per block is Poisson-distributed. The NIC counts errors by sampling its optics periodically.
    """

    def __init__(self, rng: random.Random, bit_error_rate: float) -> None:
        self._decades = math.log10(_WORST_BIT_ERROR_RATE / bit_error_rate)
        self._degraded_lane = rng.randrange(device_models.LANES)
        self._usual_receive_dbm = [rng.gauss(0.6, 0.4) for _ in range(device_models.LANES)]
        self._usual_transmit_dbm = [rng.gauss(1.4, 0.3) for _ in range(device_models.LANES)]
        self._usual_bias_milliamperes = [rng.gauss(92.0, 4.0) for _ in range(device_models.LANES)]
        self._usual_celsius = rng.gauss(46.0, 2.5)
        self._supply_volts = rng.gauss(3.29, 0.01)
        self._warmth = spec.DriftNoise(rng, 120.0)
        self._ripples = [spec.DriftNoise(rng, 60.0) for _ in range(device_models.LANES)]
        self._celsius = self._usual_celsius
        self._lost_margins = [0.0] * device_models.LANES

    def advance(self, span: spec.TimeSpan, busy: float, margin_lost: float) -> None:
        """Advance by a span; a busy port is warmer."""
        aim = self._usual_celsius + 3.0 * busy + 0.5 * self._warmth.advance(span.seconds)
        self._celsius += (aim - self._celsius) * (1.0 - math.exp(-span.seconds / 60.0))
        for lane, ripple in enumerate(self._ripples):
            ripple.advance(span.seconds)
            self._lost_margins[lane] = margin_lost * (
                1.0 if lane == self._degraded_lane else _LEAKED
            )

    def error_ratio(self, lane: int) -> float:
        """Ratio of a lane's bit errors to its usual ones."""
        return math.pow(10.0, self._lost_margins[lane] * self._decades)

    @property
    def millicelsius(self) -> int:
        """Temperature of the transceiver, in its measurement steps of 1/256 degree."""
        return round(self._celsius * 256) * 1000 // 256

    @property
    def microvolts(self) -> int:
        """Supply voltage of the transceiver, in its measurement steps of 100 microvolts (CMIS)."""
        return round(self._supply_volts * 10_000) * 100

    def receive_nanowatts(self, lane: int) -> int:
        """Received optical power."""
        loss = self._lost_margins[lane] * self._decades
        return _nanowatts(self._usual_receive_dbm[lane] + 0.05 * self._ripples[lane].value - loss)

    def transmit_nanowatts(self, lane: int) -> int:
        """Transmitted optical power."""
        return _nanowatts(self._usual_transmit_dbm[lane] + 0.02 * self._ripples[lane].value)

    def bias_microamperes(self, lane: int) -> int:
        """Bias current of a laser, which is higher when it is warm."""
        warmer = self._celsius - self._usual_celsius
        return round(1000 * self._usual_bias_milliamperes[lane] * (1.0 + 0.002 * warmer))


def _nanowatts(decibel_milliwatts: float) -> int:
    """Optical power in the measurement steps of 0.1 microwatt (SFF-8636, CMIS)."""
    return round(math.pow(10.0, decibel_milliwatts / 10.0) * 10_000) * 100


def blocks_with_errors(bits: int, errors: int) -> int:
    """Number of blocks with errors, if errors are spread at random over these bits."""
    blocks = bits // BLOCK_BITS
    return round(-blocks * math.expm1(-errors / blocks)) if blocks else 0


def broken_blocks(bits: int, bit_error_rate: float) -> float:
    """Mean number of uncorrectable blocks among these bits."""
    return bits // BLOCK_BITS * _beyond_repair(bit_error_rate * BLOCK_BITS)


def _beyond_repair(errors: float) -> float:
    """Probability of an uncorrectable block, given the mean number of errors per block."""
    if errors < _HARMLESS:
        return 0.0
    first = _CORRECTABLE_SYMBOLS + 1
    term = math.exp(-errors + first * math.log(errors) - math.lgamma(first + 1))
    total = 0.0
    # Enough terms: the mean number of errors per block remains far below 60.
    for count in range(first, first + 60):
        total += term
        term *= errors / (count + 1)
    return min(total, 1.0)


@dataclass
class PortSignal:
    """Received bits and signal quality since the last sample; `up_ns` is time with a link."""

    gigabits: int
    bit_error_rate: float
    optics: PortOptics
    rng: random.Random
    error_rng: random.Random
    first_sample_ns: int
    up_ns: int
    _weighted_ns: list[float] = field(init=False)
    _uncorrectable_blocks: float = 0.0

    def __post_init__(self) -> None:
        """Start with a normal signal."""
        self._weighted_ns = [float(self.up_ns)] * device_models.LANES

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.up_ns, self._uncorrectable_blocks = 0, 0.0
        self._weighted_ns = [0.0] * device_models.LANES

    def advance(self, up_ns: int, lanes: int) -> None:
        """Advance by some time with a link on this many lanes."""
        length_ns = up_ns * lanes // device_models.LANES
        self.up_ns += length_ns
        shares = [
            self.optics.error_ratio(lane) * device_models.LANES / lanes if lane < lanes else 0.0
            for lane in range(device_models.LANES)
        ]
        for lane, share in enumerate(shares):
            self._weighted_ns[lane] += length_ns * share
        bit_error_rate = self.bit_error_rate * sum(shares) / device_models.LANES
        self._uncorrectable_blocks += broken_blocks(self._bits(length_ns), bit_error_rate)

    def due(self, span: spec.TimeSpan) -> bool:
        """True if the NIC samples during a span."""
        return span.count_recurring(self.first_sample_ns, SAMPLE_PERIOD_NS) > 0

    def sample(self, counters: PortCounters, loaded: float) -> None:
        """Count bits and the errors among them; packets are hit in proportion to the link's load."""
        bits, corrected = self._bits(self.up_ns), []
        for weighted_ns in self._weighted_ns:
            error_ratio = weighted_ns / self.up_ns if self.up_ns else 0.0
            mean = bits * self.bit_error_rate / device_models.LANES * error_ratio
            corrected.append(max(round(self.rng.gauss(mean, math.sqrt(mean))), 0))
        broken = spec.round_randomly(self._uncorrectable_blocks, self.error_rng)
        bad_frames = spec.round_randomly(broken * loaded, self.error_rng)
        self.reload()
        counters.observed_bits += bits
        counters.corrected_bits = [
            before + fresh for before, fresh in zip(counters.corrected_bits, corrected, strict=True)
        ]
        # A block with errors is corrected or broken, not both.
        counters.corrected_blocks += max(blocks_with_errors(bits, sum(corrected)) - broken, 0)
        counters.broken_blocks += broken
        counters.symbol_errors += broken * SYMBOLS_OF_A_BROKEN_BLOCK
        counters.checksum_errors += bad_frames
        counters.out_of_sequence += bad_frames

    def _bits(self, length_ns: int) -> int:
        """Bits on all lanes in some time: line coding adds a sixteenth, 425 Gb/s for 400 Gb/s."""
        return length_ns * self.gigabits * 17 // 16
