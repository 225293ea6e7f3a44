"""Transceivers and cables as their EEPROMs describe them, as stories.

module NAME                 an image of support.modules (osfp_dr4, qsfp28_sr4, sfp28_dac, sfp28_sr), or `empty`
set AT=BYTE,... ... [page=N bank=N address=N]    registers from AT on; 0x and decimal numbers
pairs AT=NUMBER,... ... [page=N ...]             pairs of registers, the more significant first
fail PAGE ERROR             the upper half of a page cannot be read
decode [FIELD ...]          the answer, or the fields that begin so
asked                       the number of half pages that were read by the last `decode`
"""

from __future__ import annotations

import errno
import re

import pytest
from hypothesis import example, given, strategies as st
from support import modules
from support.machine import FakeHost
from support.modules import ModuleEeprom, osfp_dr4
from support.stories import Story

from railscope_agent.host import Json
from railscope_agent.host.module_eeprom import decode
from railscope_agent.host.module_eeprom.pages import HalfPage
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor

MEDIA = {
    "passive copper", "active copper", "optical single-mode", "optical multi-mode", "active optical cable", "",
}  # fmt: skip


class ModuleStory:
    """A module whose registers are set."""

    def __init__(self) -> None:
        self._module = ModuleEeprom()
        self._errors: dict[int, OSError] = {}

    def _read(self, half: HalfPage) -> bytes:
        if half.page in self._errors and half.is_upper:
            raise self._errors[half.page]
        return self._module.read(half)

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        match command, words:
            case "module", [name]:
                self._module = ModuleEeprom() if name == "empty" else getattr(modules, name)()
                self._errors.clear()
            case "set" | "pairs", _:
                places = {
                    name: int(text, 0) for name, text in re.findall(r"\b([a-z]+)=(\S+)", line)
                }
                write = self._module.write if command == "set" else self._module.store
                for at, values in re.findall(r"\b(\d+)=(\S+)", line):
                    write(int(at), *(int(value, 0) for value in values.split(",")), **places)
            case "fail", [page, name]:
                self._errors[int(page)] = OSError(getattr(errno, name), name)
            case "asked", []:
                return [str(len(self._module.asked))]
            case "decode", fields:
                self._module.asked.clear()
                try:
                    return shown(decode(self._read), fields)
                except OSError as error:
                    return [str(error)]
            case _:
                pytest.fail(f"unknown command: {line}")
        return []


def shown(answer: Json, fields: list[str]) -> list[str]:
    """Return lines of an answer: its texts, its lanes, and its thresholds."""
    wanted = {name: answer[name] for name in answer if not fields or name.startswith(tuple(fields))}
    lanes, thresholds = wanted.pop("lanes", None), wanted.pop("thresholds", None)
    lines = [", ".join(f"{name} {value}" for name, value in wanted.items())] if wanted else []
    if lanes is not None:
        lines.append(", ".join("/".join(map(str, lane.values())) for lane in lanes) or "no lanes")
    if thresholds is not None:
        texts = [f"{name} {value}" for name, value in thresholds.items()]
        lines.append(", ".join(texts) or "no thresholds")
    return lines


def test_module_eeprom(story: Story) -> None:
    story.play(ModuleStory().run)


@given(st.randoms(use_true_random=False), st.sampled_from([0x03, 0x0D, 0x11, 0x18, 0x19, 0x1E]))
def test_random_pages_are_read_without_an_error(random, identifier: int) -> None:
    def read(half: HalfPage) -> bytes:
        pages = random.randbytes(128)
        return bytes([identifier]) + pages[1:] if half == HalfPage() else pages

    answer = decode(read)
    assert answer["media"] in MEDIA
    assert len(answer["lanes"]) <= 32
    assert all(isinstance(value, int) for lane in answer["lanes"] for value in lane.values())
    assert all(isinstance(value, int) for value in answer["thresholds"].values())
    assert all(answer[name].isprintable() for name in ("vendor", "part_number", "serial"))


@given(st.binary(min_size=128, max_size=128), st.binary(min_size=128, max_size=128))
@example(bytes([3, *bytes(91), 0x50, *bytes(35)]), b"\xff" * 128)
@example(bytes([3, *bytes(91), 0x50, *bytes(35)]), b"\x7f\x80\x00\x00" * 32)
def test_random_constants_of_calibration(lower: bytes, diagnostics: bytes) -> None:
    lower = bytes([3]) + lower[1:92] + bytes([0x50]) + lower[93:]
    answer = decode(lambda half: lower if half == HalfPage() else diagnostics)
    assert -128_000 <= answer["temperature_millicelsius"] < 128_000
    (lane,) = answer["lanes"]
    assert 0 <= lane["receive_power_nanowatts"] <= 0xFFFF * 100


class TransceiverHost(FakeHost):
    """A host with one transceiver."""

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        del host_interface, function, arguments
        return decode(osfp_dr4().read)


def test_the_serial_number_of_a_module_is_a_secret_everywhere() -> None:
    host = TransceiverHost()
    host.files["/var/log/optics"] = "module MT2251FT01234 was plugged in"
    recording = RecordingHost(host, Redactor())
    recording.read("/var/log/optics")
    answer = recording.call("netlink", "module", "ens1f0np0")
    assert answer["serial"] == "MT2251FT01234", "what is read is as it is"
    (moment,) = recording.moments
    assert "MT2251FT01234" not in moment.to_line()
    kept = moment.calls["netlink.module(ens1f0np0)"]
    assert kept["serial"] in moment.files["/var/log/optics"]
