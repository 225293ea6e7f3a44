"""The switch port of an interface, and its changes."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.nics import NET, add_nic, events, facts
from support.reading import ORIGIN, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_ports import FIRST_FRAME_WITHIN_NS, NeighbourSource

KIND, KNOWN = "nic_neighbour", "railscope_nic_neighbour_known"
CALL = "lldp.neighbours()"
NS = 10**9
LEAF = {
    "chassis": "aa:bb:cc:00:00:01", "port": "Ethernet1/1", "port_description": "to gpu-1 rail 0",
    "system": "leaf-1", "system_description": "a switch", "management_address": "10.0.0.1",
    "capabilities": ["bridge", "router"], "ttl_seconds": 120, "maximum_frame_bytes": 9216,
    "port_vlan": 100,
}  # fmt: skip


def rails(count: int = 2) -> FakeHost:
    """Return a host with so many NICs, each connected to a port of one leaf."""
    host = FakeHost()
    for number in range(count):
        add_nic(host, f"eth{number}", address=f"0000:{number:02x}:00.0")
    plug(host, {f"eth{number}": f"Ethernet1/{number + 1}" for number in range(count)})
    return host


def plug(host: FakeHost, ports: dict[str, str]) -> None:
    """Plug interfaces into ports of the leaf."""
    host.calls[CALL] = {name: LEAF | {"port": port} for name, port in ports.items()}


def neighbour_changes(outcome: Any) -> list[tuple[str, str, str]]:
    return [(e.entity.key[0], e.facts["before"], e.facts["after"]) for e in events(outcome)]


def test_settings_that_a_switch_port_announces() -> None:
    host = rails(1)
    announced = {"pfc_priorities": [3], "dscp_priorities": ["3:26", "6:48", "3:27"]}
    host.calls[CALL]["eth0"] |= announced
    neighbour = facts(read_once(NeighbourSource(), host), KIND)["eth0"]
    assert (neighbour["pfc"], neighbour["dscp_map"]) == ("3", "3:26-27,6:48")


def test_the_neighbour_of_every_nic() -> None:
    outcome = read_once(NeighbourSource(), rails())
    assert facts(outcome, KIND)["eth1"] == {
        "switch": "leaf-1", "switch_port": "Ethernet1/2", "chassis": "aa:bb:cc:00:00:01",
        "management_address": "10.0.0.1", "port_description": "to gpu-1 rail 0", "vlan": "100",
        "largest_frame_bytes": "9216",
    }  # fmt: skip
    assert readings(outcome.frame) == {(KNOWN, ("eth0",)): 1, (KNOWN, ("eth1",)): 1}
    (finding,) = outcome.findings
    assert (finding.verdict, finding.detail) == (
        ProbeVerdict.SUPPORTED,
        "neighbours of 2 of 2 interfaces with a carrier",
    )


def test_mac_addresses_of_nics_do_not_depend_on_lldp() -> None:
    """A member of a bond also has its permanent address; interfaces of InfiniBand and unset addresses have none."""
    host = rails(5)
    addresses = {
        "eth0": "02:bb:00:00:00:00", "eth1": "02:BB:00:00:00:00",
        "eth2": "00:00:00:00:00:00", "eth3": ":".join(["80", *["00"] * 18, "01"]),
    }  # fmt: skip
    host.files |= {f"{NET}/{name}/address": f"{text}\n" for name, text in addresses.items()}
    host.files[f"{NET}/eth0/bonding_slave/perm_hwaddr"] = "02:bb:00:00:00:00\n"
    host.files[f"{NET}/eth1/bonding_slave/perm_hwaddr"] = "02:bb:00:00:00:01\n"
    host.calls[CALL] = DENIED
    assert facts(read_once(NeighbourSource(), host), "nic_address") == {
        "eth0": {"mac_address": "02:bb:00:00:00:00"},
        "eth1": {
            "mac_address": "02:bb:00:00:00:00",
            "permanent_mac_address": "02:bb:00:00:00:01",
        },
    }


def test_a_link_without_a_neighbour_is_not_a_link_that_is_down() -> None:
    """A neighbour is not reported after its link went down, even before it expires."""
    host = rails(4)
    plug(host, {"eth0": "Ethernet1/1", "eth2": "Ethernet1/3"})
    host.files[f"{NET}/eth2/carrier"] = "0\n"
    host.files[f"{NET}/eth3/carrier"] = OSError(errno.EINVAL, "Invalid argument")
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    reader.run()
    host.clock.advance(FIRST_FRAME_WITHIN_NS // NS)
    outcome = reader.run()
    assert readings(outcome.frame) == {
        (KNOWN, ("eth0",)): 1, (KNOWN, ("eth1",)): 0,
        (KNOWN, ("eth2",)): Absent.UNSUPPORTED, (KNOWN, ("eth3",)): Absent.UNSUPPORTED,
    }  # fmt: skip
    assert set(facts(outcome, KIND)) == {"eth0"}
    assert not outcome.missing_count


def test_a_neighbour_not_received_yet_is_not_unknown() -> None:
    """Frames arrive every 30 seconds; no neighbour is missing before, nor after a link came back."""
    host = rails(1)
    plug(host, {})
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    seconds = FIRST_FRAME_WITHIN_NS // NS
    for carrier, passed, expected in (
        ("1", 0, Absent.NOT_DUE), ("1", seconds - 1, Absent.NOT_DUE), ("1", 1, 0),
        ("0", 10, Absent.UNSUPPORTED), ("1", 10, Absent.NOT_DUE), ("1", seconds, 0),
    ):  # fmt: skip
        host.clock.advance(passed)
        host.files[f"{NET}/eth0/carrier"] = carrier
        outcome = reader.run()
        assert readings(outcome.frame) == {(KNOWN, ("eth0",)): expected}
        so_far = " so far: frames arrive about every 30 s"
        (finding,) = outcome.findings
        assert finding.detail.endswith(so_far) == (expected is Absent.NOT_DUE)
    plug(host, {"eth0": "Ethernet1/1"})
    assert readings(reader.run().frame) == {(KNOWN, ("eth0",)): 1}


MAC, OTHER_MAC = "aa:bb:cc:00:00:01", "aa:bb:cc:00:00:02"


@pytest.mark.parametrize(
    ("announced", "changed"),
    [
        (("etp1", MAC, "etp1"), []),
        ((MAC, "etp1", MAC), []),
        ((MAC, "etp1", "etp1", MAC, "etp1"), []),
        ((MAC, "etp1", "etp5"), ["leaf-1 etp5"]),
        (("etp1", MAC, "etp5"), ["leaf-1 etp5"]),
        (("etp1", "etp5"), ["leaf-1 etp5"]),
        ((MAC, OTHER_MAC), [f"leaf-1 {OTHER_MAC}"]),
        (("etp1", (MAC, "to gpu-2 rail 0"), "etp5"), [f"leaf-1 {MAC}", "leaf-1 etp5"]),
    ],
)
def test_a_mac_address_that_a_daemon_announces_for_a_time_is_no_recabling(
    announced: tuple[Any, ...], changed: list[str]
) -> None:
    host, places = rails(1), []
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    for each in announced:
        port, description = each if isinstance(each, tuple) else (each, LEAF["port_description"])
        host.calls[CALL] = {"eth0": LEAF | {"port": port, "port_description": description}}
        outcome = reader.run()
        assert facts(outcome, KIND)["eth0"]["switch_port"] == port
        places += [after.removesuffix(f" {MAC}") for _, _, after in neighbour_changes(outcome)]
        host.clock.advance(30)
    assert places == changed


def test_another_name_of_a_switch_is_no_recabling() -> None:
    """Its chassis identifies it: a daemon may announce no name until it is configured."""
    host = rails(1)
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    for name in ("leaf-1", "", "leaf-1", "leaf-1.example"):
        host.calls[CALL] = {"eth0": LEAF | {"system": name}}
        assert not neighbour_changes(reader.run())
        host.clock.advance(30)


def test_two_switches_at_one_interface_are_a_finding() -> None:
    host = rails(2)
    host.calls[CALL]["eth0"]["other_chassis"] = ["leaf-9"]
    first, *_ = read_once(NeighbourSource(), host).findings
    assert (first.title, first.verdict) == ("LLDP of eth0", ProbeVerdict.BROKEN)
    assert first.detail == f"several switches: {MAC}, leaf-9: expected one"


def test_two_switches_that_announce_in_turn_are_no_moves_until_one_is_silent() -> None:
    host = rails(1)
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    one, other = LEAF, LEAF | {"chassis": OTHER_MAC, "system": "leaf-2"}
    changes = []
    for newest, others in (
        (one, []),
        (other, [MAC]),
        (one, [OTHER_MAC]),
        (other, [MAC]),
        (other, []),
    ):
        host.calls[CALL] = {"eth0": newest | ({"other_chassis": others} if others else {})}
        outcome = reader.run()
        assert facts(outcome, KIND)["eth0"]["switch"] == newest["system"]
        changes.append(len(neighbour_changes(outcome)))
        host.clock.advance(30)
    assert changes == [0, 0, 0, 0, 1]


def test_recabling_is_an_event() -> None:
    host = rails()
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    assert not neighbour_changes(reader.run())
    host.clock.advance(10)
    plug(host, {"eth0": "Ethernet1/2", "eth1": "Ethernet1/1"})
    outcome = reader.run()
    one, other = (f"leaf-1 Ethernet1/{port} aa:bb:cc:00:00:01" for port in (1, 2))
    assert neighbour_changes(outcome) == [("eth0", one, other), ("eth1", other, one)]
    assert facts(outcome, KIND)["eth0"]["switch_port"] == "Ethernet1/2"
    host.clock.advance(10)
    assert not neighbour_changes(reader.run())


def test_a_neighbour_that_stopped_sending_has_not_changed() -> None:
    host = rails(1)
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    reader.run()
    plug(host, {})
    host.clock.advance(10)
    outcome = reader.run()
    assert readings(outcome.frame) == {(KNOWN, ("eth0",)): 0}
    assert facts(outcome, KIND) == {}
    plug(host, {"eth0": "Ethernet1/1"})
    host.clock.advance(10)
    assert not neighbour_changes(reader.run())
    plug(host, {"eth0": "Ethernet1/9"})
    host.clock.advance(10)
    assert len(neighbour_changes(reader.run())) == 1


@pytest.mark.parametrize(
    ("trouble", "reading", "verdict", "remedy"),
    [
        (DENIED, Absent.DENIED, ProbeVerdict.DENIED, "CAP_NET_RAW"),
        (OSError(errno.EIO, "I/O error"), Absent.ERROR, ProbeVerdict.BROKEN, ""),
        (FileNotFoundError(errno.ENOENT, "a copied tree"), None, ProbeVerdict.ABSENT, ""),
    ],
)
def test_failures_that_hide_all_neighbours(
    trouble: OSError, reading: Absent | None, verdict: ProbeVerdict, remedy: str
) -> None:
    host = rails()
    host.calls[CALL] = trouble
    outcome = read_once(NeighbourSource(), host)
    labels = [(KNOWN, ("eth0",)), (KNOWN, ("eth1",))] if reading else []
    assert readings(outcome.frame) == dict.fromkeys(labels, reading)
    (finding,) = outcome.findings
    assert finding.verdict is verdict
    assert remedy in finding.remedy


def test_a_new_nic_is_queried_at_once() -> None:
    host = rails(1)
    reader = SourceReader(NeighbourSource(), host, ORIGIN)
    reader.run()
    add_nic(host, "eth1", address="0000:01:00.0")
    host.clock.advance(10)
    new = {(KNOWN, ("eth0",)): 1, (KNOWN, ("eth1",)): Absent.NOT_DUE}
    assert readings(reader.run().frame) == new


PORT = st.one_of(st.none(), st.sampled_from(["Ethernet1/1", "Ethernet1/2"]))


@given(st.lists(st.tuples(PORT, st.booleans(), st.booleans()), max_size=12))
def test_each_recabling_is_reported_once(steps: list[tuple[str | None, bool, bool]]) -> None:
    host, last, source = rails(1), "", NeighbourSource()
    reader = SourceReader(source, host, ORIGIN)
    for port, carrier, refused in steps:
        plug(host, {"eth0": port} if port else {})
        host.files[f"{NET}/eth0/carrier"] = str(int(carrier))
        if refused:
            host.calls[CALL] = DENIED
        source.probe(host)
        seen = port if carrier and not refused else None
        found = [
            (before.split()[1], after.split()[1])
            for _, before, after in neighbour_changes(reader.run())
        ]
        assert found == ([(last, seen)] if seen and last and seen != last else [])
        last = seen or last
        host.clock.advance(10)
