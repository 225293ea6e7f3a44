from __future__ import annotations

import errno

from support.machine import FakeHost
from support.reading import ORIGIN, read_once, readings

from agent.reader import Reader
from agent.sources.link import Link
from railscope.reading import Absent


def test_a_link_that_is_down_has_no_speed() -> None:
    host = FakeHost()
    for name, text in {"speed": "-1", "carrier": "0", "carrier_changes": "7"}.items():
        host.files[f"/sys/class/net/eth0/{name}"] = text
    found = readings(read_once(Link(), host).frame)
    assert found["railscope_network_link_speed_bytes_per_second", ("eth0",)] is Absent.UNSUPPORTED
    assert found["railscope_network_link_up", ("eth0",)] == 0
    assert found["railscope_network_link_changes_total", ("eth0",)] == 7


def test_an_interface_that_is_switched_off_does_not_tell_its_carrier() -> None:
    """The kernel answers EINVAL then."""
    host = FakeHost()
    host.files["/sys/class/net/eth0/carrier_changes"] = "7"
    host.files["/sys/class/net/eth0/carrier"] = "1"
    reader = Reader(Link(), host, ORIGIN)
    reader.run()
    host.files["/sys/class/net/eth0/carrier"] = OSError(errno.EINVAL, "Invalid argument")
    assert readings(reader.run().frame) == {
        ("railscope_network_link_changes_total", ("eth0",)): 7,
        ("railscope_network_link_up", ("eth0",)): Absent.UNSUPPORTED,
    }
