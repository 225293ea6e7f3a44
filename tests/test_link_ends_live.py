"""Both ends of a link, as two real lldpd of Debian announce them to each other in two network namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.machine import FakeHost
from support.namespace import comes_true, ip, network_namespace
from support.nics import NET, add_nic, facts
from support.reading import read_once

from railscope_agent.host.live_host import LiveHost
from railscope_agent.sources.nic_ports import NeighbourSource
from railscope_collector.switches import link_ends, links

HOST_NIC, SWITCH_PORT = "rs-host", "rs-switch"
NODE, SWITCH = "gpu-0001", "leaf-07"
PATH = f"{os.environ['PATH']}:/usr/sbin"
STOP_SECONDS = 60


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory for sockets that lldpd can access: it runs as its own user."""
    with TemporaryDirectory(prefix="lldpd-") as made:
        path = Path(made)
        path.chmod(0o711)
        yield path


@contextmanager
def lldpd(
    directory: Path, interface: str, name: str, *settings: str, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[int, Path]]:
    """Run an lldpd with a host name of its own; yield its pid and its socket. Skips if there is none."""
    program = shutil.which("lldpd", path=PATH)
    if program is None:
        pytest.skip("lldpd is not installed: make servers")
    configuration, socket = directory / f"{name}.conf", directory / f"{name}.socket"
    lines = [f"configure system hostname {name}", "configure lldp tx-interval 1", *settings]
    configuration.write_text("\n".join(lines) + "\n")
    command = [*prefix, program, "-d", "-u", str(socket), "-I", interface, "-O", str(configuration)]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process.pid, socket
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def show(socket: Path, subject: str) -> dict[str, Any]:
    """Return what an lldpd shows; nothing before it has started."""
    command = ["lldpcli", "-u", str(socket), "-f", "json", "show", subject]
    done = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 and done.stdout else {}


def neighbour_of(socket: Path) -> dict[str, Any]:
    """Return the neighbour of the only interface; nothing without one."""
    interface = show(socket, "neighbors").get("lldp", {}).get("interface", {})
    return dict(next(iter(interface.values()), {}))


def identity(chassis: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the identifier of a chassis."""
    ((name, each),) = chassis.items()
    return name, each["id"]["value"]


def switch_end(socket: Path) -> link_ends.SwitchEnd:
    """Return the switch port as the lldpd of the switch shows it."""
    (system_name, chassis), neighbour = (
        identity(show(socket, "chassis")["local-chassis"]["chassis"]),
        neighbour_of(socket),
    )
    host_name, host_chassis = identity(neighbour["chassis"])
    port = neighbour["port"]["id"]["value"]
    return link_ends.SwitchEnd(
        SWITCH, SWITCH_PORT, (), system_name, chassis, host_name, port, host_chassis
    )


def host_end(live: LiveHost) -> link_ends.HostEnd:
    """Return the NIC as an agent reports it. A virtual interface has no device: the one of a NIC is added."""
    host = FakeHost()
    add_nic(host, HOST_NIC)
    (address,) = (
        each["address"] for each in live.call("netlink", "links") if each["name"] == HOST_NIC
    )
    host.files[f"{NET}/{HOST_NIC}/address"] = f"{address}\n"
    host.calls["lldp.neighbours()"] = live.call("lldp", "neighbours")
    outcome = read_once(NeighbourSource(), host)
    neighbour = facts(outcome, "nic_neighbour").get(HOST_NIC, {})
    announced = [neighbour.get(name, "") for name in ("switch", "switch_port", "chassis")]
    own = facts(outcome, "nic_address")[HOST_NIC]["mac_address"]
    return link_ends.HostEnd(NODE, HOST_NIC, "3", *announced, (own,))


@pytest.mark.parametrize("subtype", ["macaddress", "ifname"])
def test_two_lldpd_are_the_two_ends_of_one_link(directory: Path, subtype: str) -> None:
    own_port = f"configure lldp portidsubtype {subtype}"
    with network_namespace():
        ip("link", "add", "name", HOST_NIC, "type", "veth", "peer", "name", SWITCH_PORT)
        own = Path("/proc/thread-self/ns/net").readlink()
        by_name, live = "configure lldp portidsubtype ifname", LiveHost()
        with (
            lldpd(directory, SWITCH_PORT, SWITCH, by_name, prefix=("unshare", "--net")) as (
                pid,
                switch,
            ),
            lldpd(directory, HOST_NIC, NODE, own_port),
        ):
            comes_true(lambda: Path(f"/proc/{pid}/ns/net").readlink() != own)
            ip("link", "set", SWITCH_PORT, "netns", str(pid))
            ip("link", "set", HOST_NIC, "up")
            inside = ["nsenter", f"--target={pid}", "--net"]
            subprocess.run([*inside, "ip", "link", "set", SWITCH_PORT, "up"], check=True)
            try:
                comes_true(lambda: bool(neighbour_of(switch)))
                comes_true(lambda: bool(live.call("lldp", "neighbours")))
                host, end = host_end(live), switch_end(switch)
            finally:
                live.close()
    port, nic = (SWITCH, SWITCH_PORT), (NODE, HOST_NIC)
    both = links.PortLink(port, nic, "3", ("host_lldp", "switch_lldp"))
    assert links.join_links([host], [end]) == links.JoinedLinks({port: both}, [], 1)
    assert (end.neighbour_port == HOST_NIC) == (subtype == "ifname")
    without_lldp = host._replace(switch="", switch_port="", chassis="")
    alone = both._replace(evidence=("switch_lldp",))
    assert links.join_links([without_lldp], [end]).links == {port: alone}
