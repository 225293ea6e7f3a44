"""Joins of both ends of links by evidence, and contradictions as cabling faults."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from collector.config import SwitchesSettings
from collector.switches import links
from collector.switches.switch_settings import read_cabling
from railscope.settings import SettingsError

CHASSIS = "02:aa:00:00:00:07"
NIC = ("gpu-0001", "eth0")
PORT = ("leaf-07", "Ethernet0")


def host(
    switch: str = "", port: str = "", chassis: str = "", nic: links.Nic = NIC
) -> links.HostEnd:
    return links.HostEnd(*nic, "3", switch, port, chassis)


def end(neighbour: str = "", neighbour_port: str = "", port: str = "Ethernet0") -> links.SwitchEnd:
    names = (f"TO-{port}", f"etp-{port}", "")
    return links.SwitchEnd(
        "leaf-07", port, names, "leaf-07.example", CHASSIS, neighbour, neighbour_port
    )


def joined(
    hosts: list[links.HostEnd], ends: list[links.SwitchEnd], *rows: links.CabledLink
) -> links.JoinedLinks:
    return links.join_links(hosts, ends, rows)


@pytest.mark.parametrize(
    ("switch", "port", "chassis"),
    [
        ("leaf-07", "Ethernet0", ""),
        ("LEAF-07.other.example", "TO-Ethernet0", ""),
        ("another name", "etp-Ethernet0", CHASSIS),
    ],
)
def test_names_in_the_lldp_of_the_switch_determine_the_port(switch, port, chassis):
    found = joined([host(switch, port, chassis)], [end(), end(port="Ethernet4")])
    assert found.links == {PORT: links.PortLink(PORT, NIC, "3", ("host_lldp",))}
    assert found.faults == []


def test_lldp_of_the_server_is_used_where_the_server_receives_none():
    found = joined([host()], [end("gpu-0001.example", "eth0")])
    assert found.links[PORT].evidence == ("switch_lldp",)


def test_server_without_a_known_interface_confirms_and_determines_no_link():
    address = "02:bb:00:00:00:01"
    assert joined([host()], [end("gpu-0001", address)]).links == {}
    found = joined([host("leaf-07", "Ethernet0")], [end("gpu-0001", address)])
    assert found.links[PORT].evidence == ("host_lldp", "switch_lldp")
    assert found.faults == []


def test_cabling_file_is_used_without_lldp_and_confirms_otherwise():
    row = links.CabledLink("leaf-07", "TO-Ethernet0", *NIC)
    assert joined([host()], [end()], row).links[PORT].evidence == ("cabling_file",)
    both = joined([host("leaf-07", "Ethernet0")], [end()], row)
    assert both.links[PORT].evidence == ("host_lldp", "cabling_file")
    assert both.faults == []


def test_ends_that_contradict_each_other_are_a_fault_and_the_host_counts():
    other = ("gpu-0002", "eth0")
    hosts = [host("leaf-07", "Ethernet0"), host(nic=other)]
    found = joined(hosts, [end("gpu-0002", "eth0")])
    assert found.links[PORT].nic == NIC
    assert found.faults == [links.CablingFault("ends_differ", PORT, NIC, other)]


def test_two_servers_at_one_port_are_a_fault():
    other = ("gpu-0002", "eth0")
    hosts = [host("leaf-07", "Ethernet0"), host("leaf-07", "Ethernet0", nic=other)]
    assert joined(hosts, [end()]).faults == [links.CablingFault("several_hosts", PORT, NIC, other)]


def test_cable_at_another_port_than_the_file_states_is_a_fault():
    row = links.CabledLink("leaf-07", "Ethernet4", *NIC)
    found = joined([host("leaf-07", "Ethernet0")], [end(), end(port="Ethernet4")], row)
    assert found.links[PORT].nic == NIC
    listed = ("leaf-07", "Ethernet4")
    assert found.faults == [links.CablingFault("file_differs", listed, ("", ""), NIC)]


def test_name_of_two_switches_determines_none():
    second = end()._replace(switch="leaf-08")
    assert joined([host("leaf-07.example", "Ethernet0", CHASSIS)], [end(), second]).links == {}


TEXT = st.sampled_from(["", "leaf-07", "leaf-08", "n1", "n2", "eth0", "eth1", "Ethernet0", "a.b"])


@given(
    st.lists(st.builds(links.HostEnd, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)),
    st.lists(st.builds(links.SwitchEnd, TEXT, TEXT, st.tuples(TEXT), TEXT, TEXT, TEXT, TEXT)),
    st.lists(st.builds(links.CabledLink, TEXT, TEXT, TEXT, TEXT)),
)
def test_every_link_has_evidence_and_no_evidence_both_confirms_and_contradicts(hosts, ends, rows):
    found = links.join_links(hosts, ends, rows)
    assert len({link.nic for link in found.links.values()}) == len(found.links)
    for port, link in found.links.items():
        assert link.port == port
        assert link.evidence
        assert all(fault.stated != link.nic for fault in found.faults if fault.port == port)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port,switch,node,interface\n", "line 1: invalid header"),
        ("switch,port,node,interface\nleaf-07,,n1,eth0\n", "line 2: expected a value"),
        (
            "switch,port,node,interface\nleaf-07,1,n1,eth0\nleaf-07,1,n1,eth1\n",
            "line 3: leaf-07/1 is also in line 2",
        ),
        (
            "switch,port,node,interface\nleaf-07,1,n1,eth0\nleaf-07,2,n1,eth0\n",
            "line 3: n1/eth0 is also in line 2",
        ),
    ],
)
def test_errors_in_the_cabling_file_name_the_line(tmp_path, text, problem):
    file = tmp_path / "cabling.csv"
    file.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read_cabling(SwitchesSettings(cabling_file=str(file)))


def test_cabling_file(tmp_path):
    file = tmp_path / "cabling.csv"
    file.write_text("switch,port,node,interface\n leaf-07 ,Ethernet0,gpu-0001,eth0\n")
    assert read_cabling(SwitchesSettings(cabling_file=str(file))) == (
        links.CabledLink(*PORT, *NIC),
    )
