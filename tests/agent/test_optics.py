"""Transceivers and cables: identity, measurements and replacement."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.nics import add_netlink, add_nic, events, facts
from support.reading import ORIGIN, numbers, read_once, readings
from support.sampling import run_sampler

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import FAILED, PARTIAL
from railscope_agent.sources.nic_ports import OpticsSource

KIND = "nic_transceiver"
READABLE = ("railscope_nic_transceiver_readable", ("eth0",))
TEMPERATURE = ("railscope_nic_transceiver_temperature_celsius", ("eth0",))
MODULE: dict[str, Any] = {
    "type": "QSFP28", "vendor": "Example Optics ", "part_number": "EX-100G-SR4", "revision": "A",
    "serial": "SN1", "media": "optical multi-mode", "length_metres": 70,
    "temperature_millicelsius": 41_250, "voltage_microvolts": 3_300_000,
    "lanes": [
        {"receive_power_nanowatts": 812_300, "transmit_power_nanowatts": 1_001_000 + lane,
         "bias_microamperes": 6_500}
        for lane in range(4)
    ],
    "thresholds": {
        "temperature_high_alarm_millicelsius": 75_000,
        "temperature_high_warning_millicelsius": 70_000,
        "receive_power_low_alarm_nanowatts": 50_100,
        "receive_power_low_warning_nanowatts": 79_400,
        "receive_power_high_alarm_nanowatts": 3_467_000,
        "transmit_power_low_alarm_nanowatts": 100_000,
    },
}  # fmt: skip
COPPER = {
    "type": "QSFP-DD", "vendor": "Example Cables", "part_number": "EX-400G-DAC3", "serial": "SN2",
    "media": "passive copper", "length_metres": 3, "lanes": [],
}  # fmt: skip
STUCK = OSError(errno.EIO, "Input/output error")
PULLED = OSError(errno.ENODEV, "No such device")


def host_with_transceiver(answer: Any = None) -> FakeHost:
    """Return a host with a NIC and a transceiver."""
    host = FakeHost()
    add_nic(host)
    add_netlink(host, module=answer or MODULE)
    return host


def transceiver_changes(outcome: Any) -> list[tuple[str, str]]:
    return [(event.facts["before"], event.facts["after"]) for event in events(outcome)]


def test_measurements_of_an_optical_module() -> None:
    outcome = read_once(OpticsSource(), host_with_transceiver())
    assert facts(outcome, KIND) == {"eth0": {
        "type": "QSFP28", "vendor": "Example Optics", "part_number": "EX-100G-SR4",
        "revision": "A", "serial": "SN1", "media": "optical multi-mode", "length_metres": "70",
    }}  # fmt: skip
    threshold = "railscope_nic_transceiver_{}_threshold_{}"
    assert numbers(outcome.frame) == pytest.approx({
        READABLE: 1,
        TEMPERATURE: 41.25,
        ("railscope_nic_transceiver_supply_volts", ("eth0",)): 3.3,
        **{("railscope_nic_transceiver_receive_power_watts", ("eth0", str(n))): 812.3e-6
           for n in range(4)},
        **{("railscope_nic_transceiver_transmit_power_watts", ("eth0", str(n))): 1001e-6 + n * 1e-9
           for n in range(4)},
        **{("railscope_nic_transceiver_bias_amperes", ("eth0", str(n))): 6.5e-3 for n in range(4)},
        (threshold.format("temperature", "celsius"), ("eth0", "high_alarm")): 75,
        (threshold.format("temperature", "celsius"), ("eth0", "high_warning")): 70,
        (threshold.format("receive_power", "watts"), ("eth0", "low_alarm")): 50.1e-6,
        (threshold.format("receive_power", "watts"), ("eth0", "low_warning")): 79.4e-6,
        (threshold.format("receive_power", "watts"), ("eth0", "high_alarm")): 3.467e-3,
        (threshold.format("transmit_power", "watts"), ("eth0", "low_alarm")): 1e-4,
    })  # fmt: skip
    (finding,) = outcome.findings
    assert finding.detail == "QSFP28 Example Optics EX-100G-SR4"


def test_a_copper_cable_has_a_name_and_measures_nothing() -> None:
    outcome = read_once(OpticsSource(), host_with_transceiver(COPPER))
    assert facts(outcome, KIND)["eth0"]["length_metres"] == "3"
    assert numbers(outcome.frame) == {READABLE: 1}


def test_a_module_that_is_pulled_takes_its_values_and_its_facts_along() -> None:
    host = host_with_transceiver()
    reader = SourceReader(OpticsSource(), host, ORIGIN)
    before = readings(reader.run().frame)
    host.clock.advance(60)
    add_netlink(host, module=PULLED)
    outcome = reader.run()
    assert readings(outcome.frame) == dict.fromkeys(before, Absent.GONE)
    assert facts(outcome, KIND) == {}
    assert not transceiver_changes(outcome)
    host.clock.advance(60)
    outcome = reader.run()
    assert outcome.frame is None
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.ABSENT
    host.clock.advance(60)
    add_netlink(host, module=MODULE | {"serial": "SN9"})
    outcome = reader.run()
    assert transceiver_changes(outcome) == [
        ("Example Optics EX-100G-SR4 SN1", "Example Optics EX-100G-SR4 SN9")
    ]
    assert numbers(outcome.frame)[TEMPERATURE] == 41.25


def test_a_stuck_bus_keeps_the_columns_and_gives_the_reason() -> None:
    host = host_with_transceiver()
    reader = SourceReader(OpticsSource(), host, ORIGIN)
    before = readings(reader.run().frame)
    add_netlink(host, module=OSError(errno.EIO, "Input/output error"))
    for _ in range(2):
        host.clock.advance(60)
        outcome = reader.run()
        assert readings(outcome.frame) == dict.fromkeys(before, Absent.ERROR)
        assert outcome.findings[0].verdict is ProbeVerdict.BROKEN


@pytest.mark.parametrize(
    ("trouble", "reading", "verdict", "remedy"),
    [
        (DENIED, Absent.DENIED, ProbeVerdict.DENIED, "CAP_NET_ADMIN"),
        (OSError(errno.EIO, "I/O error"), Absent.ERROR, ProbeVerdict.BROKEN, ""),
        ({"temperature_millicelsius": None}, Absent.ERROR, ProbeVerdict.BROKEN, "bug"),
        (OSError(errno.EOPNOTSUPP, "not supported"), None, ProbeVerdict.ABSENT, ""),
        (OSError(errno.EINVAL, "Invalid argument"), None, ProbeVerdict.ABSENT, ""),
    ],
)
def test_a_module_that_cannot_be_read_is_a_finding(
    trouble: Any, reading: Absent | None, verdict: ProbeVerdict, remedy: str
) -> None:
    outcome = read_once(OpticsSource(), host_with_transceiver(trouble))
    assert readings(outcome.frame) == ({READABLE: reading} if reading else {})
    (finding,) = outcome.findings
    assert finding.verdict is verdict
    assert remedy in finding.remedy


def test_without_a_nic_there_is_no_transceiver() -> None:
    (finding,) = read_once(OpticsSource(), FakeHost()).findings
    assert finding.verdict is ProbeVerdict.ABSENT


PLUGS = st.lists(
    st.one_of(st.sampled_from(["SN1", "SN2"]), st.sampled_from([PULLED, DENIED])), max_size=12
)


@given(PLUGS)
def test_a_transceiver_change_is_reported_once_despite_interruptions(plugs: list[Any]) -> None:
    host, last = host_with_transceiver(), ""
    source = OpticsSource()
    reader = SourceReader(source, host, ORIGIN)
    for plug in plugs:
        seen = isinstance(plug, str)
        add_netlink(host, module=MODULE | {"serial": plug} if seen else plug)
        source.probe(host)
        expected = [(last, plug)] if seen and last and plug != last else []
        found = [(b.split()[-1], a.split()[-1]) for b, a in transceiver_changes(reader.run())]
        assert found == expected
        last = plug if seen else last
        host.clock.advance(60)


@pytest.mark.parametrize(("trouble", "state"), [(DENIED, PARTIAL), (STUCK, FAILED)])
async def test_unreadable_transceivers_of_others_are_not_failures(
    trouble: OSError, state: int
) -> None:
    async with run_sampler(host_with_transceiver(trouble), [OpticsSource()]) as run:
        assert run.sampler.statuses["optics"].state == state
