"""EEPROM images of transceivers, written register by register as the public specifications number them.

SFF-8024 (identifiers), SFF-8472 (SFP28), SFF-8636 (QSFP28), OIF CMIS 5 (OSFP).
"""

from __future__ import annotations

import errno

from railscope_agent.host.module_eeprom.pages import HalfPage


class ModuleEeprom:
    """Half pages of 128 registers. An unwritten page cannot be read; reads are recorded."""

    def __init__(self) -> None:
        self._halves: dict[HalfPage, bytearray] = {}
        self.asked: list[HalfPage] = []

    def write(
        self, register: int, *values: int, page: int = 0, bank: int = 0, address: int = 0x50
    ) -> ModuleEeprom:
        """Set registers from this one on; numbers from 128 on are those of the page."""
        for at, value in enumerate(values, register):
            is_upper = at >= 128
            half = HalfPage(page if is_upper else 0, is_upper, bank if is_upper else 0, address)
            self._halves.setdefault(half, bytearray(128))[at % 128] = value
        return self

    def store(self, register: int, *values: int, page: int = 0, bank: int = 0, address: int = 0x50):
        """Set pairs of registers, the more significant first; negative numbers as two's complement."""
        raw = b"".join((value & 0xFFFF).to_bytes(2) for value in values)
        return self.write(register, *raw, page=page, bank=bank, address=address)

    def text(self, register: int, length: int, text: str) -> ModuleEeprom:
        """Set registers to ASCII, padded with blanks."""
        return self.write(register, *text.ljust(length).encode("ascii"))

    def read(self, half: HalfPage) -> bytes:
        self.asked.append(half)
        if half not in self._halves:
            raise OSError(errno.EINVAL, f"no {half}")
        return bytes(self._halves[half])


def osfp_dr4() -> ModuleEeprom:
    """A 400GBASE-DR4 transceiver: CMIS, four lanes of single-mode fibre."""
    eeprom = ModuleEeprom()
    eeprom.write(0, 0x19, 0x50, 0x00, 0x06)  # OSFP, CMIS 5.0, paged, ready
    eeprom.store(14, 41 * 256 + 64, 33_000)  # 41.25 degrees, 3.3 V
    eeprom.write(85, 0x02, 0x50, 0x1C, 0x44, 0x01)  # SMF: 400GAUI-4, 400GBASE-DR4, four lanes each
    eeprom.write(128, 0x19)
    eeprom.text(129, 16, "NVIDIA").text(148, 16, "MMS4X00-NS400").text(164, 2, "A1")
    eeprom.text(166, 16, "MT2251FT01234")
    eeprom.write(202, 0x00, 0x0C)  # no cable, MPO
    eeprom.write(210, 0xF0, 0x00, 0x06)  # media lanes 5 to 8 unused; 1310 nm EML
    eeprom.write(142, 0x00, page=0x01)
    eeprom.write(159, 0x03, 0x07 | 1 << 3, page=0x01)  # all monitors, bias in 4 uA
    eeprom.store(128, 75 * 256, -5 * 256, 70 * 256, 0, page=0x02)
    eeprom.store(176, 31_623, 2_239, 25_119, 2_818, page=0x02)
    eeprom.store(192, 31_624, 1_413, 25_120, 1_778, page=0x02)
    eeprom.store(154, 12_000, 12_100, 12_200, 12_300, page=0x11)
    eeprom.store(170, 15_000, 15_100, 15_200, 15_300, page=0x11)
    eeprom.store(186, 9_000, 9_100, 0, 9_300, page=0x11)  # no light on the third
    return eeprom


def qsfp28_sr4() -> ModuleEeprom:
    """A 100GBASE-SR4 transceiver: SFF-8636, four lanes of multi-mode fibre."""
    eeprom = ModuleEeprom()
    eeprom.write(0, 0x11, 0x08, 0x00)
    eeprom.store(22, -2 * 256 - 128).store(26, 32_987)  # -2.5 degrees, 3.2987 V
    eeprom.store(34, 8_000, 8_001, 8_002, 8_003)
    eeprom.store(42, 3_750, 3_751, 3_752, 3_753)
    eeprom.store(50, 7_000, 7_001, 7_002, 7_003)
    eeprom.write(128, 0x11, 0xCC, 0x0C)  # MPO
    eeprom.write(142, 0, 35, 0, 0, 50, 0x00)  # 70 m of OM3, 100 m of OM4; 850 nm VCSEL
    eeprom.text(148, 16, "Mellanox").text(168, 16, "MMA1B00-C100D").text(184, 2, "A5")
    eeprom.write(192, 0x02)  # 100GBASE-SR4
    eeprom.text(196, 16, "MT1843FT05678")
    eeprom.write(220, 0x3C)
    eeprom.store(128, 80 * 256, -10 * 256, 70 * 256, 0, page=0x03)
    eeprom.store(176, 21_878, 407, 17_378, 813, page=0x03)
    eeprom.store(192, 21_879, 813, 17_379, 1_622, page=0x03)
    return eeprom


def sfp28_dac() -> ModuleEeprom:
    """A passive copper cable of 25 Gb/s, 3 m long: SFF-8472, without diagnostics."""
    eeprom = ModuleEeprom()
    eeprom.write(0, 0x03, 0x04, 0x21)  # copper pigtail
    eeprom.write(8, 0x04)  # passive
    eeprom.write(12, 0xFF).write(66, 103)  # 25.75 GBd
    eeprom.write(18, 3)
    eeprom.text(20, 16, "Mellanox").text(40, 16, "MCP2M00-A003E30L").text(56, 4, "A2")
    eeprom.write(36, 0x0B)
    eeprom.text(68, 16, "MT1928VS04321")
    eeprom.write(92, 0x00)
    return eeprom


def sfp28_sr() -> ModuleEeprom:
    """A 25GBASE-SR transceiver with diagnostics: SFF-8472."""
    eeprom = ModuleEeprom()
    eeprom.write(0, 0x03, 0x04, 0x07)  # LC
    eeprom.write(12, 0xFF, 0, 0, 0, 2, 0, 10, 7).write(66, 103)
    eeprom.text(20, 16, "FINISAR CORP.").text(40, 16, "FTLF8536P4BCL").text(56, 4, "A")
    eeprom.write(36, 0x02)
    eeprom.text(68, 16, "UYK0A1B")
    eeprom.write(92, 0x68)
    thresholds = {0: (78, -13, 73, -8)}
    eeprom.store(0, *(degrees * 256 for degrees in thresholds[0]), address=0x51)
    eeprom.store(24, 17_378, 1_000, 13_804, 1_259, address=0x51)
    eeprom.store(32, 17_379, 339, 13_805, 427, address=0x51)
    eeprom.store(96, 35 * 256, 33_120, 3_500, 6_200, 5_900, address=0x51)
    return eeprom
