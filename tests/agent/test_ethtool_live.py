"""The ethtool reader against the kernel it runs on."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from railscope_agent.host.ethtool_ioctl import Ethtool

NET = Path("/sys/class/net")
ONE, OTHER = f"rs{os.getpid()}a", f"rs{os.getpid()}b"


@pytest.fixture
def ethtool() -> Iterator[Ethtool]:
    reader = Ethtool()
    yield reader
    reader.close()


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def veth() -> Iterator[str]:
    """A pair of virtual interfaces, up, with a packet sent from one to the other."""
    try:
        made = ip("link", "add", ONE, "type", "veth", "peer", "name", OTHER)
    except FileNotFoundError:
        pytest.skip("the command ip is missing: install the Debian package iproute2")
    if made.returncode:
        pytest.skip(f"a veth pair cannot be made here: {made.stderr.strip()}")
    for name in (ONE, OTHER):
        ip("link", "set", name, "up")
    yield ONE
    ip("link", "delete", ONE)


def kernel_counts(interface: str) -> dict[str, int]:
    return {file.name: int(file.read_text()) for file in (NET / interface / "statistics").iterdir()}


def test_the_loopback_has_a_driver_or_none_but_no_nonsense(ethtool: Ethtool) -> None:
    try:
        answer = ethtool.call("driver", "lo")
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP  # noqa: PT017 - either answer is right
    else:
        assert set(answer) == {"driver", "version", "firmware", "bus"}


def test_the_loopback_has_no_statistics(ethtool: Ethtool) -> None:
    try:
        assert ethtool.call("statistics", "lo") == {"names": [], "values": []}
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP  # noqa: PT017 - as older kernels answer


@pytest.mark.parametrize("name", ["rsnone0", "a" * 16, "a" * 300])
def test_an_interface_that_is_not_there(ethtool: Ethtool, name: str) -> None:
    with pytest.raises(OSError, match=r"No such device|too long") as raised:
        ethtool.call("driver", name)
    assert raised.value.errno == errno.ENODEV


def test_a_virtual_pair_has_driver_and_statistics(ethtool: Ethtool, veth: str) -> None:
    assert ethtool.call("driver", veth)["driver"] == "veth"
    answer = ethtool.call("statistics", veth)
    assert len(answer["names"]) == len(answer["values"]) == len(set(answer["names"])) > 0
    found = dict(zip(answer["names"], answer["values"], strict=True))
    assert found["peer_ifindex"] == int((NET / OTHER / "ifindex").read_text())


def test_names_are_decoded_once_and_are_those_of_the_kernel_each_time(
    ethtool: Ethtool, veth: str
) -> None:
    first, second = (ethtool.call("statistics", veth) for _ in range(2))
    assert second["names"] is first["names"]
    other = Ethtool()
    assert other.call("statistics", veth)["names"] == first["names"]
    other.close()


def test_a_list_that_changed_its_length_is_read_again(ethtool: Ethtool, veth: str) -> None:
    """More queues, more statistics: names and values must still belong together."""
    before = ethtool.call("statistics", veth)["names"]
    ip("link", "delete", veth)
    more = ip("link", "add", ONE, "numrxqueues", "4", "type", "veth", "peer", "name", OTHER)
    assert more.returncode == 0, more.stderr
    answer = ethtool.call("statistics", veth)
    assert len(answer["names"]) == len(answer["values"]) != len(before)
    found = dict(zip(answer["names"], answer["values"], strict=True))
    assert found["peer_ifindex"] == int((NET / OTHER / "ifindex").read_text())


def test_statistics_of_queues_add_up_to_the_kernel_s_own(ethtool: Ethtool) -> None:
    """On any interface here whose driver counts packets by queue; counting may go on meanwhile."""
    checked = 0
    for interface in sorted(entry.name for entry in NET.iterdir() if entry.is_dir()):
        try:
            before, answer = kernel_counts(interface), ethtool.call("statistics", interface)
        except OSError:
            continue
        after = kernel_counts(interface)
        pairs = list(zip(answer["names"], answer["values"], strict=True))
        for way in ("rx", "tx"):
            queues = [n for name, n in pairs if re.fullmatch(rf"{way}_queue_\d+_packets", name)]
            if queues:
                assert before[f"{way}_packets"] <= sum(queues) <= after[f"{way}_packets"]
                checked += 1
    if not checked:
        pytest.skip("no interface here counts packets by queue")


def test_the_bus_address_is_that_of_the_device(ethtool: Ethtool) -> None:
    found = {}
    for device in NET.glob("*/device"):
        try:
            bus = ethtool.call("driver", device.parent.name)["bus"]
        except OSError:
            continue
        if bus:
            found[bus] = device.resolve().parts
    if not found:
        pytest.skip("no interface here is a device on a bus")
    assert [bus for bus, parts in found.items() if bus not in parts] == []
