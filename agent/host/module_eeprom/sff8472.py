"""SFP, SFP+, SFP28 and SFP56 modules: SFF-8472.

The first I2C address holds the module's identity (table 4-1 on), the second its monitors (chapter
9); externally calibrated modules contain the calibration constants.
"""

from __future__ import annotations

import struct

from agent.host.module_eeprom.pages import (
    SFP_DIAGNOSTICS_ADDRESS,
    Half,
    Limits,
    Read,
    identity,
    microamperes,
    microvolts,
    millicelsius,
    nanowatts,
    thresholds,
    word,
)
from railscope.capture import Json

IDENTIFIERS = (0x03, 0x0B)

_PLACES = {
    "vendor": (20, 16),
    "part_number": (40, 16),
    "revision": (56, 4),
    "serial": (68, 16),
}
_CABLES = 8  # bit 2: passive, bit 3: active
_PASSIVE, _ACTIVE = 0x04, 0x08
_RATE_100_MEGABAUD, _RATE_250_MEGABAUD, _RATE_IS_LARGER = 12, 66, 0xFF
_SINGLE_MODE_LENGTHS, _MULTI_MODE_LENGTHS = slice(14, 16), slice(16, 20)
_CABLE_LENGTH = 18  # metres
_COMPLIANCE = 36  # SFF-8024, table 4-4
_OPTICAL_CABLES = frozenset({0x01, 0x18, 0x31, 0x33})
_PAM4_LANES = range(0x40, 0x47)
_OPTICAL_PIGTAIL, _CONNECTOR = 0x0B, 2
_DIAGNOSTICS, _HAS_DIAGNOSTICS, _CALIBRATED_BY_HOST, _MOVES_ADDRESS = 92, 0x40, 0x10, 0x04
_TEMPERATURE, _VOLTAGE, _BIAS, _TRANSMITTED, _RECEIVED = 0, 8, 16, 24, 32  # of thresholds
_MEASURED = 96
_LIMITS = (
    Limits("temperature", "millicelsius", _TEMPERATURE, millicelsius),
    Limits("transmit_power", "nanowatts", _TRANSMITTED, nanowatts),
    Limits("receive_power", "nanowatts", _RECEIVED, nanowatts),
)
_SLOPED = (_BIAS, _TRANSMITTED, _TEMPERATURE, _VOLTAGE)  # in the order of their constants
_RECEIVE_CONSTANTS = struct.Struct(">5f")
_CONSTANTS = struct.Struct(">HhHhHhHh")


def decode(lower: bytes, read: Read) -> dict[str, Json]:
    """Identity and monitors of a module with one lane. Raises OSError."""
    cable = lower[_CABLES]
    answer: dict[str, Json] = {
        "type": _type(lower),
        **identity(lower, _PLACES),
        "media": _media(lower),
        "lanes": [],
        "thresholds": {},
    }
    if cable & (_PASSIVE | _ACTIVE) and lower[_CABLE_LENGTH]:
        answer["length_metres"] = lower[_CABLE_LENGTH]
    diagnostics = lower[_DIAGNOSTICS]
    # Reading a module that changes its address on command would disturb others.
    if diagnostics & _HAS_DIAGNOSTICS and not diagnostics & _MOVES_ADDRESS:
        registers = read(Half(address=SFP_DIAGNOSTICS_ADDRESS))
        if diagnostics & _CALIBRATED_BY_HOST:
            registers = _calibrated(registers)
        answer |= _measured(registers)
        answer["thresholds"] = thresholds(registers, _LIMITS)
    return answer


def _type(lower: bytes) -> str:
    if lower[_COMPLIANCE] in _PAM4_LANES:
        return "SFP56"
    megabaud = lower[_RATE_100_MEGABAUD] * 100
    if lower[_RATE_100_MEGABAUD] == _RATE_IS_LARGER:
        megabaud = lower[_RATE_250_MEGABAUD] * 250
    for least, name in ((25_000, "SFP28"), (8_000, "SFP+")):
        if megabaud >= least:
            return name
    return "SFP"


def _media(lower: bytes) -> str:
    if lower[_CABLES] & _PASSIVE:
        return "passive copper"
    if lower[_COMPLIANCE] in _OPTICAL_CABLES:
        return "active optical cable"
    if lower[_CABLES] & _ACTIVE:
        pigtail = lower[_CONNECTOR] == _OPTICAL_PIGTAIL
        return "active optical cable" if pigtail else "active copper"
    if any(lower[_SINGLE_MODE_LENGTHS]):
        return "optical single-mode"
    return "optical multi-mode" if any(lower[_MULTI_MODE_LENGTHS]) else ""


def _measured(registers: bytes) -> dict[str, Json]:
    return {
        "temperature_millicelsius": millicelsius(registers, 96),
        "voltage_microvolts": microvolts(registers, 98),
        "lanes": [
            {
                "receive_power_nanowatts": nanowatts(registers, 104),
                "transmit_power_nanowatts": nanowatts(registers, 102),
                "bias_microamperes": microamperes(registers, 100),
            }
        ],
    }


def _calibrated(registers: bytes) -> bytes:
    """Registers with measurements and thresholds calibrated by the module's constants (chapter 9.3).

    Slopes are in 1/256; received power is a polynomial, its highest degree first.
    """
    *received, constant = _RECEIVE_CONSTANTS.unpack_from(registers, 56)
    slopes = _CONSTANTS.unpack_from(registers, 76)
    right = bytearray(registers)
    for number, first in enumerate(_SLOPED):
        slope, offset = slopes[2 * number : 2 * number + 2]
        is_signed = first == _TEMPERATURE
        for at in _places(first):
            raw = int.from_bytes(registers[at : at + 2], signed=is_signed)
            put = _bounded(raw * slope / 256 + offset, is_signed=is_signed)
            right[at : at + 2] = put.to_bytes(2, signed=is_signed)
    for at in _places(_RECEIVED):
        light = word(registers, at)
        powers = zip((4, 3, 2, 1), received, strict=True)
        put = _bounded(sum(factor * light**degree for degree, factor in powers) + constant)
        right[at : at + 2] = put.to_bytes(2)
    return bytes(right)


def _places(first: int) -> tuple[int, ...]:
    """Registers of a quantity's thresholds, then of the quantity itself."""
    return (first, first + 2, first + 4, first + 6, _MEASURED + first // 4)


def _bounded(value: float, *, is_signed: bool = False) -> int:
    least, most = (-0x8000, 0x7FFF) if is_signed else (0, 0xFFFF)
    # Ordered so that NaN (from a constant) yields the minimum.
    return round(value) if least <= value <= most else most if value > most else least
