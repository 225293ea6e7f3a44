"""Netlink against the kernel it runs on, in a network namespace of its own."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.namespace import comes_true, ip, network_namespace, veth_pair

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


def send(interface: str, *frames: bytes) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((interface, 0))
        for frame in frames:
            sender.send(frame)


def proc_net_dev() -> dict[str, list[int]]:
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return {
        name.strip(): list(map(int, rest.split()))
        for name, _, rest in (line.partition(":") for line in lines)
    }


def test_links_are_those_that_ip_shows(netlink: Netlink):
    shown = {entry["ifname"]: entry for entry in ip("-json", "-details", "link")}
    links = {entry["name"]: entry for entry in netlink.call("links")}
    assert set(links) == set(shown) == {"lo", HERE, THERE}
    for name, entry in shown.items():
        answer = links[name]
        assert answer["index"] == entry["ifindex"]
        assert answer["mtu"] == entry["mtu"]
        assert answer["address"] == entry["address"]
        assert answer["operational_state"] == entry["operstate"].lower()
        assert answer["up"] == ("UP" in entry["flags"])
        assert answer["kind"] == entry.get("linkinfo", {}).get("info_kind", "")
        assert answer["lower"] == entry.get("link", "")
        assert answer["master"] == ""


def test_counters_match_proc_and_count_sent_packets(netlink: Netlink):
    frame = bytes(12) + b"\x12\x34" + bytes(86)
    send(HERE, *[frame] * 7)
    for name in (HERE, THERE):
        answer = link(netlink, name)["statistics"]
        assert (answer["tx_packets"], answer["rx_packets"]) == ((7, 0) if name == HERE else (0, 7))
        assert answer["tx_bytes"] + answer["rx_bytes"] == 700
        receive, transmit = proc_net_dev()[name][:8], proc_net_dev()[name][8:]
        assert receive[:2] == [answer["rx_bytes"], answer["rx_packets"]]
        assert receive[3] == answer["rx_dropped"] + answer["rx_missed_errors"]
        assert transmit[:2] == [answer["tx_bytes"], answer["tx_packets"]]
        assert len(answer) >= 24
        assert all(isinstance(value, int) for value in answer.values())


def test_an_mtu_that_was_changed(netlink: Netlink):
    assert link(netlink, HERE)["mtu"] == 1500
    ip("link", "set", HERE, "mtu", "4200")
    assert link(netlink, HERE)["mtu"] == 4200


def test_losses_of_the_carrier_are_counted(netlink: Netlink):
    before = link(netlink, HERE)
    assert (before["carrier"], before["up"], before["operational_state"]) == (1, True, "up")
    ip("link", "set", THERE, "down")
    comes_true(lambda: link(netlink, HERE)["operational_state"] == "lowerlayerdown")
    down = link(netlink, HERE)
    assert (down["carrier"], down["up"]) == (0, True)
    ip("link", "set", THERE, "up")
    comes_true(lambda: link(netlink, HERE)["operational_state"] == "up")
    after = link(netlink, HERE)
    assert after["carrier"] == 1
    assert after["carrier_down_count"] == before["carrier_down_count"] + 1
    assert after["carrier_up_count"] == before["carrier_up_count"] + 1
    assert after["carrier_changes"] == before["carrier_changes"] + 2


def test_an_interface_that_is_switched_off_is_not_up(netlink: Netlink):
    ip("link", "set", HERE, "down")
    answer = link(netlink, HERE)
    assert (answer["up"], answer["operational_state"]) == (False, "down")


def test_the_master_of_a_port(netlink: Netlink):
    ip("link", "add", "name", "rs-bridge", "type", "bridge")
    ip("link", "set", HERE, "master", "rs-bridge")
    assert link(netlink, HERE)["master"] == "rs-bridge"
    assert link(netlink, "rs-bridge")["kind"] == "bridge"


def test_many_interfaces_come_in_more_than_one_part(netlink: Netlink):
    for number in range(40):
        ip("link", "add", "name", f"rs-a{number}", "type", "veth", "peer", f"rs-b{number}")
    assert len(netlink.call("links")) == 83


def test_a_virtual_pair_has_a_speed_and_a_state(netlink: Netlink):
    answer = netlink.call("link_modes", HERE)
    assert (answer["speed_megabits"], answer["duplex"]) == (10_000, "full")
    assert netlink.call("link_state", HERE)["up"] is True
    ip("link", "set", THERE, "down")
    assert netlink.call("link_state", HERE)["up"] is False


@pytest.mark.parametrize("function", ["dcb", "pause", "fec", "rings", "module"])
def test_features_that_a_virtual_pair_does_not_support(netlink: Netlink, function: str):
    with pytest.raises(OSError, match="Operation not supported") as raised:
        netlink.call(function, HERE)
    assert raised.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    "function", ["dcb", "pause", "fec", "rings", "link_modes", "link_state", "module"]
)
def test_an_interface_that_is_not_there(netlink: Netlink, function: str):
    with pytest.raises(OSError, match="No such device") as raised:
        netlink.call(function, "rs-none")
    assert raised.value.errno == errno.ENODEV


def test_the_kernel_message_is_in_the_error(netlink: Netlink):
    with pytest.raises(OSError, match="no device matches name"):
        netlink.call("rings", "rs-none")


def test_an_rdma_device_that_is_not_there(netlink: Netlink):
    with pytest.raises(
        OSError, match=r"Protocol not supported|RDMA device .* does not exist"
    ) as raised:
        netlink.call("rdma_statistics", "rs_none0", 1)
    assert raised.value.errno in {errno.EPROTONOSUPPORT, errno.ENODEV}


def test_many_threads_send_at_once(netlink: Netlink):
    """Other threads stay in the namespace they were started in: they inherit this one."""
    failed: list[object] = []

    def ask() -> None:
        for _ in range(50):
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


def test_links_of_this_machine_are_those_of_sysfs():
    """Outside a namespace, /sys lists the same interfaces."""
    host = LiveHost()
    try:
        links = host.call("netlink", "links")
    finally:
        host.close()
    assert {entry["name"] for entry in links} >= {"lo"}
    for entry in links:
        directory = NET / entry["name"]
        for key, name in (("index", "ifindex"), ("mtu", "mtu"), ("address", "address")):
            assert str(entry[key]) == (directory / name).read_text().strip()
        assert entry["operational_state"] == (directory / "operstate").read_text().strip()
        files = {file.name for file in (directory / "statistics").iterdir()}
        assert files <= set(entry["statistics"])
        flags = int((directory / "flags").read_text(), 16)
        assert entry["up"] == bool(flags & 1)


@pytest.mark.parametrize(
    "question",
    [
        ("netlink", "links"),
        ("netlink", "dcb", "eth0"),
        ("netlink", "rdma_statistics", "mlx5_0", 1),
        ("lldp", "neighbours"),
    ],
)
def test_a_copied_tree_has_no_network(tmp_path: Path, question: tuple[Any, ...]):
    host = LiveHost(tmp_path)
    with pytest.raises(OSError, match="copied tree") as raised:
        host.call(*question)
    assert raised.value.errno == errno.ENOENT
    host.close()
