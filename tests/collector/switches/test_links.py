"""Joins of both ends of links by evidence, and contradictions as cabling faults."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from railscope.settings import SettingsError
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches import end_names, link_ends, links
from railscope_collector.switches.switch_settings import read_cabling

CHASSIS = "02:aa:00:00:00:07"
NIC = ("gpu-0001", "eth0")
PORT = ("leaf-07", "Ethernet0")


OTHER = ("gpu-0002", "eth0")
OWN = "02:bb:00:00:00:01"


def host(
    switch: str = "", port: str = "", chassis: str = "", nic: link_ends.Nic = NIC, *addresses: str
) -> link_ends.HostEnd:
    return link_ends.HostEnd(*nic, "3", switch, port, chassis, addresses)


def end(
    neighbour: str = "", neighbour_port: str = "", port: str = "Ethernet0", chassis: str = ""
) -> link_ends.SwitchEnd:
    names = (f"TO-{port}", f"etp-{port}", "")
    return link_ends.SwitchEnd(
        "leaf-07", port, names, "leaf-07.example", CHASSIS, neighbour, neighbour_port, chassis
    )


def with_addresses(nic: link_ends.Nic, *addresses: str) -> link_ends.HostEnd:
    return host("", "", "", nic, *addresses)


def joined(
    hosts: list[link_ends.HostEnd], ends: list[link_ends.SwitchEnd], *rows: link_ends.CabledLink
) -> links.JoinedLinks:
    return links.join_links(hosts, ends, rows)


@pytest.mark.parametrize(
    ("switch", "port", "chassis"),
    [
        ("leaf-07", "Ethernet0", ""),
        ("LEAF-07.example", "TO-Ethernet0", ""),
        ("LEAF-07", "TO-Ethernet0", ""),
        ("leaf-07", "Ethernet0", CHASSIS.upper()),
        ("leaf-07", "Ethernet0", "a chassis of another kind"),
        ("another name", "etp-Ethernet0", CHASSIS),
    ],
)
def test_names_in_the_lldp_of_the_switch_determine_the_port(switch, port, chassis):
    found = joined([host(switch, port, chassis)], [end(), end(port="Ethernet4")])
    assert found.links == {PORT: links.PortLink(PORT, NIC, "3", ("host_lldp",))}
    assert found.faults == []


@pytest.mark.parametrize(
    ("switch", "chassis"),
    [
        ("leaf-07.other.example", ""),
        ("leaf-07.other.example", "02:aa:00:00:00:08"),
        ("leaf-07", "02:aa:00:00:00:08"),
        ("leaf-07.example", "02-AA-00-00-00-08"),
    ],
)
def test_a_switch_with_another_chassis_or_domain_is_another_switch(switch, chassis):
    found = joined([host(switch, "Ethernet0", chassis)], [end()])
    assert (found.links, found.faults) == ({}, [])


def test_a_node_of_another_domain_is_another_node():
    nic = ("gpu-0001.a.example", "eth0")
    for name, expected in (
        ("gpu-0001.b.example", {}),
        ("GPU-0001.A.example", {PORT: nic}),
        ("gpu-0001", {PORT: nic}),
    ):
        found = joined([host(nic=nic)], [end(name, "eth0")])
        assert {port: link.nic for port, link in found.links.items()} == expected
        assert found.faults == []


@pytest.mark.parametrize(
    ("others", "stated"),
    [
        ((("gpu-0002", ""),), ["gpu-0002"]),
        ((("", OWN),), ["gpu-0002"]),
        ((("dpu-of-gpu-0001", "02:cc:00:00:00:01"),), []),
        ((("gpu-0001.example", ""), ("", "")), []),
    ],
)
def test_two_known_nodes_at_one_port_are_a_fault_and_the_newest_is_linked(others, stated):
    hosts = [host(), with_addresses(OTHER, OWN)]
    found = joined(hosts, [end("gpu-0001", "eth0")._replace(others=others)])
    assert found.links[PORT].nic == NIC
    assert found.faults == [
        links.CablingFault("several_hosts", PORT, NIC, (node, "")) for node in stated
    ]


def test_cabling_file_is_used_without_lldp_and_confirms_otherwise():
    row = link_ends.CabledLink("leaf-07", "TO-Ethernet0", *NIC)
    assert joined([host()], [end()], row).links[PORT].evidence == ("cabling_file",)
    both = joined([host("leaf-07", "Ethernet0")], [end()], row)
    assert both.links[PORT].evidence == ("host_lldp", "cabling_file")
    assert both.faults == []


def test_ends_that_contradict_each_other_are_a_fault_and_the_host_counts():
    hosts = [host("leaf-07", "Ethernet0"), host(nic=OTHER)]
    found = joined(hosts, [end("gpu-0002", "eth0")])
    assert found.links[PORT].nic == NIC
    assert found.faults == [links.CablingFault("ends_differ", PORT, NIC, OTHER)]


def test_two_servers_at_one_port_are_a_fault_and_are_not_linked():
    hosts = [host("leaf-07", "Ethernet0"), host("leaf-07", "Ethernet0", nic=OTHER)]
    found = joined(hosts, [end()], link_ends.CabledLink(*PORT, "gpu-0003", "eth0"))
    assert found.links == {}
    assert found.faults == [
        links.CablingFault("file_differs", PORT, link_ends.NO_NIC, ("gpu-0003", "eth0")),
        links.CablingFault("several_hosts", PORT, NIC, OTHER),
    ]


# Texts that a device announces about a port ---------------------------------------------------------

MAC = "fc:00:00:00:00:90"
SHIFTED = {
    f"Ethernet{n}": (f"Ethernet{n + 1}", f"Ethernet{n}", "TO-SERVER", MAC, f"Ethernet{n + 1}")
    for n in range(4)
}
"""Ports of a switch that announces aliases, each of which is the name of the next port."""
DISTINCT = {
    f"Ethernet{4 * n}": ("", f"Ethernet{4 * n}", f"gpu-1:eth{n}", mac, f"etp{n}")
    for n, mac in enumerate((MAC, MAC, "fc:00:00:00:00:91", ""))
}
SAME_ID = {port: ("etp1", *texts[1:]) for port, texts in DISTINCT.items()}


@pytest.mark.parametrize(
    ("ports", "port_id", "description", "expected"),
    [
        (DISTINCT, "Ethernet4", "", "Ethernet4"),
        (DISTINCT, "etp1", "", "Ethernet4"),
        (DISTINCT, "fc00.0000.0091", "", "Ethernet8"),
        (DISTINCT, MAC, "", ""),
        (DISTINCT, MAC, "Ethernet4", "Ethernet4"),
        (DISTINCT, MAC, "Ethernet12", "Ethernet12"),
        (DISTINCT, "7", "etp2", "Ethernet8"),
        (DISTINCT, "7", "gpu-1:eth1", "Ethernet4"),
        (DISTINCT, "7", "leaf-07:Ethernet8", "Ethernet8"),
        (DISTINCT, "7", "LEAF-07.dc: etp2 (uplink)", "Ethernet8"),
        (DISTINCT, "7", "Ethernet8 to gpu-1", "Ethernet8"),
        (DISTINCT, "7", "spine-1:Ethernet8", ""),
        (DISTINCT, "7", "connected to leaf (Ethernet8)", ""),
        (DISTINCT, "7", "", ""),
        (DISTINCT, "", "", ""),
        (DISTINCT, "etp1", "Ethernet8", "Ethernet4"),
        (SHIFTED, "Ethernet1", "", "Ethernet0"),
        (SHIFTED, "Ethernet1", "TO-SERVER", "Ethernet0"),
        (SHIFTED, "Ethernet1", "Ethernet0", "Ethernet0"),
        (SHIFTED, "Ethernet1", "Ethernet1", "Ethernet1"),
        (SHIFTED, "Ethernet1", "Ethernet3", "Ethernet0"),
        (SHIFTED, MAC, "Ethernet1", "Ethernet1"),
        (SHIFTED, MAC, "TO-SERVER", ""),
        (SAME_ID, "etp1", "", ""),
        (SAME_ID, "etp1", "Ethernet8", "Ethernet8"),
    ],
)
def test_port_is_the_one_that_its_id_names_or_else_its_description(
    ports, port_id, description, expected
):
    found = end_names.DevicePorts(("leaf-07", "leaf-07.dc"), ports)
    assert found.find(port_id, description) == expected


# MAC addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["02:bb:00:00:00:01", "02-BB-00-00-00-01", "02bb.0000.0001", "02bb00000001", " 0x02BB00000001"],
)
def test_mac_addresses_are_compared_in_any_notation(text):
    assert end_names.mac_address(text) == OWN
    found = joined([with_addresses(NIC, OWN)], [end("", text, chassis=text)])
    assert found[:2] == ({PORT: links.PortLink(PORT, NIC, "3", ("switch_lldp",))}, [])


@pytest.mark.parametrize(
    "text",
    ["", "Ethernet1/1", "02:bb:00:00:00", "02:bb-00:00:00:01", "02bb.00000001", OWN + ":02",
     "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:80:c2:00:00:0e"],
)  # fmt: skip
def test_texts_other_than_the_mac_address_of_a_device(text):
    assert end_names.mac_address(text) == ""


def test_members_of_a_bond_are_distinguished_by_their_permanent_addresses():
    first, second = with_addresses(NIC, OWN), ("gpu-0001", "eth1")
    member = with_addresses(second, "02:bb:00:00:00:02", OWN)
    ports = [end("", OWN), end("", "02:bb:00:00:00:02", "Ethernet4")]
    found = joined([first, member], ports)
    assert [link.nic for link in found.links.values()] == [NIC, second]
    assert found.faults == []


def test_switches_with_one_identity_are_a_fault_unless_the_chassis_or_the_name_is_of_one():
    copy = link_ends.SwitchEnd("leaf-09", "Ethernet0", (), "leaf-07.example", CHASSIS)
    announced = host("leaf-07.example", "Ethernet0", CHASSIS)
    found = joined([announced], [end(), copy])
    fault = links.CablingFault("duplicate_switch", PORT, ("", ""), NIC)
    assert found[:2] == ({}, [fault])
    found = joined([announced], [end("gpu-0001"), copy], link_ends.CabledLink(*PORT, *NIC))
    assert found.links[PORT].nic == NIC
    assert found.faults == [links.CablingFault("duplicate_switch", PORT, NIC)]
    other_chassis = copy._replace(chassis="02:aa:00:00:00:09")
    assert joined([announced], [end(), other_chassis]).faults == []
    assert joined([announced], [end()]).faults == []


def test_mac_address_that_two_nodes_report_joins_none_and_is_a_fault_that_names_both():
    hosts = [with_addresses(NIC, OWN), with_addresses(OTHER, OWN.upper())]
    found = joined(hosts, [end("gpu-0002", OWN)])
    assert found.links == {}
    assert found.faults == [links.CablingFault("duplicate_address", PORT, NIC, OTHER)]


@pytest.mark.parametrize(
    "ends",
    [end("gpu-0002", OWN), end("", OWN, chassis="02:bb:00:00:00:02")],
    ids=["name", "chassis"],
)
def test_mac_address_of_one_node_with_the_name_of_another_is_a_fault(ends):
    hosts = [with_addresses(NIC, OWN), with_addresses(OTHER, "02:bb:00:00:00:02")]
    found = joined(hosts, [ends])
    assert found.links == {}
    assert found.faults == [links.CablingFault("nodes_differ", PORT, NIC, ("gpu-0002", ""))]


@pytest.mark.parametrize("neighbour", ["gpu-0001", ""])
def test_host_name_or_chassis_of_two_nodes_is_a_fault_unless_the_other_one_decides(neighbour):
    nics = [(f"gpu-0001.{site}", "eth0") for site in "ab"]
    chassis = "02:bb:00:00:00:00"
    hosts = [
        with_addresses(nics[0], chassis),
        with_addresses(nics[1], "" if neighbour else chassis),
    ]
    found = joined(hosts, [end(neighbour, "eth0", chassis="" if neighbour else chassis)])
    assert found.links == {}
    both = [(node, "") for node, _ in nics]
    assert found.faults == [links.CablingFault("nodes_differ", PORT, *both)]
    assert joined(hosts[:1], [end(neighbour, "eth0", chassis=chassis)]).links[PORT].nic == nics[0]
    assert joined(hosts, [end("gpu-0001.b", "eth0")]).links[PORT].nic == nics[1]
    if neighbour:
        decided = joined(hosts, [end(neighbour, "eth0", chassis=chassis)])
        assert decided.links[PORT].nic == nics[0]


def test_nic_at_two_switch_ports_is_a_fault_at_both():
    ports = [end("", OWN), end("", OWN, "Ethernet4")]
    found = joined([with_addresses(NIC, OWN)], ports)
    assert found.links == {}
    second = ("leaf-07", "Ethernet4")
    assert found.faults == [
        links.CablingFault("several_ports", port, link_ends.NO_NIC, NIC) for port in (PORT, second)
    ]
    row = link_ends.CabledLink(*second, *NIC)
    assert joined([with_addresses(NIC, OWN)], ports, row).links[second].nic == NIC
    by_host = joined([host("leaf-07", "Ethernet0", "", NIC, OWN)], ports)
    assert by_host.links[PORT].evidence == ("host_lldp", "switch_lldp")
    assert by_host.faults == [links.CablingFault("ends_differ", second, link_ends.NO_NIC, NIC)]


# Rails -------------------------------------------------------------------------------------------


def test_nic_on_a_leaf_of_another_rail_is_a_fault_without_any_switch():
    """Two cables of one node are exchanged."""
    hosts = [
        link_ends.HostEnd(f"n{node}", f"eth{rail}", str(rail), f"leaf-{leaf}", f"Ethernet{node}")
        for node in range(4)
        for rail, leaf in enumerate((1, 0) if node == 2 else (0, 1))
    ]
    assert joined(hosts, []) == links.JoinedLinks(
        {},
        [
            links.CablingFault("wrong_rail", ("leaf-0", "Ethernet2"), ("n2", "eth1"), expected=("leaf-1",)),
            links.CablingFault("wrong_rail", ("leaf-1", "Ethernet2"), ("n2", "eth0"), expected=("leaf-0",)),
        ],
        nics=8,
    )  # fmt: skip


# Properties --------------------------------------------------------------------------------------

TEXT = st.sampled_from(
    ["", "leaf-07", "leaf-08", "n1", "n2", "eth0", "Ethernet0", "a.b", OWN, "02bb00000001", "02-bb-00-00-00-02"]
)  # fmt: skip
HOSTS = st.lists(
    st.builds(link_ends.HostEnd, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, st.tuples(TEXT, TEXT), TEXT),
    unique_by=lambda host: host[:2],
)
ENDS = st.lists(
    st.builds(link_ends.SwitchEnd, TEXT, TEXT, st.tuples(TEXT), *[TEXT] * 7),
    unique_by=lambda end: end[:2],
)
ROWS = st.lists(
    st.builds(link_ends.CabledLink, TEXT, TEXT, TEXT, TEXT), unique_by=lambda row: row[:2]
)


@given(HOSTS, ENDS, ROWS)
def test_every_link_has_evidence_and_no_evidence_both_confirms_and_contradicts(hosts, ends, rows):
    found = links.join_links(hosts, ends, rows)
    assert len({link.nic for link in found.links.values()}) == len(found.links)
    assert {fault.kind for fault in found.faults} <= set(links.FAULT_KINDS)
    for port, link in found.links.items():
        assert link.port == port
        assert link.evidence
        assert len(set(link.evidence)) == len(link.evidence)
        assert all(fault.stated != link.nic for fault in found.faults if fault.port == port)


@given(HOSTS, ENDS, ROWS, st.randoms())
def test_links_and_faults_do_not_depend_on_the_order_of_the_evidence(hosts, ends, rows, random):
    found = links.join_links(hosts, ends, rows)
    for evidence in (hosts, ends, rows):
        random.shuffle(evidence)
    assert links.join_links(hosts, ends, rows) == found


@given(
    HOSTS,
    ENDS,
    ROWS,
    st.builds(link_ends.HostEnd, st.just("hostile"), TEXT, TEXT, TEXT, TEXT, TEXT, st.tuples(TEXT)),
)
def test_node_takes_no_link_of_another_silently(hosts, ends, rows, hostile):
    """With another node, a link remains, or a fault names its port or its NIC."""
    before = links.join_links(hosts, ends, rows)
    after = links.join_links([*hosts, hostile], ends, rows)
    for port, link in before.links.items():
        if after.links.get(port, link).nic != link.nic or port not in after.links:
            assert any(
                fault.port == port or link.nic in (fault.found, fault.stated)
                for fault in after.faults
            )


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
        link_ends.CabledLink(*PORT, *NIC),
    )
