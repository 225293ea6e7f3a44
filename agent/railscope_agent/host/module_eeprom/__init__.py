"""The transceiver or cable in a port, from its EEPROM.

The first byte selects the register map (SFF-8024, table 4-1): SFF-8472 for SFP modules, SFF-8636
for QSFP modules up to QSFP56, CMIS for OSFP, QSFP-DD and their successors.
"""

from __future__ import annotations

import errno

from railscope.capture import Json
from railscope_agent.host.module_eeprom import cmis, sff
from railscope_agent.host.module_eeprom.pages import HALF_BYTES, HalfPage, ReadHalfPage

__all__ = ["decode"]

_DECODERS = {
    **dict.fromkeys(sff.SFP_IDENTIFIERS, sff.decode_sfp),
    **dict.fromkeys(sff.QSFP_IDENTIFIERS, sff.decode_qsfp),
    **dict.fromkeys(cmis.IDENTIFIERS, cmis.decode_cmis),
}


def decode(read: ReadHalfPage) -> dict[str, Json]:
    """Decode a module's EEPROM, which `read` returns half a page at a time.

    Raises OSError: errors of `read`, EIO for a half page of unexpected size, EOPNOTSUPP for a
    module type without a register map here.

        {"type", "vendor", "part_number", "revision", "serial", "media": str,
         "length_metres": int, of a cable with fixed ends,
         "temperature_millicelsius", "voltage_microvolts": int,
         "lanes": [{"receive_power_nanowatts", "transmit_power_nanowatts", "bias_microamperes": int}],
         "thresholds": {"temperature_high_alarm_millicelsius": int, ...}}

    Quantities that a module does not measure are omitted. `media` is one of "passive copper", "active
    copper", "active optical cable", "optical single-mode", "optical multi-mode", or "" if the module
    does not report it.
    """

    def whole(half: HalfPage) -> bytes:
        registers = read(half)
        if len(registers) != HALF_BYTES:
            message = f"invalid half page of a module: {len(registers)} bytes"
            raise OSError(errno.EIO, message)
        return registers

    lower = whole(HalfPage())
    if lower[0] not in _DECODERS:
        raise OSError(errno.EOPNOTSUPP, f"unsupported module: SFF-8024 identifier {lower[0]}")
    return _DECODERS[lower[0]](lower, whole)
