"""NVLinks of a GPU, with their traffic and errors. The job's exchange within a node uses all of them evenly."""

from __future__ import annotations

import random
from dataclasses import dataclass

from railscope.timestamps import SECOND_NS
from railscope_simulator import device_models
from railscope_simulator.spec import DriftNoise, TimeSpan, round_randomly

EXCHANGE_RATE = 0.6
"""Share of the nominal speed that a link carries while gradients are exchanged."""

FAULTY_LINK = 7
CODEWORD_BITS = 5440
"""RS(544,514) over symbols of ten bits."""

NO_ERROR = 15 << 8 | 255
"""Encoding of a bit error ratio without any error."""

_USUAL_EXCHANGED = 0.4
_KIBIBYTE = 1024
_BITS_PER_MEGABYTE = 8_000_000
_MAX_EXPONENT = 254


@dataclass(slots=True)
class NvLinkState:
    """One link since driver load, and its errors during the last span."""

    raw_bit_error_ratio: float
    transmitted_kibibytes: int = 0
    received_kibibytes: int = 0
    errors: int = 0
    recent_errors: int = 0


class GpuNvLinks:
    """All links of one GPU after the last span.

    Bytes are counted in kibibytes, as in NVML; all other counters derive from these, from the time that the
    links were up and from the errors of a bad one.
    """

    def __init__(
        self, model: device_models.NvLinkModel, rng: random.Random, uptime_ns: int
    ) -> None:
        self.model = model
        self.up_ns = uptime_ns
        self.recent_ns = SECOND_NS
        self.transmit_kibibytes_per_second = self.receive_kibibytes_per_second = 0.0
        self._rng = rng
        self._drift = DriftNoise(rng, 20.0)
        self.links = [NvLinkState(10 ** rng.uniform(-9.5, -7.5)) for _ in range(model.links)]
        usual = self._kibibytes(uptime_ns / SECOND_NS, _USUAL_EXCHANGED)
        for link in self.links:
            link.transmitted_kibibytes = link.received_kibibytes = int(usual)

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.links = [NvLinkState(link.raw_bit_error_ratio) for link in self.links]
        self.up_ns = 0

    def advance(self, span: TimeSpan, exchanged: float, errors: int) -> None:
        """Advance by a span with a volume of exchange, and errors of the faulty link."""
        ripple = 1.0 + 0.02 * self._drift.advance(span.seconds)
        share = self._kibibytes(span.seconds, exchanged * ripple)
        transmitted = received = 0
        for link in self.links:
            there, back = round_randomly(share, self._rng), round_randomly(share, self._rng)
            link.transmitted_kibibytes += there
            link.received_kibibytes += back
            link.recent_errors = 0
            transmitted, received = transmitted + there, received + back
        faulty_link = self.links[min(FAULTY_LINK, len(self.links) - 1)]
        faulty_link.errors += errors
        faulty_link.recent_errors = errors
        self.up_ns += span.length_ns
        self.recent_ns = span.length_ns
        self.transmit_kibibytes_per_second = transmitted / span.seconds
        self.receive_kibibytes_per_second = received / span.seconds

    def _kibibytes(self, seconds: float, exchanged: float) -> float:
        """Traffic of one link in one direction, in kibibytes."""
        bytes_per_second = self.model.nominal_megabytes * 10**6
        return EXCHANGE_RATE * exchanged * bytes_per_second * seconds / _KIBIBYTE

    def raw(self, kibibytes: int) -> int:
        """Raw traffic of a link for this payload, including protocol overhead."""
        return kibibytes * self.model.raw_megabytes // self.model.nominal_megabytes

    def bits(self, length_ns: int) -> int:
        """Bits that a link receives during some time: it also transmits while idle."""
        return self.model.raw_megabytes * _BITS_PER_MEGABYTE * length_ns // SECOND_NS

    def raw_errors(self, link: NvLinkState) -> int:
        """Wrong bits received, before any correction."""
        return int(self.bits(self.up_ns) * link.raw_bit_error_ratio) + 1000 * link.errors

    def codewords(self, link: NvLinkState, symbols: int) -> int:
        """Codewords in which this many symbols had to be corrected; in most of them, none.

        Wrong bits are isolated, except on a bad link, where they occur in bursts.
        """
        codewords = self.bits(self.up_ns) // CODEWORD_BITS
        mean = CODEWORD_BITS * link.raw_bit_error_ratio
        share = mean if symbols else 1.0 - mean
        for number in range(2, symbols + 1):
            share *= mean / number
        return int(codewords * share) + (link.errors >> symbols if symbols else 0)

    def raw_ratio(self, link: NvLinkState) -> int:
        """Ratio of wrong bits before any correction, in NVML's encoding."""
        wrong = 1000 * link.recent_errors / self.bits(self.recent_ns)
        return encode_ratio(link.raw_bit_error_ratio + wrong)

    def error_ratio(self, recent_errors: int) -> int:
        """Ratio of errors to bits during the last span, in NVML's encoding."""
        return encode_ratio(recent_errors / self.bits(self.recent_ns))


def encode_ratio(ratio: float) -> int:
    """Encode a ratio of at most one as mantissa (bits 8 to 11) and negative exponent (bits 0 to 7)."""
    if ratio <= 0:
        return NO_ERROR
    mantissa, _, exponent = f"{ratio:.0e}".partition("e")
    return int(mantissa) << 8 | min(-int(exponent), _MAX_EXPONENT)
