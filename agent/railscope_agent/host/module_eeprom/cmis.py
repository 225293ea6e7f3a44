"""OSFP, QSFP-DD, QSFP112 and other modules with the Common Management Interface: OIF CMIS 5.

Registers 0 to 127 hold the module's state and its module-level monitors (chapter 8.2), 128 to 255
of page 00h its identity (8.3), of page 01h its supported monitors (8.4), of page 02h thresholds
(8.5), of page 11h the monitors of each lane (8.10), eight lanes per bank.
"""

from __future__ import annotations

from railscope.capture import Json
from railscope_agent.host.module_eeprom import pages

_TYPES = {
    0x18: ("QSFP-DD", 8), 0x19: ("OSFP", 8), 0x1A: ("SFP-DD", 2), 0x1B: ("DSFP", 2), 0x1E: ("QSFP", 4),
    0x1F: ("SFP-DD", 2), 0x20: ("SFP", 1), 0x21: ("OSFP-XD", 16),
}  # fmt: skip
"""Name and lanes of each type: SFF-8024, table 4-1."""
IDENTIFIERS = tuple(_TYPES)

_PLACES = {"vendor": (129, 16), "part_number": (148, 16), "revision": (164, 2), "serial": (166, 16)}
_MEMORY_MODEL, _HAS_ONE_PAGE = 2, 0x80
_TEMPERATURE, _VOLTAGE = 14, 16
_MEDIA = 85  # table 8-16, media type encodings
_MULTI_MODE, _SINGLE_MODE, _COPPER_CABLE, _ACTIVE_CABLE = 1, 2, 3, 4
_CABLE_LENGTH, _MULTIPLIERS = 202, (1, 10, 100, 1000)  # tenths of metres, bits 7 and 6
_LANES_UNUSED = 210  # table 8-39; may be left 00h by modules with fewer lanes than the map
_TECHNOLOGY = 212
_ACTIVE_COPPER = range(0x0C, 0x10)  # equalisers; linear ones count as passive in _MEDIA
_BANKS = 142  # page 01h, bits 1 and 0
_MODULE_MONITORS, _LANE_MONITORS = 159, 160  # page 01h
_MEASURES_BIAS, _MEASURES_TRANSMITTED, _MEASURES_RECEIVED = 0x01, 0x02, 0x04
_TRANSMITTED, _BIAS, _RECEIVED, _BANK_LANES = 154, 170, 186, 8  # page 11h
_LIMITS = (
    pages.ThresholdRegisters("temperature", "millicelsius", 128, pages.millicelsius),
    pages.ThresholdRegisters("transmit_power", "nanowatts", 176, pages.nanowatts),
    pages.ThresholdRegisters("receive_power", "nanowatts", 192, pages.nanowatts),
)


def decode_cmis(lower: bytes, read: pages.ReadHalfPage) -> dict[str, Json]:
    """Identity and monitors of a module. Raises OSError."""
    registers = lower + read(pages.HalfPage(is_upper=True))
    media = _media(registers)
    answer = pages.module_answer(registers, _TYPES[lower[0]][0], media, _PLACES)
    length = _length_metres(registers[_CABLE_LENGTH])
    if length and not media.startswith("optical"):
        answer["length_metres"] = length
    # A module with one page (flat memory, such as passive copper) has no monitors.
    if registers[_MEMORY_MODEL] & _HAS_ONE_PAGE:
        return answer
    advertised = pages.read_upper_page(read, 0x01)
    if advertised is not None:
        answer |= _read_measurements(registers, advertised)
        answer["lanes"] = _lanes(registers, advertised, read)
        answer["thresholds"] = pages.thresholds(pages.read_upper_page(read, 0x02), _LIMITS)
    return answer


def _media(registers: bytes) -> str:
    kind, technology = registers[_MEDIA], registers[_TECHNOLOGY]
    if kind in (_COPPER_CABLE, _ACTIVE_CABLE) and technology in _ACTIVE_COPPER:
        return "active copper"
    return {
        _MULTI_MODE: "optical multi-mode",
        _SINGLE_MODE: "optical single-mode",
        _COPPER_CABLE: "passive copper",
        _ACTIVE_CABLE: "active optical cable",
    }.get(kind, "")


def _length_metres(register: int) -> int:
    tenths = (register & 0x3F) * _MULTIPLIERS[register >> 6]
    # Rounded up: a cable of 0.5 m is not one of 0 m, which means no cable.
    return -(-tenths // 10)


def _read_measurements(registers: bytes, advertised: bytes) -> dict[str, Json]:
    answer: dict[str, Json] = {}
    if advertised[_MODULE_MONITORS] & 0x01:
        answer["temperature_millicelsius"] = pages.millicelsius(registers, _TEMPERATURE)
    if advertised[_MODULE_MONITORS] & 0x02:
        answer["voltage_microvolts"] = pages.microvolts(registers, _VOLTAGE)
    return answer


def _lanes(registers: bytes, advertised: bytes, read: pages.ReadHalfPage) -> list[dict[str, int]]:
    monitors = advertised[_LANE_MONITORS]
    if not monitors & (_MEASURES_BIAS | _MEASURES_TRANSMITTED | _MEASURES_RECEIVED):
        return []
    lanes = range(_TYPES[registers[0]][1])
    banks = min({1: 2, 2: 4}.get(advertised[_BANKS] & 0x03, 1), -(-len(lanes) // _BANK_LANES))
    # The register describes eight lanes only.
    unused = registers[_LANES_UNUSED] if banks == 1 else 0
    answer = []
    for bank in range(banks):
        monitored = pages.read_upper_page(read, 0x11, bank)
        if monitored is None:
            break
        of_bank = lanes[_BANK_LANES * bank : _BANK_LANES * (bank + 1)]
        used = [lane % _BANK_LANES for lane in of_bank if not unused >> lane & 1]
        answer += [_lane(monitored, lane, monitors) for lane in used]
    return answer


def _lane(registers: bytes, lane: int, monitors: int) -> dict[str, int]:
    answer = {}
    if monitors & _MEASURES_RECEIVED:
        answer["receive_power_nanowatts"] = pages.nanowatts(registers, _RECEIVED + 2 * lane)
    if monitors & _MEASURES_TRANSMITTED:
        answer["transmit_power_nanowatts"] = pages.nanowatts(registers, _TRANSMITTED + 2 * lane)
    if monitors & _MEASURES_BIAS:
        # Lasers of more than 131 mA do not fit into 16 bits: the module advertises a larger unit.
        multiplier = {1: 2, 2: 4}.get(monitors >> 3 & 0x03, 1)
        answer["bias_microamperes"] = pages.microamperes(registers, _BIAS + 2 * lane) * multiplier
    return answer
