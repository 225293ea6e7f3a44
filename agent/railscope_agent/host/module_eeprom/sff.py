"""SFP modules (SFF-8472) and QSFP modules (SFF-8636).

SFF-8472: SFP, SFP+, SFP28 and SFP56. The first I2C address holds the module's identity (table 4-1
on), the second its monitors (chapter 9); externally calibrated modules contain the calibration
constants.

SFF-8636: QSFP+, QSFP28 and QSFP56. Registers 0 to 127 hold monitors (table 6-1), 128 to 255 of page
00h the module's identity (table 6-14), of page 03h its thresholds (table 6-28).
"""

from __future__ import annotations

import struct

from railscope.capture import Json
from railscope_agent.host.module_eeprom import pages

SFP_IDENTIFIERS = (0x03, 0x0B)

_SFP_PLACES = {"vendor": (20, 16), "part_number": (40, 16), "revision": (56, 4), "serial": (68, 16)}
_CABLES = 8  # bit 2: passive, bit 3: active
_PASSIVE, _ACTIVE = 0x04, 0x08
_RATE_100_MEGABAUD, _RATE_250_MEGABAUD, _RATE_IS_LARGER = 12, 66, 0xFF
_SINGLE_MODE_LENGTHS, _SFP_MULTI_MODE_LENGTHS = slice(14, 16), slice(16, 20)
_SFP_CABLE_LENGTH = 18  # metres
_SFP_COMPLIANCE = 36  # SFF-8024, table 4-4
_OPTICAL_CABLES = frozenset({0x01, 0x18, 0x31, 0x33})
_PAM4_LANES = range(0x40, 0x47)
_OPTICAL_PIGTAIL, _SFP_CONNECTOR = 0x0B, 2
_SFP_DIAGNOSTICS, _HAS_DIAGNOSTICS, _CALIBRATED_BY_HOST, _MOVES_ADDRESS = 92, 0x40, 0x10, 0x04
# First registers of the thresholds of a quantity.
_SFP_TEMPERATURE, _SFP_VOLTAGE, _SFP_BIAS, _SFP_TRANSMITTED, _SFP_RECEIVED = 0, 8, 16, 24, 32
_MEASURED = 96
_SFP_THRESHOLDS = (
    pages.ThresholdRegisters("temperature", "millicelsius", _SFP_TEMPERATURE, pages.millicelsius),
    pages.ThresholdRegisters("transmit_power", "nanowatts", _SFP_TRANSMITTED, pages.nanowatts),
    pages.ThresholdRegisters("receive_power", "nanowatts", _SFP_RECEIVED, pages.nanowatts),
)
_SLOPED = (_SFP_BIAS, _SFP_TRANSMITTED, _SFP_TEMPERATURE, _SFP_VOLTAGE)
"""Measurements with slope and offset, in the order of their constants."""
_RECEIVE_CONSTANTS = struct.Struct(">5f")
_CONSTANTS = struct.Struct(">HhHhHhHh")


def decode_sfp(lower: bytes, read: pages.ReadHalfPage) -> dict[str, Json]:
    """Identity and monitors of a module with one lane. Raises OSError."""
    cable = lower[_CABLES]
    answer = pages.module_answer(lower, _sfp_type(lower), _sfp_media(lower), _SFP_PLACES)
    if cable & (_PASSIVE | _ACTIVE) and lower[_SFP_CABLE_LENGTH]:
        answer["length_metres"] = lower[_SFP_CABLE_LENGTH]
    diagnostics = lower[_SFP_DIAGNOSTICS]
    # Reading a module that changes its address on command would disturb others.
    if diagnostics & _HAS_DIAGNOSTICS and not diagnostics & _MOVES_ADDRESS:
        registers = read(pages.HalfPage(address=pages.SFP_DIAGNOSTICS_ADDRESS))
        if diagnostics & _CALIBRATED_BY_HOST:
            registers = _sfp_calibrated_registers(registers)
        answer |= _sfp_measurements(registers)
        answer["thresholds"] = pages.thresholds(registers, _SFP_THRESHOLDS)
    return answer


def _sfp_type(lower: bytes) -> str:
    if lower[_SFP_COMPLIANCE] in _PAM4_LANES:
        return "SFP56"
    megabaud = lower[_RATE_100_MEGABAUD] * 100
    if lower[_RATE_100_MEGABAUD] == _RATE_IS_LARGER:
        megabaud = lower[_RATE_250_MEGABAUD] * 250
    for min_megabaud, name in ((25_000, "SFP28"), (8_000, "SFP+")):
        if megabaud >= min_megabaud:
            return name
    return "SFP"


def _sfp_media(lower: bytes) -> str:
    if lower[_CABLES] & _PASSIVE:
        return "passive copper"
    # First, because an optical cable may set the bit of active cables as well.
    if lower[_SFP_COMPLIANCE] in _OPTICAL_CABLES:
        return "active optical cable"
    if lower[_CABLES] & _ACTIVE:
        pigtail = lower[_SFP_CONNECTOR] == _OPTICAL_PIGTAIL
        return "active optical cable" if pigtail else "active copper"
    if any(lower[_SINGLE_MODE_LENGTHS]):
        return "optical single-mode"
    return "optical multi-mode" if any(lower[_SFP_MULTI_MODE_LENGTHS]) else ""


def _sfp_measurements(registers: bytes) -> dict[str, Json]:
    return {
        "temperature_millicelsius": pages.millicelsius(registers, 96),
        "voltage_microvolts": pages.microvolts(registers, 98),
        "lanes": [
            {
                "receive_power_nanowatts": pages.nanowatts(registers, 104),
                "transmit_power_nanowatts": pages.nanowatts(registers, 102),
                "bias_microamperes": pages.microamperes(registers, 100),
            }
        ],
    }


def _sfp_calibrated_registers(registers: bytes) -> bytes:
    """Registers with measurements and thresholds calibrated by the module's constants (chapter 9.3).

    Slopes are in 1/256; received power is a polynomial, its highest degree first.
    """
    *received, constant = _RECEIVE_CONSTANTS.unpack_from(registers, 56)
    slopes = _CONSTANTS.unpack_from(registers, 76)
    right = bytearray(registers)
    for number, first in enumerate(_SLOPED):
        slope, offset = slopes[2 * number : 2 * number + 2]
        is_signed = first == _SFP_TEMPERATURE
        for register in _sfp_threshold_registers(first):
            raw = int.from_bytes(registers[register : register + 2], signed=is_signed)
            calibrated = _clamp_register(raw * slope / 256 + offset, is_signed=is_signed)
            right[register : register + 2] = calibrated.to_bytes(2, signed=is_signed)
    for register in _sfp_threshold_registers(_SFP_RECEIVED):
        light = pages.integer_at(registers, register)
        powers = zip((4, 3, 2, 1), received, strict=True)
        calibrated = _clamp_register(
            sum(factor * light**degree for degree, factor in powers) + constant
        )
        right[register : register + 2] = calibrated.to_bytes(2)
    return bytes(right)


def _sfp_threshold_registers(first: int) -> tuple[int, ...]:
    """Registers of a quantity's thresholds, then of the quantity itself."""
    return (first, first + 2, first + 4, first + 6, _MEASURED + first // 4)


def _clamp_register(value: float, *, is_signed: bool = False) -> int:
    lowest, highest = (-0x8000, 0x7FFF) if is_signed else (0, 0xFFFF)
    # Ordered so that NaN (from a constant) yields the minimum.
    return round(value) if lowest <= value <= highest else highest if value > highest else lowest


QSFP_IDENTIFIERS = (0x0C, 0x0D, 0x11)

_NAMES = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}
_QSFP_PLACES = {
    "vendor": (148, 16),
    "part_number": (168, 16),
    "revision": (184, 2),
    "serial": (196, 16),
}
_STATUS, _HAS_ONE_PAGE = 2, 0x04
_QSFP_TEMPERATURE, _QSFP_VOLTAGE = 22, 26
_QSFP_RECEIVED, _QSFP_BIAS, _QSFP_TRANSMITTED, _QSFP_LANES = 34, 42, 50, 4
_QSFP_CONNECTOR, _NOT_SEPARABLE = 130, 0x23
_SINGLE_MODE_LENGTH, _QSFP_MULTI_MODE_LENGTHS, _QSFP_CABLE_LENGTH = 142, slice(143, 147), 146
_TECHNOLOGY = 147
_SHORT_WAVE, _OTHER_LASER, _PASSIVE_COPPER = 0x0, 0x8, (0xA, 0xB)
_FIRST_COPPER = 0xA
_QSFP_COMPLIANCE = 192  # SFF-8024, table 4-4
_QSFP_DIAGNOSTICS, _MEASURES_TRANSMITTED = 220, 0x04
_QSFP_THRESHOLDS = (
    pages.ThresholdRegisters("temperature", "millicelsius", 128, pages.millicelsius),
    pages.ThresholdRegisters("receive_power", "nanowatts", 176, pages.nanowatts),
    pages.ThresholdRegisters("transmit_power", "nanowatts", 192, pages.nanowatts),
)


def decode_qsfp(lower: bytes, read: pages.ReadHalfPage) -> dict[str, Json]:
    """Identity and monitors of a module with four lanes. Raises OSError."""
    registers = lower + read(pages.HalfPage(is_upper=True))
    media = _qsfp_media(registers)
    is_pam4 = registers[_QSFP_COMPLIANCE] in _PAM4_LANES
    kind = "QSFP56" if is_pam4 else _NAMES[lower[0]]
    answer = pages.module_answer(registers, kind, media, _QSFP_PLACES)
    if not media.startswith("optical") and registers[_QSFP_CABLE_LENGTH]:
        answer["length_metres"] = registers[_QSFP_CABLE_LENGTH]
    if media != "passive copper":
        answer |= _qsfp_measurements(registers, optical="copper" not in media)
        if not registers[_STATUS] & _HAS_ONE_PAGE:
            answer["thresholds"] = pages.thresholds(
                pages.read_upper_page(read, 0x03), _QSFP_THRESHOLDS
            )
    return answer


def _qsfp_media(registers: bytes) -> str:
    technology = registers[_TECHNOLOGY] >> 4
    if technology in _PASSIVE_COPPER:
        return "passive copper"
    if technology >= _FIRST_COPPER:
        return "active copper"
    is_cable = registers[_QSFP_CONNECTOR] == _NOT_SEPARABLE
    if is_cable or registers[_QSFP_COMPLIANCE] in _OPTICAL_CABLES:
        return "active optical cable"
    if technology == _OTHER_LASER:
        if registers[_SINGLE_MODE_LENGTH]:
            return "optical single-mode"
        return "optical multi-mode" if any(registers[_QSFP_MULTI_MODE_LENGTHS]) else ""
    return "optical multi-mode" if technology == _SHORT_WAVE else "optical single-mode"


def _qsfp_measurements(registers: bytes, *, optical: bool) -> dict[str, Json]:
    answer: dict[str, Json] = {}
    # Modules before revision 2.8 do not advertise their monitors; a powered module has a voltage.
    if any(registers[_QSFP_VOLTAGE : _QSFP_VOLTAGE + 2]):
        answer["temperature_millicelsius"] = pages.millicelsius(registers, _QSFP_TEMPERATURE)
        answer["voltage_microvolts"] = pages.microvolts(registers, _QSFP_VOLTAGE)
    if optical:
        answer["lanes"] = [_qsfp_lane(registers, number) for number in range(_QSFP_LANES)]
    return answer


def _qsfp_lane(registers: bytes, number: int) -> dict[str, int]:
    lane = {
        "receive_power_nanowatts": pages.nanowatts(registers, _QSFP_RECEIVED + 2 * number),
        "bias_microamperes": pages.microamperes(registers, _QSFP_BIAS + 2 * number),
    }
    if registers[_QSFP_DIAGNOSTICS] & _MEASURES_TRANSMITTED:
        lane["transmit_power_nanowatts"] = pages.nanowatts(
            registers, _QSFP_TRANSMITTED + 2 * number
        )
    return lane
