from __future__ import annotations

import errno

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.network_links import LinkSource
from railscope_agent.topology.network_interface import parse_speed


def test_a_link_that_is_down_has_no_speed() -> None:
    host = FakeHost()
    for name, text in {"speed": "-1", "carrier": "0", "carrier_changes": "7"}.items():
        host.files[f"/sys/class/net/eth0/{name}"] = text
    found = readings(read_once(LinkSource(), host).frame)
    assert found["railscope_network_link_speed_bytes_per_second", ("eth0",)] is Absent.UNSUPPORTED
    assert found["railscope_network_link_up", ("eth0",)] == 0
    assert found["railscope_network_link_changes_total", ("eth0",)] == 7


@pytest.mark.parametrize("speed", ["0", "65535", "4294967295", str(2**64 - 1), "-1"])
def test_markers_of_an_unknown_speed_are_no_speeds(speed: str) -> None:
    assert parse_speed(speed.encode()) is Absent.UNSUPPORTED


@pytest.mark.parametrize("speed", [10, 400_000, 1_600_000])
def test_speeds_of_links(speed: int) -> None:
    assert parse_speed(b"%d\n" % speed) == speed


def test_a_file_that_fails_from_the_start_is_absent_with_the_reason() -> None:
    host = FakeHost()
    host.files["/sys/class/net/eth0/speed"] = OSError(errno.EIO, "Input/output error")
    found = readings(read_once(LinkSource(), host).frame)
    assert found == {("railscope_network_link_speed_bytes_per_second", ("eth0",)): Absent.ERROR}


def test_an_interface_that_is_switched_off_has_no_carrier_reading() -> None:
    """The kernel answers EINVAL then."""
    host = FakeHost()
    host.files["/sys/class/net/eth0/carrier_changes"] = "7"
    host.files["/sys/class/net/eth0/carrier"] = "1"
    reader = SourceReader(LinkSource(), host, ORIGIN)
    reader.run()
    host.files["/sys/class/net/eth0/carrier"] = OSError(errno.EINVAL, "Invalid argument")
    assert readings(reader.run().frame) == {
        ("railscope_network_link_changes_total", ("eth0",)): 7,
        ("railscope_network_link_up", ("eth0",)): Absent.UNSUPPORTED,
    }


def link(name: str, *, up: bool, carrier: int, changes: int) -> dict[str, object]:
    return {"name": name, "up": up, "carrier": carrier, "carrier_changes": changes}


def test_one_answer_covers_all_carriers_and_interfaces_switched_off() -> None:
    host = FakeHost()
    for name in ("eth0", "eth1", "eth2"):
        host.files[f"/sys/class/net/{name}/speed"] = "400000"
        host.files[f"/sys/class/net/{name}/carrier"] = "1"
    host.calls["netlink.links()"] = [
        link("eth0", up=True, carrier=1, changes=3),
        link("eth1", up=False, carrier=1, changes=4),
        link("eth2", up=True, carrier=0, changes=5),
    ]
    reader = SourceReader(LinkSource(), host, ORIGIN)
    found = readings(reader.run().frame)
    up, changes = "railscope_network_link_up", "railscope_network_link_changes_total"
    assert [found[up, (name,)] for name in ("eth0", "eth1", "eth2")] == [1, 0, 0]
    assert [found[changes, (name,)] for name in ("eth0", "eth1", "eth2")] == [3, 4, 5]
    assert len(found) == 9
    host.calls["netlink.links()"].pop()
    assert readings(reader.run().frame)[up, ("eth2",)] is Absent.GONE
    host.calls["netlink.links()"] = OSError(errno.ENOBUFS, "no space")
    assert readings(reader.run().frame)[up, ("eth0",)] is Absent.ERROR


@pytest.mark.parametrize("has_netlink", [True, False])
def test_the_state_of_an_ipoib_interface_is_not_that_of_its_port(*, has_netlink: bool) -> None:
    """Verbs run over a port that is active while ib0 is down; a child of a partition has no state of a port either."""
    host = FakeHost()
    for name, kind in (("eth0", "1"), ("ib0", "32"), ("ib0.8001", "32")):
        for file, text in (
            ("type", kind),
            ("speed", "400000"),
            ("carrier", "1"),
            ("carrier_changes", "1"),
        ):
            host.files[f"/sys/class/net/{name}/{file}"] = text
    if has_netlink:
        names = ("eth0", "ib0", "ib0.8001")
        host.calls["netlink.links()"] = [
            link(each, up=True, carrier=1, changes=1) for each in names
        ]
    found = readings(read_once(LinkSource(), host).frame)
    speed = "railscope_network_link_speed_bytes_per_second"
    assert {name for name, _ in found if name != speed} == {
        "railscope_network_link_up", "railscope_network_link_changes_total",
    }  # fmt: skip
    assert {key for name, key in found if name != speed} == {("eth0",)}
    assert {key for name, key in found if name == speed} == {("eth0",), ("ib0",), ("ib0.8001",)}
