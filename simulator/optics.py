"""Physics of a cable's signal: optical power, temperature, and the bit errors of low power.

One decibel less power makes bit errors ten times as frequent. Forward error correction corrects up to 15
symbols of ten bits in a block of 544 (IEEE 802.3, clause 91, RS(544,514)); errors are isolated, so that
their number per block is Poisson-distributed.
"""

from __future__ import annotations

import math
import random

from simulator.nic_models import LANES
from simulator.noise import Drift
from simulator.span import Span

BLOCK_BITS = 5440
"""Bits of a block with its parity."""

_MENDED_SYMBOLS = 15
SYMBOLS_OF_A_BROKEN_BLOCK = 17
_WORST_BIT_ERROR_RATE = 2.8e-3
"""On one lane, with the others clean: one block in 500 000 cannot be corrected."""
_HARMLESS = 0.05
"""Below this number of errors per block, uncorrectable blocks are rarer than once in a node's lifetime."""
_LEAKED = 0.1
"""Share of a lane's degradation that affects the other lanes."""


class Optics:
    """The transceivers, or the copper, at a port and the errors of their signal."""

    def __init__(self, dice: random.Random, bit_error_rate: float) -> None:
        self._dice = dice
        self._decades = math.log10(_WORST_BIT_ERROR_RATE / bit_error_rate)
        self._struck_lane = dice.randrange(LANES)
        self._usual_receive_dbm = [dice.gauss(0.6, 0.4) for _ in range(LANES)]
        self._usual_transmit_dbm = [dice.gauss(1.4, 0.3) for _ in range(LANES)]
        self._usual_bias_milliamperes = [dice.gauss(92.0, 4.0) for _ in range(LANES)]
        self._usual_celsius = dice.gauss(46.0, 2.5)
        self._supply_volts = dice.gauss(3.29, 0.01)
        self._warmth = Drift(dice, 120.0)
        self._ripples = [Drift(dice, 60.0) for _ in range(LANES)]
        self._celsius = self._usual_celsius
        self._lost = [0.0] * LANES

    def advance(self, span: Span, busy: float, margin_lost: float) -> None:
        """Advance by a span; a busy port is warmer."""
        aim = self._usual_celsius + 3.0 * busy + 0.5 * self._warmth.advance(span.seconds)
        self._celsius += (aim - self._celsius) * (1.0 - math.exp(-span.seconds / 60.0))
        for lane, ripple in enumerate(self._ripples):
            ripple.advance(span.seconds)
            self._lost[lane] = margin_lost * (1.0 if lane == self._struck_lane else _LEAKED)

    def strain(self, lane: int) -> float:
        """Ratio of a lane's bit errors to its usual ones."""
        return math.pow(10.0, self._lost[lane] * self._decades)

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
        loss = self._lost[lane] * self._decades
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
    least = _MENDED_SYMBOLS + 1
    term = math.exp(-errors + least * math.log(errors) - math.lgamma(least + 1))
    total = 0.0
    for count in range(least, least + 60):
        total += term
        term *= errors / (count + 1)
    return min(total, 1.0)
