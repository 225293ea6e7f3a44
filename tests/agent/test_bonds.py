"""Bonds: links, the active member, LACP, lost links."""

from __future__ import annotations

from support.machine import FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.bonds import BondSource
from railscope_agent.sources.network_links import NET


def add_bond(host: FakeHost, bond: str, mode: str, *members: str, up: str = "up") -> None:
    masters = host.files.get(f"{NET}/bonding_masters", "")
    host.files[f"{NET}/bonding_masters"] = f"{masters.strip()} {bond}\n"
    host.files |= {
        f"{NET}/{bond}/bonding/mode": f"{mode}\n",
        f"{NET}/{bond}/bonding/mii_status": f"{up}\n",
        f"{NET}/{bond}/bonding/slaves": f"{' '.join(members)}\n",
        f"{NET}/{bond}/bonding/ad_aggregator": "2\n",
    }
    for member in members:
        host.files |= {
            f"{NET}/{member}/bonding_slave/mii_status": "up\n",
            f"{NET}/{member}/bonding_slave/state": "active\n",
            f"{NET}/{member}/bonding_slave/link_failure_count": "0\n",
            f"{NET}/{member}/bonding_slave/ad_aggregator_id": "2\n",
        }


def test_lacp_that_left_a_member_alone() -> None:
    host = FakeHost()
    add_bond(host, "bond0", "802.3ad 4", "eth0", "eth1")
    host.files[f"{NET}/eth1/bonding_slave/ad_aggregator_id"] = "3\n"
    host.files[f"{NET}/eth1/bonding_slave/link_failure_count"] = "17\n"
    outcome = read_once(BondSource(), host)
    assert numbers(outcome.frame) == {
        ("railscope_bond_up", ("bond0",)): 1,
        ("railscope_bond_members", ("bond0",)): 2,
        ("railscope_bond_member_up", ("bond0", "eth0")): 1,
        ("railscope_bond_member_up", ("bond0", "eth1")): 1,
        ("railscope_bond_member_active", ("bond0", "eth0")): 1,
        ("railscope_bond_member_active", ("bond0", "eth1")): 1,
        ("railscope_bond_member_aggregated", ("bond0", "eth0")): 1,
        ("railscope_bond_member_aggregated", ("bond0", "eth1")): 0,
        ("railscope_bond_member_link_failures_total", ("bond0", "eth0")): 0,
        ("railscope_bond_member_link_failures_total", ("bond0", "eth1")): 17,
    }
    (finding,) = outcome.findings
    assert (finding.subject, finding.detail) == ("bond bond0", "802.3ad, eth0, eth1")


def test_no_aggregator_is_none_of_them() -> None:
    host = FakeHost()
    add_bond(host, "bond0", "802.3ad 4", "eth0")
    host.files[f"{NET}/bond0/bonding/ad_aggregator"] = "0\n"
    host.files[f"{NET}/eth0/bonding_slave/ad_aggregator_id"] = "0\n"
    key = ("railscope_bond_member_aggregated", ("bond0", "eth0"))
    assert numbers(read_once(BondSource(), host).frame)[key] == 0


def test_a_backup_and_a_link_that_is_down() -> None:
    host = FakeHost()
    add_bond(host, "storage", "active-backup 1", "eth2", "eth3")
    add_bond(host, "empty", "balance-rr 0", up="down")
    host.files[f"{NET}/eth3/bonding_slave/state"] = "backup\n"
    host.files[f"{NET}/eth3/bonding_slave/mii_status"] = "going down\n"
    found = numbers(read_once(BondSource(), host).frame)
    assert found["railscope_bond_member_active", ("storage", "eth2")] == 1
    assert found["railscope_bond_member_active", ("storage", "eth3")] == 0
    assert found["railscope_bond_member_up", ("storage", "eth3")] == 0
    assert found["railscope_bond_up", ("empty",)] == 0
    assert found["railscope_bond_members", ("empty",)] == 0
    assert not any(name.endswith("aggregated") for name, _ in found)


def test_a_member_that_leaves_is_gone() -> None:
    host = FakeHost()
    add_bond(host, "bond0", "active-backup 1", "eth0", "eth1")
    reader = SourceReader(BondSource(), host, ORIGIN)
    reader.run()
    host.files = {path: text for path, text in host.files.items() if "/eth1/" not in path}
    host.files[f"{NET}/bond0/bonding/slaves"] = "eth0\n"
    found = readings(reader.run().frame)
    assert found["railscope_bond_members", ("bond0",)] == 1
    assert found["railscope_bond_member_up", ("bond0", "eth1")] is Absent.GONE
    assert found["railscope_bond_member_up", ("bond0", "eth0")] == 1


def test_a_server_without_bonds() -> None:
    outcome = read_once(BondSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT
