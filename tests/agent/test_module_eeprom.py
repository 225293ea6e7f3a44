"""Transceivers and cables as their EEPROMs describe them."""

from __future__ import annotations

import errno
import struct
import sys

import pytest
from hypothesis import example, given, strategies as st
from support.machine import FakeHost
from support.modules import ModuleEeprom, osfp_dr4, qsfp28_sr4, sfp28_dac, sfp28_sr
from support.netlink import NetlinkRequest, attribute, attributes, ethtool, open_netlink

from railscope_agent.host import Json
from railscope_agent.host.module_eeprom import decode
from railscope_agent.host.module_eeprom.pages import HalfPage
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor

MEDIA = {
    "passive copper",
    "active copper",
    "optical single-mode",
    "optical multi-mode",
    "active optical cable",
    "",
}


def test_a_transceiver_of_400_gigabit_single_mode():
    eeprom = osfp_dr4()
    assert decode(eeprom.read) == {
        "type": "OSFP",
        "vendor": "NVIDIA",
        "part_number": "MMS4X00-NS400",
        "revision": "A1",
        "serial": "MT2251FT01234",
        "media": "optical single-mode",
        "temperature_millicelsius": 41_250,
        "voltage_microvolts": 3_300_000,
        "lanes": [
            {
                "receive_power_nanowatts": receive,
                "transmit_power_nanowatts": transmit,
                "bias_microamperes": bias,
            }
            for receive, transmit, bias in (
                (900_000, 1_200_000, 60_000),
                (910_000, 1_210_000, 60_400),
                (0, 1_220_000, 60_800),
                (930_000, 1_230_000, 61_200),
            )
        ],
        "thresholds": {
            "temperature_high_alarm_millicelsius": 75_000,
            "temperature_high_warning_millicelsius": 70_000,
            "transmit_power_low_alarm_nanowatts": 223_900,
            "receive_power_high_alarm_nanowatts": 3_162_400,
            "receive_power_low_alarm_nanowatts": 141_300,
            "receive_power_low_warning_nanowatts": 177_800,
        },
    }
    assert len(eeprom.asked) == 5, "each read takes milliseconds"


def test_a_transceiver_of_100_gigabit_multi_mode():
    assert decode(qsfp28_sr4().read) == {
        "type": "QSFP28",
        "vendor": "Mellanox",
        "part_number": "MMA1B00-C100D",
        "revision": "A5",
        "serial": "MT1843FT05678",
        "media": "optical multi-mode",
        "temperature_millicelsius": -2_500,
        "voltage_microvolts": 3_298_700,
        "lanes": [
            {
                "receive_power_nanowatts": 800_000 + 100 * lane,
                "transmit_power_nanowatts": 700_000 + 100 * lane,
                "bias_microamperes": 7_500 + 2 * lane,
            }
            for lane in range(4)
        ],
        "thresholds": {
            "temperature_high_alarm_millicelsius": 80_000,
            "temperature_high_warning_millicelsius": 70_000,
            "receive_power_high_alarm_nanowatts": 2_187_800,
            "receive_power_low_alarm_nanowatts": 40_700,
            "receive_power_low_warning_nanowatts": 81_300,
            "transmit_power_low_alarm_nanowatts": 81_300,
        },
    }


def test_a_copper_cable_of_25_gigabit_measures_nothing():
    assert decode(sfp28_dac().read) == {
        "type": "SFP28",
        "vendor": "Mellanox",
        "part_number": "MCP2M00-A003E30L",
        "revision": "A2",
        "serial": "MT1928VS04321",
        "media": "passive copper",
        "length_metres": 3,
        "lanes": [],
        "thresholds": {},
    }


def test_a_transceiver_of_25_gigabit_with_diagnostics():
    answer = decode(sfp28_sr().read)
    assert answer["media"] == "optical multi-mode"
    assert answer["temperature_millicelsius"] == 35_000
    assert answer["voltage_microvolts"] == 3_312_000
    assert answer["lanes"] == [
        {
            "receive_power_nanowatts": 590_000,
            "transmit_power_nanowatts": 620_000,
            "bias_microamperes": 7_000,
        }
    ]
    assert answer["thresholds"] == {
        "temperature_high_alarm_millicelsius": 78_000,
        "temperature_high_warning_millicelsius": 73_000,
        "transmit_power_low_alarm_nanowatts": 100_000,
        "receive_power_high_alarm_nanowatts": 1_737_900,
        "receive_power_low_alarm_nanowatts": 33_900,
        "receive_power_low_warning_nanowatts": 42_700,
    }
    assert "length_metres" not in answer


# SFP --------------------------------------------------------------------------------------------


def test_a_module_that_the_host_calibrates():
    """Slope 1.5 and offset 256 for the temperature; twice the light and 100, threshold by threshold."""
    eeprom = sfp28_sr().write(92, 0x58)
    eeprom.write(56, *struct.pack(">5f", 0, 0, 0, 2, 100), address=0x51)
    for at in (76, 80, 88):
        eeprom.store(at, 256, 0, address=0x51)
    eeprom.store(84, 384, 256, address=0x51)
    answer, plain = decode(eeprom.read), decode(sfp28_sr().read)
    assert answer["temperature_millicelsius"] == 53_500
    assert answer["voltage_microvolts"] == plain["voltage_microvolts"]
    (lane,), (same,) = answer["lanes"], plain["lanes"]
    assert lane == same | {"receive_power_nanowatts": 1_190_000}
    assert answer["thresholds"] == plain["thresholds"] | {
        "temperature_high_alarm_millicelsius": 118_000,
        "temperature_high_warning_millicelsius": 110_500,
        "receive_power_high_alarm_nanowatts": 3_485_800,
        "receive_power_low_alarm_nanowatts": 77_800,
        "receive_power_low_warning_nanowatts": 95_400,
    }


def test_a_module_that_would_have_to_move_its_address_is_not_read():
    eeprom = sfp28_sr().write(92, 0x6C)
    assert decode(eeprom.read)["lanes"] == []
    assert HalfPage(address=0x51) not in eeprom.asked


@pytest.mark.parametrize(
    ("registers", "name"),
    [
        ({12: 13}, "SFP"),
        ({12: 103}, "SFP+"),
        ({12: 0xFF, 66: 112}, "SFP28"),
        ({12: 0xFF, 66: 106, 36: 0x45}, "SFP56"),
    ],
)
def test_kinds_of_sfp(registers: dict[int, int], name: str):
    eeprom = ModuleEeprom().write(0, 0x03)
    for register, value in registers.items():
        eeprom.write(register, value)
    assert decode(eeprom.read)["type"] == name


@pytest.mark.parametrize(
    ("registers", "media", "length"),
    [
        ({8: 0x04, 18: 2}, "passive copper", 2),
        ({8: 0x08, 18: 5, 36: 0x08, 2: 0x21}, "active copper", 5),
        ({8: 0x08, 18: 10, 36: 0x18}, "active optical cable", 10),
        ({8: 0x08, 18: 10, 2: 0x0B}, "active optical cable", 10),
        ({14: 10}, "optical single-mode", None),
        ({16: 8, 19: 30}, "optical multi-mode", None),
        ({2: 0x22}, "", None),
    ],
)
def test_media_of_sfp(registers: dict[int, int], media: str, length: int | None):
    eeprom = ModuleEeprom().write(0, 0x03)
    for register, value in registers.items():
        eeprom.write(register, value)
    answer = decode(eeprom.read)
    assert (answer["media"], answer.get("length_metres")) == (media, length)


# QSFP -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registers", "media", "length"),
    [
        ({147: 0xA0, 146: 2}, "passive copper", 2),
        ({147: 0xB0, 146: 1, 130: 0x23}, "passive copper", 1),
        ({147: 0xF0, 146: 5}, "active copper", 5),
        ({147: 0x00, 146: 30, 130: 0x23}, "active optical cable", 30),
        ({147: 0x00, 146: 20, 192: 0x01}, "active optical cable", 20),
        ({147: 0x00, 146: 50}, "optical multi-mode", None),
        ({147: 0x40, 142: 10}, "optical single-mode", None),
        ({147: 0x80, 142: 2}, "optical single-mode", None),
        ({147: 0x80, 143: 35}, "optical multi-mode", None),
        ({147: 0x80}, "", None),
    ],
)
def test_media_of_qsfp(registers: dict[int, int], media: str, length: int | None):
    eeprom = ModuleEeprom().write(0, 0x11, 8, 0x04).write(128, 0x11)
    for register, value in registers.items():
        eeprom.write(register, value)
    answer = decode(eeprom.read)
    assert (answer["media"], answer.get("length_metres")) == (media, length)
    assert "temperature_millicelsius" not in answer, "it has no supply to report"
    assert bool(answer["lanes"]) == ("copper" not in media)


def test_a_transceiver_without_transmit_measurements():
    lanes = decode(qsfp28_sr4().write(220, 0x08).read)["lanes"]
    assert all(set(lane) == {"receive_power_nanowatts", "bias_microamperes"} for lane in lanes)


def test_a_module_of_50_gigabit_lanes():
    assert decode(qsfp28_sr4().write(192, 0x41).read)["type"] == "QSFP56"


def test_a_module_without_thresholds():
    eeprom = qsfp28_sr4()
    for at in (128, 176, 192):
        eeprom.store(at, 0, 0, 0, 0, page=0x03)
    assert decode(eeprom.read)["thresholds"] == {}


def test_a_driver_that_reads_the_first_page_only():
    eeprom = qsfp28_sr4()
    del eeprom._halves[HalfPage(3, is_upper=True)]  # noqa: SLF001
    answer = decode(eeprom.read)
    assert answer["thresholds"] == {}
    assert len(answer["lanes"]) == 4


# CMIS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("register", "length"),
    [(0x05, 1), (0x0F, 2), (0x43, 3), (0x40 | 30, 30), (0x80 | 5, 50), (0xC0 | 2, 200), (0, None)],
)
def test_lengths_of_cables_are_rounded_up(register: int, length: int | None):
    eeprom = osfp_dr4().write(2, 0x80).write(85, 3).write(212, 0x0A).write(202, register)
    answer = decode(eeprom.read)
    assert answer.get("length_metres") == length
    assert (answer["media"], answer["lanes"]) == ("passive copper", [])
    assert len(eeprom.asked) == 2


@pytest.mark.parametrize(
    ("kind", "technology", "media"),
    [
        (1, 0x00, "optical multi-mode"),
        (2, 0x06, "optical single-mode"),
        (3, 0x0B, "passive copper"),
        (3, 0x0F, "active copper"),
        (4, 0x0C, "active copper"),
        (4, 0x00, "active optical cable"),
        (5, 0x00, ""),
        (0, 0x00, ""),
    ],
)
def test_media_of_cmis(kind: int, technology: int, media: str):
    assert decode(osfp_dr4().write(85, kind).write(212, technology).read)["media"] == media


@pytest.mark.parametrize(
    ("identifier", "name", "unused", "lanes"),
    [
        (0x18, "QSFP-DD", 0x00, 8),
        (0x19, "OSFP", 0x00, 8),
        (0x19, "OSFP", 0xF0, 4),
        (0x1E, "QSFP", 0x00, 4),
        (0x1E, "QSFP", 0xF0, 4),
        (0x1E, "QSFP", 0xFC, 2),
        (0x20, "SFP", 0x00, 1),
        (0x21, "OSFP-XD", 0x00, 8),
    ],
)
def test_type_and_unused_lanes_of_cmis(identifier: int, name: str, unused: int, lanes: int):
    answer = decode(osfp_dr4().write(0, identifier).write(210, unused).read)
    assert (answer["type"], len(answer["lanes"])) == (name, lanes)


def test_missing_measurements_of_a_transceiver():
    answer = decode(osfp_dr4().write(159, 0x02, 0x04, page=0x01).read)
    assert "temperature_millicelsius" not in answer
    assert answer["voltage_microvolts"] == 3_300_000
    assert [set(lane) for lane in answer["lanes"]] == [{"receive_power_nanowatts"}] * 4
    assert decode(osfp_dr4().write(160, 0, page=0x01).read)["lanes"] == []


def test_sixteen_lanes_are_in_two_banks():
    eeprom = osfp_dr4().write(0, 0x21).write(142, 0x01, page=0x01).write(210, 0x00)
    eeprom.store(186, *range(1, 9), page=0x11, bank=1)
    answer = decode(eeprom.read)
    assert [lane["receive_power_nanowatts"] for lane in answer["lanes"][8:]] == [
        *range(100, 900, 100)
    ]


# Invalid modules --------------------------------------------------------------------------------


def test_a_module_of_a_kind_without_a_map():
    with pytest.raises(OSError, match="identifier 127") as raised:
        decode(ModuleEeprom().write(0, 0x7F).read)
    assert raised.value.errno == errno.EOPNOTSUPP


def test_a_module_that_cannot_be_read_is_broken_and_not_without_lanes():
    eeprom = osfp_dr4()

    def read(half: HalfPage) -> bytes:
        if half.page == 0x11:
            raise OSError(errno.EIO, "the bus is stuck")
        return eeprom.read(half)

    with pytest.raises(OSError, match="the bus is stuck"):
        decode(read)


def test_half_of_half_a_page_is_an_error():
    with pytest.raises(OSError, match="invalid half page of a module: 64 bytes") as raised:
        decode(lambda half: osfp_dr4().read(half)[:64])
    assert raised.value.errno == errno.EIO


@given(st.randoms(use_true_random=False), st.sampled_from([0x03, 0x0D, 0x11, 0x18, 0x19, 0x1E]))
def test_random_pages_are_read_without_an_error(random, identifier: int):
    def read(half: HalfPage) -> bytes:
        content = random.randbytes(128)
        first = half == HalfPage()
        return bytes([identifier]) + content[1:] if first else content

    answer = decode(read)
    assert answer["media"] in MEDIA
    assert len(answer["lanes"]) <= 32
    assert all(isinstance(value, int) for lane in answer["lanes"] for value in lane.values())
    assert all(isinstance(value, int) for value in answer["thresholds"].values())
    assert all(answer[name].isprintable() for name in ("vendor", "part_number", "serial"))


@given(st.binary(min_size=128, max_size=128), st.binary(min_size=128, max_size=128))
@example(bytes([3, *bytes(91), 0x50, *bytes(35)]), b"\xff" * 128)
@example(bytes([3, *bytes(91), 0x50, *bytes(35)]), b"\x7f\x80\x00\x00" * 32)
def test_random_constants_of_calibration(lower: bytes, diagnostics: bytes):
    lower = bytes([3]) + lower[1:92] + bytes([0x50]) + lower[93:]
    answer = decode(lambda half: lower if half == HalfPage() else diagnostics)
    assert -128_000 <= answer["temperature_millicelsius"] < 128_000
    (lane,) = answer["lanes"]
    assert 0 <= lane["receive_power_nanowatts"] <= 0xFFFF * 100


# Over netlink -----------------------------------------------------------------------------------


def test_a_module_is_read_page_by_page_over_netlink():
    eeprom = osfp_dr4()

    def answer(request: NetlinkRequest) -> list[bytes]:
        fields = attributes(request.body[4:])
        if 7 in fields or 2 not in fields or request.kind == 0x10:
            return list(ethtool(31)(request))
        numbers = [int.from_bytes(fields[kind], sys.byteorder) for kind in (2, 3, 4, 5, 6)]
        offset, length, page, bank, address = numbers
        assert length == 128
        content = eeprom.read(HalfPage(page, offset == 128, bank, address))
        return list(ethtool(31, attribute(7, content))(request))

    with open_netlink(answer) as (netlink, kernel):
        assert netlink.call("module", "ens1f0np0") == decode(osfp_dr4().read)
    header = attributes(attributes(kernel.requests[-1].body[4:])[1])
    assert header[2] == b"ens1f0np0\0"


def test_a_port_without_a_module():
    def answer(request: NetlinkRequest) -> list[bytes]:
        if request.kind == 0x10:
            return list(ethtool(31)(request))
        return [request.refused(errno.EIO, "no module is plugged in")]

    with (
        open_netlink(answer) as (netlink, _),
        pytest.raises(OSError, match="Input/output error: no module is plugged in"),
    ):
        netlink.call("module", "eth0")


# In a recording ---------------------------------------------------------------------------------


class TransceiverHost(FakeHost):
    """A host with one transceiver, whose serial number is also in its fault log."""

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        del host_interface, function, arguments
        return decode(osfp_dr4().read)


def test_the_serial_number_of_a_module_is_a_secret_everywhere():
    host = TransceiverHost()
    host.files["/var/log/optics"] = "module MT2251FT01234 was plugged in"
    recording = RecordingHost(host, Redactor())
    recording.read("/var/log/optics")
    answer = recording.call("netlink", "module", "ens1f0np0")
    assert answer["serial"] == "MT2251FT01234", "what is read is as it is"
    (moment,) = recording.moments
    assert "MT2251FT01234" not in moment.to_line()
    kept = moment.calls["netlink.module(ens1f0np0)"]
    assert kept["part_number"] == "MMS4X00-NS400"
    assert kept["serial"] in moment.files["/var/log/optics"]
