"""Bandwidth limit of a path to the processor, and its degradation."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.pci_bus import DEVICES, GPU, NVME, add_device, add_nic, set_link
from support.reading import Label, numbers, read_once, readings

from railscope.catalog.pcie import PATH_STEPS
from railscope.reading import Absent
from railscope_agent.sources.pcie import PcieSource
from railscope_agent.topology.pcie_links import (
    DEGRADED,
    FULL,
    POWER_SAVING,
    PcieLink,
    PcieLinkState,
    link_bandwidth,
    list_path_links,
    path_bandwidth,
    path_limit,
    path_state,
)

LIMIT, NOW = (f"railscope_pcie_path_{what}_bytes_per_second" for what in ("limit", "bandwidth"))
STATE, ROOT_ERRORS = "railscope_pcie_path_state", "railscope_pcie_root_port_errors_total"
ROOT, UP, DOWN, NIC = "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"
PATH = f"pci0000:15/{ROOT}/{UP}/{DOWN}/{NIC}"
GIB5X16 = 16 * 32e9 / 8 * 128 / 130
SPEEDS = st.sampled_from([2500, 5000, 8000, 16000, 32000, 64000, 128000])
WIDTHS = st.sampled_from([1, 2, 4, 8, 16, 32])


def awake(_address: str) -> bool:
    return False


def asleep(_address: str) -> bool:
    return True


# Arithmetic -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("megatransfers", "gigabytes"),
    [
        (2500, "0.25"),
        (5000, "0.5"),
        (8000, "0.985"),
        (16000, "1.969"),
        (32000, "3.938"),
        (64000, "7.5625"),
    ],
)
def test_payload_of_a_lane_by_generation(megatransfers: int, gigabytes: str) -> None:
    exact = Fraction(link_bandwidth(megatransfers, 1), PATH_STEPS * 10**9)
    assert abs(exact - Fraction(gigabytes)) < Fraction(1, 1000)


@given(SPEEDS, WIDTHS)
def test_bandwidth_is_exact(megatransfers: int, lanes: int) -> None:
    coding = (
        Fraction(8, 10)
        if megatransfers < 8000
        else Fraction(128, 130)
        if megatransfers < 64000
        else Fraction(242, 256)
    )
    expected = megatransfers * 10**6 * lanes * coding / 8
    assert Fraction(link_bandwidth(megatransfers, lanes), PATH_STEPS) == expected


# Links of a path ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("R", []),
        ("R n", ["R-n"]),
        ("R U", ["R-U"]),
        ("R U D", ["R-U"]),  # below a port of a switch its own link begins
        ("R U D n", ["R-U", "D-n"]),
        ("R U D V E n", ["R-U", "D-V", "E-n"]),
        ("n", ["-n"]),  # a virtual machine shows no port
        ("vmd R n", ["R-n"]),  # Intel VMD: not a port
    ],
)
def test_links_between_a_device_and_the_processor(chain: str, expected: list[str]) -> None:
    addresses = chain.split()
    roles = {address: "bridge" for address in addresses if address.isupper()}
    assert [f"{link.upper}-{link.lower}" for link in list_path_links(addresses, roles)] == expected


STATES = st.builds(
    lambda speed, limit, width, lanes: PcieLinkState(
        min(speed, limit), limit, min(width, lanes), lanes
    ),
    SPEEDS,
    SPEEDS,
    WIDTHS,
    WIDTHS,
)


@st.composite
def paths(draw) -> tuple[list[PcieLink], dict[str, PcieLinkState]]:
    """Links whose ends both report the link: it runs at the negotiated speed."""
    path, states = [], {}
    for number in range(draw(st.integers(1, 3))):
        upper, lower = draw(STATES), draw(STATES)
        speed = min(draw(SPEEDS), upper.speed_limit, lower.speed_limit)
        width = min(draw(WIDTHS), upper.width_limit, lower.width_limit)
        path.append(PcieLink(f"upper{number}", f"lower{number}"))
        states[f"upper{number}"] = PcieLinkState(speed, upper.speed_limit, width, upper.width_limit)
        states[f"lower{number}"] = PcieLinkState(speed, lower.speed_limit, width, lower.width_limit)
    return path, states


@given(paths())
def test_a_path_is_as_good_as_its_worst_link(drawn) -> None:
    path, states = drawn
    ends = [(states[link.upper], states[link.lower]) for link in path]
    most = min(
        link_bandwidth(min(u.speed_limit, d.speed_limit), min(u.width_limit, d.width_limit))
        for u, d in ends
    )
    now = min(link_bandwidth(d.speed, d.width) for _, d in ends)
    assert path_limit(path, states) == most
    assert path_bandwidth(path, states) == now <= most


@given(paths())
def test_a_path_is_full_where_it_carries_its_most(drawn) -> None:
    path, states = drawn
    full = path_bandwidth(path, states) == path_limit(path, states)
    assert (path_state(path, states, awake) == FULL) is full
    if not full:
        assert path_state(path, states, awake) == DEGRADED
        assert path_state(path, states, asleep) in {POWER_SAVING, DEGRADED}


@given(paths())
def test_sleep_excuses_speed_and_never_lanes(drawn) -> None:
    path, states = drawn
    at_speed = {
        end: PcieLinkState(
            min(states[link.upper].speed_limit, states[link.lower].speed_limit),
            states[end].speed_limit,
            states[end].width,
            states[end].width_limit,
        )
        for link in path
        for end in (link.upper, link.lower)
    }
    expected = path_state(path, at_speed, awake)
    found = path_state(path, states, asleep)
    assert (found == DEGRADED) is (expected == DEGRADED)


# The source ---------------------------------------------------------------------------------------


def server() -> FakeHost:
    """Return a host with a NIC below a switch, all links at 32 GT/s with 16 lanes."""
    host = FakeHost()
    add_nic(host, PATH, "mlx5_0", interface="ens1")
    for address in (ROOT, UP, DOWN, NIC):
        set_link(host, address, "32x16", "32x16")
    return host


def found(host: FakeHost) -> dict[Label, float]:
    return numbers(read_once(PcieSource(), host).frame)


def state(host: FakeHost, address: str = NIC) -> str:
    outcome = read_once(PcieSource(), host).frame
    assert outcome is not None
    (metric,) = {m for m, *_ in outcome.readings() if m.name == STATE}
    reading = readings(outcome)[STATE, (address,)]
    return reading.label if isinstance(reading, Absent) else metric.states[reading]


def test_a_path_in_order() -> None:
    values = found(server())
    for address in (UP, DOWN, NIC):
        assert values[LIMIT, (address,)] == values[NOW, (address,)] == pytest.approx(GIB5X16)
        assert state(server(), address) == "full"
    assert (STATE, (ROOT,)) not in values, "nothing is above a root port"


def test_a_nic_in_a_slower_slot_is_in_order() -> None:
    """A limit belongs to the path, not to the NIC."""
    host = server()
    set_link(host, DOWN, "16x8", "16x8")
    set_link(host, NIC, "16x8", "32x16")
    assert found(host)[LIMIT, (NIC,)] == pytest.approx(GIB5X16 / 4)
    assert state(host) == "full"


def test_lost_lanes_and_a_slow_link_of_a_nic_are_degraded() -> None:
    for now in ("32x8", "16x16"):
        host = server()
        for end in (DOWN, NIC):
            set_link(host, end, now, "32x16")
        assert found(host)[NOW, (NIC,)] == pytest.approx(GIB5X16 / 2)
        assert state(host) == "degraded"
        assert state(host, UP) == "full"


def test_a_bad_link_above_a_switch_is_in_the_path_of_all_below() -> None:
    host = server()
    for end in (ROOT, UP):
        set_link(host, end, "32x4", "32x16")
    assert [state(host, address) for address in (UP, DOWN, NIC)] == ["degraded"] * 3


def test_a_slow_link_that_is_not_the_bottleneck_harms_nothing() -> None:
    host = server()
    for end in (ROOT, UP):
        set_link(host, end, "16x16", "16x16")
    for end in (DOWN, NIC):
        set_link(host, end, "16x16", "32x16")
    assert state(host) == "full"


@pytest.mark.parametrize(
    ("power_state", "expected"),
    [
        ("D0", "degraded"),
        ("D3hot", "power_saving"),
        ("unknown", "unsupported"),
        (None, "unsupported"),
        (DENIED, "denied"),
    ],
)
def test_a_drive_may_sleep_but_not_in_d0(power_state: str | None, expected: str) -> None:
    host = FakeHost()
    drive = add_device(host, "pci0000:22/0000:22:01.0/0000:23:00.0", NVME)
    set_link(host, "0000:22:01.0", "2.5x4", "16x4")
    set_link(host, drive, "2.5x4", "16x4")
    if power_state is not None:
        host.files[f"{host.links[f'{DEVICES}/{drive}']}/power_state"] = power_state
    assert state(host, drive) == expected
    set_link(host, drive, "2.5x2", "16x4")
    assert state(host, drive) == "degraded"


def test_a_port_without_link_data_leaves_the_path_without_a_limit() -> None:
    host = server()
    host.files[f"{host.links[f'{DEVICES}/{DOWN}']}/max_link_speed"] = "Unknown"
    values = readings(read_once(PcieSource(), host).frame)
    assert values[LIMIT, (NIC,)] is values[STATE, (NIC,)] is Absent.UNSUPPORTED
    assert values[LIMIT, (UP,)] is not Absent.UNSUPPORTED


def test_a_device_whose_registers_are_all_ones_is_lost() -> None:
    host = server()
    place = host.links[f"{DEVICES}/{NIC}"]
    host.files |= {f"{place}/current_link_speed": "Unknown", f"{place}/current_link_width": "63"}
    assert state(host) == "lost"
    assert state(host, UP) == "full"


def test_the_state_of_a_gpu_is_left_to_its_driver() -> None:
    host = FakeHost()
    gpu = add_device(host, "pci0000:22/0000:22:01.0/0000:23:00.0", GPU)
    for end in ("0000:22:01.0", gpu):
        set_link(host, end, "2.5x16", "32x16")
    values = found(host)
    assert (LIMIT, (gpu,)) in values
    assert (STATE, (gpu,)) not in values


def test_root_ports_report_the_errors_of_all_devices_below() -> None:
    host = server()
    place = host.links[f"{DEVICES}/{ROOT}"]
    for number, name in enumerate(("cor", "nonfatal", "fatal")):
        host.files[f"{place}/aer_rootport_total_err_{name}"] = f"{10 + number}\n"
    values = found(host)
    severities = ("correctable", "nonfatal", "fatal")
    assert [values[ROOT_ERRORS, (ROOT, severity)] for severity in severities] == [10, 11, 12]
