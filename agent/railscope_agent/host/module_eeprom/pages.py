"""Half pages of a module's EEPROM, and decoders of their numbers and texts.

Registers are numbered 0 to 255 as in the specifications: the lower half is the same on all pages;
the upper half depends on the page, and on the bank for modules with more than eight lanes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from railscope.capture import Json

HALF_BYTES = 128
MODULE_ADDRESS, SFP_DIAGNOSTICS_ADDRESS = 0x50, 0x51  # I2C, 7 bits; A0h and A2h of SFF-8472
# Drivers reject pages that they cannot read with either of them.
_NOT_READABLE = (errno.EINVAL, errno.EOPNOTSUPP)


class HalfPage(NamedTuple):
    """Half a page: the unit of one read."""

    page: int = 0
    is_upper: bool = False
    bank: int = 0
    address: int = MODULE_ADDRESS

    @property
    def offset(self) -> int:
        """Number of the first register."""
        return HALF_BYTES if self.is_upper else 0


ReadHalfPage = Callable[[HalfPage], bytes]
"""Return the 128 registers of half a page. Raises OSError."""


def read_upper_page(read: ReadHalfPage, page: int, bank: int = 0) -> bytes | None:
    """A page, with zeros for the lower half; None if the driver cannot read such pages."""
    try:
        return bytes(HALF_BYTES) + read(HalfPage(page, is_upper=True, bank=bank))
    except OSError as error:
        if error.errno in _NOT_READABLE:
            return None
        raise


def integer_at(registers: bytes, at: int) -> int:
    """Two registers as one number, the more significant first."""
    return int.from_bytes(registers[at : at + 2])


def millicelsius(registers: bytes, at: int) -> int:
    """Temperature: signed, in 1/256 of a degree."""
    return round(int.from_bytes(registers[at : at + 2], signed=True) * 1000 / 256)


def microvolts(registers: bytes, at: int) -> int:
    """Voltage, in 100 microvolts."""
    return integer_at(registers, at) * 100


def nanowatts(registers: bytes, at: int) -> int:
    """Optical power, in 0.1 microwatts."""
    return integer_at(registers, at) * 100


def microamperes(registers: bytes, at: int) -> int:
    """Bias current of a laser, in 2 microamperes."""
    return integer_at(registers, at) * 2


def text_at(registers: bytes, at: int, length: int) -> str:
    """Printable ASCII text, without padding."""
    raw = registers[at : at + length]
    return "".join(chr(code) for code in raw if ord(" ") <= code <= ord("~")).strip()


def module_answer(
    registers: bytes, kind: str, media: str, places: dict[str, tuple[int, int]]
) -> dict[str, Json]:
    """Answer about a module with its type, its media and its identity, still without monitors.

    `places` are the registers of vendor, part number, revision and serial number.
    """
    identity = {name: text_at(registers, *place) for name, place in places.items()}
    return {"type": kind, **identity, "media": media, "lanes": [], "thresholds": {}}


class ThresholdRegisters(NamedTuple):
    """Register of one quantity's thresholds: high alarm, low alarm, high warning, low warning."""

    quantity: str
    unit: str
    offset: int
    read: Callable[[bytes, int], int]


_ORDER = ("high_alarm", "low_alarm", "high_warning", "low_warning")
_REPORTED_THRESHOLDS = {
    "temperature": {"high_alarm", "high_warning"},
    "receive_power": {"low_alarm", "low_warning", "high_alarm"},
    "transmit_power": {"low_alarm"},
}


def thresholds(registers: bytes | None, limits: tuple[ThresholdRegisters, ...]) -> dict[str, int]:
    """Thresholds of a module; four zeros mean that a quantity has none."""
    answer: dict[str, int] = {}
    for quantity, unit, offset, read in limits:
        if registers is None or not any(registers[offset : offset + 8]):
            continue
        for place, limit in enumerate(_ORDER):
            if limit in _REPORTED_THRESHOLDS[quantity]:
                answer[f"{quantity}_{limit}_{unit}"] = read(registers, offset + 2 * place)
    return answer
