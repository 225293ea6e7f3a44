"""Netlink and ethtool against the kernel that the tests run on, in a network namespace of their own."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.namespace import comes_true, ip, network_namespace, veth_pair

from railscope_agent.host.ethtool_ioctl import Ethtool
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.netlink import Netlink

HERE, THERE = "rs-here", "rs-there"
NET = Path("/sys/class/net")


@pytest.fixture
def netlink() -> Iterator[Netlink]:
    """Netlink in a namespace with the loopback and a virtual pair, all up."""
    with network_namespace():
        veth_pair(HERE, THERE)
        reader = Netlink()
        yield reader
        reader.close()


def link(netlink: Netlink, name: str) -> dict[str, Any]:
    (found,) = (entry for entry in netlink.call("links") if entry["name"] == name)
    return found


def test_links_are_those_that_ip_shows_and_count_sent_packets(netlink: Netlink) -> None:
    ip("link", "add", "name", "rs-bridge", "type", "bridge")
    ip("link", "set", THERE, "master", "rs-bridge")
    ip("link", "set", HERE, "mtu", "4200")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((HERE, 0))
        for _ in range(7):
            sender.send(bytes(12) + b"\x12\x34" + bytes(86))
    shown = {entry["ifname"]: entry for entry in ip("-json", "-details", "link")}
    links = {entry["name"]: entry for entry in netlink.call("links")}
    assert set(links) == set(shown) == {"lo", HERE, THERE, "rs-bridge"}
    for name, entry in shown.items():
        answer = links[name]
        expected = {
            "index": entry["ifindex"], "mtu": entry["mtu"], "address": entry["address"],
            "operational_state": entry["operstate"].lower(), "up": "UP" in entry["flags"],
            "kind": entry.get("linkinfo", {}).get("info_kind", ""), "lower": entry.get("link", ""),
            "master": entry.get("master", ""),
        }  # fmt: skip
        assert {key: answer[key] for key in expected} == expected
    sent, received = links[HERE]["statistics"], links[THERE]["statistics"]
    assert (sent["tx_packets"], sent["tx_bytes"]) == (7, 700)
    assert (received["rx_packets"], received["rx_bytes"]) == (7, 700)


def test_losses_of_the_carrier_are_counted(netlink: Netlink) -> None:
    before = link(netlink, HERE)
    assert (before["carrier"], before["up"], before["operational_state"]) == (1, True, "up")
    ip("link", "set", THERE, "down")
    comes_true(lambda: link(netlink, HERE)["operational_state"] == "lowerlayerdown")
    assert netlink.call("link_state", HERE)["up"] is False
    down = link(netlink, HERE)
    assert (down["carrier"], down["up"]) == (0, True)
    ip("link", "set", THERE, "up")
    comes_true(lambda: link(netlink, HERE)["operational_state"] == "up")
    after = link(netlink, HERE)
    for count, grown in (
        ("carrier_down_count", 1),
        ("carrier_up_count", 1),
        ("carrier_changes", 2),
    ):
        assert after[count] == before[count] + grown
    answer = netlink.call("link_modes", HERE)
    assert (answer["speed_megabits"], answer["duplex"]) == (10_000, "full")


def test_many_interfaces_come_in_more_than_one_part(netlink: Netlink) -> None:
    for number in range(40):
        ip("link", "add", "name", f"rs-a{number}", "type", "veth", "peer", f"rs-b{number}")
    assert len(netlink.call("links")) == 83


def test_requests_that_the_kernel_rejects(netlink: Netlink) -> None:
    for function in ("dcb", "pause", "fec", "rings", "module"):
        with pytest.raises(OSError, match="Operation not supported") as raised:
            netlink.call(function, HERE)
        assert raised.value.errno == errno.EOPNOTSUPP
    for function in ("dcb", "rings", "link_modes", "link_state", "module"):
        with pytest.raises(OSError, match="No such device") as raised:
            netlink.call(function, "rs-none")
        assert raised.value.errno == errno.ENODEV
    with pytest.raises(OSError, match="no device matches name"):
        netlink.call("rings", "rs-none")
    with pytest.raises(OSError, match=r"Protocol not supported|RDMA device .* does not exist"):
        netlink.call("rdma_statistics", "rs_none0", 1)


def test_many_threads_send_at_once(netlink: Netlink) -> None:
    """Other threads stay in the namespace they were started in: they inherit this one."""
    failed: list[object] = []

    def ask() -> None:
        for _ in range(20):
            names = {entry["name"] for entry in netlink.call("links")}
            speed = netlink.call("link_modes", HERE)["speed_megabits"]
            if (names, speed) != ({"lo", HERE, THERE}, 10_000):
                failed.append((names, speed))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []


@pytest.mark.usefixtures("netlink")
def test_driver_statistics_of_a_virtual_pair_also_after_their_number_changed() -> None:
    """More queues, more statistics: names and values must still belong together."""
    ethtool = Ethtool()
    assert ethtool.call("driver", HERE)["driver"] == "veth"
    for _ in range(2):
        answer = ethtool.call("statistics", HERE)
        assert len(answer["names"]) == len(answer["values"]) == len(set(answer["names"])) > 0
        found = dict(zip(answer["names"], answer["values"], strict=True))
        (peer,) = ip("-json", "link", "show", THERE)
        assert found["peer_ifindex"] == peer["ifindex"]
        ip("link", "delete", HERE)
        ip("link", "add", HERE, "numrxqueues", "4", "type", "veth", "peer", "name", THERE)
    with pytest.raises(OSError, match=r"No such device|too long") as raised:
        ethtool.call("driver", "a" * 16)
    assert raised.value.errno == errno.ENODEV
    ethtool.close()


def test_this_machine_is_that_of_sysfs() -> None:
    """Outside a namespace, /sys lists the same interfaces."""
    host = LiveHost()
    try:
        links = host.call("netlink", "links")
        drivers = {}
        for device in NET.glob("*/device"):
            try:
                drivers[device] = host.call("ethtool", "driver", device.parent.name)["bus"]
            except OSError:
                continue
    finally:
        host.close()
    assert {entry["name"] for entry in links} >= {"lo"}
    for entry in links:
        directory = NET / entry["name"]
        for key, name in (("index", "ifindex"), ("mtu", "mtu"), ("address", "address")):
            assert str(entry[key]) == (directory / name).read_text().strip()
    for device, bus in drivers.items():
        assert not bus or bus in device.resolve().parts or re.search(r"[^0-9a-f:.]", bus)


def test_a_copied_tree_has_no_network(tmp_path: Path) -> None:
    host = LiveHost(tmp_path)
    for question in (("netlink", "links"), ("netlink", "dcb", "eth0"), ("lldp", "neighbours")):
        with pytest.raises(OSError, match="copied tree") as raised:
            host.call(*question)
        assert raised.value.errno == errno.ENOENT
    host.close()
