"""QSFP+, QSFP28 and QSFP56 modules: SFF-8636.

Registers 0 to 127 hold monitors (table 6-1), 128 to 255 of page 00h the module's identity (table
6-14), of page 03h its thresholds (table 6-28).
"""

from __future__ import annotations

from agent.host.module_eeprom.pages import (
    Half,
    Limits,
    Read,
    identity,
    microamperes,
    microvolts,
    millicelsius,
    nanowatts,
    thresholds,
    upper,
)
from railscope.capture import Json

IDENTIFIERS = (0x0C, 0x0D, 0x11)

_NAMES = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}
_PLACES = {
    "vendor": (148, 16),
    "part_number": (168, 16),
    "revision": (184, 2),
    "serial": (196, 16),
}
_STATUS, _HAS_ONE_PAGE = 2, 0x04
_TEMPERATURE, _VOLTAGE = 22, 26
_RECEIVED, _BIAS, _TRANSMITTED, _LANES = 34, 42, 50, 4
_CONNECTOR, _NOT_SEPARABLE = 130, 0x23
_SINGLE_MODE_LENGTH, _MULTI_MODE_LENGTHS, _CABLE_LENGTH = 142, slice(143, 147), 146
_TECHNOLOGY = 147
_SHORT_WAVE, _OTHER_LASER, _PASSIVE_COPPER = 0x0, 0x8, (0xA, 0xB)
_FIRST_COPPER = 0xA
_COMPLIANCE = 192  # SFF-8024, table 4-4
_OPTICAL_CABLES = frozenset({0x01, 0x18, 0x31, 0x33})
_PAM4_LANES = range(0x40, 0x47)
_DIAGNOSTICS, _MEASURES_TRANSMITTED = 220, 0x04
_LIMITS = (
    Limits("temperature", "millicelsius", 128, millicelsius),
    Limits("receive_power", "nanowatts", 176, nanowatts),
    Limits("transmit_power", "nanowatts", 192, nanowatts),
)


def decode(lower: bytes, read: Read) -> dict[str, Json]:
    """Identity and monitors of a module with four lanes. Raises OSError."""
    registers = lower + read(Half(is_upper=True))
    media = _media(registers)
    is_pam4 = registers[_COMPLIANCE] in _PAM4_LANES
    answer: dict[str, Json] = {
        "type": "QSFP56" if is_pam4 else _NAMES[lower[0]],
        **identity(registers, _PLACES),
        "media": media,
        "lanes": [],
        "thresholds": {},
    }
    if not media.startswith("optical") and registers[_CABLE_LENGTH]:
        answer["length_metres"] = registers[_CABLE_LENGTH]
    if media != "passive copper":
        answer |= _measured(registers, optical="copper" not in media)
        if not registers[_STATUS] & _HAS_ONE_PAGE:
            answer["thresholds"] = thresholds(upper(read, 0x03), _LIMITS)
    return answer


def _media(registers: bytes) -> str:
    technology = registers[_TECHNOLOGY] >> 4
    if technology in _PASSIVE_COPPER:
        return "passive copper"
    if technology >= _FIRST_COPPER:
        return "active copper"
    is_cable = registers[_CONNECTOR] == _NOT_SEPARABLE
    if is_cable or registers[_COMPLIANCE] in _OPTICAL_CABLES:
        return "active optical cable"
    if technology == _OTHER_LASER:
        if registers[_SINGLE_MODE_LENGTH]:
            return "optical single-mode"
        return "optical multi-mode" if any(registers[_MULTI_MODE_LENGTHS]) else ""
    return "optical multi-mode" if technology == _SHORT_WAVE else "optical single-mode"


def _measured(registers: bytes, *, optical: bool) -> dict[str, Json]:
    answer: dict[str, Json] = {}
    # Modules before revision 2.8 do not advertise their monitors; a powered module has a voltage.
    if any(registers[_VOLTAGE : _VOLTAGE + 2]):
        answer["temperature_millicelsius"] = millicelsius(registers, _TEMPERATURE)
        answer["voltage_microvolts"] = microvolts(registers, _VOLTAGE)
    if optical:
        answer["lanes"] = [_lane(registers, number) for number in range(_LANES)]
    return answer


def _lane(registers: bytes, number: int) -> dict[str, int]:
    lane = {
        "receive_power_nanowatts": nanowatts(registers, _RECEIVED + 2 * number),
        "bias_microamperes": microamperes(registers, _BIAS + 2 * number),
    }
    if registers[_DIAGNOSTICS] & _MEASURES_TRANSMITTED:
        lane["transmit_power_nanowatts"] = nanowatts(registers, _TRANSMITTED + 2 * number)
    return lane
